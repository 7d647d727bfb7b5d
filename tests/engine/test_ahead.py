"""The draft goes on while the target verifies: nothing of it may show but the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from specllama.drafting.follower import Follower
from specllama.drafting.model import ModelDrafter
from specllama.drafting.protocol import Want
from specllama.drafting.tree import TreeDrafter
from specllama.engine import propose as propose_module
from specllama.engine.engine import Engine
from specllama.errors import EngineError
from specllama.scheduling.ahead import Ahead
from specllama.scheduling.policy import Stopping
from specllama.scheduling.table import CostTable
from specllama.verification.types import Proposal
from tests.engine.clock import Clock
from tests.engine.fake_model import FakeModel, Fault, Language, near
from tests.engine.harness import (
    GREEDY,
    PLAIN,
    Script,
    check,
    expected,
    finish,
    go_ahead,
    request,
    right,
    run,
    target_of,
    watch_for,
)
from tests.engine.test_engine import chain, ending_late

WORDS = ending_late(after=60)
PROMPT = (3, 1, 4, 1, 5)
N_CTX = 192
CARD = CostTable(
    same=dict.fromkeys((1, 2, 3, 4), 0.01),
    other=dict.fromkeys((1, 2, 3, 4), 0.012),
    second=dict.fromkeys((1, 2, 3, 4), 0.02),
)
"""One that captures graphs."""


@dataclass
class Log:
    """What a drafter did: its proposals, decodes for each, tokens that were ready for each."""

    lengths: list[int] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    decodes: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    ahead: list[tuple[dict[int, tuple[int, ...]], int, int]] = field(default_factory=list)


class Logged(ModelDrafter):
    """The model drafter, watched."""

    def __init__(self, fake: FakeModel) -> None:
        super().__init__(Follower(fake))
        self.fake = fake
        self.log = Log()

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        before = len(self.fake.batches)
        proposals = super().propose(wants)
        self.log.decodes.append(len(self.fake.batches) - before)
        self.log.lengths += map(len, proposals)
        self.log.limits += [want.limit for want in wants]
        return proposals

    def ready(self, key: int, ids: Sequence[int]) -> int:
        self.log.ready.append(super().ready(key, ids))
        return self.log.ready[-1]

    def go_ahead(self, proposals: Mapping[int, Sequence[int]], count: int) -> int:
        n_looks = super().go_ahead(proposals, count)
        drafted = {key: tuple(tokens) for key, tokens in proposals.items()}
        self.log.ahead.append((drafted, count, n_looks))
        return n_looks


def opened(
    draft: Language, count: int | None, *others: Any, n_slots: int = 1, **settings: Any
) -> tuple[Engine, Logged]:
    """An engine whose draft has time for so many looks while the target works."""
    drafter = Logged(FakeModel(draft, N_CTX, n_seq=n_slots, **settings))
    target = FakeModel(WORDS, N_CTX, n_seq=n_slots)
    return go_ahead(Engine(target, [*others, drafter], n_slots=n_slots), count), drafter


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft_max", [1, 3, 6])
def test_a_draft_that_is_always_right_never_makes_the_target_wait(
    sampling: Any, draft_max: int
) -> None:
    """No round but the first has to draft, however much time there is: no more than is of use."""
    engine, drafter = opened(WORDS, 99)
    outcome = run(engine, request(PROMPT, sampling=sampling, draft_max=draft_max, max_tokens=40))
    log = drafter.log
    assert log.decodes[0] == draft_max
    assert set(log.decodes[1:]) == {0}
    assert log.lengths == log.limits
    assert set(log.lengths[:-1]) == {draft_max}
    assert outcome.stats.acceptance == 1.0
    assert {count for _, count, _ in log.ahead} == {draft_max + 1}
    assert log.ready[1:] == [draft_max] * (len(log.ready) - 1)


@pytest.mark.parametrize(("adaptive", "count"), [(True, 3), (False, 7)])
def test_no_further_than_the_kept_size_can_use(adaptive: bool, count: int) -> None:
    """Each look beside the target's decode makes that longer."""
    engine, drafter = opened(WORDS, 99)
    engine.scheduler.recall(CARD)
    engine.scheduler.begin(1)
    engine.scheduler.settle_size(lambda: 2.0 if engine.scheduler.kept.size == 3 else 1.0)
    run(engine, request(PROMPT, draft_max=6, max_tokens=20, adaptive=adaptive))
    assert {count for _, count, _ in drafter.log.ahead} == {count}


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_less_time_makes_some_of_it(count: int) -> None:
    """One look is the guess at the target's own token; the others are tokens of the next chain."""
    engine, drafter = opened(WORDS, count)
    live = engine.add(request(PROMPT, draft_max=4, max_tokens=31))
    for _ in range(4):
        engine.step()
    assert set(drafter.log.ready[1:]) == {max(0, count - 1)}
    assert drafter.log.decodes == [4] + [min(4, 5 - count)] * 3
    assert drafter.log.lengths == [4] * 4
    assert len(drafter.log.ahead) == (4 if count else 0)
    assert live.stats.acceptance == 1.0


@pytest.mark.parametrize("overran", [False, True])
def test_a_decode_that_drafting_outlasted_is_not_measured(overran: bool) -> None:
    """It took as long as the drafting did."""
    engine, _ = opened(WORDS, 2)
    target_of(engine).overran = overran
    run(engine, request(PROMPT, draft_max=1, max_tokens=20))
    assert engine.scheduler.costs.measured(2) == (not overran)


def test_only_where_the_target_answers_later() -> None:
    engine, drafter = opened(WORDS, None)
    engine.scheduler.ahead.fitting = lambda name, n_tokens, n_lives: 9  # type: ignore[method-assign]
    run(engine, request(PROMPT))
    assert not drafter.log.ahead


def test_never_where_states_would_have_to_be_saved() -> None:
    drafter = Logged(FakeModel(WORDS, N_CTX, rollback="checkpoint"))
    engine = go_ahead(Engine(FakeModel(WORDS, N_CTX), [drafter]), 9)
    asked = request(PROMPT)
    assert run(engine, asked).tokens == expected(WORDS, asked, N_CTX)[0]
    assert not drafter.log.ahead
    assert set(drafter.log.ready) == {0}


@pytest.mark.parametrize("rule", ["rejection", "block", "match", "coupled"])
@pytest.mark.parametrize("count", [1, 3, 9])
def test_greedy_text_and_statistics_are_those_without(rule: str, count: int) -> None:
    """Proposals are the same, too: ready or not, as long, from the same drafter."""
    asked = request(PROMPT, rule, max_tokens=50, draft_max=4, draft_p_min=0.2)
    seen = []
    for ahead in (None, count):
        engine, drafter = opened(near(WORDS, 5, 0.3), ahead)
        outcome = run(engine, asked)
        assert outcome.tokens == expected(WORDS, asked, N_CTX)[0]
        seen.append((drafter.log.lengths, outcome.stats.rounds, outcome.stats.accepted))
        assert (max(drafter.log.ready) > 0) == (ahead is not None and ahead > 1)
    assert seen[0] == seen[1]


def test_every_sequence_in_company_has_its_own_ahead() -> None:
    engine, drafter = opened(WORDS, 99, n_slots=3)
    lives = [engine.add(request([n, 3, n], draft_max=3, max_tokens=21)) for n in range(2)]
    for _ in range(2):
        engine.step()
        check(engine, lives)
    late = engine.add(request([7, 7], draft_max=3, max_tokens=9))
    engine.step()
    assert drafter.log.decodes == [3, 0, 3], "who joins has nothing yet"
    engine.cancel(lives[0])
    engine.step()
    assert drafter.log.decodes[3:] == [0], "who leaves takes nothing along"
    drafted = [set(proposals) for proposals, _, _ in drafter.log.ahead]
    assert drafted == [{0, 1}, {0, 1}, {0, 1, 2}, {1, 2}]
    for live in (lives[1], late):
        while live.finish is None:
            engine.step()
        assert live.ids[live.n_prompt :] == expected(WORDS, live.request, N_CTX)[0]
        assert live.stats.acceptance == 1.0


def test_the_next_request_in_a_slot_starts_anew() -> None:
    """It goes on where the one before was broken off, with another seed: another chance."""
    engine, drafter = opened(WORDS, 9)
    first = engine.add(request(PROMPT, sampling=PLAIN, seed=1))
    for _ in range(2):
        engine.step()
    engine.cancel(first)
    asked = request(first.ids, sampling=PLAIN, seed=2, max_tokens=12)
    n_before = len(drafter.log.ready)
    outcome = run(engine, asked)
    assert drafter.log.ready[n_before] == 0
    assert outcome.tokens == expected(WORDS, asked, N_CTX)[0]
    assert outcome.stats.acceptance == 1.0


def test_a_stop_string_takes_what_comes_after_it_back() -> None:
    said = expected(WORDS, request(PROMPT), N_CTX)[0]
    engine, drafter = opened(WORDS, 9)
    asked = request(PROMPT, draft_max=4, watch=watch_for(*said[6:8]))
    outcome = run(engine, asked)
    assert (outcome.tokens, outcome.reason) == (said[:6], "stop")
    assert drafter.ready(0, outcome.live.ids) == 0
    assert drafter.ready(0, [*PROMPT, *said[:10]]) == 0
    again = request([*outcome.live.ids, 2], max_tokens=12)
    outcome = run(engine, again)
    assert outcome.tokens == expected(WORDS, again, N_CTX)[0]
    assert outcome.stats.acceptance == 1.0


