"""How well counted draws fit a distribution."""

import numpy as np
from scipy import stats

MIN_EXPECTED = 15  # draws per group, so that the chi-square approximation holds


def p_value(seen: np.ndarray, mass: np.ndarray) -> float:
    """Chi-square p-value of counts [V] against masses [V] (any scale), rare tokens grouped."""
    order = np.argsort(mass, kind="stable")
    expected = mass[order].astype(np.float64)
    expected *= seen.sum() / expected.sum()
    groups = (np.cumsum(expected) / MIN_EXPECTED).astype(int)
    groups = np.unique(np.minimum(groups, groups[-1] - 1), return_inverse=True)[1]
    counted, wanted = np.bincount(groups, seen[order]), np.bincount(groups, expected)
    is_possible = wanted > 0
    assert np.all(counted[~is_possible] == 0)
    return float(stats.chisquare(counted[is_possible], wanted[is_possible]).pvalue)
