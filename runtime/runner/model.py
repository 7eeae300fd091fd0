"""A model made ready to run: checkpoint opened, decoder described, weights on the mesh.

Turns "auto" into decisions (dtype, platform) and checks that the model can be split as asked. Knows
no requests and no cache.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from models import family_of, weights_of
from models.config import DecoderConfig
from models.decoder import Decoder, DecoderProgram, Parameters
from models.text_part import text_config
from pallas_kernels import native
from pallas_kernels.quant_matmul import QTensor, cpu
from pallas_kernels.quant_matmul.api import Activations
from runtime.chat import ChatTemplate
from runtime.checkpoint import CheckpointError, open_checkpoint
from runtime.checkpoint.load import load_parameters
from runtime.config import ConfigError, EngineConfig, Report
from runtime.platform import Device, computes_on_host, devices_of, make_mesh
from runtime.runner.parts import ServedModel
from runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """Everything the engine needs to know of a model, and its parameters."""

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    generation_config: dict[str, Any]
    pooling: str | None  # how its makers pool hidden states, where they say
    program: DecoderProgram
    parameters: Parameters
    mesh: Mesh

    @property
    def config(self) -> DecoderConfig:
        return self.program.config

    @property
    def platform(self) -> str:
        return self.mesh.devices.flat[0].platform

    @property
    def _packed(self) -> list[QTensor]:
        leaves = jax.tree.leaves(self.parameters, is_leaf=lambda leaf: isinstance(leaf, QTensor))
        return [leaf for leaf in leaves if isinstance(leaf, QTensor)]

    @property
    def cache_dtype(self) -> jnp.dtype:
        """What the KV cache holds unless the user names a type: the program's dtype, or float16
        where weights are packed and activations rounded anyway.
        """
        is_rounded = any(leaf.activations != "float32" for leaf in self._packed)
        return jnp.dtype("float16") if is_rounded else self.program.dtype

    @property
    def weights(self) -> str:
        """How the parameters are held, for people."""
        used = {name for leaf in self._packed for name in leaf.used}
        size = f"{self.parameter_bytes / 2**20:,.0f} MiB"
        if used:
            return f"{size}, packed {' '.join(sorted(used))}"
        return f"{size}, {self.program.dtype.name}"

    @property
    def kernels(self) -> str:
        """Which kernels serve, for people."""
        if not computes_on_host(self.mesh.devices.flat[0]):
            return "XLA"
        reason = native.refusal()
        if reason is not None:
            return f"XLA alone, because {reason.splitlines()[0]}"
        return f"native, {cpu.serving_instruction_set()}"

    @property
    def served(self) -> ServedModel:
        return ServedModel(
            name=self.name,
            tokenizer=self.tokenizer,
            chat_template=self.chat_template,
            generation_config=self.generation_config,
            pooling=self.pooling,
            vocab_size=self.config.vocab_size,
            embed_dim=self.config.embed_dim,
            rope_switch_len=self.config.rope_switch_len,
            dtype=self.program.dtype.name,
            weights=self.weights,
            kernels=self.kernels,
            parameter_bytes=self.parameter_bytes,
            mesh=self.mesh,
        )

    @property
    def parameter_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.parameters))


def load_model(
    config: EngineConfig, report: Report, targets: list[Device] | None = None
) -> LoadedModel:
    """Open config.model and load it; `report` gets the stage "read", and lines about a download.
    `targets` are the devices that it is to run on where these are not those that hold it.

    Raises CheckpointError, TokenizerError or ConfigError.
    """
    devices = devices_of(config)
    targets = targets or devices
    checkpoint = open_checkpoint(config.model, progress=lambda line: report(line, 0, 0))
    try:
        try:
            family, hf_config = family_of(checkpoint.config), text_config(checkpoint.config)
            decoder = family.config_from_hf(hf_config)
        except ValueError as error:
            raise CheckpointError(f"{checkpoint.path}: {error}") from error
        _check_split(decoder, len(targets))
        if config.max_model_len is not None and config.max_model_len > decoder.max_positions:
            raise ConfigError(
                f"--max-model-len {config.max_model_len} is not usable: {checkpoint.name} was made "
                f"for {decoder.max_positions} tokens; use at most that"
            )
        mesh = make_mesh(devices)
        dtype = _dtype(config, hf_config, targets[0])
        program = DecoderProgram(decoder, dtype, getattr(family, "Decoder", Decoder))
        tokenizer = checkpoint.tokenizer()
        template = None
        if checkpoint.chat_template is not None:
            template = ChatTemplate(
                checkpoint.chat_template,
                bos_token=_text(tokenizer, tokenizer.bos_id),
                eos_token=_text(tokenizer, tokenizer.eos_id),
            )
        parameters = load_parameters(
            checkpoint,
            weights_of(family, decoder),
            program.abstract_parameters(mesh),
            stacks=program.stacks,
            matrices=program.matrices if _packing_refusal(targets) is None else (),
            activations=_activations(config),
            progress=lambda done, total: report("read", done, total),
        )
        name = config.served_model_name or checkpoint.name
        return LoadedModel(
            name,
            tokenizer,
            template,
            checkpoint.generation_config,
            checkpoint.pooling,
            program,
            parameters,
            mesh,
        )
    finally:
        checkpoint.close()


def _packing_refusal(devices: list[Device]) -> str | None:
    """Why matrices are plain arrays, which XLA multiplies; None = they are packed for kernels."""
    if not computes_on_host(devices[0]):
        return "packed weights are multiplied on the CPU only"
    if len(devices) > 1:
        return "packed weights are not split over devices"
    return native.refusal()


def _activations(config: EngineConfig) -> Activations | None:
    """What quantised weights meet: the fast kind unless the user asks for a type of numbers, which
    is then kept; None = they are decoded.
    """
    if config.dequantize:
        return None
    return "int8x2" if config.dtype == "auto" else "float32"


def _text(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_text(token_id)


def _dtype(config: EngineConfig, hf_config: dict[str, Any], device: Device) -> jnp.dtype:
    """What weights and activations are held in. XLA:CPU is fast in float32 only."""
    if config.dtype != "auto":
        return jnp.dtype(config.dtype)
    if computes_on_host(device):
        return jnp.dtype("float32")
    stored = hf_config.get("dtype") or hf_config.get("torch_dtype") or "bfloat16"
    return jnp.dtype(stored if stored in ("float32", "bfloat16", "float16") else "bfloat16")


def _check_split(config: DecoderConfig, size: int) -> None:
    """ConfigError unless the parts of every layer divide evenly over the mesh axis "tensor"."""
    parts: dict[str, set[int]] = {}
    for part in config.parts:
        for name, count in part.split_sizes.items():
            parts.setdefault(name, set()).add(count)
    works = [
        size
        for size in range(1, min(min(counts) for counts in parts.values()) + 1)
        if all(count % size == 0 for counts in parts.values() for count in counts)
    ]
    if size not in works:
        sizes = ", ".join(f"{count} {name}" for name, counts in parts.items() for count in counts)
        raise ConfigError(
            f"--tensor-parallel-size {size} cannot split {sizes}; sizes that work: "
            f"{', '.join(map(str, works))}"
        )
