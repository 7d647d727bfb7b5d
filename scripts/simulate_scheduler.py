"""Is any request slower than plain decoding? The real scheduler on simulated machines.

    python scripts/simulate_scheduler.py record acceptance.jsonl            # with the built-in pair
    python scripts/simulate_scheduler.py simulate acceptance.jsonl          # needs no model

`record` lets the target answer the built-in prompts, seeded, and notes at each position what the
draft would have said there under the same noise (coupled verification), and how sure it was.
`simulate` draws requests from those replies and runs them through the engine's own `propose` and
`Scheduler` over a simulated clock: four machines with the decode costs of docs/log.md, what Python
takes beside them, acceptance and look-up drafts as recorded. A request's plain time is that of its
tokens one by one, in rounds that ask no drafter; its speed is that time over what it took.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from measuring import facts, print_facts, print_json

from specllama.calibration import FEW_SIZES, FIRST_SIZES
from specllama.drafting.protocol import Drafter, Want
from specllama.drafting.suffix import SuffixDrafter
from specllama.engine import propose as proposing
from specllama.engine.propose import Limits, propose
from specllama.machine import GraphsKept
from specllama.results import SpecStats
from specllama.sampling.params import SamplingParams
from specllama.scheduling import graphs
from specllama.scheduling.acceptance import Step
from specllama.scheduling.account import Account
from specllama.scheduling.scheduler import Scheduler, Share
from specllama.scheduling.table import CostTable
from specllama.verification.types import Proposal

_BY_POSITION = ("reply", "drafted", "confidences")
TEMPERATURES = (0.0, 0.8, 1.2)
REPLY = 64
DRAFT_MAX = 16
TOKENS = 128
ROUND_S, ROW_S, LOOK_S, ASKING_S = 0.0001, 0.00005, 0.0001, 0.00006
"""Seconds of Python: a round, a row of the target's, a drafted token, and asking the drafters."""


@dataclass(frozen=True)
class Device:
    """Milliseconds of a target decode by tokens, and of a draft's token.

    Attributes:
        first, second: what the first and the second decode of another size take beyond that.
    """

    name: str
    same: dict[int, float]
    draft: float
    first: float = 0.0
    second: float = 0.0
    back: float = 0.0
    calibrated: bool = True

    def batch_s(self, n_tokens: int) -> float:
        """Interpolated; beyond the table, the slope of its last two."""
        sizes = sorted(self.same)
        above = next((n for n in sizes if n >= n_tokens), sizes[-1])
        below = sizes[max(0, sizes.index(above) - 1)]
        if above == below or n_tokens == above:
            return self.same[above] / 1000
        slope = (self.same[above] - self.same[below]) / (above - below)
        return (self.same[below] + slope * (n_tokens - below)) / 1000

    @property
    def kept_graphs(self) -> GraphsKept:
        """What it keeps of captured graphs."""
        return "sized" if self.back else "latest" if self.first else "none"

    @property
    def plain_s(self) -> float:
        """Seconds of a round where nobody ever drafts."""
        return self.batch_s(1) + ROUND_S + ROW_S

    @property
    def begin_s(self) -> float:
        """What plain decoding pays behind a prompt for a graph that is there."""
        return (self.back or self.first) / 1000

    def first_look(self) -> CostTable:
        """As a decoder takes it before its first request."""
        whole = self.table()
        sizes = FIRST_SIZES if self.first else FEW_SIZES
        return CostTable(
            same={n: whole.same[n] for n in sizes},
            other={n: whole.other[n] for n in sizes if self.first},
            second={n: whole.second[n] for n in sizes if self.first},
            back={n: whole.back[n] for n in sizes if self.back},
            draft={"model": {1: self.draft / 1000}},
        )

    def table(self) -> CostTable:
        """As `specllama calibrate` would find it."""
        sizes = range(1, DRAFT_MAX + 2)
        same = {n: self.batch_s(n) for n in sizes}
        looks = {n: n * self.draft / 1000 for n in (1, 8)}
        table = CostTable("calibrated", same=same, draft={"model": looks})
        if self.first:
            table.other = {n: seconds + self.first / 1000 for n, seconds in same.items()}
            table.second = {n: seconds + self.second / 1000 for n, seconds in same.items()}
        if self.back:
            table.back = {n: seconds + self.back / 1000 for n, seconds in same.items()}
        return table


