"""Measuring what decodes cost here: what `specllama calibrate` does.

All times are lower medians of several, taken in turns, so that a hiccup of the machine does not
show in one size only. Work is done in small steps, so that it can be broken off at any time and
what was measured by then is of use.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from specllama.kept_costs import KeptCosts
from specllama.llama.context import Context, default_threads
from specllama.llama.selftest import exact_range
from specllama.loading import DraftModel, TargetModel, exact_context
from specllama.options import GenerationParams, ModelOptions
from specllama.results import Generation
from specllama.sampling.params import SamplingParams
from specllama.scheduling.scheduler import Scheduler
from specllama.scheduling.table import MOST_EXACT, CostTable, Seconds
from specllama.scheduling.typical import Typical

FIRST_SIZES = (1, 2, 3, 4, 5, 8, 16)
FEW_SIZES = (1, 2, 4)
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 24, 32, 48, 64)
_USUAL = 17
_HOPELESS = 6.0
_PASSES = 5
_REPEATS = 3
_SWEEP_S = 7.0
_DEPTH = 128
_READING_S = 1.5
_LOOKS = 8
_LOOPS = 6
_THREAD_BATCH = 8
_STUCK = 20.0
_QUICK_S = 1.0
"""Sizes are looked at of which as many single tokens take no longer."""
_FIRST_LOOKS = 4
_TOKENS = 32
_CLEARLY = 0.95
_FLAGS = {"plain": "-t", "batched": "-tb"}
_GREEDY = SamplingParams(temperature=0.0)

Generate = Callable[[str, GenerationParams], Generation]
Progress = tuple[float, str]
"""(share done 0..1, what is being measured)."""


@dataclass(slots=True)
class Threads:
    """Seconds by number of threads: of one token, and of a batch of several."""

    plain: Seconds = field(default_factory=dict)
    batched: Seconds = field(default_factory=dict)

    def best(self) -> dict[str, int]:
        """The fastest counts, empty where only one was tried."""
        tried = {"plain": self.plain, "batched": self.batched}
        return {
            what: min(times, key=lambda n: times[n])
            for what, times in tried.items()
            if len(times) > 1
        }


class Calibration:
    """One calibration of a pair, step by step.

    Args:
        forget: empties the caches.
        generate: answers a message with the pair, in real rounds.
        prompts: to answer; empty leaves acceptance out.

    Attributes:
        threads: what the thread counts were measured to cost.
        trouble: why the table is not on disk, "" where it is; one sentence.
    """

    def __init__(
        self,
        target: TargetModel,
        draft: DraftModel | None,
        options: ModelOptions,
        scheduler: Scheduler,
        costs: KeptCosts,
        forget: Callable[[], None],
        generate: Generate,
        prompts: Sequence[str],
    ) -> None:
        self._target = target
        self._draft = draft
        self._options = options
        self._scheduler = scheduler
        self._costs = costs
        self._forget = forget
        self._generate = generate
        self._prompts = prompts
        self._same: dict[int, Typical] = defaultdict(Typical)
        self._other: dict[int, Typical] = defaultdict(Typical)
        self._second: dict[int, Typical] = defaultdict(Typical)
        self._back: dict[int, Typical] = defaultdict(Typical)
        self._looks: dict[int, Typical] = defaultdict(Typical)
        self._reading = Typical()
        self._exact: int | None = None
        self._known = _known(scheduler, costs)
        self.threads = Threads()
        self.trouble = ""

    def run(self) -> Iterator[Progress]:
        """Measure; may be broken off between or within steps (`finish` takes what there is)."""
        yield from _part(0.0, 0.05, "reading a prompt", self._read_prompt())
        yield from _part(0.05, 0.40, "batches", self._sweep())
        yield from _part(0.40, 0.50, "threads", self._try_threads())
        yield from _part(0.50, 0.60, "drafting", self._draft_in_loop())
        self._keep()  # what comes next may fail
        yield 0.60, "bit-exact range"
        self._find_exact_range()
        self._keep()
        yield from _part(0.70, 1.0, "acceptance", self._real_rounds())
        yield 1.0, "done"

    def table(self) -> CostTable:
        """What was measured so far."""
        looks = _values(self._looks)
        return CostTable(
            how="calibrated",
            same=_values(self._same),
            other=_values(self._other),
            second=_values(self._second),
            back=_values(self._back),
            draft={"model": looks} if looks else {},
            prefill=self._reading.value or None,
            threads=self.threads.best(),
            exact_batch=self._exact,
        )

    def finish(self) -> CostTable:
        """Free the caches and keep what was measured; see `trouble`.

        What was not measured, or what it was broken off before, stays as it was known.
        """
        self._clear()
        self._forget()
        if not self.table().same:
            return self.table()
        self._keep()
        return self._costs.table or self.table()

    def _keep(self) -> None:
        """A disk that cannot be written must not take what was measured."""
        try:
            self._costs.replace(self._with_known())
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            self.trouble = f"The table is not kept: {where}{error.strerror}."
        else:
            self.trouble = ""

    def _with_known(self) -> CostTable:
        """What was measured, and at today's pace what was known of larger sizes and of drafters."""
        table, known = self.table(), self._known
        pace = _pace(known.same, table.same)
        drafts = {
            name: _extended(table.draft.get(name, {}), {n: s * pace for n, s in costs.items()})
            for name, costs in known.draft.items()
        }
        return replace(
            table,
            same=_extended(table.same, known.same),
            other=_extended(table.other, known.other),
            second=_extended(table.second, known.second),
            back=_extended(table.back, known.back),
            draft=table.draft | drafts,
            threads=known.threads | table.threads,
            exact_batch=known.exact_batch if table.exact_batch is None else table.exact_batch,
            acceptance=self._scheduler.table().acceptance,
        )

    def advice(self) -> list[str]:
        """Thread counts that were clearly faster than the current ones, a sentence each."""
        usual = self._options.threads or default_threads()
        current = {"plain": usual, "batched": self._options.threads_batch or usual}
        lines = []
        for what, times in (("plain", self.threads.plain), ("batched", self.threads.batched)):
            best, now = self.threads.best().get(what), current[what]
            if best is not None and now in times and times[best] < _CLEARLY * times[now]:
                flag, ratio = _FLAGS[what], times[now] / times[best]
                said = f"{flag} {best} makes {what} decoding {ratio:.3g} times as fast as"
                lines.append(f"{said} {flag} {now}.")
        return lines

    def _clear(self) -> None:
        """What was decoded here, which the engine knows nothing of."""
        self._target.context.drop(0)
        if self._draft is not None:
            self._draft.follower.cache.forget(0)
            self._draft.context.drop(0)

    def _read_prompt(self) -> Iterator[float]:
        """Seconds a token of a prompt, which both models then have behind them."""
        started = time.perf_counter()
        for number in range(_REPEATS):
            # the first time may load weights; one that was not the first is enough where it is slow
            if number > 1 and time.perf_counter() - started > _READING_S:
                break
            self._clear()
            self._reading.observe(_read(self._target.context) / _DEPTH)
            yield (number + 1) / _REPEATS
        if self._draft is not None:
            _read(self._draft.context)

    def _sweep(self) -> Iterator[float]:
        """Seconds of target decodes of each size, after the same size and after another one."""
        context = self._target.context
        sizes = [n for n in SIZES if n <= min(context.n_outputs, context.n_batch)]
        started = time.perf_counter()
        context.forget_graphs()
        for number in range(_PASSES):
            for place, size in enumerate(sizes if number % 2 else sizes[::-1] if number else sizes):
                self._measure(size, anew=not number)
                passed = (number + (place + 1) / len(sizes)) / _PASSES
                yield max(passed, (time.perf_counter() - started) / _SWEEP_S)
                if number == 0 and self._is_hopeless(size):
                    sizes = [n for n in sizes if n <= size]
                    break
            if time.perf_counter() - started > _SWEEP_S:
                return

    def _measure(self, size: int, *, anew: bool) -> None:
        """Decode the same size three times.

        Args:
            anew: no graph of that size was captured yet.
        """
        context, same = self._target.context, self._same
        kept = not anew and context.kept_graphs == "sized"
        for times in (self._back, same, same) if kept else (self._other, self._second, same):
            times[size].observe(_decode(context, size, _DEPTH))

    def _is_hopeless(self, size: int) -> bool:
        """Whether larger sizes are of no use: nobody drafts so much at such a price."""
        costs = _values(self._same)
        return size >= _USUAL and costs[size] > _HOPELESS * costs[1]

    def _try_threads(self) -> Iterator[float]:
        """The configured counts again, and others; only where the CPU decodes."""
        context, options = self._target.context, self._options
        counts, batch = thread_counts(), min(_THREAD_BATCH, context.n_batch)
        if len(counts) < 2 or self._target.model.offloaded:
            return
        usual = options.threads or default_threads()
        try:
            for place, count in enumerate(counts):
                context.set_threads(count, count)
                if self._is_stuck(_decode(context, 1, _DEPTH)):
                    continue
                self.threads.plain[count] = _lower_median(context, 1)
                self.threads.batched[count] = _lower_median(context, batch)
                yield (place + 1) / len(counts)
        finally:
            context.set_threads(usual, options.threads_batch or usual)

    def _is_stuck(self, seconds: float) -> bool:
        """Threads that wait for each other on a busy machine would take minutes to measure."""
        return seconds > _STUCK * self._same[1].value

    def _draft_in_loop(self) -> Iterator[float]:
        """Seconds of 1, 2, ... looks in a row, each row after a target decode as in a round."""
        if self._draft is None:
            return
        for loop in range(_LOOPS):
            _decode(self._target.context, 1, _DEPTH)
            total = 0.0
            for look in range(1, _LOOKS + 1):
                total += _decode(self._draft.context, 1, _DEPTH + look - 1, keep=True)
                self._looks[look].observe(total)
            _rewind(self._draft.context, _DEPTH)
            yield (loop + 1) / _LOOPS

    def _find_exact_range(self) -> None:
        """In the configuration of `--exact`, whatever the current one is."""
        self._clear()
        n_batch = max(MOST_EXACT, self._options.n_batch)
        if self._options.exact and n_batch == self._options.n_batch:
            self._exact = exact_range(self._target.context, MOST_EXACT)
            return
        context = exact_context(self._target.model, replace(self._options, n_batch=n_batch))
        try:
            self._exact = exact_range(context, MOST_EXACT)
        finally:
            context.close()

    def _real_rounds(self) -> Iterator[float]:
        """Drafts of fixed length, so that acceptance is known before anything hangs on it."""
        if self._draft is None or not self._prompts:
            return
        usual = GenerationParams(
            max_tokens=_TOKENS, drafter="model", draft_max=3, adaptive=False, logprobs=False
        )
        runs = [
            (prompt, replace(usual, sampling=sampling, seed=1))
            for prompt in self._prompts
            for sampling in (_GREEDY, SamplingParams())
        ]
        for place, (prompt, params) in enumerate(runs):
            self._generate(prompt, params)
            yield (place + 1) / len(runs)


