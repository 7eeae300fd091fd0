"""From the deltas of a chat generation to the parts of its replies.

Every route that answers a conversation reads deltas through here, streamed and whole alike:

    replies = prepared.replies                      # of runtime.server.prepared_chat
    async for _, delta in generation.deltas():
        for news in delta.completions:
            parts = replies.push(news)              # what this delta adds, to be sent in a stream
    replies.reply(0)                                # the whole reply of choice 0, a Reply
    replies.finish_reason(news)                     # `tool_calls` where the reply has made one

Parts and Reply are those of runtime.reply.parts. Knows no shape of any API.
"""

from runtime.engine.request import CompletionDelta, FinishReason
from runtime.reply.formats import ReplyFormat, ReplyParser
from runtime.reply.part_parser import Tools
from runtime.reply.parts import Part, Reasoning, Reply


class Replies:
    """The replies of one request, choice by choice."""

    def __init__(self, reply_format: ReplyFormat, tools: Tools, prompt_end: str) -> None:
        self._format = reply_format
        self._tools = tools
        self._prompt_end = prompt_end
        self._parsers: dict[int, ReplyParser] = {}
        self._replies: dict[int, Reply] = {}
        self._undecided: dict[int, int] = {}  # tokens that may turn out to begin the reasoning
        self.num_reasoning_tokens = 0  # of all choices

    def push(self, news: CompletionDelta) -> list[Part]:
        """The parts that a delta makes certain; with its last delta, the rest of the reply."""
        parser, reply = self._parser(news.index), self.reply(news.index)
        was_reasoning = parser.is_reasoning
        parts = parser.push(news.text)
        undecided = self._undecided.get(news.index, 0) + len(news.token_ids)
        is_reasoning = was_reasoning or parser.is_reasoning
        if is_reasoning or any(isinstance(part, Reasoning) for part in parts):
            self.num_reasoning_tokens += undecided
            undecided = 0
        self._undecided[news.index] = 0 if parts else undecided
        if news.finish_reason is not None:
            parts += parser.finish()
        reply.add(parts)
        return parts

    def reply(self, index: int) -> Reply:
        """The reply of a choice, as far as it has come."""
        return self._replies.setdefault(index, Reply())

    def finish_reason(self, news: CompletionDelta) -> FinishReason | None:
        """Why the choice ended, after its last delta was pushed."""
        if news.finish_reason == "stop" and self.reply(news.index).tool_calls:
            return "tool_calls"
        return news.finish_reason

    def _parser(self, index: int) -> ReplyParser:
        if index not in self._parsers:
            self._parsers[index] = self._format.parser(self._tools, self._prompt_end)
        return self._parsers[index]
