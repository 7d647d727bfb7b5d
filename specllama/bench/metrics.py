"""From runs to figures. Seconds and tokens per second throughout.

Decode rates are the engine's own: text may be held back, so when tokens arrive says little of when
they were made. Speculation gives tokens in blocks, one a round, so the gap between two tokens is no
measure: beside LLMPerf's figures there are time per output token, seconds a round and the longest
stall.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from specllama.bench.runner import Arm, Run
from specllama.results import Reliability, SpecStats
from specllama.verification import LOSSY_RULES, RULES

PERCENTILES = (25, 50, 75, 90, 95, 99)
N_RESAMPLES = 4000
LEVEL = 0.95
MIN_PROMPTS = 4
"""Fewer say next to nothing about prompts in general, so they get no interval."""

FUNCTIONS_OF_THE_SEED = frozenset(name for name, rule in RULES.items() if rule.of_seed)
"""Rules under which drafts cannot change the text of a seed."""


class Block(NamedTuple):
    """The tokens of one round and when they arrived."""

    tokens: int
    at: float


class Spent(NamedTuple):
    """Seconds: in llama.cpp for the target, in llama.cpp for the draft model, and in Python."""

    target: float = 0.0
    draft: float = 0.0
    outside: float = 0.0


class Ratio(NamedTuple):
    """A geometric mean with its bootstrap interval, where there are enough values for one."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an arm's text departs from the text it must repeat.

    Attributes:
        position: of the first differing token, from 0.
        gap: between the log-probabilities of the two tokens; None where one text ended.
    """

    arm: str
    prompt: str
    position: int
    gap: float | None


def blocks(run: Run) -> list[Block]:
    """Tokens by round: the target's own token ends one (the last round may lack it)."""
    found: list[Block] = []
    tokens = 0
    for at, own in zip(run.times, run.own, strict=True):
        tokens += 1
        if own:
            found.append(Block(tokens, at))
            tokens = 0
    return [*found, Block(tokens, run.times[-1])] if tokens else found


def round_seconds(run: Run) -> list[float]:
    """Time from each block to the next."""
    return [later.at - block.at for block, later in pairwise(blocks(run))]


def longest_stall(run: Run) -> float | None:
    """The longest wait between two tokens; None for fewer than two."""
    return max((later - at for at, later in pairwise(run.times)), default=None)


def time_per_token(run: Run) -> float | None:
    """(end-to-end - first token) / (tokens - 1); None for fewer than two tokens."""
    n = len(run.times)
    return (run.seconds - run.times[0]) / (n - 1) if n > 1 else None


def llmperf(run: Run) -> dict[str, float] | None:
    """LLMPerf's measures of one request under its names; None where nothing was said.

    As there, the inter-token latency counts the wait for the first token too, divided by all.
    """
    n = len(run.times)
    if not n:
        return None
    return {
        "ttft_s": run.times[0],
        "inter_token_latency_s": run.times[-1] / n,
        "end_to_end_latency_s": run.seconds,
        "request_output_throughput_token_per_s": n / run.seconds,
    }


def percentiles(values: Sequence[float], wanted: Sequence[int] = PERCENTILES) -> dict[str, float]:
    """`{"p25": …}` with linear interpolation; empty for no values."""
    if not values:
        return {}
    found = np.percentile(values, wanted)
    return {f"p{share}": float(value) for share, value in zip(wanted, found, strict=True)}


def bootstrap(ratios: Sequence[float], seed: int = 0, level: float = LEVEL) -> Ratio:
    """Geometric mean of positive ratios (one a prompt) with its interval.

    Prompts are drawn with replacement (Efron 1979). The percentiles are those of Hesterberg 2015
    (arXiv 1411.5279, "expanded"): plain ones hold 83 of 100 means of five prompts, these 90.
    """
    logs = np.log(ratios)
    if len(logs) < MIN_PROMPTS:
        return Ratio(float(np.exp(logs.mean())), None, None)
    draws = np.random.default_rng(seed).choice(logs, (N_RESAMPLES, len(logs))).mean(axis=1)
    tail = _expanded_tail(len(logs), level)
    low, high = np.exp(np.quantile(draws, (tail, 1 - tail)))
    return Ratio(float(np.exp(logs.mean())), float(low), float(high))


