"""A message of Anthropic's Messages API as it grows: the object, and the events in their order.

message_start, then per block content_block_start, deltas, content_block_stop, then message_delta
with the reason of the end, then message_stop. The object at the end of the events is the answer of
a call without a stream. Events hold the growing object: write one before asking for the next.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from runtime.server.reply_blocks import Block, BlockBegin, BlockDelta, BlockEnd, BlockEvent
from runtime.server.usage import Usage

Event = dict[str, Any]

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class GrowingMessage:
    """`body` is the message as far as it has come."""

    def __init__(self, message_id: str, model: str, usage: Usage) -> None:
        self._usage = usage
        self.body: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {},
        }

    def begin(self) -> Iterator[Event]:
        self.body["usage"] = usage_body(self._usage)  # now known: what the prefix cache held
        yield {"type": "message_start", "message": self.body}

    def grow(self, events: Iterable[BlockEvent]) -> Iterator[Event]:
        for event in events:
            match event:
                case BlockBegin(block):
                    self.body["content"].append(_empty(block))
                    yield self._of_block("start", content_block=_empty(block))
                case BlockDelta(block, text):
                    yield self._of_block("delta", delta=_delta(block, text))
                case BlockEnd(block):
                    self._fill(block)
                    if block.kind == "reasoning":  # nothing is signed here
                        signature = {"type": "signature_delta", "signature": ""}
                        yield self._of_block("delta", delta=signature)
                    yield self._of_block("stop")

    def end(
        self, events: Iterable[BlockEvent], finish_reason: str | None, stop_reason: Any
    ) -> Iterator[Event]:
        """The end of the last block, and of the message."""
        yield from self.grow(events)
        is_sequence = finish_reason == "stop" and isinstance(stop_reason, str)
        reason = _STOP_REASONS.get(finish_reason or "", "end_turn")
        end = {"stop_reason": reason, "stop_sequence": None}
        if is_sequence:
            end = {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
        self.body |= end | {"usage": usage_body(self._usage)}
        yield {"type": "message_delta", "delta": end, "usage": self.body["usage"]}
        yield {"type": "message_stop"}

    def _of_block(self, kind: str, **fields: Any) -> Event:
        index = len(self.body["content"]) - 1
        return {"type": f"content_block_{kind}", "index": index, **fields}

    def _fill(self, block: Block) -> None:
        content = self.body["content"][-1]
        match block.kind:
            case "text":
                content["text"] = block.text
            case "reasoning":
                content["thinking"] = block.text
            case "call":
                content["input"] = json.loads(block.text)


def _empty(block: Block) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text", "text": ""}
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "call":
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}


def _delta(block: Block, text: str) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text_delta", "text": text}
        case "reasoning":
            return {"type": "thinking_delta", "thinking": text}
        case "call":
            return {"type": "input_json_delta", "partial_json": text}


def usage_body(usage: Usage) -> dict[str, int]:
    """Tokens as Anthropic counts them: those found in the prefix cache are no input tokens."""
    cached = usage.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }
