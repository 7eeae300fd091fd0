"""The `usage` object of an answer: tokens of the prompts, of all their completions, and how many
the prefix cache spared.
"""

from dataclasses import dataclass, field
from typing import Any

from runtime.engine.request import Request, RequestDelta


@dataclass
class Usage:
    """Counts over all requests of one answer; grows with their deltas."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0  # of the completion tokens
    _cached: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, requests: tuple[Request, ...]) -> "Usage":
        return cls(sum(len(request.prompt_token_ids) for request in requests))

    def add(self, delta: RequestDelta) -> None:
        self.completion_tokens += sum(len(news.token_ids) for news in delta.completions)
        cached = self._cached.get(delta.request_id, 0)
        if delta.num_cached_tokens > cached:
            self._cached[delta.request_id] = delta.num_cached_tokens

    @property
    def cached_tokens(self) -> int:
        return sum(self._cached.values())

    @property
    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }
