"""The command line: flags -> EngineConfig and ServerConfig -> server, or ExportConfig -> artifact.

Flags are the fields of the config classes, and their types and defaults are read from there;
only help texts and the short aliases of the original are written here. Exit codes: 0 after a stop
by signal, 2 for a flag that cannot work.
"""

import argparse
import sys
import types
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from runtime.config import (
    ConfigError,
    EngineConfig,
    ExportConfig,
    ModelError,
    ServerConfig,
    flag,
)
from runtime.version import version

_HELP = {
    "model": "Hugging Face folder, .gguf file or hub id; without it SmolLM2-135M-Instruct",
    "device": "where to compute: auto, cpu, cuda, tpu or gcu",
    "dtype": "of weights and activations: auto (the checkpoint's; float32 on CPU, int8 activations "
    "where weights are quantised), float32, bfloat16 or float16",
    "kvcache_dtype": "of the KV cache: auto (as --dtype; float16 where --dtype auto rounds "
    "activations), float32, bfloat16 or float16",
    "dequantize": "turn quantised weights into --dtype when they are loaded",
    "kv_fraction": "fraction of the memory left after loading that the KV cache gets",
    "kv_cache_gb": "size of the KV cache in GiB, instead of --kv-fraction",
    "max_num_seqs": "sequences that run at once",
    "max_model_len": "tokens of prompt and completion; without it the model's context length",
    "block_size": "tokens per KV cache block, a power of two",
    "prefill_chunk_size": "tokens per step; longer prompts are split into chunks; 0 = never split",
    "decode_steps": "tokens that all sequences draw in one launch while none needs the host; "
    "without it by the size of the model and the device",
    "scheduling_policy": "fcfs: first come, first served; priority: the lowest `priority` first",
    "disable_prefix_cache": "compute every prompt from its first token",
    "seed": "base of the random numbers of requests without a seed of their own",
    "served_model_name": "model name in the API; without it derived from --model",
    "tensor_parallel_size": "devices that share each layer",
    "devices": "ids of the devices that share each layer, such as 0,1; without it the first ones",
    "host": "address to listen on",
    "port": "port to listen on; 0 = any free one",
    "api_key": "key that clients must send; without it $HALOGEN_API_KEY, and without that none",
    "tool_call_parser": "how the model writes tool calls: hermes, qwen3_coder, llama3_json, "
    "pythonic, mistral, deepseek, glm, kimi, gemma4, gpt_oss or json; without it by its template",
    "reasoning_parser": "how the model marks its reasoning: deepseek_r1, qwen3, mistral, gemma4, "
    "gpt_oss or none; without it by its template",
    "log": "print one line per request, without any text of it",
    "api_keys_file": "file of further keys, one a line; a name may stand before the key",
    "allow_open": "listen on a network address without any key",
    "share_prefix_cache": "let requests with different keys find each other's cached prompts",
    "cors_origins": "web origins whose pages may ask, separated by commas; * = all",
    "pooling": "how /v1/embeddings makes one vector of a text: last, mean or cls; auto = as the "
    "model's files say, else last",
    "strict_fields": "refuse bodies with unknown fields instead of naming them in a header",
    "max_waiting": "requests that may wait for their turn; further ones are answered with 429",
    "max_requests_per_key": "requests of one key at a time; further ones are answered with 429",
    "request_timeout_s": "seconds from arrival to the end of the answer",
    "mcp_config": 'file that names MCP servers: {"mcpServers": {NAME: {"command": ...}}}',
    "mcp_command": "one more MCP server: a program and its arguments, in one word of the shell",
    "mcp_execute": "call the tools of MCP servers here, instead of leaving that to clients",
    "mcp_max_steps": "rounds of MCP calls for one answer",
    "artifact": "folder of an artifact to serve: nothing is traced, and nothing compiled where it "
    "holds executables for this host",
    "trusted_key": "file of the public Ed25519 key (PEM) that must have signed the artifact",
    "trust_artifact": "run the executables of an artifact without a signature",
    "strict": "refuse an artifact without executables for this host instead of compiling it",
    "export": "write the engine that the flags describe into this folder, as an artifact, and end",
    "platform": "whom to export for: cpu, cuda, tpu, gcu, with commas between; without it the "
    "platform that --device chooses",
    "include_weights": "put the weights into the artifact",
    "sign_key": "file of the private Ed25519 key (PEM) to sign the artifact with",
    "trace": "log of served requests (serve.py --log, or JSON lines) to choose the buckets by",
    "compile_budget": "step programs that the buckets chosen by --trace may cost",
    "drain_s": "seconds that running requests get to finish after SIGINT or SIGTERM",
}
_ALIASES = {"port": ("--p",), "devices": ("--d",)}
_MODEL_ALIASES = {
    "--w": ("FOLDER", "a Hugging Face folder (config.json and safetensors)"),
    "--f": ("FILE", "a .gguf file"),
    "--m": ("ID", "a model of the Hugging Face hub, such as Qwen/Qwen3-0.6B"),
}


def _add_flag(parser: argparse._ActionsContainer, name: str, of: Field, hint: Any) -> None:
    """A flag for one field. It stays out of the result unless given, so that the default lives in
    the dataclass alone.
    """
    default = "" if of.default in (MISSING, None, "", False) else f" (default {of.default})"
    names = (flag(name), *_ALIASES.get(name, ()))
    text = _HELP[name].replace("%", "%%") + default
    if hint is bool:
        parser.add_argument(
            *names, dest=name, action="store_true", default=argparse.SUPPRESS, help=text
        )
        return
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(member for member in get_args(hint) if member is not type(None))
    kind = hint if hint in (int, float) else str
    metavar = {int: "N", float: "X"}.get(kind, name.upper().rsplit("_", 1)[-1])
    parser.add_argument(
        *names, dest=name, type=kind, default=argparse.SUPPRESS, metavar=metavar, help=text
    )


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="serve.py",
        description="Serve a model over OpenAI-compatible HTTP.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"halogen {version()}")
    model = parser.add_mutually_exclusive_group()
    for config_class in (EngineConfig, ServerConfig, ExportConfig):
        hints = get_type_hints(config_class)
        for of in fields(config_class):
            if of.name == "model":
                _add_flag(model, of.name, of, hints[of.name])
                for alias, (metavar, text) in _MODEL_ALIASES.items():
                    model.add_argument(alias, metavar=metavar, default=argparse.SUPPRESS, help=text)
            elif of.name in _HELP:
                _add_flag(parser, of.name, of, hints[of.name])
    return parser


def _model(given: dict[str, Any]) -> str | None:
    """The model by whichever flag names it; --w and --f insist on what they name."""
    if (folder := given.pop("w", None)) is not None:
        if not Path(folder).is_dir():
            raise ConfigError(
                f"--w {folder!r} is not a folder; use --f for a .gguf file, --m for a hub id"
            )
        return folder
    if (file := given.pop("f", None)) is not None:
        if not file.endswith(".gguf") or not Path(file).is_file():
            raise ConfigError(
                f"--f {file!r} is not a .gguf file; use --w for a folder, --m for a hub id"
            )
        return file
    if (hub_id := given.pop("m", None)) is not None:
        if hub_id.count("/") != 1 or not all(hub_id.split("/")):
            raise ConfigError(f"--m {hub_id!r} is not a hub id; use OWNER/NAME")
        return hub_id
    return given.pop("model", None)


def read_flags(arguments: Sequence[str]) -> tuple[EngineConfig, ServerConfig, ExportConfig]:
    """The configs from the command line. Raises ConfigError that names the flag, its value and the
    remedy.
    """
    given = vars(build_parser().parse_args(arguments))
    if (model := _model(given)) is not None:
        given["model"] = model

    def taken(config_class: Any) -> dict[str, Any]:
        return {of.name: given.pop(of.name) for of in fields(config_class) if of.name in given}

    server, export = ServerConfig(**taken(ServerConfig)), ExportConfig(**taken(ExportConfig))
    if not export.export and export != ExportConfig():
        raise ConfigError("--platform, --include-weights, --sign-key and --trace need --export")
    return EngineConfig(**given), server, export


def _export(engine_config: EngineConfig, export_config: ExportConfig) -> int:
    from runtime.aot.export import export_artifact
    from runtime.server.progress import StartupProgress

    with StartupProgress() as progress:
        folder = export_artifact(engine_config, export_config, progress)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"exported: {folder}, {size / 1e6:.1f} MB; serve it with --artifact {folder}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        engine_config, server_config, export_config = read_flags(
            sys.argv[1:] if arguments is None else arguments
        )
        if export_config.export:
            return _export(engine_config, export_config)
        from runtime.server.run import serve  # JAX takes seconds to import; a bad flag should not

        return serve(engine_config, server_config)
    except (ConfigError, ModelError) as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