def test_behind_no_other_drafters_proposals() -> None:
    engine, drafter = opened(WORDS, 9, chain(right(WORDS), 2))
    run(engine, request(PROMPT, drafters=("script", "model"), max_tokens=20))
    assert drafter.log.ahead
    assert all(not drafted and not n_looks for drafted, _, n_looks in drafter.log.ahead)


def test_all_drafters_that_can_go_ahead() -> None:
    """Behind those that cannot as well; requests that do not name them leave them alone."""
    engine, drafter = opened(WORDS, 9, chain(right(WORDS), 2))
    run(engine, request(PROMPT, drafters=("model",), max_tokens=20))
    assert any(n_looks for *_, n_looks in drafter.log.ahead)
    drafter.log.ahead.clear()
    run(engine, request(PROMPT, drafters=("script",), max_tokens=20))
    run(engine, request(PROMPT, drafters=(), max_tokens=20))
    assert not any(n_looks for *_, n_looks in drafter.log.ahead)


def test_a_tree_drafter_may_use_the_same_model() -> None:
    """By turns, in one slot."""
    draft = near(WORDS, 5, 0.3)
    drafter = Logged(FakeModel(draft, N_CTX, n_seq=4))
    tree = TreeDrafter(drafter._follower, first_branch=1)
    engine = go_ahead(Engine(FakeModel(WORDS, N_CTX, n_seq=4), [drafter, tree]), 6)
    ids = list(PROMPT)
    for name in ("model", "tree", "model"):
        asked = request(ids, drafters=(name,), max_tokens=13)
        outcome = run(engine, asked)
        assert outcome.tokens == expected(WORDS, asked, N_CTX)[0]
        ids = outcome.live.ids
    assert max(drafter.log.ready) > 0


@pytest.mark.parametrize("size", [0, 6])
def test_how_much_fits_is_asked_of_the_decode_that_is_at_work(size: int) -> None:
    """Its tokens with all that it is filled up with, and its sequences; not another one's."""
    engine, _ = opened(WORDS, 2, n_slots=3)
    engine._spare = range(2, 3)
    asked: list[tuple[str, int, int]] = []

    def fitting(name: str, n_tokens: int, n_lives: int) -> int:
        asked.append((name, n_tokens, n_lives))
        return 2

    engine.scheduler.ahead.fitting = fitting  # type: ignore[method-assign]
    engine.scheduler.fixed_size = lambda n_tokens: size  # type: ignore[method-assign]
    target = engine.backend
    assert isinstance(target, FakeModel)
    for n in range(2):
        engine.add(request([n, 3], draft_max=1, max_tokens=20))
    engine.step()
    target.batches.clear()
    engine.step()
    assert asked[-1] == ("model", max(4, size), 2)
    assert target.batches == [max(4, size)]


@dataclass
class Told:
    """What the scheduler heard."""

    ahead: list[tuple[str, int, float]] = field(default_factory=list)
    ready: list[tuple[str, int, int]] = field(default_factory=list)
    looks: list[int] = field(default_factory=list)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(Ahead, "observe", lambda self, *seen: told.ahead.append(seen))
    monkeypatch.setattr(Ahead, "observe_ready", lambda self, *seen: told.ready.append(seen))
    monkeypatch.setattr(
        propose_module.Scheduler,
        "observe_draft",
        lambda self, name, n_looks, *seen: told.looks.append(n_looks),
    )
    return told


@pytest.mark.parametrize(("count", "ready", "paid"), [(1, 0, 4), (3, 2, 2), (5, 4, 0), (9, 4, 0)])
def test_what_was_ready_has_no_price(told: Told, count: int, ready: int, paid: int) -> None:
    """Of a round's looks, those that were taken ahead, the others; no more than it took."""
    engine, _ = opened(WORDS, 99)
    engine.scheduler.ahead.fitting = lambda *asked: count  # type: ignore[method-assign]
    engine.add(request(PROMPT, draft_max=8, max_tokens=14))
    for _ in range(2):
        engine.step()
    tick = propose_module.time.tick  # type: ignore[attr-defined]
    assert told.ahead[0] == ("model", count, tick)
    assert told.ready == [("model", 0, 8), ("model", ready, 4)]
    assert told.looks == [8, paid]


