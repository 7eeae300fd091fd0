"""Logits processors that a request may ask for by name.

A processor looks at the vocabulary once and says which tokens to favour, to avoid or to ban; the
step adds that to the logits. Whoever runs the server adds processors as entry points of the group
`halogen.logits_processors`; a request can name one and cannot bring code.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points

from runtime.engine.sampling_params import ParameterError

GROUP = "halogen.logits_processors"

# From the bytes of every token to what is added to the logits of some; -inf bans.
LogitsProcessor = Callable[[Sequence[bytes]], Mapping[int, float]]


def ascii_only(pieces: Sequence[bytes]) -> dict[int, float]:
    """Bans every token with a byte beyond ASCII."""
    return {token_id: -float("inf") for token_id, piece in enumerate(pieces) if not piece.isascii()}


_BUILT_IN: dict[str, LogitsProcessor] = {"ascii_only": ascii_only}


def logits_processor(name: str) -> LogitsProcessor:
    """The processor of a name. Raises ParameterError that lists those there are."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    installed = entry_points(group=GROUP)
    if name not in installed.names:
        known = ", ".join(sorted({*_BUILT_IN, *installed.names}))
        raise ParameterError(
            "logits_processors", f"logits_processors: {name[:64]!r} is unknown; there is {known}"
        )
    return installed[name].load()