def first_look(target: Context, draft: Context | None) -> CostTable:
    """A handful of decodes, so that a first request need not risk its budget to learn of these.

    A device that may replay captured graphs is looked at for what another size costs, too.
    """
    table, replays = CostTable(), target.kept_graphs != "none"
    most = min(target.n_batch, target.n_outputs)
    sizes = [size for size in (FIRST_SIZES if replays else FEW_SIZES) if size <= most]
    if replays:  # a kernel's first call, which loads it, says nothing of changing sizes
        one = [_decode(target, 1, 0) for _ in range(2)][-1]
        for size in sizes[1:]:
            if size * one <= _QUICK_S:
                _decode(target, size, 0)
        target.forget_graphs()
    for size in sizes:
        if size > 1 and size * table.same[1] > _QUICK_S:
            break
        first, second, *later = (_decode(target, size, 0) for _ in range(_FIRST_LOOKS))
        table.same[size] = min(later) if replays else min(first, second, *later)
        if replays:
            table.other[size], table.second[size] = first, second
    if target.kept_graphs == "sized":
        table.back = {size: _decode(target, size, 0) for size in table.same}
    if draft:
        table.draft["model"] = {1: min(_decode(draft, 1, 0) for _ in range(_FIRST_LOOKS))}
    return table


def thread_counts() -> list[int]:
    """1, 2, 4, ... and the cores this process may use."""
    cores = default_threads()
    return sorted({cores, *(1 << n for n in range(cores.bit_length()) if 1 << n <= cores)})


