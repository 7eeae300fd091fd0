"""A response as it grows: the object that clients see, and the events that tell them, in OpenAI's
order.

A response consists of items; an item is added, grows, and is done. Every event has the next
sequence number. The object at the end of the events is the answer of a call without a stream.
Events hold the growing object itself: write one before asking for the next.
"""

import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from runtime.server.errors import ApiError
from runtime.server.logprobs import TokenNames, chat_logprobs
from runtime.server.reply_blocks import Block, BlockBegin, BlockDelta, BlockEnd, BlockEvent
from runtime.server.usage import Usage

Event = dict[str, Any]

_ID_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
_PART_TYPES = {"reasoning": "reasoning_text", "text": "output_text"}


class GrowingResponse:
    """`body` is the response as clients see it at this moment; `usage` grows beside it."""

    def __init__(
        self, body: dict[str, Any], usage: Usage, names: TokenNames, *, has_logprobs: bool
    ) -> None:
        self.body = body
        self._usage = usage
        self._names = names
        self._has_logprobs = has_logprobs
        self._next_number = 0

    @property
    def is_known(self) -> bool:
        """A client has been told of it."""
        return self.body["background"] or self._next_number > 0

    def begin(self) -> Iterator[Event]:
        self.body["status"] = "in_progress"
        yield self._whole("response.created")
        yield self._whole("response.in_progress")

    def grow(self, events: Iterable[BlockEvent]) -> Iterator[Event]:
        for event in events:
            match event:
                case BlockBegin(block):
                    yield from self._add(block)
                case BlockDelta():
                    yield self._delta(event)
                case BlockEnd(block):
                    yield from self._done(block, "completed")

    def end(
        self, events: Iterable[BlockEvent], finish_reason: str | None, stop_reason: Any
    ) -> Iterator[Event]:
        """The end of the last block, and of the response."""
        is_cut = finish_reason == "length"  # what else may stop it, the response does not tell
        status = "incomplete" if is_cut else "completed"
        for event in events:
            yield from self._done(event.block, status)
        if is_cut:
            self.body["incomplete_details"] = {"reason": "max_output_tokens"}
        ended = {"status": status, "usage": _usage_body(self._usage)}
        self.body |= ended | {"completed_at": int(time.time())}
        yield self._whole(f"response.{status}")

    def fail(self, error: ApiError) -> Iterator[Event]:
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        self.body |= {"status": "failed", "error": {"code": code, "message": error.message}}
        yield self._whole("response.failed")

    def _event(self, kind: str, **fields: Any) -> Event:
        number = self._next_number
        self._next_number += 1
        return {"type": kind, "sequence_number": number, **fields}

    def _whole(self, kind: str) -> Event:
        return self._event(kind, response=self.body)

    @property
    def _item(self) -> dict[str, Any]:
        return self.body["output"][-1]

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item["id"], "output_index": len(self.body["output"]) - 1}

    def _item_event(self, kind: str) -> Event:
        index = len(self.body["output"]) - 1
        return self._event(f"response.output_item.{kind}", output_index=index, item=self._item)

    def _part_event(self, kind: str) -> Event:
        part = self._item["content"][0]
        return self._event(f"response.{kind}", **self._place, content_index=0, part=part)

    def _add(self, block: Block) -> Iterator[Event]:
        item: dict[str, Any] = {
            "id": f"{_ID_PREFIXES[block.kind]}_{uuid.uuid4().hex}",
            "status": "in_progress",
        }
        match block.kind:
            case "call":
                item |= {"type": "function_call", "call_id": block.call_id, "name": block.name}
                item["arguments"] = ""
            case "reasoning":
                item |= {"type": "reasoning", "summary": [], "content": []}
            case "text":
                item |= {"type": "message", "role": "assistant", "content": []}
        self.body["output"].append(item)
        yield self._item_event("added")
        if block.kind != "call":
            part: dict[str, Any] = {"type": _PART_TYPES[block.kind], "text": ""}
            if block.kind == "text":
                part |= {"annotations": [], "logprobs": []}
            item["content"].append(part)
            yield self._part_event("content_part.added")

    def _delta(self, delta: BlockDelta) -> Event:
        if delta.block.kind == "call":
            self._item["arguments"] += delta.text
            kind = "response.function_call_arguments.delta"
            return self._event(kind, **self._place, delta=delta.text)
        part = self._item["content"][0]
        part["text"] += delta.text
        event = self._event(
            f"response.{part['type']}.delta", **self._place, content_index=0, delta=delta.text
        )
        if delta.block.kind == "text":
            logprobs = chat_logprobs(delta.logprobs, self._names) if self._has_logprobs else {}
            event["logprobs"] = logprobs.get("content", [])
            part["logprobs"] += event["logprobs"]
        return event

    def _done(self, block: Block, status: str) -> Iterator[Event]:
        self._item["status"] = status
        if block.kind == "call":
            called = {"name": block.name, "arguments": block.text}
            yield self._event("response.function_call_arguments.done", **self._place, **called)
        else:
            part = self._item["content"][0]
            said = {name: part[name] for name in ("text", "logprobs") if name in part}
            kind = f"response.{part['type']}.done"
            yield self._event(kind, **self._place, content_index=0, **said)
            yield self._part_event("content_part.done")
        yield self._item_event("done")


def _usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
