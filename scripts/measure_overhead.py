"""What Python costs: time outside llama.cpp, plain decoding against a bare loop, `--help`.

    .venv/bin/python scripts/measure_overhead.py                         the built-in pair
    .venv/bin/python scripts/measure_overhead.py --target F.gguf --draft none

Run it on an idle machine: llama.cpp's threads spin at barriers, and with other work on the cores
two threads can be a hundred times slower than one. Specllama and the bare loop take turns (A B A B)
in one process.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import PROMPTS, facts, median, print_facts, print_json

from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.verification import UNSEEDED

N_HELP = 7
GREEDY = SamplingParams(temperature=0.0)
WAYS: dict[str, dict[str, Any]] = {
    "plain, greedy": {"drafter": "none", "sampling": GREEDY, "logprobs": False},
    "plain, sampled": {"drafter": "none", "logprobs": False},
    "same, logprobs": {"drafter": "none"},
    "draft, greedy": {"sampling": GREEDY, "logprobs": False},
    f"draft, {UNSEEDED}": {"verify": UNSEEDED, "logprobs": False},
    "draft, coupled": {"verify": "coupled", "logprobs": False},
}


@dataclass(frozen=True)
class Run:
    """One generation: its rate, and the microseconds outside llama.cpp per round."""

    tok_s: float
    share: float
    outside_us: float
    accepted: int
    tested: int


def main() -> None:
    """Measure and print."""
    args = _arguments()
    found = facts() | {"target": args.target, "draft": args.draft, "threads": args.threads}
    print_facts(found)
    options = ModelOptions(n_ctx=args.ctx, threads=args.threads)
    draft = None if args.draft == "none" else args.draft
    with SpeculativeDecoder(args.target, draft, options=options) as decoder:
        overhead = measure_overhead(decoder, args.tokens, args.repeat, with_draft=draft is not None)
        ratio = measure_ratio(decoder, options, args.tokens, args.repeat)
    help_s = measure_help()
    print_json(found | {"overhead": overhead, "bare_loop": ratio, "help_s": help_s})


def measure_overhead(
    decoder: SpeculativeDecoder, n_tokens: int, repeat: int, *, with_draft: bool
) -> dict[str, Any]:
    """Medians over prompts and repetitions of every way to generate, one way after the other."""
    ways = {name: way for name, way in WAYS.items() if with_draft or way.get("drafter") == "none"}
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for number in range(repeat + 1):  # the first is the warm-up
        for name, way in ways.items():
            params = GenerationParams(max_tokens=n_tokens, seed=number, **way)
            kept = [_run(decoder, prompt, params) for prompt in PROMPTS]
            runs[name] += kept if number else []
    print(f"{'':18}{'tok/s':>8}{'outside':>9}{'us/round':>10}{'accepted':>10}/tested")
    return {name: _report(name, found) for name, found in runs.items()}


def _run(decoder: SpeculativeDecoder, prompt: str, params: GenerationParams) -> Run:
    result = decoder.generate(prompt, params)
    timings, rate = result.timings, result.timings.decode_tok_s or 0.0
    seconds = timings.wall_s - timings.ttft_s
    rounds = max(result.spec.rounds - 1, 1)
    outside_us = timings.overhead_share * seconds / rounds * 1e6
    spec = result.spec
    return Run(rate, timings.overhead_share, outside_us, spec.accepted, spec.tested)


def _report(name: str, runs: list[Run]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tok_s": median(run.tok_s for run in runs),
        "outside_share": median(run.share for run in runs),
        "outside_us_per_round": median(run.outside_us for run in runs),
    }
    found["accepted"] = sum(run.accepted for run in runs)
    found["tested"] = sum(run.tested for run in runs)
    print(
        f"{name:18}{found['tok_s']:8.1f}{found['outside_share']:9.1%}"
        f"{found['outside_us_per_round']:10.0f}{found['accepted']:9}/{found['tested']}",
        flush=True,
    )
    return found


def measure_ratio(
    decoder: SpeculativeDecoder, options: ModelOptions, n_tokens: int, repeat: int
) -> dict[str, Any]:
    """Plain greedy decoding by specllama (A) and by the bare loop (B): A B A B.

    Raises:
        SystemExit: the two did not say the same.
    """
    params = GenerationParams(max_tokens=n_tokens, drafter="none", sampling=GREEDY, logprobs=False)
    ours, bare = [], []
    with_bare = BareLoop(decoder, options)
    for prompt in PROMPTS:
        for number in range(repeat + 1):
            result = decoder.generate(prompt, params)
            tokens, rate = with_bare.generate(prompt, len(result.tokens))
            if tokens != result.tokens:
                raise SystemExit("specllama and the bare loop differ.")
            if number:
                ours.append(result.timings.decode_tok_s or 0.0)
                bare.append(rate)
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    found = {"specllama_tok_s": median(ours), "bare_tok_s": median(bare), "ratio": median(ratios)}
    print(f"\nplain: specllama {found['specllama_tok_s']} tok/s, bare loop {found['bare_tok_s']}")
    print(f"ratio: {found['ratio']} (quartiles {_quartiles(ratios)})", flush=True)
    return found


def _quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.3f} to {high:.3f}"


class BareLoop:
    """The smallest greedy decode loop on llama.cpp's own API that makes the same tokens.

    It has a context of its own over the decoder's weights: a second copy of them would lie
    elsewhere in memory, which alone makes decodes up to a tenth faster or slower.
    """

    def __init__(self, decoder: SpeculativeDecoder, options: ModelOptions) -> None:
        from specllama.llama import library
        from specllama.llama.context import FLASH_ATTENTION, Context, default_threads

        backend = decoder.engine.backend
        assert isinstance(backend, Context)
        self._lib = lib = library.load()
        self._model = backend.model.handle
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch = options.n_ctx, options.n_batch
        params.n_threads = params.n_threads_batch = options.threads or default_threads()
        attention = options.attention(backend.model.offloaded)["flash_attn"]
        params.flash_attn_type = FLASH_ATTENTION[attention]
        self._context = lib.llama_init_from_model(self._model, params)
        self._vocab = lib.llama_model_get_vocab(self._model)
        self._n_vocab = lib.llama_vocab_n_tokens(self._vocab)

    def generate(self, prompt: str, n_tokens: int) -> tuple[list[int], float]:
        """Tokens, and tokens per second after the first."""
        ids = self._tokenize(prompt)
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        self._decode(ids[:-1])
        tokens, times = [], []
        for token in self._loop(ids[-1], n_tokens):
            tokens.append(token)
            times.append(time.perf_counter())
        return tokens, (len(times) - 1) / (times[-1] - times[0])

    def _tokenize(self, text: str) -> Any:
        raw = text.encode()
        ids = (self._lib.llama_token * (len(raw) + 2))()
        with_bos = self._lib.llama_vocab_get_add_bos(self._vocab)
        count = self._lib.llama_tokenize(self._vocab, raw, len(raw), ids, len(ids), with_bos, True)
        return list(ids[:count])

    def _decode(self, ids: list[int]) -> None:
        array = (self._lib.llama_token * len(ids))(*ids)
        if self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(array, len(ids))):
            raise SystemExit("llama_decode failed.")

    def _loop(self, token: int, n_tokens: int) -> Iterator[int]:
        array = (self._lib.llama_token * 1)(token)
        batch = self._lib.llama_batch_get_one(array, 1)
        for _ in range(n_tokens):
            if self._lib.llama_decode(self._context, batch):
                raise SystemExit("llama_decode failed.")
            row = self._lib.llama_get_logits(self._context)
            array[0] = int(np.ctypeslib.as_array(row, (self._n_vocab,)).argmax())
            yield array[0]


def measure_help() -> float:
    """Seconds of `specllama --help`, the median after a warm-up."""
    command = [str(Path(sys.executable).with_name("specllama")), "--help"]
    seconds = [_seconds(lambda: subprocess.run(command, check=True, capture_output=True))
               for _ in range(N_HELP + 1)]  # fmt: skip
    print(f"\nspecllama --help: {median(seconds[1:])} s\n")
    return median(seconds[1:])


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--draft", default="smollm2-135m-draft", help="a model, or none")
    parser.add_argument("--threads", type=int, help="default: the physical cores")
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=128, help="per generation")
    parser.add_argument("--repeat", type=int, default=3, help="per prompt, after a warm-up")
    return parser.parse_args()


if __name__ == "__main__":
    main()
