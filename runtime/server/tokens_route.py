"""/tokenize, /detokenize and /apply-template: what the model will see of a text, without running
it.

Bodies are vLLM's (`prompt` or `messages`) or llama.cpp's (`content`), and an answer carries the
names of both.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from runtime.engine.sampling_params import token_ids_in_range
from runtime.server.call import Service
from runtime.server.chat_prompt import CONVERSATION, ChatPrompt, read_chat_prompt
from runtime.server.endpoint import Endpoint
from runtime.server.fields import Fields
from runtime.server.json_response import JsonResponse


@dataclass(frozen=True)
class TokenizeBody:
    """A text or a conversation, and how its tokens are shown."""

    prompt: str | ChatPrompt
    has_special_tokens: bool  # begin and end a text as the model wants it
    parses_special: bool
    has_token_strings: bool  # vLLM's list beside the ids
    has_pieces: bool  # llama.cpp's ids and texts in one list


def read_tokenize_body(fields: Fields) -> TokenizeBody:
    """Check every field. Raises ApiError that names the one at fault."""
    name = fields.variant("prompt", "content", "messages")
    if name == "messages":
        prompt, begins_and_ends = read_chat_prompt(fields), False  # the template has said it all
    else:
        prompt, begins_and_ends = fields.text(name), name == "prompt"
    has_special_tokens = fields.boolean("add_special", begins_and_ends)
    return TokenizeBody(
        prompt=prompt,
        has_special_tokens=fields.boolean("add_special_tokens", has_special_tokens),
        parses_special=fields.boolean("parse_special", True),
        has_token_strings=fields.boolean("return_token_strs"),
        has_pieces=fields.boolean("with_pieces"),
    )


class Tokens:
    """The three routes, for one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                "POST",
                "/tokenize",
                self.tokenize,
                read_tokenize_body,
                {
                    "text": {"prompt": "Hello", "return_token_strs": True},
                    "conversation": {"messages": CONVERSATION},
                    "llama.cpp": {"content": "Hello", "with_pieces": True},
                },
            ),
            Endpoint(
                "POST", "/detokenize", self.detokenize, self.read_ids, {"ids": {"tokens": [1, 2]}}
            ),
            Endpoint(
                "POST",
                "/apply-template",
                self.apply_template,
                read_chat_prompt,
                {"conversation": {"messages": CONVERSATION}},
            ),
        )

    async def tokenize(self, http_request: HttpRequest) -> Response:
        """Token ids of a text or of a conversation."""
        call = await self._service.call(http_request, "tokenize-", read_tokenize_body)
        return await call.whole(self._tokenized(call.body))

    async def _tokenized(self, body: TokenizeBody) -> dict[str, Any]:
        tokenizer = self._engine.tokenizer
        if isinstance(body.prompt, ChatPrompt):
            token_ids = await body.prompt.token_ids(self._engine)
        else:
            token_ids = await asyncio.to_thread(
                tokenizer.encode,
                body.prompt,
                add_special_tokens=body.has_special_tokens,
                parse_special=body.parses_special,
            )
        tokens: list[Any] = list(token_ids)
        if body.has_pieces:
            tokens = [{"id": token_id, "piece": self._piece(token_id)} for token_id in token_ids]
        texts = [tokenizer.token_text(token_id) for token_id in token_ids]
        return {
            "count": len(token_ids),
            "max_model_len": self._engine.max_model_len,
            "tokens": tokens,
            "token_strs": texts if body.has_token_strings else None,
        }

    def _piece(self, token_id: int) -> str | list[int]:
        """A token's text, or its bytes where they are part of a character."""
        raw = self._engine.tokenizer.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return list(raw)

    def read_ids(self, fields: Fields) -> tuple[int, ...]:
        token_ids = fields.integers("tokens", is_required=True, limit=self._engine.vocab_size)
        token_ids_in_range("tokens", token_ids, self._engine.vocab_size)
        return token_ids

    async def detokenize(self, http_request: HttpRequest) -> Response:
        """Text of token ids, special tokens included."""
        call = await self._service.call(http_request, "detokenize-", self.read_ids)
        text = self._engine.tokenizer.decode(call.body, skip_special_tokens=False)
        return JsonResponse({"prompt": text, "content": text})

    async def apply_template(self, http_request: HttpRequest) -> Response:
        """A conversation as the model's chat template prints it."""
        call = await self._service.call(http_request, "template-", read_chat_prompt)
        return JsonResponse({"prompt": await call.body.text(self._engine)})
