"""How a model's reasoning is told from its answer, token by token. A plain record: what it is used
for stands in runtime.engine.constraint.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningRule:
    """Reasoning comes first and ends with `end`. It has begun already (`is_open`), or begins with
    `begin`, or there is none. The ids are tokens that spell both.
    """

    begin: bytes
    begin_ids: tuple[int, ...]
    end: bytes
    end_ids: tuple[int, ...]
    is_open: bool
    max_tokens: int | None = None  # tokens of reasoning after which its end is forced
