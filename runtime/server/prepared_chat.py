"""A conversation made ready for the engine: prompt tokens, sampling params, and what will read the
replies.

Every route that answers a conversation prepares it here, whatever shape its own body has.
"""

from dataclasses import dataclass, replace
from typing import Any

from runtime.engine.reasoning_rule import ReasoningRule
from runtime.engine.request import Request
from runtime.engine.sampling_params import SamplingParams
from runtime.reply.formats import ReplyFormat
from runtime.server.call import Call, Service
from runtime.server.chat_prompt import ChatPrompt
from runtime.server.errors import bad_request
from runtime.server.generation import Generation, fit_context, truncated
from runtime.server.protocol import GenerationOptions
from runtime.server.replies import Replies
from runtime.server.structured_outputs import AskedGrammar, check_grammar
from runtime.server.tools import ToolOptions
from runtime.tokenizer import Tokenizer

_NUM_END_TOKENS = 16  # of the prompt, which say whether it opens the reasoning


@dataclass(frozen=True)
class PreparedChat:
    """What the engine is to run (`token_ids`, `params`), and the readers of what it answers."""

    token_ids: tuple[int, ...]
    params: SamplingParams
    replies: Replies

    def generation(self, call: Call[Any], options: GenerationOptions) -> Generation:
        """The engine's work for the conversation, under the call's id."""
        request = Request(
            call.id,
            self.token_ids,
            self.params,
            call.record.arrival_s,
            options.cache_salt,
            priority=options.priority,
        )
        return call.generation([request])


async def prepare_chat(
    service: Service,
    prompt: ChatPrompt,
    params: SamplingParams,
    asked: AskedGrammar | None = None,
    *,
    prompt_name: str = "messages",
    max_tokens_name: str = "max_tokens",
) -> PreparedChat:
    """`asked` is what the content must look like. Raises ApiError and ChatTemplateError for what
    cannot be run; the names are those of the fields that a client knows.
    """
    engine, reply_format = service.engine, service.reply_format
    tokenizer, tools = engine.tokenizer, prompt.tools.callable
    grammar = _grammar(reply_format, prompt.tools, asked, tokenizer)
    if grammar is not None:
        await check_grammar(engine, grammar)
    token_ids = truncated(await prompt.token_ids(engine), params, engine.max_model_len)
    params = fit_context(
        params,
        len(token_ids),
        engine.max_model_len,
        prompt_name=prompt_name,
        is_explicit=True,
        max_tokens_name=max_tokens_name,
    )
    prompt_end = tokenizer.decode(token_ids[-_NUM_END_TOKENS:], skip_special_tokens=False)
    params = replace(
        params,
        shown_special_ids=reply_format.shown_ids(tokenizer, has_tools=bool(tools)),
        grammar=None if grammar is None else grammar.text,
        reasoning=_reasoning(reply_format, tokenizer, prompt_end, prompt.max_reasoning_tokens),
    )
    return PreparedChat(token_ids, params, Replies(reply_format, tools, prompt_end))


def _grammar(
    reply_format: ReplyFormat, tools: ToolOptions, asked: AskedGrammar | None, tokenizer: Tokenizer
) -> AskedGrammar | None:
    """What the whole reply must look like, None = anything."""
    if tools.must_call and asked is not None:
        message = f"{asked.field} is for content, and tool_choice leaves none; use one of them"
        raise bad_request(asked.field, message)
    if not tools.callable:
        if asked is None:
            return None
        return AskedGrammar(asked.field, reply_format.answer_grammar(asked.text, tokenizer))
    if not (asked is not None or tools.must_call or tools.strict or not tools.is_parallel):
        return None
    text = reply_format.call_grammar(
        tools.callable,
        tokenizer,
        must_call=tools.must_call,
        is_parallel=tools.is_parallel and tools.named is None,
        strict=tools.strict,
        answer=None if asked is None else asked.text,
    )
    return AskedGrammar("tools" if asked is None else asked.field, text)


def _reasoning(
    reply_format: ReplyFormat, tokenizer: Tokenizer, prompt_end: str, max_tokens: int | None
) -> ReasoningRule | None:
    if reply_format.reasoning_tags is None:
        return None
    (begin, begin_ids), (end, end_ids) = (
        (text.encode(), tuple(tokenizer.encode(text, add_special_tokens=False)))
        for text in reply_format.reasoning_tags
    )
    # Only a token of its own can begin the reasoning where a grammar may begin the answer.
    is_own = tokenizer.token_bytes(begin_ids[0]) == begin or begin_ids[0] in tokenizer.special_ids
    return ReasoningRule(
        begin,
        begin_ids if is_own else (),
        end,
        end_ids,
        reply_format.opens_reasoning(prompt_end),
        max_tokens,
    )