def best_of(count: int) -> float:
    """The level at which the best of so many intervals is still right as often as `LEVEL` says.

    The highest of twelve 95 % intervals misses its arm's true gain far more often than one in
    twenty; Bonferroni's correction divides what may be missed by their number.
    """
    return 1 - (1 - LEVEL) / count


def _expanded_tail(count: int, level: float = LEVEL) -> float:
    """The share of resampled means to leave out at each end: less, the fewer values there are.

    Student's quantile by its expansion in the normal one (Abramowitz and Stegun 26.7.5).
    """
    normal, free = NormalDist(), count - 1
    z = normal.inv_cdf((1 + level) / 2)
    student = (
        z
        + (z**3 + z) / (4 * free)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    )
    return normal.cdf(-student * math.sqrt(count / free))


def rates(runs: Iterable[Run]) -> dict[str, float]:
    """Prompt -> the median decode rate of its repetitions; a prompt without a rate is left out."""
    found: dict[str, list[float]] = {}
    for run in runs:
        rate = run.generation.timings.decode_tok_s
        if rate is not None:
            found.setdefault(run.prompt.id, []).append(rate)
    return {prompt: float(np.median(values)) for prompt, values in found.items()}


def speedups(runs: Iterable[Run], base: Iterable[Run]) -> dict[str, float]:
    """Prompt -> its rate over the rate of `base`, where both are known."""
    slow = rates(base)
    return {prompt: rate / slow[prompt] for prompt, rate in rates(runs).items() if prompt in slow}


def total_spec(runs: Iterable[Run]) -> SpecStats:
    """The speculation statistics of all runs."""
    total = SpecStats()
    for run in runs:
        total.add(run.generation.spec)
    return total


def seconds_per_token(runs: Iterable[Run]) -> Spent:
    """Decode seconds a token, over all tokens of all runs."""
    target = draft = outside = 0.0
    tokens = 0
    for run in runs:
        timings = run.generation.timings
        if timings.decode_tok_s is None:
            continue
        n = len(run.generation.tokens) - 1
        seconds = n / timings.decode_tok_s
        tokens += n
        draft += seconds * timings.draft_share
        outside += seconds * timings.overhead_share
        target += seconds * (1 - timings.draft_share - timings.overhead_share)
    return Spent(*(part / tokens for part in (target, draft, outside))) if tokens else Spent()


def calibration_error(reliability: Iterable[Reliability]) -> float | None:
    """Expected calibration error (Naeini 2015): |predicted - observed|, weighted by tokens."""
    bins = [entry for entry in reliability if entry.tested]
    tested = sum(entry.tested for entry in bins)
    if not tested:
        return None
    return sum(abs(entry.predicted - entry.accepted) for entry in bins) / tested


def must_agree(run: Run, base: Run) -> bool:
    """Whether the run's rule promises the very text of `base`, up to the rounding of logits."""
    if run.arm.model != base.arm.model:
        return False
    rule = run.generation.verify
    if run.arm.params.sampling.temperature == 0.0:
        return rule not in LOSSY_RULES
    return rule in FUNCTIONS_OF_THE_SEED and rule == base.generation.verify


def difference(run: Run, base: Run) -> Difference | None:
    """Where the two texts part; None where they are the same tokens."""
    ours, theirs = run.generation, base.generation
    if ours.tokens == theirs.tokens:
        return None
    shared = min(len(ours.tokens), len(theirs.tokens))
    pairs = zip(ours.tokens[:shared], theirs.tokens[:shared], strict=True)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), shared)
    gap = abs(ours.logprobs[at] - theirs.logprobs[at]) if at < shared else math.nan
    return Difference(run.arm.name, run.prompt.id, at, None if math.isnan(gap) else gap)


def differences(runs: Sequence[Run], arms: Sequence[Arm]) -> tuple[list[Difference], set[str]]:
    """Broken promises, one a prompt at most; and the arms that made any promise."""
    first: dict[tuple[str, str], Run] = {}
    for run in runs:
        first.setdefault((run.arm.name, run.prompt.id), run)
    found: dict[tuple[str, str], Difference] = {}
    promised = set()
    for run in runs:
        base = first.get((run.arm.against, run.prompt.id))
        if base is None or not must_agree(run, base):
            continue
        promised.add(run.arm.name)
        different = difference(run, base)
        if different is not None:
            found.setdefault((run.arm.name, run.prompt.id), different)
    order = [arm.name for arm in arms]
    return sorted(found.values(), key=lambda d: order.index(d.arm)), promised