def test_the_scheduler_weighs_what_is_not_ready(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Where it decides how long a chain is worth it."""
    engine, drafter = opened(WORDS, 9)
    target_of(engine).cost = lambda n_tokens: 0.01
    target_of(engine).on_decode = clock.advance
    same = dict.fromkeys(range(1, 9), 0.01)
    engine.scheduler.recall(CostTable(how="calibrated", same=same, draft={"model": {1: 0.0005}}))
    seen: list[int] = []

    def stopping(*given: Any, **settings: Any) -> Stopping:
        seen.append(settings.get("ready", 0))
        return Stopping(*given, **settings)

    monkeypatch.setattr(propose_module, "Stopping", stopping)
    run(engine, request(PROMPT, adaptive=True, max_tokens=50))
    assert seen == drafter.log.ready
    assert max(seen) > 0


def test_who_has_least_ready_decides(told: Told) -> None:
    """All draft in step."""
    engine, _ = opened(WORDS, 9, n_slots=2)
    engine.add(request([1, 2], draft_max=3))
    engine.step()
    engine.add(request([3, 4], draft_max=3))
    engine.step()
    assert told.ready == [("model", 0, 3), ("model", 0, 3)]
    assert told.looks == [3, 3]


def test_behind_a_round_in_which_it_proposed_nothing(told: Told) -> None:
    """It has looked once: that is the guess, and takes no look of its own."""
    engine, drafter = opened(WORDS, 4)
    asked = request(PROMPT, draft_p_min=1.1, max_tokens=9)
    assert run(engine, asked).tokens == expected(WORDS, asked, N_CTX)[0]
    assert [drafted for drafted, *_ in drafter.log.ahead] == [{0: ()}] * 9
    assert [n_looks for _, n_looks, _ in told.ahead][:2] == [3, 1]
    assert drafter.log.decodes[1:] == [0] * (len(drafter.log.decodes) - 1)
    assert max(drafter.log.ready) == 3


@pytest.mark.parametrize("where", ["first decode", "second decode"])
def test_each_decode_of_a_round_has_its_own(where: str) -> None:
    """Of two sequences that do not fit into one: behind what is being verified, nothing else."""
    drafter = Logged(FakeModel(WORDS, N_CTX, n_seq=2))
    target = FakeModel(WORDS, N_CTX, n_seq=2)
    engine = go_ahead(Engine(target, [drafter], n_slots=2, max_batch=4), 9)
    lives = [engine.add(request([n, 3, n], draft_max=3, max_tokens=17)) for n in range(2)]
    for _ in range(3):
        engine.step()
        check(engine, lives)
    drafted = [list(proposals) for proposals, *_ in drafter.log.ahead]
    assert drafted == [[0], [1]] * 3
    assert drafter.log.decodes[1:] == [0, 0]


class TestFaults:
    """Whatever breaks off while the target is at work, the round can be taken again."""

    @pytest.mark.parametrize("error", [EngineError, KeyboardInterrupt])
    @pytest.mark.parametrize("when", ["before", "half", "after"])
    @pytest.mark.parametrize("who", ["target", "draft"])
    @pytest.mark.parametrize("share", [0.0, 0.4])
    def test_every_call(
        self, error: type[BaseException], when: Any, who: str, share: float
    ) -> None:
        n_broken = 0
        for call in range(25):
            engine, drafter = opened(near(WORDS, 5, share), 4, n_slots=2)
            target = engine.backend
            assert isinstance(target, FakeModel)
            faulty = target if who == "target" else drafter.fake
            faulty.faults[call] = Fault(error, when)
            asked = [request([n, *PROMPT], sampling=PLAIN, max_tokens=12) for n in range(2)]
            lives = [engine.add(one) for one in asked]
            while any(live.finish is None for live in lives):
                try:
                    engine.step()
                except error:
                    n_broken += 1
                    assert all(drafter.ready(live.key, live.ids) == 0 for live in lives)
                check(engine, [live for live in lives if live.finish is None])
            for live in lives:
                assert live.ids[live.n_prompt :] == expected(WORDS, live.request, N_CTX)[0]
            faulty.faults.clear()
            again = request([*lives[0].ids, 2], sampling=PLAIN, max_tokens=5)
            assert run(engine, again).tokens == expected(WORDS, again, N_CTX)[0]
        assert n_broken >= (4 if who == "target" else 10)

    def test_a_drafter_that_raises(self) -> None:
        class Buggy(Script):
            runs_ahead = True

            def go_ahead(self, proposals: Mapping[int, Sequence[int]], count: int) -> int:
                raise RuntimeError("bug in a drafter")

        says: Callable[[Want], Proposal] = chain(right(WORDS), 4).says
        engine = go_ahead(Engine(FakeModel(WORDS), [Buggy(says)]), 4)
        live = engine.add(request(PROMPT))
        with pytest.raises(RuntimeError, match="bug in a drafter"):
            engine.step()
        check(engine, [live])
        engine.drafters = []
        assert finish(engine, live).tokens == expected(WORDS, live.request)[0]