_H100_8B = {
    1: 3.03, 2: 3.18, 3: 3.58, 4: 3.86, 5: 4.57, 6: 5.02, 7: 5.42, 8: 5.84, 9: 6.83, 12: 7.01,
    16: 7.3, 20: 8.22, 24: 8.35,
}  # fmt: skip
_H100_70B = {
    1: 18.5, 2: 19.85, 3: 21.13, 4: 22.96, 5: 26.42, 6: 29.52, 7: 34.02, 8: 37.47, 9: 39.99,
    12: 40.7, 16: 41.18, 20: 47.1, 24: 47.61,
}  # fmt: skip
_VNNI = {1: 16.1, 2: 18.4, 3: 24.2, 4: 27.2, 5: 35.1, 6: 39.8, 8: 44.8, 12: 63.0, 16: 77.0, 32: 151}
_AVX2 = {1: 11.8, 2: 19.9, 3: 29.6, 4: 31.3, 6: 41.4, 8: 54.1, 12: 70.9, 16: 99.5}
DEVICES = (
    Device("CPU AVX2, Q4_1 (docs/log.md)", _AVX2, 1.63),
    Device("CPU AVX-512 VNNI, Q4_0", _VNNI, 0.97),
    Device("H100, 8B", _H100_8B, 0.34, first=1.3, second=4.7, back=0.55),
    Device("H100, 70B", _H100_70B, 0.34, first=3.0, second=15.2, back=1.7),
    Device("H100, 8B, one graph", _H100_8B, 0.34, first=1.3, second=4.7),
    Device("H100, 70B, one graph", _H100_70B, 0.34, first=3.0, second=15.2),
)
"""Costs of the AVX-512 and H100 machines: measured for this project, see docs/log.md.

What another size costs was measured call by call (docs/log.md), going back on an H200. The last two
are what they are where llama.cpp keeps one graph for all sizes.
"""


# Recording


def record(path: Path, threads: int) -> None:
    """Answers of the built-in target, and what the built-in draft says at each of their places."""
    from specllama import ModelOptions, SpeculativeDecoder
    from specllama.bench import prompts

    options = ModelOptions(n_ctx=1024, threads=threads)
    with (
        SpeculativeDecoder("smollm2-135m", "smollm2-135m-draft", options=options) as decoder,
        path.open("w", encoding="utf-8") as file,
    ):
        for number, prompt in enumerate(prompts.builtin()):
            for temperature in TEMPERATURES:
                told = _told(decoder, prompt.text, temperature, seed=number)
                line = {"id": prompt.id, "kind": prompt.kind, "temperature": temperature}
                file.write(json.dumps(line | told) + "\n")
                file.flush()


def _told(decoder: Any, text: str, temperature: float, seed: int) -> dict[str, Any]:
    from specllama import GenerationParams
    from specllama.text.chat import Message

    sampling = SamplingParams(temperature=temperature)
    params = GenerationParams(max_tokens=REPLY, sampling=sampling, seed=seed, drafter="none")
    messages = [Message("user", text)]
    reply = decoder.chat(messages, params).tokens
    ids = decoder._chat_ids(messages)
    return {"ids": ids, "reply": reply} | _draft_says(decoder._draft, ids, reply, sampling, seed)


def _draft_says(
    draft: Any, ids: Sequence[int], reply: Sequence[int], sampling: SamplingParams, seed: int
) -> dict[str, Any]:
    """The draft's token and its top probability at each position of a reply, each read right."""
    from specllama.sampling.chain import Sampler
    from specllama.sampling.noise import GreedyDrafts, SharedNoise

    greedy = sampling.temperature == 0.0
    sampler = Sampler(replace(sampling, temperature=1.0) if greedy else sampling)
    chance = GreedyDrafts(seed) if greedy else SharedNoise(seed)
    context, n = draft.context, len(ids)
    context.drop(0)
    context.decode(ids[:-1], range(n - 1), [(0,)] * (n - 1), [False] * (n - 1))
    read = [ids[-1], *reply[:-1]]
    count = len(read)
    rows = context.decode(read, range(n - 1, n - 1 + count), [(0,)] * count, [True] * count)
    tokens, confidences = [], []
    for place, row in enumerate(rows):
        law = sampler.distribution(row, ())
        tokens.append(int(chance.children(law, n + place, 1)[0]))
        confidences.append(round(float(law.probs.max()), 4))
    context.drop(0)
    return {"drafted": tokens, "confidences": confidences}


