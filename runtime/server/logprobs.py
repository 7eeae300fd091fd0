"""Log-probabilities in the three shapes clients know: OpenAI chat, OpenAI's older completions,
vLLM's prompt_logprobs.

All three render the engine's TokenLogprob. JSON has no infinity, so a log-probability below FLOOR
is written as FLOOR.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from runtime.engine.request import TokenLogprob
from runtime.tokenizer import IncrementalDetokenizer, Tokenizer

FLOOR = -9999.0


def _finite(logprob: float) -> float:
    return max(FLOOR, logprob)  # in this order NaN becomes FLOOR too


class TokenNames:
    """How a token is written in an answer: its text, or `token_id:N` where the client asked for
    ids.
    """

    def __init__(self, tokenizer: Tokenizer, is_as_ids: bool) -> None:
        self.tokenizer = tokenizer
        self._is_as_ids = is_as_ids

    def text(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._is_as_ids else self.tokenizer.token_text(token_id)

    def bytes(self, token_id: int) -> bytes:
        return self.tokenizer.token_bytes(token_id)


def chat_logprobs(entries: Iterable[TokenLogprob], names: TokenNames) -> dict[str, Any]:
    """`{"content": [{token, logprob, bytes, top_logprobs}]}`."""

    def token(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": names.text(token_id),
            "logprob": _finite(logprob),
            "bytes": list(names.bytes(token_id)),
        }

    content = [
        token(entry.token_id, entry.logprob)
        | {"top_logprobs": [token(*alternative) for alternative in entry.top]}
        for entry in entries
    ]
    return {"content": content}


class CompletionLogprobs:
    """`{tokens, token_logprobs, top_logprobs, text_offset}` of one choice; keeps the offset from
    chunk to chunk.

    `text_offset` counts characters of the choice's text. A token inside a character has the
    character's offset.
    """

    def __init__(self, names: TokenNames, count: int, skip_special_tokens: bool) -> None:
        self._names = names
        self._count = count  # alternatives per token
        self._detokenizer = IncrementalDetokenizer(
            names.tokenizer, skip_special_tokens, continues_text=True
        )
        self._offset = 0

    def render_prompt(
        self, text: str, token_ids: Sequence[int], entries: Sequence[TokenLogprob | None]
    ) -> dict[str, list[Any]]:
        """An echoed prompt, before anything else. Tokens that encoding put in front of the text
        have offset 0.
        """
        tokenizer = self._names.tokenizer
        start = len(text) - len(tokenizer.decode(token_ids, skip_special_tokens=False))
        rendered = self._render(token_ids, entries, IncrementalDetokenizer(tokenizer, False), start)
        self._offset = len(text)
        return rendered

    def render(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprob]
    ) -> dict[str, list[Any]]:
        """The next tokens of the completion."""
        return self._render(token_ids, entries, self._detokenizer, self._offset)

    def _render(
        self,
        token_ids: Sequence[int],
        entries: Sequence[TokenLogprob | None],
        detokenizer: IncrementalDetokenizer,
        offset: int,
    ) -> dict[str, list[Any]]:
        rendered: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for token_id, entry in zip(token_ids, entries, strict=True):
            rendered["tokens"].append(self._names.text(token_id))
            rendered["token_logprobs"].append(None if entry is None else _finite(entry.logprob))
            rendered["top_logprobs"].append(None if entry is None else self._top(entry))
            rendered["text_offset"].append(max(0, offset))
            offset += len(detokenizer.push(token_id))
        self._offset = offset
        return rendered

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """Likeliest first, the token itself at least; of two tokens with one text the likelier
        counts.
        """
        top: dict[str, float] = {}
        for token_id, logprob in (*entry.top[: self._count], (entry.token_id, entry.logprob)):
            top.setdefault(self._names.text(token_id), _finite(logprob))
        return top


def prompt_logprobs(
    entries: Sequence[TokenLogprob | None], names: TokenNames
) -> list[dict[str, Any] | None]:
    """vLLM's shape: per prompt token None or `{token id: {logprob, rank, decoded_token}}`."""

    def position(entry: TokenLogprob) -> dict[str, Any]:
        ranked = [
            (token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top, 1)
        ]
        return {
            str(token_id): {
                "logprob": _finite(logprob),
                "rank": rank,
                "decoded_token": names.text(token_id),
            }
            for token_id, logprob, rank in ((entry.token_id, entry.logprob, entry.rank), *ranked)
        }

    return [None if entry is None else position(entry) for entry in entries]
