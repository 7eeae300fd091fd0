"""Parameters filled from a checkpoint: values, completeness, memory."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from tiny_files import D, F, L, V, write_folder, write_gguf

from models.naming import Source
from pallas_kernels.quant_matmul import quant_matmul
from runtime.checkpoint import load
from runtime.checkpoint.contract import CheckpointError
from runtime.checkpoint.gguf_file import GgufFile
from runtime.checkpoint.load import load_parameters
from runtime.checkpoint.safetensors_folder import SafetensorsFolder

RANDOM = np.random.default_rng(11)
WEIGHTS = {
    "embed.weight": "model.embed_tokens.weight",
    "layers.mlp.up.weight": "model.layers.{layer}.mlp.up_proj.weight",
    "layers.mlp.down.weight": Source(
        "model.layers.{layer}.mlp.up_proj.bias", lambda bias, want: bias[-want[0] :]
    ),
    "norm.weight": "model.norm.weight",
    "logits.weight": "lm_head.weight",
}
TENSORS = {
    "model.embed_tokens.weight": RANDOM.standard_normal((V, D)).astype(np.float32),
    "model.norm.weight": RANDOM.standard_normal(D).astype(ml_dtypes.bfloat16),
} | {
    f"model.layers.{layer}.mlp.up_proj.{kind}": RANDOM.standard_normal(shape).astype(np.float16)
    for layer in range(L)
    for kind, shape in (("weight", (F, D)), ("bias", (F + 1,)))
}
SHAPES = {
    "embed.weight": (V, D),
    "layers.mlp.up.weight": (L, F, D),
    "layers.mlp.down.weight": (L, F),
    "norm.weight": (D,),
}


def abstract(dtype=jnp.float32, shapes=SHAPES, shardings=None) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=(shardings or {}).get(name))
        for name, shape in shapes.items()
    }


def expected(dtype=jnp.float32) -> dict[str, np.ndarray]:
    """Stacks made with numpy alone."""
    layers = [f"model.layers.{layer}.mlp.up_proj" for layer in range(L)]
    values = {
        "embed.weight": TENSORS["model.embed_tokens.weight"],
        "layers.mlp.up.weight": np.stack([TENSORS[f"{layer}.weight"] for layer in layers]),
        "layers.mlp.down.weight": np.stack([TENSORS[f"{layer}.bias"][1:] for layer in layers]),
        "norm.weight": TENSORS["model.norm.weight"],
    }
    return {name: value.astype(dtype) for name, value in values.items()}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("piece_elements", [1 << 20, 100])
def test_parameters_are_stacked_transformed_and_cast(dtype, piece_elements, tmp_path, monkeypatch):
    """Oracle: numpy's stack and astype; pieces of two rows give the same as whole tensors."""
    monkeypatch.setattr(load, "PIECE_ELEMENTS", piece_elements)
    checkpoint = SafetensorsFolder(write_folder(tmp_path / "model", TENSORS))
    seen = []
    parameters = load_parameters(
        checkpoint,
        WEIGHTS,
        abstract(dtype),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert list(parameters) == list(SHAPES)
    for name, want in expected(dtype).items():
        assert parameters[name].dtype == dtype
        np.testing.assert_array_equal(np.asarray(parameters[name]), want)
    total = sum(tensor.nbytes for tensor in TENSORS.values())
    assert seen == sorted(seen) and seen[-1] == (total, total)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_matrices_of_floats_are_packed_and_keep_16_bits_where_these_are_exact(
    dtype, tmp_path, monkeypatch
):
    """Oracle: numpy's astype; read back by products with the identity. Stacked, cut into pieces,
    and two matrices out of one tensor through a transform.
    """
    monkeypatch.setattr(load, "PIECE_ELEMENTS", 100)
    random = np.random.default_rng(4)
    tensors = {f"layer.{layer}": random.standard_normal((40, 6)) for layer in range(2)}
    tensors = {name: values.astype(ml_dtypes.bfloat16) for name, values in tensors.items()}
    tensors["both"] = random.standard_normal((80, 6)).astype(np.float16)
    weights = {
        "stack": "layer.{layer}",
        "split": Source("both", lambda values, want: values.reshape(want)),
    }
    shapes = {"stack": (2, 40, 6), "split": (2, 40, 6)}
    checkpoint = SafetensorsFolder(write_folder(tmp_path / "model", tensors))
    packed = load_parameters(checkpoint, weights, abstract(dtype, shapes), matrices=shapes)
    cast = "F32" if dtype == jnp.float32 else "BF16"
    assert (packed["stack"].used, packed["split"].used) == (("BF16",), (cast,))
    want = {
        "stack": np.stack([tensors["layer.0"], tensors["layer.1"]]),
        "split": tensors["both"].reshape(2, 40, 6),
    }
    for name, weight in packed.items():
        for layer in range(2):
            found = quant_matmul(jnp.eye(6), weight, jnp.int32(layer), activations="float32").T
            np.testing.assert_array_equal(found, want[name][layer].astype(dtype), err_msg=name)


def test_pieces_of_a_gguf_file_give_the_whole_tensors(tmp_path, monkeypatch):
    """Oracle: GgufFile.read of whole tensors, rotary rows reordered."""
    checkpoint = GgufFile(write_gguf(tmp_path / "model.gguf"))
    name = "model.layers.{layer}.self_attn.q_proj.weight"
    want = np.stack([checkpoint.read(name.replace("{layer}", str(layer))) for layer in range(L)])
    weights = {"query": name} | {
        tensor: tensor for tensor in checkpoint.tensors if "q_proj" not in tensor
    }
    shapes = {"query": want.shape} | {
        key: checkpoint.tensors[key].shape for key in weights if key != "query"
    }
    monkeypatch.setattr(load, "PIECE_ELEMENTS", 7 * D)
    parameters = load_parameters(checkpoint, weights, abstract(shapes=shapes))
    np.testing.assert_array_equal(np.asarray(parameters["query"]), want)


def test_parameters_land_in_the_sharding_they_were_asked_for(tmp_path):
    """Oracle: the sharding of the result, and numpy's values."""
    count = min(len(jax.devices()), 2)
    mesh = jax.make_mesh(
        (count,), ("tensor",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:count]
    )
    shardings = {
        "layers.mlp.up.weight": NamedSharding(mesh, PartitionSpec(None, "tensor", None)),
        "norm.weight": NamedSharding(mesh, PartitionSpec()),
    }
    checkpoint = SafetensorsFolder(write_folder(tmp_path / "model", TENSORS))
    parameters = load_parameters(checkpoint, WEIGHTS, abstract(shardings=shardings))
    for name, sharding in shardings.items():
        assert parameters[name].sharding == sharding
    for name, want in expected().items():
        np.testing.assert_array_equal(np.asarray(parameters[name]), want)


def test_everything_that_does_not_fit_is_listed_in_one_error_before_reading(tmp_path, monkeypatch):
    """Oracle: the faults put into the checkpoint, each by name."""
    tensors = dict(TENSORS)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = np.ones(D + 1, np.float32)
    tensors["model.layers.0.mlp.up_proj.bias"] = np.ones(F + 1, np.int32)
    tensors["model.layers.3.mlp.up_proj.weight"] = np.ones((F, D), np.float32)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    tensors["vision_tower.patch.weight"] = np.ones(4, np.float32)
    checkpoint = SafetensorsFolder(write_folder(tmp_path / "model", tensors))
    monkeypatch.setattr(checkpoint, "read", lambda *arguments: pytest.fail("read tensor data"))
    shapes = SHAPES | {"embed.weight": (V + 8, D)}
    with pytest.raises(CheckpointError) as caught:
        load_parameters(checkpoint, WEIGHTS, abstract(shapes=shapes))
    lines = str(caught.value).splitlines()
    assert str(checkpoint.path) in lines[0] and "download the model again" in lines[0]
    assert sorted(line.strip() for line in lines[1:]) == [
        f"missing: model.layers.1.mlp.up_proj.weight [{F}, {D}], for layers.mlp.up.weight",
        f"shape: model.embed_tokens.weight is [{V}, {D}], the config needs [{V + 8}, {D}]",
        f"shape: model.norm.weight is [{D + 1}], the config needs [{D}]",
        "type: model.layers.0.mlp.up_proj.bias is I32, not floating point",
        f"unused: model.layers.3.mlp.up_proj.weight [{F}, {D}]",
    ]


def test_a_long_list_of_problems_is_cut(tmp_path):
    """Oracle: 20 lines and the number of those left out."""
    tensors = TENSORS | {f"stray.{index}": np.ones(1, np.float32) for index in range(33)}
    checkpoint = SafetensorsFolder(write_folder(tmp_path / "model", tensors))
    with pytest.raises(CheckpointError) as caught:
        load_parameters(checkpoint, WEIGHTS, abstract())
    lines = str(caught.value).splitlines()
    assert len(lines) == 22 and lines[-1].strip() == "and 13 more"


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_second_copy_of_a_tied_embedding_is_ignored_but_untied_logits_are_loaded(
    is_tied, tmp_path
):
    """Oracle: the tensor written as lm_head."""
    head = RANDOM.standard_normal((V, D)).astype(np.float32)
    checkpoint = SafetensorsFolder(
        write_folder(tmp_path / "model", TENSORS | {"lm_head.weight": head})
    )
    shapes = SHAPES if is_tied else SHAPES | {"logits.weight": (V, D)}
    parameters = load_parameters(checkpoint, WEIGHTS, abstract(shapes=shapes))
    assert ("logits.weight" in parameters) != is_tied
    if not is_tied:
        np.testing.assert_array_equal(np.asarray(parameters["logits.weight"]), head)


MEASURE = """
import json, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from runtime.checkpoint.load import load_parameters
from runtime.checkpoint.safetensors_folder import SafetensorsFolder

def memory(key):
    return int(Path("/proc/self/status").read_text().split(key + ":")[1].split()[0]) * 1024

checkpoint = SafetensorsFolder(Path(sys.argv[1]))
dtype = jnp.dtype(sys.argv[2])
weights = {"embed": "embed", "stack": "layers.{layer}"}
abstract = {"embed": jax.ShapeDtypeStruct((40_000, 1_500), dtype),
            "stack": jax.ShapeDtypeStruct((6, 5_000, 3_000), dtype)}
jax.block_until_ready(jax.device_put(np.zeros(8)))
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
before = memory("VmRSS")
parameters = load_parameters(checkpoint, weights, abstract)
peak = memory("VmHWM") - before
print(json.dumps({"peak": peak, "loaded": sum(x.nbytes for x in parameters.values())}))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_peak_memory_stays_under_1_3_times_the_parameters(dtype, tmp_path):
    """Oracle: the kernel's peak resident size of a process that loads 300 MB of bfloat16."""
    shapes = {"embed": (40_000, 1_500)} | {f"layers.{layer}": (5_000, 3_000) for layer in range(6)}
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * shape[0] * shape[1]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    raw = json.dumps(header).encode()
    write_folder(tmp_path, {})
    with (tmp_path / "model.safetensors").open("wb") as file:  # sparse: takes no disk
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + end)
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path), dtype],
        cwd=Path(__file__).resolve().parents[3],
        env={"JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    measured = json.loads(result.stdout)
    assert measured["loaded"] == end // 2 * {"bfloat16": 2, "float32": 4}[dtype]
    assert measured["peak"] < 1.3 * measured["loaded"], measured