# Simulating


@dataclass
class Clock:
    """Stands in for the `time` module."""

    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now


class RecordedDrafter(Drafter):
    """Says what the draft said; after a wrong token nothing it says is right."""

    name = "model"
    free = False

    def __init__(self, clock: Clock, token_s: float) -> None:
        self._clock, self._token_s = clock, token_s
        self.told: dict[str, Any] = {}
        self.n_prompt = 0

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        return [self._propose(want) for want in wants]

    def _propose(self, want: Want) -> Proposal:
        tokens: list[int] = []
        right = True
        while len(tokens) < want.limit and want.go_on(len(tokens), None):
            self._clock.now += self._token_s
            place = len(want.ids) + len(tokens) - self.n_prompt
            if place >= len(self.told["drafted"]):
                break
            if not want.go_on(len(tokens), self.told["confidences"][place]):
                break
            token = self.told["drafted"][place]
            tokens.append(token if right else -1)
            right = right and token == self.told["reply"][place]
        return Proposal.chain(tokens, source=self.name)


@dataclass
class Live:
    """What `propose` asks of a sequence."""

    request: Any
    account: Account
    ids: list[int]
    key: int = 0
    keeps_laws: bool = False
    draft_chance: Any = None
    draft_best: Any = None
    n_left: int = TOKENS
    stats: SpecStats = field(default_factory=SpecStats)
    guesses: list[Any] = field(default_factory=list)

    def draft_law(self, row: Any, path: Any) -> None:
        return None

    def permitted(self, proposal: Proposal) -> Proposal:
        return proposal


