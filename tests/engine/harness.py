"""Runs requests over fake models, checks what has to hold after every round, knows the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from specllama.drafting.protocol import Drafter, Want
from specllama.engine.engine import Engine
from specllama.engine.request import EndEvent, Request, TokenEvent
from specllama.engine.sequence import Sequence as Live
from specllama.results import SpecStats
from specllama.sampling.chain import Sampler
from specllama.sampling.noise import RandomStream, SharedNoise
from specllama.sampling.params import SamplingParams
from specllama.verification import RULES
from specllama.verification.types import Proposal
from tests.engine.fake_model import END, FakeModel, Language

GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams(top_k=0, top_p=1.0, min_p=0.0, temperature=1.0)


def request(ids: Sequence[int], rule: str = "coupled", **settings: Any) -> Request:
    """A request with defaults that suit tables: greedy, no adaptation, every drafter."""
    defaults = Request(
        ids=tuple(ids),
        sampling=GREEDY,
        rule=RULES[rule],
        seed=1,
        is_end=lambda token: token == END,
        max_tokens=24,
        drafters=("script", "model", "suffix"),
        draft_max=6,
        adaptive=False,
    )
    return replace(defaults, **settings)


def expected(language: Language, asked: Request, n_ctx: int = 64) -> tuple[list[int], str]:
    """The reply as plain decoding gives it, written without the engine: (tokens, why it ended).

    For rules whose picks are the target's own draws (coupled, match; any rule when greedy).
    """
    sampler = Sampler(asked.sampling)
    chance: Any = SharedNoise if asked.rule.name == "coupled" else RandomStream
    draws = chance(asked.seed)
    ids = list(asked.ids)
    state = asked.constraint
    while len(ids) - len(asked.ids) != asked.max_tokens:
        law = sampler.distribution(language(tuple(ids)), ids, state)
        token = draws.pick(law, len(ids))
        if asked.is_end(token):
            return ids[len(asked.ids) :], "stop"
        ids.append(token)
        state = state.after(token) if state is not None else None
        drop = asked.watch(token) if asked.watch else None
        if drop is not None:
            return ids[len(asked.ids) : len(ids) - drop], "stop"
        if len(ids) - len(asked.ids) == asked.max_tokens:
            break
        if len(ids) > n_ctx:
            return ids[len(asked.ids) :], "context"
    return ids[len(asked.ids) :], "length"


def watch_for(*pattern: int) -> Callable[[int], int | None]:
    """A stop string in tokens: all of it is dropped."""
    seen: list[int] = []

    def watch(token: int) -> int | None:
        seen.append(token)
        return len(pattern) if tuple(seen[-len(pattern) :]) == pattern else None

    return watch


@dataclass
class Script(Drafter):
    """A drafter that says what a function tells it, and checks what it is asked."""

    says: Callable[[Want], Proposal]
    name: str = "script"
    free: bool = False
    seconds: float = 0.0
    reads: Callable[[int], None] | None = None
    limits: list[int] = field(default_factory=list)
    _seen: dict[int, list[int]] = field(default_factory=dict)
    _n_read: dict[int, int] = field(default_factory=dict)

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        return [self._propose(want) for want in wants]

    def _propose(self, want: Want) -> Proposal:
        assert want.limit >= 1, "asked for nothing"
        seen = self._seen.get(want.key, [])
        assert list(want.ids[: len(seen)]) == seen, "ids changed without a rewind"
        self._seen[want.key] = list(want.ids)
        self.limits.append(want.limit)
        self._read_to(want.key, len(want.ids))
        proposal = self.says(want)
        assert max(proposal.depths(), default=0) <= want.limit, "a script says too much"
        assert len(proposal) <= want.nodes, "a script says too much"
        return replace(proposal, source=self.name)

    def prepare(self, key: int, ids: Sequence[int]) -> None:
        pass

    def read(self, key: int, ids: Sequence[int]) -> None:
        self._read_to(key, len(ids) - 1)

    def unread(self, key: int, ids: Sequence[int]) -> int:
        return len(ids) - self._n_read.get(key, 0) if self.reads is not None else 0

    def _read_to(self, key: int, length: int) -> None:
        if self.reads is not None:
            self.reads(max(0, length - self._n_read.get(key, 0)))
            self._n_read[key] = max(length, self._n_read.get(key, 0))

    def rewind(self, key: int, length: int) -> None:
        self._seen[key] = self._seen.get(key, [])[:length]
        self._n_read[key] = min(length, self._n_read.get(key, 0))

    def close(self) -> None:
        pass


def right(language: Language, params: SamplingParams = GREEDY, seed: int = 1) -> Any:
    """(ids, n) -> the n tokens the target really says next (greedy, or coupled with the seed)."""
    sampler, noise = Sampler(params), SharedNoise(seed)

    def tokens(ids: Sequence[int], count: int) -> list[int]:
        path = list(ids)
        for _ in range(count):
            path.append(noise.pick(sampler.distribution(language(tuple(path)), path), len(path)))
        return path[len(ids) :]

    return tokens


@dataclass
class Outcome:
    """A finished generation as its consumer saw it."""

    live: Live
    tokens: list[int]
    events: list[TokenEvent]
    reason: str
    dropped: int

    @property
    def stats(self) -> SpecStats:
        return self.live.stats


def run(engine: Engine, asked: Request) -> Outcome:
    """One generation from end to end, with the invariants after every round."""
    live = engine.add(asked)
    check(engine, [live])
    return finish(engine, live)


def go_ahead(engine: Engine, count: int | None) -> Engine:
    """An engine whose drafters have time for so many looks while the target works; None: never."""
    target_of(engine).answers_later = count is not None
    engine.scheduler.ahead.fitting = lambda name, n_tokens, n_lives: count or 0  # type: ignore[method-assign]
    return engine


def finish(engine: Engine, live: Live) -> Outcome:
    """Step to the end of a sequence."""
    events: list[TokenEvent] = []
    while True:
        for event in engine.step():
            if isinstance(event, EndEvent):
                check(engine, [live])
                return _outcome(engine, live, events, event)
            events.append(event)
        check(engine, [live])
        assert len(events) < 1000, "no end"


def _outcome(engine: Engine, live: Live, events: list[TokenEvent], end: EndEvent) -> Outcome:
    tokens = [event.id for event in events][: len(events) - end.dropped]
    assert tokens == live.ids[live.n_prompt :]
    check_logprobs(engine, live, events)
    check_stats(live, events, end)
    return Outcome(live, tokens, events, end.reason, end.dropped)


def target_of(engine: Engine) -> FakeModel:
    assert isinstance(engine.backend, FakeModel)
    return engine.backend


def check(engine: Engine, lives: Sequence[Live]) -> None:
    """What holds between rounds, for every sequence and every cache."""
    fake = target_of(engine)
    for live in lives:
        held = fake.tokens(live.key)
        assert engine.cache.length(live.key) == len(held), "the mirror is wrong"
        assert held == tuple(live.ids[: len(held)]), "the cache holds something else"
        assert len(held) <= len(live.ids) - 1, "the last token is in the cache"
        if fake.rollback == "free" and not engine._spare and live.n_emitted:
            assert len(held) == len(live.ids) - 1, "something is pending after a chain"
        assert not any(live.request.is_end(token) for token in live.ids[live.n_prompt :])
    assert fake.held <= {*range(len(engine._history))}, "a branch was left behind"
    for drafter in engine.drafters:
        follower = getattr(drafter, "_follower", None)
        if follower is not None:
            for seq in follower.backend.held:
                held = follower.backend.tokens(seq)
                assert follower.cache.length(seq) == len(held), "the draft's mirror is wrong"


def check_logprobs(engine: Engine, live: Live, events: Sequence[TokenEvent]) -> None:
    """Each logprob is that of the target's plain softmax at its place."""
    ids = list(live.request.ids)
    for event in events:
        row = target_of(engine).language(tuple(ids)).astype(np.float64)
        row -= row.max()
        assert abs(event.logprob - (row[event.id] - np.log(np.exp(row).sum()))) < 1e-5
        ids.append(event.id)


def check_stats(live: Live, events: Sequence[TokenEvent], end: EndEvent) -> None:
    """The statistics add up, and count nothing behind the end."""
    stats = live.stats
    end_token = end.reason == "stop" and not end.dropped
    # a round emits accepted + 1 tokens, the last one fewer where the reply ended in its drafts
    cut = stats.rounds + stats.accepted - len(events) - end_token
    assert cut in ((0, 1) if end.reason == "stop" else (0,))
    drafted_end = stats.accepted - sum(event.source != "" for event in events)
    assert drafted_end in ((0, 1) if end_token and cut else (0,))
    for attribute in ("drafted", "tested", "accepted"):
        whole = getattr(stats, attribute)
        assert whole == sum(getattr(s, attribute) for s in stats.by_source.values())
        assert attribute == "drafted" or whole == sum(getattr(s, attribute) for s in stats.by_depth)
    for part in (stats, *stats.by_source.values(), *stats.by_depth):
        assert part.accepted <= part.tested <= part.drafted
