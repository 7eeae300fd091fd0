"""Every knob of the engine and of the server: name, default, unit and check, and the only reader of
the environment.

Names equal the command-line flags with underscores. A bad value raises ConfigError that names the
field, the value and the remedy. Values left at "auto" or None are resolved against the model and
the platform by runtime.runner, never here.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

SchedulingPolicy = Literal["fcfs", "priority"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
# Told of a start-up stage ("read", "compile") and how far it is: (stage, done, total).
Report = Callable[[str, int, int], None]
Device = Literal["auto", "cpu", "cuda", "tpu", "gcu"]


class ConfigError(ValueError):
    """A knob has a value that cannot work. The message names the knob, the value and the remedy."""


class ModelError(ValueError):
    """A model that cannot be found, read or used. The message names the file, what is wrong with
    it and the remedy.
    """


def _cache_folder() -> Path:
    """Where downloads and compiled programs are kept: $HALOGEN_CACHE, else $XDG_CACHE_HOME/halogen,
    else ~/.cache/halogen.
    """
    if own := os.environ.get("HALOGEN_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halogen"


CACHE_FOLDER = _cache_folder()


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _require(is_good: bool, name: str, value: Any, remedy: str) -> None:
    if not is_good:
        raise ConfigError(f"{flag(name)} {value!r} is not usable: {remedy}")


def _check_choices(config: Any) -> None:
    """Fields typed as a Literal hold one of its members."""
    for name, hint in get_type_hints(type(config)).items():
        choices = get_args(hint)
        if getattr(hint, "__origin__", None) is Literal:
            _require(
                getattr(config, name) in choices,
                name,
                getattr(config, name),
                f"use one of {', '.join(choices)}",
            )


@dataclass(frozen=True)
class EngineConfig:
    """How one model is loaded, cached, scheduled and compiled."""

    model: str = ""  # folder, .gguf file, hub id; "" = the embedded default
    device: Device = "auto"
    # Of weights and activations; auto = the checkpoint's, float32 on CPU, where activations are
    # then rounded to int8 per block when they meet quantised weights. A type named is kept to.
    dtype: DType = "auto"
    # auto = dtype, but float16 where activations are rounded: half the bytes of a long context.
    kvcache_dtype: DType = "auto"
    dequantize: bool = False  # quantised weights become dtype at load instead of staying packed
    kv_fraction: float = 0.6  # of the device memory left after the weights
    kv_cache_gb: float | None = None  # GiB for the KV cache; overrides kv_fraction
    max_num_seqs: int = 16  # sequences that run at once
    max_model_len: int | None = None  # tokens of prompt + completion; None = the model's
    block_size: int = 16  # cache slots per block
    prefill_chunk_size: int = 512  # tokens per step; 0 = a prompt is never split
    decode_steps: int | None = None  # tokens drawn in one launch where possible; None = by rule
    disable_prefix_cache: bool = False
    scheduling_policy: SchedulingPolicy = "fcfs"  # priority = by the requests' own first
    seed: int = 0
    served_model_name: str | None = None  # None = derived from the model's path
    tensor_parallel_size: int = 1  # devices along the mesh axis "tensor"
    devices: str = ""  # ids of the devices that share each layer, as 0,1; "" = the first ones
    compile_cache_folder: str | None = field(
        default_factory=lambda: str(CACHE_FOLDER / "xla")
    )  # None = off
    artifact: str = ""  # folder of a sealed artifact to serve; "" = trace and compile `model`
    trusted_key: str | None = None  # file of the public key that must have signed it
    trust_artifact: bool = False  # its executables are run without a signature
    strict: bool = False  # an artifact without executables for this host is refused

    def __post_init__(self) -> None:
        _check_choices(self)
        _require(
            0 < self.kv_fraction <= 0.95,
            "kv_fraction",
            self.kv_fraction,
            "use a fraction in (0, 0.95]",
        )
        _require(
            self.kv_cache_gb is None or self.kv_cache_gb > 0,
            "kv_cache_gb",
            self.kv_cache_gb,
            "use a positive size in GiB",
        )
        _require(1 <= self.max_num_seqs <= 4096, "max_num_seqs", self.max_num_seqs, "use 1 to 4096")
        _require(
            self.max_model_len is None or self.max_model_len >= 2,
            "max_model_len",
            self.max_model_len,
            "use at least 2 tokens",
        )
        is_power_of_two = self.block_size > 0 and self.block_size & (self.block_size - 1) == 0
        _require(
            is_power_of_two and self.block_size <= 256,
            "block_size",
            self.block_size,
            "use a power of two from 1 to 256",
        )
        _require(
            self.prefill_chunk_size >= 0,
            "prefill_chunk_size",
            self.prefill_chunk_size,
            "use 0 (off) or a number of tokens",
        )
        _require(
            self.decode_steps is None or 1 <= self.decode_steps <= 64,
            "decode_steps",
            self.decode_steps,
            "use 1 to 64 tokens",
        )
        _require(0 <= self.seed < 2**63, "seed", self.seed, "use 0 to 2**63 - 1")
        _require(
            self.tensor_parallel_size >= 1,
            "tensor_parallel_size",
            self.tensor_parallel_size,
            "use at least 1 device",
        )
        _require(
            all(part.strip().isdecimal() for part in self._device_parts)
            and len(set(self.device_ids)) == len(self._device_parts),
            "devices",
            self.devices,
            "use different numbers with commas between, such as 0,1",
        )
        if self.devices and self.tensor_parallel_size == 1:
            object.__setattr__(self, "tensor_parallel_size", len(self.device_ids))
        _require(
            not self.devices or self.tensor_parallel_size == len(self.device_ids),
            "tensor_parallel_size",
            self.tensor_parallel_size,
            f"--devices names {len(self.device_ids)}; leave one of the two out",
        )

    @property
    def device_ids(self) -> tuple[int, ...]:
        """What `devices` names, () = nothing."""
        return tuple(int(part) for part in self._device_parts if part.strip().isdecimal())

    @property
    def _device_parts(self) -> list[str]:
        return self.devices.split(",") if self.devices else []


@dataclass(frozen=True)
class ExportConfig:
    """What of an engine is written into an artifact, and for whom."""

    export: str = ""  # folder to write; "" = none
    platform: str = ""  # cpu, cuda, tpu or gcu, "," between several; "" = where JAX runs
    include_weights: bool = False
    sign_key: str | None = None  # file of a private Ed25519 key
    trace: str | None = None  # log of requests' lengths, from which the buckets are chosen
    compile_budget: int | None = None  # step programs that buckets may cost; None = as by rule

    def __post_init__(self) -> None:
        _require(
            self.compile_budget is None or self.compile_budget >= 3,
            "compile_budget",
            self.compile_budget,
            "use at least 3: one decode and two mixed buckets",
        )
        known = get_args(Device)[1:]
        _require(
            not self.platform or set(self.platforms) <= set(known),
            "platform",
            self.platform,
            f"use one or more of {', '.join(known)}, with commas between",
        )

    @property
    def platforms(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.platform.split(",")) if self.platform else ()


@dataclass(frozen=True)
class ServerConfig:
    """How the HTTP server listens and who may ask."""

    host: str = "127.0.0.1"
    port: int = 2000
    api_key: str | None = None  # None = $HALOGEN_API_KEY, else no key is asked for
    log: bool = False  # one line per request
    api_keys_file: str | None = None  # further keys, one a line, a name before each if wanted
    allow_open: bool = False  # listen on a network without any key
    share_prefix_cache: bool = False  # across keys; else each key finds its own prompts only
    cors_origins: str | None = None  # web origins that may ask, "," between them; None = none
    tool_call_parser: str | None = None  # how the model writes calls; None = by its template
    reasoning_parser: str | None = None  # likewise its reasoning; "none" = it has none
    # How hidden states become one vector; auto = as the model's makers do, else the last token's.
    pooling: Literal["auto", "last", "mean", "cls"] = "auto"
    strict_fields: bool = False  # an unknown field of a body is an error
    max_waiting: int = 512  # requests that may wait for their turn; further ones get 429
    max_requests_per_key: int | None = None  # at one time
    request_timeout_s: float | None = None  # from arrival to the end of the answer
    mcp_config: str | None = None  # file that names MCP servers
    mcp_command: str | None = None  # of one more MCP server, with its arguments
    mcp_execute: bool = False  # the server calls their tools itself
    mcp_max_steps: int = 5  # rounds of calls for one answer
    drain_s: float = 20.0  # what running requests get to finish after the first signal to stop

    def __post_init__(self) -> None:
        _check_choices(self)
        _require(0 <= self.port <= 65535, "port", self.port, "use 0 (any free port) to 65535")
        _require(self.max_waiting >= 0, "max_waiting", self.max_waiting, "use 0 or more requests")
        _require(self.mcp_max_steps >= 1, "mcp_max_steps", self.mcp_max_steps, "use at least 1")
        _require(self.drain_s >= 0, "drain_s", self.drain_s, "use 0 or more seconds")
        for name in ("max_requests_per_key", "request_timeout_s"):
            value = getattr(self, name)
            _require(value is None or value > 0, name, value, "use a positive number or leave out")
        if self.api_key is None:
            object.__setattr__(self, "api_key", os.environ.get("HALOGEN_API_KEY") or None)
        _require(
            self.api_key is None or self.api_key.isascii(),
            "api_key",
            "(hidden)",
            "use ASCII characters",
        )
