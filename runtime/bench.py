"""`python -m runtime.bench`: how fast a model prefills and decodes on this machine, warm.

The engine is the one that serves, driven on this thread. Prompts are random tokens, never zeros;
each round uses new ones, so the prefix cache cannot help. Prefill: `--batch` prompts of
`--prompt-len` tokens until each has its first token. Decode: the further `--output-len` tokens of
all of them. Figures are medians over rounds.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pjrt_gcu import counters
from pjrt_gcu.roofline import Clock
from runtime.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.request import Request
from runtime.engine.sampling_params import SamplingParams
from runtime.platform import peak_rss_bytes, without_collection


@dataclass(frozen=True)
class Figures:
    """What was measured. Rates are over all sequences together."""

    model: str
    prompt_len: int
    output_len: int
    batch: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    ttft_s: float  # from the request to its first token, mean over the batch
    itl_s: float  # between two tokens of a sequence
    load_s: float
    compile_s: float  # or loading from the compile cache
    peak_rss_bytes: int
    parameter_bytes: int
    num_steps: int
    device: str
    # On a simulated GCU: what the device's memory bandwidth would allow, see pjrt_gcu.roofline.
    estimated_s60_decode_tokens_per_s: float | None = None


@dataclass(frozen=True)
class _Round:
    prefill_s: float  # until every sequence has its first token
    decode_s: float
    decode_tokens: int  # after that moment
    ttft_s: float


def measure(
    config: EngineConfig,
    prompt_len: int,
    output_len: int,
    batch: int,
    rounds: int,
    clock: Clock = Clock(),  # noqa: B008  frozen
) -> Figures:
    """Load the model, run one round to warm up and `rounds` more. Raises ConfigError,
    CheckpointError, ParameterError.
    """
    with without_collection():  # as the server loads
        engine = Engine(config)
    rng = np.random.default_rng(config.seed)
    _run(engine, rng, prompt_len, output_len, batch, "warm-up")
    steps = engine.stats().steps
    seen = [_run(engine, rng, prompt_len, output_len, batch, str(index)) for index in range(rounds)]
    decode_rate = statistics.median(one.decode_tokens / one.decode_s for one in seen)
    return Figures(
        model=engine.model.name,
        prompt_len=prompt_len,
        output_len=output_len,
        batch=batch,
        prefill_tokens_per_s=batch * prompt_len / statistics.median(one.prefill_s for one in seen),
        decode_tokens_per_s=decode_rate,
        ttft_s=statistics.median(one.ttft_s for one in seen),
        itl_s=batch / decode_rate,
        load_s=engine.load_s,
        compile_s=engine.compile_s,
        peak_rss_bytes=peak_rss_bytes(),
        parameter_bytes=engine.model.parameter_bytes,
        num_steps=(engine.stats().steps - steps) // rounds,
        device=engine.description["device"],
        estimated_s60_decode_tokens_per_s=_roofline(engine, prompt_len, output_len, batch, clock),
    )


def _roofline(
    engine: Engine, prompt_len: int, output_len: int, batch: int, clock: Clock
) -> float | None:
    """Decoded tokens per second by the clock, from the last launches of the log: a bound, not a
    measurement. None where no GCU is used.
    """
    if engine.model.platform != "gcu":
        return None
    sizes = engine.runner.sizes
    token_bytes = sizes.block_bytes / sizes.block_size / engine.model.mesh.devices.size
    seconds = sum(
        clock.seconds(launch, further_bytes=batch * (prompt_len + index) * token_bytes)
        for index, launch in enumerate(counters.launches()[-output_len:], 1)
    )
    return batch * output_len / seconds


def _run(
    engine: Engine,
    rng: np.random.Generator,
    prompt_len: int,
    output_len: int,
    batch: int,
    name: str,
) -> _Round:
    """One batch from arrival to its last token."""
    vocab_size = engine.model.vocab_size
    params = SamplingParams(temperature=0, max_tokens=1 + output_len, ignore_eos=True)
    begin = time.perf_counter()
    for index in range(batch):
        token_ids = tuple(rng.integers(vocab_size // 20, vocab_size, prompt_len).tolist())
        engine.add_request(Request(f"bench-{name}-{index}", token_ids, params))
    first_s: dict[str, float] = {}
    decode_tokens = 0
    while engine.has_work:
        is_prefilled = len(first_s) == batch
        for delta in engine.step():
            first_s.setdefault(delta.request_id, time.perf_counter())
            if is_prefilled:
                decode_tokens += sum(len(news.token_ids) for news in delta.completions)
    end = time.perf_counter()
    prefilled = max(first_s.values())
    ttft_s = statistics.mean(first_s.values()) - begin
    return _Round(prefilled - begin, end - prefilled, decode_tokens, ttft_s)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m runtime.bench", description=__doc__)
    parser.add_argument(
        "--model", default="", help="folder, .gguf file or hub id; default: the embedded model"
    )
    parser.add_argument("--prompt-len", type=int, default=512, help="tokens per prompt")
    parser.add_argument("--output-len", type=int, default=64, help="decoded tokens after the first")
    parser.add_argument("--batch", type=int, default=1, help="sequences at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--gcu-gb-per-s", type=float, default=672, help="of the estimate on a simulated GCU"
    )
    parser.add_argument("--gcu-tflops", type=float, help="peak of the estimate; default: no limit")
    parser.add_argument(
        "--json", metavar="FILE", help="write one JSON object; - = last line of the output"
    )
    args = parser.parse_args(argv)
    config = EngineConfig(
        model=args.model, device=args.device, dtype=args.dtype, max_num_seqs=max(args.batch, 1)
    )
    clock = Clock(args.gcu_gb_per_s * 1e9, args.gcu_tflops and args.gcu_tflops * 1e12)
    figures = measure(config, args.prompt_len, args.output_len, args.batch, args.rounds, clock)
    for name, value in asdict(figures).items():
        print(
            f"{name:22s} {value:,.4g}" if isinstance(value, float) else f"{name:22s} {value}",
            file=sys.stderr,
        )
    line = json.dumps(asdict(figures))
    if args.json == "-":
        print(line)
    elif args.json:
        Path(args.json).write_text(line + "\n")


if __name__ == "__main__":
    main()
