"""A request's tokens and the bits of its log-probabilities do not depend on what else runs, nor a
prompt's vector: quantised weights and float32, multiplied by the native kernels.

Oracle throughout: the request alone, on an empty cache, in chunks as long as the step. Compared
with: the prompt in shorter chunks, again through a prefix hit, after a preemption, and among 64
random neighbours with random options, some of which leave.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from models.cache import CacheSpec
from runtime import LLM, SamplingParams
from runtime.config import EngineConfig
from runtime.engine.request import Request, RequestOutput
from runtime.runner import buckets
from runtime.runner.buckets import Bucket, BucketTable
from runtime.runner.model import load_model

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "checkpoint")]
from tiny_files import write_gguf  # noqa: E402
from tiny_tokenizers import byte_level_backend, byte_level_metadata  # noqa: E402

VOCAB = 90
# XLA sums arrays of 64 x 64 numbers and of 32 x 64 in different ways, if it is let.
STEPS = BucketTable((Bucket(1, 1), Bucket(5, 5)), (Bucket(32, 1), Bucket(64, 5)))
PROBES = (
    {"temperature": 0},
    {"temperature": 1.1, "seed": 7, "top_p": 0.9, "top_k": 40},
    {"temperature": 0.8, "seed": 8, "typical_p": 0.8, "xtc_probability": 0.5, "top_n_sigma": 2.0},
    {
        "temperature": 0.9,
        "seed": 9,
        "repetition_penalty": 1.2,
        "dry_multiplier": 0.8,
        "min_p": 0.01,
    },
)


def packed_file(path: Path) -> Path:
    """A llama of Q8_0 and Q4_0 matrices, which stay packed."""
    random = np.random.default_rng(3)
    shapes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
    shapes |= {"ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
    backend = byte_level_backend()
    vocab_size = backend.get_vocab_size()
    tensors: dict = {"output_norm.weight": np.ones(64, np.float32)}
    kinds = (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0)

    def packed(shape: tuple[int, int], kind: gguf.GGMLQuantizationType) -> tuple:
        values = (random.standard_normal(shape) / 6).astype(np.float32)
        return gguf.quants.quantize(values, kind), kind

    for name in ("token_embd.weight", "output.weight"):
        tensors[name] = packed((vocab_size, 64), kinds[0])
    for layer in range(2):
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{norm}.weight"] = np.ones(64, np.float32)
        for index, (name, shape) in enumerate(shapes.items()):
            tensors[f"blk.{layer}.{name}.weight"] = packed(shape, kinds[index % 2])
    metadata = {
        "{arch}.embedding_length": 64,
        "{arch}.block_count": 2,
        "{arch}.feed_forward_length": 96,
        "{arch}.attention.head_count": 4,
        "{arch}.attention.head_count_kv": 2,
        "{arch}.attention.key_length": 16,
    }
    return write_gguf(path, "llama", tensors, metadata | byte_level_metadata(backend))


@pytest.fixture(scope="module", params=["packed", "float32"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """24 blocks of 4 for 5 sequences, so that neighbours drive each other out of the cache."""
    path = str(packed_file(tmp_path_factory.mktemp("invariance") / "packed.gguf"))
    weights = {"dequantize": request.param == "float32", "kvcache_dtype": "float32"}
    loaded = load_model(EngineConfig(model=path), lambda *_report: None)
    block_bytes = CacheSpec.of(loaded.config, 4, np.dtype(np.float32)).block_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets.BucketTable, "of", lambda max_num_seqs, token_budget: STEPS)
        return LLM(
            path,
            max_model_len=64,
            max_num_seqs=5,
            block_size=4,
            prefill_chunk_size=64,
            kv_cache_gb=24.5 * block_bytes / 2**30,
            **weights,
        )


def probes() -> list[tuple[list[int], SamplingParams]]:
    random = np.random.default_rng(1)
    return [
        (
            random.integers(2, VOCAB, 23).tolist(),
            SamplingParams(max_tokens=14, logprobs=5, ignore_eos=True, **options),
        )
        for options in PROBES
    ]


def bits(output: RequestOutput) -> list[tuple]:
    """Token, log-probability and alternatives of each position, floats as their bits."""
    (completion,) = output.outputs
    return [
        (entry.token_id, entry.logprob.hex(), entry.rank, [(i, p.hex()) for i, p in entry.top])
        for entry in completion.logprobs or ()
    ]


def random_params(random: np.random.Generator) -> SamplingParams:
    """Any options for a neighbour."""
    chosen = {
        "temperature": random.choice([0.0, 0.7, 1.5]),
        "top_p": random.choice([1.0, 0.8]),
        "top_k": int(random.choice([0, 5, 200])),
        "min_p": random.choice([0.0, 0.1]),
        "typical_p": random.choice([1.0, 0.7]),
        "top_n_sigma": random.choice([0.0, 1.0]),
        "xtc_probability": random.choice([0.0, 0.5]),
        "dry_multiplier": random.choice([0.0, 0.8]),
        "presence_penalty": random.choice([0.0, 1.0]),
        "repetition_penalty": random.choice([1.0, 1.3]),
        "logprobs": [None, 0, 20][random.integers(3)],
        "prompt_logprobs": [None, 2][random.integers(2)],
        "logit_bias": [{}, {5: 3.0}][random.integers(2)],
        "n": int(random.choice([1, 1, 2])),
        "min_tokens": int(random.choice([0, 3])),
    }
    return SamplingParams(max_tokens=int(random.integers(3, 20)), **chosen)


def run(
    llm: LLM, requests: list[Request], random: np.random.Generator | None = None
) -> dict[str, RequestOutput]:
    """Outputs by request id; two requests arrive before each step. With `random`, neighbours are
    aborted now and then.
    """
    outputs = {request.request_id: RequestOutput.of(request) for request in requests}
    neighbours = [name for name in outputs if name.startswith("neighbour")]
    step = 0
    while requests or llm.engine.has_work:
        for request in requests[:2]:
            llm.engine.add_request(request)
        requests = requests[2:]
        if random is not None and step % 11 == 5:
            llm.engine.abort(str(random.choice(neighbours)))
        for delta in llm.engine.step():
            outputs[delta.request_id].add(delta)
        step += 1
    return outputs


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[list[tuple]]:
    found = [bits(llm.generate(prompt, params)[0]) for prompt, params in probes()]
    assert all(len(one) == 14 for one in found)
    return found


@pytest.mark.parametrize("chunk", [5, 7, 11, 16])
def test_in_chunks_of_any_size(
    llm: LLM, alone: list[list[tuple]], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm.engine.scheduler.limit, "tokens", chunk)
    for number, (prompt, params) in enumerate(probes()):
        steps = llm.engine.stats().steps
        probe = Request("probe", tuple(prompt), params, cache_salt=f"chunks of {chunk}, {number}")
        output = run(llm, [probe])["probe"]
        assert output.num_cached_tokens == 0
        assert llm.engine.stats().steps - steps >= -(-len(prompt) // chunk) + 13
        assert bits(output) == alone[number], PROBES[number]


def test_through_a_prefix_hit(llm: LLM, alone: list[list[tuple]]) -> None:
    for number, (prompt, params) in enumerate(probes()):
        llm.generate(prompt, SamplingParams(max_tokens=1))
        output = llm.generate(prompt, params)[0]
        assert output.num_cached_tokens == 20
        assert bits(output) == alone[number], PROBES[number]


def test_after_a_preemption(llm: LLM, alone: list[list[tuple]]) -> None:
    """The latest arrival is preempted: two earlier ones grow until no block is left."""
    random = np.random.default_rng(5)
    long = SamplingParams(max_tokens=34, temperature=0, ignore_eos=True)
    for number, (prompt, params) in enumerate(probes()):
        requests = [
            Request(f"neighbour-{index}", tuple(random.integers(2, VOCAB, 30).tolist()), long)
            for index in range(2)
        ]
        preemptions = llm.engine.stats().preemptions
        output = run(llm, [*requests, Request("probe", tuple(prompt), params)])["probe"]
        assert llm.engine.stats().preemptions > preemptions
        assert bits(output) == alone[number], PROBES[number]


def test_among_64_random_neighbours(llm: LLM, alone: list[list[tuple]]) -> None:
    random = np.random.default_rng(6)
    arrivals = [
        Request(
            f"neighbour-{index}",
            tuple(random.integers(2, VOCAB, random.integers(1, 40)).tolist()),
            random_params(random),
        )
        for index in range(64)
    ]
    for number, (prompt, params) in enumerate(probes()):
        place = int(random.integers(0, len(arrivals)))
        arrivals.insert(place, Request(f"probe-{number}", tuple(prompt), params))
    found = run(llm, arrivals, random)
    for number, options in enumerate(PROBES):
        assert bits(found[f"probe-{number}"]) == alone[number], options


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_vector_in_chunks_of_any_size_and_among_others(
    llm: LLM, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(7)
    prompts = [random.integers(2, VOCAB, length).tolist() for length in (1, 12, 23, 40)]
    alone = np.concatenate([llm.embed(prompt, pooling) for prompt in prompts])
    for chunk in (5, 16):
        monkeypatch.setattr(llm.engine.scheduler.limit, "tokens", chunk)
        assert np.array_equal(llm.embed(prompts, pooling), alone), chunk
