"""A conversation made ready for the engine: prompt tokens, sampling params, and what will read the
replies.

Every route that answers a conversation prepares it here, whatever shape its own body has.
"""

from dataclasses import dataclass, replace

from runtime.engine.sampling_params import SamplingParams
from runtime.server.call import Service
from runtime.server.chat_prompt import ChatPrompt
from runtime.server.generation import fit_context
from runtime.server.not_supported import unsupported
from runtime.server.replies import Replies

_NUM_END_TOKENS = 16  # of the prompt, which say whether it opens the reasoning


@dataclass(frozen=True)
class PreparedChat:
    """What the engine is to run (`token_ids`, `params`), and the readers of what it answers."""

    token_ids: tuple[int, ...]
    params: SamplingParams
    replies: Replies


async def prepare_chat(
    service: Service,
    prompt: ChatPrompt,
    params: SamplingParams,
    *,
    prompt_name: str = "messages",
    max_tokens_name: str = "max_tokens",
) -> PreparedChat:
    """Raises ApiError and ChatTemplateError for what cannot be run; the names are those of the
    fields that a client knows.
    """
    if prompt.tools.must_call:
        raise unsupported("tool_choice")
    engine, reply_format = service.engine, service.reply_format
    token_ids = await prompt.token_ids(engine)
    tools = prompt.tools.callable
    params = fit_context(
        params,
        len(token_ids),
        engine.max_model_len,
        prompt_name=prompt_name,
        is_explicit=True,
        max_tokens_name=max_tokens_name,
    )
    shown = reply_format.shown_ids(engine.tokenizer, has_tools=bool(tools))
    prompt_end = engine.tokenizer.decode(token_ids[-_NUM_END_TOKENS:], skip_special_tokens=False)
    return PreparedChat(
        token_ids,
        replace(params, shown_special_ids=shown),
        Replies(reply_format, tools, prompt_end),
    )
