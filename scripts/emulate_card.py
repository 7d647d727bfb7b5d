"""Drafting on a card that is not there: real models and the real engine, a card's time.

    .venv/bin/python scripts/emulate_card.py                     8B cost, temperature 0.8
    .venv/bin/python scripts/emulate_card.py --as 70b --temp 0 --host 1 --rounds

Every decode is computed by this machine's CPU, and takes on the clock what a card took for a model
of 8B or 70B cost, a change of size included; Python takes its own time, times `--host`. What is
drafted, kept and chosen is then as on the card, also what drafting ahead hides behind a decode.
`scripts/simulate_scheduler.py` is faster and has no Python in it; `scripts/gpu_bench.py` needs one.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from arguments import from_1
from measuring import facts, print_facts, print_json
from numpy.typing import NDArray

import specllama.llama.context
import specllama.llama.model
from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.bench import prompts
from specllama.engine.engine import Engine
from specllama.llama.context import Context
from specllama.machine import MOST_KEPT
from specllama.options import VerifyName
from specllama.text.chat import Message
from specllama.verification import UNSEEDED

QUEUEING_MS = 0.1
BESIDE_MS = 0.3
"""What calling a decode takes, and a draft's decode more while the target's is under way."""
MS = {
    "8b": {1: 2.6, 2: 2.9, 3: 3.35, 4: 3.8, 5: 4.4, 6: 4.8, 7: 5.2, 8: 5.6, 9: 6.4, 12: 6.7,
           16: 7.0, 20: 7.8, 24: 8.0, 32: 8.5, 64: 9.5, 512: 30},
    "70b": {1: 15.3, 2: 16.6, 3: 19, 4: 22.0, 5: 25, 6: 28, 7: 31, 8: 34, 9: 37, 12: 38,
            16: 39, 20: 44, 24: 45, 32: 50, 64: 60, 512: 250},
    "draft": {1: 0.3, 2: 0.33, 4: 0.4, 8: 0.5, 16: 0.6, 64: 1, 512: 5},
}  # fmt: skip
CHANGE_MS = {"8b": (1.6, 5.4), "70b": (3.0, 15.2), "draft": (0.5, 0.1)}
BACK_MS = {"8b": 0.55, "70b": 1.8, "draft": 0.15}
"""Of one H200 (docs/log.md, 2026-11-29 and 30): a decode by tokens; what the first and the second
decode of a size cost more, and what going back to one whose graph was kept."""
CAPTURED = 64
CELLS = 256
"""Larger decodes are captured by no graph; cells are attended to in blocks, each another graph."""
KEPT_S = 10.0
"""A graph that was not used for so long is dropped."""


class Clock:
    """Stands in for `time.perf_counter`: Python's own seconds, and the card's."""

    def __init__(self, pace: float) -> None:
        self._real = time.perf_counter
        self._pace, self._last, self._now = pace, self._real(), 0.0

    def __call__(self) -> float:
        real = self._real()
        self._now += self._pace * (real - self._last)
        self._last = real
        return self._now

    def skip(self, work: Callable[[], Any]) -> Any:
        """Do something that takes no time."""
        now = self()
        found = work()  # which may look at the clock
        self._now, self._last = now, self._real()
        return found

    def wait(self, until: float) -> float:
        """Pass the time up to a moment; how much that was."""
        left = max(0.0, until - self())
        self._now += left
        return left


@dataclass
class Card:
    """One model's decodes on the card, and the graphs that were captured.

    Attributes:
        sized: one of each shape is kept, not only the latest.
        shape: size and block of cells of the latest decode.
        decodes: how many there were of each shape since its graph was lost.
    """

    name: str
    sized: bool
    shape: tuple[int, int] = (0, 0)
    decodes: OrderedDict[tuple[int, int], int] = field(default_factory=OrderedDict)
    used_at: float = 0.0

    def rest(self, now: float) -> None:
        """A decode begins now: the graphs may have been dropped by then."""
        if now - self.used_at > KEPT_S and not self.sized:
            self.forget()
        self.used_at = now

    def forget(self) -> None:
        """No graph fits any more."""
        self.shape = (0, 0)
        self.decodes.clear()

    def seconds(self, n_tokens: int, position: int) -> float:
        """Of the next decode, `position` the last of its tokens."""
        table = MS[self.name]
        usual = float(np.interp(n_tokens, list(table), list(table.values())))
        if n_tokens > CAPTURED:
            if self.sized:
                self.shape = (0, 0)
            return usual / 1000
        return (usual + self._change_ms((n_tokens, position // CELLS))) / 1000

    def _change_ms(self, shape: tuple[int, int]) -> float:
        moved, self.shape = shape != self.shape, shape
        if moved and not self.sized:
            self.decodes.clear()
        count = self.decodes[shape] = self.decodes.get(shape, 0) + 1
        self.decodes.move_to_end(shape)
        if len(self.decodes) > MOST_KEPT:
            self.decodes.popitem(last=False)
        back = BACK_MS[self.name] if moved and count > 1 else 0.0
        return back + dict(enumerate(CHANGE_MS[self.name], start=1)).get(count, 0.0)


class Emulation:
    """Takes the place of `Context.decode`, and of the clock everywhere."""

    def __init__(self, target: str, pace: float, *, sized: bool) -> None:
        self._sized = sized
        self.clock = Clock(pace)
        self._target, self._decode = target, Context.decode
        self._cards: dict[int, Card] = {}
        self._busy = False

    def install(self) -> None:
        """For good: this process does nothing else."""
        emulation = self

        def decode(context: Context, *batch: Any, **more: Any) -> list[NDArray[np.float32]]:
            return emulation.decode(context, *batch, **more)

        time.perf_counter = self.clock
        specllama.llama.model.is_offloaded = lambda *_: True
        specllama.llama.context.Context.decode = decode  # type: ignore[method-assign]
        kept = "sized" if self._sized else "latest"
        specllama.llama.context.Context.kept_graphs = kept  # type: ignore
        if self._sized:  # which are touched while nobody asks
            specllama.llama.context.Context.graphs_alive = True  # type: ignore
        specllama.llama.context.Context.forget_graphs = lambda *_: emulation.forget()  # type: ignore

    def forget(self) -> None:
        """No graph fits any more."""
        for card in self._cards.values():
            card.forget()

    def decode(
        self,
        context: Context,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[NDArray[np.float32]]:
        """As `Context.decode`."""
        draft = context.model.path.stem.endswith("draft")
        card = self._cards.setdefault(
            id(context), Card("draft" if draft else self._target, self._sized)
        )
        seconds = context.seconds
        rows = self.clock.skip(lambda: self._decode(context, tokens, positions, sequences, outputs))
        context._waits.pop()
        started = self.clock()
        card.rest(started)
        end = started + card.seconds(len(tokens), positions[-1]) + self._busy * BESIDE_MS / 1000
        self.clock.wait(started + QUEUEING_MS / 1000)
        busy = self._meanwhile(meanwhile)
        waited = self.clock.wait(end)
        context.seconds = seconds + QUEUEING_MS / 1000 + waited
        context.overran = waited < specllama.llama.context._NO_WAIT * busy
        if meanwhile is None:
            context._waits.append(waited > QUEUEING_MS / 1000)
        return rows

    def _meanwhile(self, work: Callable[[], None] | None) -> float:
        if work is None:
            return 0.0
        started, self._busy = self.clock(), True
        work()
        self._busy = False
        return self.clock() - started


class Rounds:
    """Per arm and number of drafted tokens: milliseconds and tokens of each round."""

    def __init__(self, clock: Clock) -> None:
        self.found: dict[str, dict[int, list[tuple[float, int]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.arm = ""
        real = Engine._round

        def timed(engine: Engine, lives: Any) -> None:
            (live,) = lives
            started, length, drafted = clock(), len(live.ids), live.stats.drafted
            real(engine, lives)
            row = 1000 * (clock() - started), len(live.ids) - length
            self.found[self.arm][live.stats.drafted - drafted].append(row)

        Engine._round = timed  # type: ignore[method-assign]

    def lines(self) -> list[str]:
        """A table."""
        return [
            f"  {arm:<10} {n:>3} drafted: {len(rows):>5} rounds, "
            f"{statistics.median(ms for ms, _ in rows):6.2f} ms, "
            f"{statistics.fmean(tokens for _, tokens in rows):5.2f} tokens"
            for arm, lengths in self.found.items()
            for n, rows in sorted(lengths.items())
        ]


def main() -> None:
    """Measure and print."""
    args = _arguments()
    emulation = Emulation(args.named, args.host, sized=args.graphs == "sized")
    rounds = Rounds(emulation.clock)
    emulation.install()
    found = facts() | vars(args)
    print_facts(found)
    with tempfile.TemporaryDirectory() as kept:
        os.environ["SPECLLAMA_HOME"] = kept  # no cost of a card belongs to this machine
        found["arms"] = _measure(args, rounds, emulation.clock)
    if args.rounds:
        print("\n".join(rounds.lines()))
    print_json(found)


def _measure(args: argparse.Namespace, rounds: Rounds, clock: Clock) -> dict[str, Any]:
    """Every arm on every prompt, in blocks that turn round."""
    fixed = {"drafter": "model", "adaptive": False, "verify": args.verify}
    arms: dict[str, dict[str, Any]] = {
        "plain": {"drafter": "none"},
        "default": {"verify": args.verify},
        "chain of 2": fixed | {"draft_max": 2},
        "chain of 3": fixed | {"draft_max": 3},
    }
    asked = prompts.builtin()[:: max(1, 46 // args.prompts)][: args.prompts]
    blocks = [asked[::2], asked[1::2]]
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    outside: dict[str, list[float]] = {arm: [] for arm in arms}
    options = ModelOptions(n_ctx=1024, threads=args.threads, flash_attn="off")
    with SpeculativeDecoder("smollm2-135m", "smollm2-135m-draft", options=options) as decoder:
        for turn, block in enumerate(blocks):
            for arm in list(arms)[:: -1 if turn % 2 else 1]:
                rounds.arm = arm
                for number, prompt in enumerate(block):
                    clock.wait(clock() + args.idle)
                    params = GenerationParams(
                        max_tokens=args.tokens,
                        sampling=SamplingParams(temperature=args.temp),
                        seed=number,
                        logprobs=False,
                        **arms[arm],
                    )
                    told = decoder.chat([Message("user", prompt.text)], params).timings
                    seconds[arm].append(1.0 / told.decode_tok_s if told.decode_tok_s else 0.0)
                    outside[arm].append(told.overhead_share)
    return {arm: _row(arm, seconds, outside[arm]) for arm in arms}


def _row(arm: str, seconds: dict[str, list[float]], outside: list[float]) -> dict[str, float]:
    pairs = [(p, s) for p, s in zip(seconds["plain"], seconds[arm], strict=True) if p and s]
    speed = statistics.geometric_mean(plain / own for plain, own in pairs)
    share = statistics.median(outside)
    print(f"{arm:<10} {speed:.3f} x plain, outside llama.cpp {share:.1%}", flush=True)
    return {"speed": round(speed, 4), "outside": round(share, 4), "replies": len(pairs)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])

    def add(*names: str, help: str, **settings: Any) -> None:
        help += " (default: %(default)s)" if "default" in settings else ""
        parser.add_argument(*names, help=help, **settings)

    add("--as", dest="named", choices=[n for n in MS if n != "draft"], default="8b",
        help="cost of the target's decodes")  # fmt: skip
    add("--graphs", choices=["sized", "latest"], default="sized",
        help="whether a graph of each size is kept, or that of the latest decode")  # fmt: skip
    add("--temp", type=float, default=0.8, help="temperature")
    add("--verify", choices=get_args(VerifyName), default=UNSEEDED, help="rule of acceptance")
    add("--prompts", type=from_1, default=12,
        help="how many of the built-in prompts each arm is asked, of all kinds")  # fmt: skip
    add("--tokens", type=from_1, default=96, help="the most of a reply")
    add("--idle", type=float, default=0.0,
        help="seconds between replies; after ten the card has forgotten its graphs")  # fmt: skip
    add("--threads", type=from_1, default=2, help="of this machine")
    add("--rounds", action="store_true", help="also what rounds took, by length")
    add("--host", type=float, default=0.35,
        help="what Python takes there, of what it takes here behind a CPU's decodes (an H200:"
        " about .35)")  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    main()