class Machine:
    """One session: what its scheduler learns of a request serves the next."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._clock = Clock()
        self._drafter = RecordedDrafter(self._clock, device.draft / 1000 + LOOK_S)
        self._suffix = SuffixDrafter(lambda token: False)
        self._scheduler = Scheduler(kept_graphs=device.kept_graphs)
        self._graphs = graphs.of(device.kept_graphs)
        self._scheduler.recall(device.table() if device.calibrated else device.first_look())

    def reply(
        self, told: dict[str, Any], drafters: tuple[str, ...], fixed: int | None = None
    ) -> tuple[float, SpecStats]:
        """Speed of one request against plain decoding.

        Args:
            fixed: draft so many tokens in every round; None leaves that to the scheduler.
        """
        ids, reply = told["ids"], told["reply"]
        self._drafter.told, self._drafter.n_prompt = told, len(ids)
        self._suffix.forget()
        self._read(len(ids))
        request = SimpleNamespace(
            drafters=drafters,
            adaptive=fixed is None,
            shape=None,
            draft_p_min=0.0,
            draft_max=fixed or DRAFT_MAX,
            sampling=SamplingParams(temperature=told["temperature"]),
        )
        live = Live(request, self._scheduler.open_account(len(reply)), list(ids))
        started = self._clock.now
        real, proposing.time = proposing.time, self._clock  # type: ignore[assignment]
        try:
            while (n_said := len(live.ids) - len(ids)) < len(reply):
                live.n_left = len(reply) - n_said
                self._round(live, reply[n_said:])
        finally:
            proposing.time = real
        plain = len(reply) * self._device.plain_s + self._device.begin_s
        return plain / (self._clock.now - started), live.stats

    def _read(self, n_tokens: int) -> None:
        """A prompt, after which plain decoding finds no graph either."""
        self._scheduler.costs.observe_reading(n_tokens, self._device.batch_s(n_tokens))
        self._graphs.read_prompt()

    def _round(self, live: Live, truth: Sequence[int]) -> None:
        scheduler, clock = self._scheduler, self._clock
        clock.now += ROUND_S
        scheduler.begin(1)
        started = clock.now
        clock.now += ASKING_S * live.account.may_draft
        depth = min(live.request.draft_max, len(truth) - 1)
        limits = {0: Limits(depth, DRAFT_MAX, 0)}
        (plan,) = propose([live], limits, [self._suffix, self._drafter], scheduler, [live])  # type: ignore[list-item]
        propose_s = clock.now - started
        proposal = plan.proposal
        size = scheduler.size_for(1 + len(proposal))
        seconds = self._device.batch_s(size) + self._change_s(size) + ROW_S * (1 + len(proposal))
        clock.now += seconds
        accepted = next(
            (n for n, token in enumerate(proposal.tokens) if token != truth[n]), len(proposal)
        )
        steps = [Step(0, 1)] * accepted + [Step(None, 1)] * (accepted < len(proposal))
        scheduler.observe_batch(size, seconds)
        scheduler.learn(plan.bet, live.stats, steps, proposal, range(accepted))
        live.ids += truth[: accepted + 1]
        share = Share(live.account, live.stats, plan.bet, len(proposal), accepted + 1)
        scheduler.settle(clock.now - started, propose_s, [share])

    def _change_s(self, size: int) -> float:
        """What a decode costs for its graph."""
        parts = self._graphs.pays(size)
        self._graphs.decode(size)
        return sum(getattr(self._device, part) for part in parts) / 1000.0


def requests(told: Sequence[dict[str, Any]], count: int, seed: int) -> Iterator[dict[str, Any]]:
    """`count` requests: replies of the same kind and temperature one after the other, at random."""
    chance = random.Random(seed)
    for _ in range(count):
        first = chance.choice(told)
        alike = [one for one in told if one["kind"] == first["kind"]]
        joined = dict(first)
        while len(joined["reply"]) < TOKENS:
            more = chance.choice(alike)
            for name in _BY_POSITION:
                joined[name] = joined[name] + more[name]
        yield joined | {name: joined[name][:TOKENS] for name in _BY_POSITION}


def simulate(path: Path, count: int, seed: int) -> dict[str, Any]:
    """All machines and temperatures; prints a line each."""
    told = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    worst: list[float] = []
    rows = []
    for device in DEVICES:
        for uncalibrated in (False, True):
            for temperature in TEMPERATURES:
                alike = [one for one in told if one["temperature"] == temperature]
                machine = Machine(replace(device, calibrated=not uncalibrated))
                stats = SpecStats()
                speeds = []
                for one in requests(alike, count, seed):
                    speed, own = machine.reply(one, ("suffix", "model"))
                    speeds.append(speed)
                    stats.add(own)
                speeds.sort()
                worst.append(speeds[0])
                rows.append(_row(device, uncalibrated, temperature, speeds, stats))
                print(_line(rows[-1]), flush=True)
    return {"worst": round(min(worst), 4), "rows": rows}


def _row(
    device: Device, uncalibrated: bool, temperature: float, speeds: list[float], stats: SpecStats
) -> dict[str, Any]:
    tested = sum(entry.tested for entry in stats.reliability) or 1
    error = sum(abs(e.predicted - e.accepted) for e in stats.reliability) / tested
    return {
        "device": device.name,
        "table": "learned" if uncalibrated else "calibrated",
        "temperature": temperature,
        "worst": round(speeds[0], 4),
        "one in 100": round(speeds[len(speeds) // 100], 4),
        "median": round(statistics.median(speeds), 4),
        "geometric mean": round(statistics.geometric_mean(speeds), 4),
        "forecast error": round(stats.forecast.error or 0.0, 4),
        "calibration error": round(error, 4),
    }


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['device']:<30} {row['table']:<10} T {row['temperature']:.1f}  "
        f"worst {row['worst']:.3f}  1% {row['one in 100']:.3f}  median {row['median']:.3f}  "
        f"mean {row['geometric mean']:.3f}  "
        f"forecast {row['forecast error']:+.1%}  calibration {row['calibration error']:.3f}"
    )


def main() -> None:
    """Read the arguments and work."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="record acceptances of the built-in pair")
    recording.add_argument("file", type=Path)
    recording.add_argument("--threads", type=int, default=1)
    simulating = commands.add_parser("simulate", help="run requests on simulated machines")
    simulating.add_argument("file", type=Path)
    simulating.add_argument("--requests", type=int, default=400)
    simulating.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.command == "record":
        record(args.file, args.threads)
        return
    found = facts()
    print_facts(found)
    print_json(found | simulate(args.file, args.requests, args.seed))


if __name__ == "__main__":
    main()
