"""The options that both completion routes share, read from a body into SamplingParams and a few
switches.

Names and defaults are OpenAI's, then vLLM's; a sampling option that the client leaves out takes the
model's recommended value. Ranges are SamplingParams' business, limits of the model the engine's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.engine.sampling_params import RANGES, ParameterError, SamplingParams
from runtime.server.errors import bad_request
from runtime.server.field_notes import Schema
from runtime.server.fields import Fields, is_number
from runtime.server.structured_outputs import AskedGrammar, read_grammar

MAX_STOPS = 64  # each costs a search per token

_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "top_n_sigma",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
)
_INTEGERS = (
    *("n", "top_k", "seed", "min_tokens", "prompt_logprobs"),
    *("dry_allowed_length", "dry_penalty_last_n"),
    *("best_of", "truncate_prompt_tokens"),
)
# Accepted because clients send them, and without effect here.
_HARMLESS = ("user", "store", "metadata", "service_tier")


@dataclass(frozen=True)
class GenerationOptions:
    """What a client asked for besides its prompt."""

    params: SamplingParams
    grammar: AskedGrammar | None  # of the content
    is_stream: bool
    has_stream_usage: bool
    has_continuous_usage: bool
    is_tokens_as_ids: bool
    cache_salt: str
    priority: int
    has_token_ids: bool
    stream_interval: int  # tokens per event


def read_options(
    fields: Fields,
    generation_defaults: Mapping[str, Any],
    *,
    max_tokens: int | None,
    max_tokens_name: str = "max_tokens",
    logprobs: int | None,
    logprobs_name: str = "logprobs",
    stop_name: str = "stop",
) -> GenerationOptions:
    """Read the shared options; `max_tokens` and `logprobs` differ by route and come from the
    caller.
    """
    params: dict[str, Any] = {
        name: generation_defaults[name] for name in _NUMBERS if name in generation_defaults
    }
    if "top_k" in generation_defaults:
        params["top_k"] = generation_defaults["top_k"]
    for name in _NUMBERS:
        if (number := fields.number(name, limits_of(name))) is not None:
            params[name] = float(number)
    for name in _INTEGERS:
        if (integer := fields.integer(name, limits_of(name))) is not None:
            params[name] = integer
    for name in ("ignore_eos", "include_stop_str_in_output", "use_beam_search"):
        params[name] = fields.boolean(name)
    params["skip_special_tokens"] = fields.boolean("skip_special_tokens", True)
    params["stop"] = fields.strings(stop_name)
    if len(params["stop"]) > MAX_STOPS:
        message = f"{stop_name} has {len(params['stop'])} strings; use at most {MAX_STOPS}"
        raise bad_request(stop_name, message)
    params["stop_token_ids"] = fields.integers("stop_token_ids")
    params["logit_bias"] = _read_logit_bias(fields)
    for name in ("bad_words", "logits_processors"):
        params[name] = fields.strings(name)
    if fields.any("dry_sequence_breakers") is not None:
        params["dry_sequence_breakers"] = fields.strings("dry_sequence_breakers")
    if fields.any("allowed_token_ids") is not None:
        params["allowed_token_ids"] = fields.integers("allowed_token_ids")
    is_stream = fields.boolean("stream")
    if is_stream and params.get("prompt_logprobs") is not None:
        raise bad_request(
            "prompt_logprobs", "prompt_logprobs come with the whole answer; leave stream out"
        )
    stream_options = Fields(fields.object("stream_options") or {}, "stream_options")
    if fields.any("stream_options") is not None and not is_stream:
        raise bad_request("stream_options", "stream_options needs stream: true")
    for name in _HARMLESS:
        fields.any(name)
    asked = read_grammar(fields)
    params["grammar"] = None if asked is None else asked.text
    try:
        sampling = SamplingParams(**params, max_tokens=max_tokens, logprobs=logprobs)
    except ParameterError as error:
        names = {"max_tokens": max_tokens_name, "logprobs": logprobs_name, "stop": stop_name}
        name = names.get(error.parameter, error.parameter)
        raise bad_request(name, str(error).replace(error.parameter, name, 1)) from None
    if is_stream and sampling.best_of not in (None, sampling.n):
        message = f"best_of={sampling.best_of} is known at the end only; leave stream out"
        raise bad_request("best_of", message)
    interval = fields.integer("stream_interval", minimum=1)
    return GenerationOptions(
        params=sampling,
        grammar=asked,
        is_stream=is_stream,
        has_stream_usage=stream_options.boolean("include_usage"),
        has_continuous_usage=stream_options.boolean("continuous_usage_stats"),
        is_tokens_as_ids=fields.boolean("return_tokens_as_token_ids"),
        cache_salt=fields.string("cache_salt") or "",
        priority=fields.integer("priority") or 0,
        has_token_ids=fields.boolean("return_token_ids"),
        stream_interval=interval or 1,
    )


def limits_of(name: str) -> Schema:
    """The range of a sampling option as JSON schema."""
    allowed = RANGES.get(name)
    if allowed is None:
        return {}
    lowest = "exclusiveMinimum" if allowed.is_open else "minimum"
    limits = {lowest: allowed.lowest, "maximum": allowed.highest}
    return {word: limit for word, limit in limits.items() if abs(limit) != math.inf}


def _read_logit_bias(fields: Fields) -> dict[int, float]:
    biases = {}
    for key, bias in (fields.object("logit_bias") or {}).items():
        if not (key.isascii() and key.isdecimal()) or len(key) > 9:
            raise bad_request("logit_bias", f"logit_bias key {key[:20]!r} is not a token id")
        if not is_number(bias):
            raise bad_request("logit_bias", f"logit_bias of token {key} must be a finite number")
        biases[int(key)] = float(bias)
    return biases