def _part(start: float, end: float, label: str, steps: Iterator[float]) -> Iterator[Progress]:
    yield start, label
    for share in steps:
        yield start + min(1.0, share) * (end - start), label


def _known(scheduler: Scheduler, costs: KeptCosts) -> CostTable:
    """What earlier sessions kept and this one learned."""
    known = scheduler.table()
    if costs.table is not None:  # the scheduler drops these where no graphs are replayed
        old = costs.table
        known = replace(known, other=old.other, second=old.second, back=old.back)
    return known


def _pace(known: Seconds, measured: Seconds) -> float:
    """How many times as long decodes take as was known; 1 where no size tells."""
    ratios = sorted(measured[n] / known[n] for n in measured.keys() & known.keys())
    return ratios[(len(ratios) - 1) // 2] if ratios else 1.0


def _extended(measured: Seconds, known: Seconds) -> Seconds:
    """Also the larger sizes that were known, at the pace of those measured."""
    pace, most = _pace(known, measured), max(measured, default=0)
    return measured | {n: seconds * pace for n, seconds in sorted(known.items()) if n > most}


def _values(times: dict[int, Typical]) -> Seconds:
    return {n: typical.value for n, typical in sorted(times.items()) if typical.count}


def _lower_median(context: Context, size: int) -> float:
    times = Typical()
    for _ in range(_REPEATS):
        times.observe(_decode(context, size, _DEPTH))
    return times.value


def _decode(
    context: Context, size: int, start: int, *, outputs: bool = True, keep: bool = False
) -> float:
    """Seconds of one decode behind `start` tokens of sequence 0, which it leaves as they were.

    Args:
        outputs: ask for the logits of all tokens.
        keep: leave the decoded tokens in the cache (a prompt always stays).
    """
    held = context.length(0)
    first = min(start, held)
    tokens = [(7 * (first + place) + 11) % context.n_vocab for place in range(size)]
    started = time.perf_counter()
    context.decode(tokens, range(first, first + size), [(0,)] * size, [outputs] * size)
    seconds = time.perf_counter() - started
    if outputs and not keep:
        _rewind(context, first)
    return seconds


def _read(context: Context) -> float:
    """Seconds of reading a prompt of `_DEPTH` tokens, which stays, into an empty sequence 0."""
    step = min(_DEPTH, context.n_batch)
    return sum(
        _decode(context, min(step, _DEPTH - start), start, outputs=False)
        for start in range(0, _DEPTH, step)
    )


def _rewind(context: Context, length: int) -> None:
    """Drop what is behind `length` tokens; all of it where the memory cannot stop there."""
    if not context.truncate(0, length):
        context.drop(0)
