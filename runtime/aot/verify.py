"""Checks an artifact on this host: every file's hash, the signature where a key is given, and the
goldens, played again.
"""

from runtime.aot.goldens import difference
from runtime.aot.manifest import open_artifact
from runtime.config import EngineConfig, Report
from runtime.engine.engine import Engine


def verify(config: EngineConfig, report: Report) -> bool:
    """Reports what was found; whether all tokens were the goldens'. Raises ArtifactError."""
    artifact = open_artifact(config.artifact, config.trusted_key, config.trust_artifact)
    artifact.folder.check_all()
    signed = "signed by the trusted key" if config.trusted_key else "signature not checked"
    report(f"{len(artifact['files'])} files have their hashes; {signed}", 0, 0)
    engine = Engine(config, report)
    is_same, largest = True, 0.0
    for number, golden in enumerate(artifact["goldens"], 1):
        found = difference(engine, golden)
        is_same &= found.num_other == 0
        largest = max(largest, found.largest)
        report(
            f"golden {number}: {found.num_tokens - found.num_other} of {found.num_tokens} tokens "
            f"the same, log-probabilities within {found.largest:.3g}",
            0,
            0,
        )
    report(f"largest difference of log-probabilities: {largest:.3g}", 0, 0)
    return is_same
