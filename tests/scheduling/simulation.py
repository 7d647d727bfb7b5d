"""A machine of known costs and a draft of known quality, under the real engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from specllama.drafting.protocol import Want
from specllama.engine import engine as engine_module
from specllama.engine import propose as propose_module
from specllama.engine.engine import Engine
from specllama.scheduling.table import CostTable
from specllama.verification.types import Proposal
from tests.engine.clock import Clock
from tests.engine.fake_model import FakeModel
from tests.engine.harness import Script, request

V = 16


@cache
def _row(place: int) -> np.ndarray:
    row = np.zeros(V, np.float32)
    row[place * 7 % 13] = 30.0
    return row


def truth(place: int) -> int:
    """The token the target says at a position."""
    return place * 7 % 13


@dataclass
class Machine:
    """Runs one engine; several `reply`s share what the scheduler has learned.

    Attributes:
        cost: seconds of a target decode of n tokens.
        draft_s: seconds of one drafted token.
        read_s: seconds of each token that the draft has to read first.
        good: round (from 0) -> how many of its drafted tokens are right.
        prompt: its tokens.
        confidence: what the draft says about each of its tokens.
        calibrated: the costs were measured before, as by `specllama calibrate`.
        drafted: per round of the last reply, how many tokens were drafted.
        times: per round of the last reply, (seconds, tokens emitted).
    """

    cost: Callable[[int], float]
    draft_s: float = 0.0
    read_s: float = 0.0
    good: Callable[[int], int] = lambda number: 0
    confidence: Callable[[int], float] = lambda depth: 0.8
    prompt: int = 1
    names: tuple[str, ...] = ("model",)
    free: tuple[str, ...] = ()
    calibrated: bool = False
    goods: dict[str, Callable[[int], int]] = field(default_factory=dict)
    drafted: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    times: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = Clock(tick=2.0**-24)
        self.round = 0
        target = FakeModel(
            lambda context: _row(len(context)),
            n_ctx=2000,
            n_batch=32,
            cost=lambda n_tokens: self.cost(n_tokens),
            on_decode=self.clock.advance,
        )
        # the simulation needs no proof of what each token sees
        target._visible = lambda ids, place: (0,) * (place + 1)  # type: ignore[method-assign]
        target.length = lambda seq: len(target.cells)  # type: ignore[method-assign]
        drafters: list[Any] = [
            Script(
                self._says(name),
                name=name,
                free=name in self.free,
                reads=self._reads if self.read_s and name not in self.free else None,
            )
            for name in self.names
        ]
        self.engine = Engine(target, drafters)
        if self.calibrated:
            self.engine.scheduler.recall(self.table())

    def table(self) -> CostTable:
        """All costs, as they are."""
        return CostTable(
            how="calibrated",
            same={n: self.cost(n) for n in range(1, 33)},
            draft={name: {n: n * self.draft_s for n in (1, 16)} for name in self.names}
            if self.draft_s
            else {},
        )

    def _reads(self, n_tokens: int) -> None:
        self.clock.advance(self.read_s * n_tokens)

    def _says(self, name: str) -> Callable[[Want], Proposal]:
        def says(want: Want) -> Proposal:
            good = self.goods.get(name, self.good)(self.round)
            tokens: list[int] = []
            while len(tokens) < want.limit and want.go_on(len(tokens), None):
                self.clock.advance(self.draft_s)
                if not want.go_on(len(tokens), self.confidence(len(tokens))):
                    break
                right = truth(len(want.ids) + len(tokens))
                tokens.append(right if len(tokens) < good else (right + 1) % 13)
            return Proposal.chain(tokens)

        return says

    def reply(self, n_tokens: int, draft_max: int = 16) -> float:
        """Generate; the seconds it took from the first round on."""
        asked = request(
            [1] * self.prompt,
            max_tokens=n_tokens,
            adaptive=True,
            draft_max=draft_max,
            drafters=self.names,
            is_end=lambda token: False,
        )
        with _clock(self.clock):
            live = self.engine.add(asked)
            self.drafted, self.sources, self.times = [], [], []
            started = self.clock.now
            while live.finish is None:
                self._step(live)
        return self.clock.now - started

    def _step(self, live: Any) -> None:
        before, drafted, emitted = self.clock.now, live.stats.drafted, live.n_emitted
        sources = {name: stats.drafted for name, stats in live.stats.by_source.items()}
        self.engine.step()
        self.round += 1
        self.drafted.append(live.stats.drafted - drafted)
        self.times.append((self.clock.now - before, live.n_emitted - emitted))
        grown = [n for n, s in live.stats.by_source.items() if s.drafted > sources.get(n, 0)]
        self.sources.append(grown[0] if grown else "")


class _clock:
    """The engine's modules look at this clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        self._kept = [(m, m.time) for m in (engine_module, propose_module)]
        for module, _ in self._kept:
            module.time = self._clock  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        for module, kept in self._kept:
            module.time = kept


class Bursts(Script):
    """A drafter that has an idea at some places, and none at the others."""

    share: float = 1.0

    def idea(self, key: int, ids: Sequence[int]) -> float:
        return float(random.Random(len(ids) * 64 + key).random() < self.share)


def company(
    n_live: int,
    cost: Callable[[int], float],
    n_tokens: int,
    *,
    right: Callable[[], int],
    ideas: float = 1.0,
    draft_s: float = 0.0,
) -> tuple[float, int]:
    """Replies of so many tokens that begin at once.

    Args:
        right: how many tokens of a draft are so.
        ideas: at how many of its places a sequence has something to draft from.
        draft_s: seconds of each position that a drafter looks at for all of them; free where none.

    Returns:
        The seconds that all of them take, and how many tokens were drafted.
    """
    clock = Clock(tick=2.0**-24)

    def says(want: Want) -> Proposal:
        tokens: list[int] = []
        good = right()
        while len(tokens) < want.limit and want.go_on(len(tokens), None):
            clock.advance(draft_s / n_live)
            if not want.go_on(len(tokens), 0.8):
                break
            token = truth(len(want.ids) + len(tokens))
            tokens.append(token if len(tokens) < good else (token + 1) % 13)
        return Proposal.chain(tokens)

    target = FakeModel(
        lambda context: _row(len(context)),
        n_ctx=n_live * (n_tokens + 40),
        n_batch=128,
        n_outputs=128,
        n_seq=n_live,
        cost=cost,
        on_decode=clock.advance,
    )
    drafter = Bursts(says, name="drafter", free=not draft_s)
    drafter.share = ideas
    engine = Engine(target, [drafter], n_slots=n_live)
    looks = {n: n * draft_s for n in (1, 16)}
    draft = {"drafter": looks} if draft_s else {}
    same = {n: cost(n) for n in range(1, 129)}
    engine.scheduler.recall(CostTable(how="calibrated", same=same, draft=draft))
    asked = request(
        [1], max_tokens=n_tokens, adaptive=True, draft_max=16, drafters=("drafter",),
        is_end=lambda token: False,
    )  # fmt: skip
    with _clock(clock):
        lives = [engine.add(asked) for _ in range(n_live)]
        started = clock.now
        while any(live.finish is None for live in lives):
            engine.step()
    return clock.now - started, sum(live.stats.drafted for live in lives)
