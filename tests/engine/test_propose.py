"""Who is asked for a proposal, and what is learned from the answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest

from specllama.drafting.protocol import Want
from specllama.engine.engine import Engine
from specllama.engine.sequence import Sequence as Live
from specllama.errors import EngineError
from specllama.sampling.distribution import Distribution
from specllama.verification.types import Proposal
from tests.engine.clock import Clock
from tests.engine.fake_model import FakeModel, Fault
from tests.engine.harness import PLAIN, Script, finish, request, right, run, target_of
from tests.engine.test_engine import PROMPT, WORDS, chain, following
from tests.engine.test_rest import DRAFT_S, FIRST_CALM, REST, ask, costly, engine, flat, words

ORACLE = right(WORDS)


def dear(n_tokens: int) -> float:
    """A machine on which no draft pays, however right."""
    return 0.001 * n_tokens


def free(name: str, *offsets: int) -> Script:
    """A free drafter that guesses one token, by children so far off the right one."""

    def says(want: Want) -> Proposal:
        if not want.go_on(0, None):
            return Proposal()
        (token,) = right(words)(want.ids, 1)
        n = len(offsets)
        return Proposal(tuple(token + off for off in offsets), (-1,) * n, (None,) * (n + 1))

    return Script(says, name=name, free=True)


class TestFixedLengths:
    def test_the_first_of_free_drafters_that_has_something_to_say(self) -> None:
        texts = [Script(chain(ORACLE, 2).says, name, free=True) for name in ("text", "suffix")]
        silent, never = Script(lambda want: Proposal(), "recycle", free=True), chain(ORACLE)
        made = Engine(FakeModel(WORDS), [silent, *texts, never])
        names = ("recycle", "text", "suffix", "script")
        outcome = run(made, request(PROMPT, drafters=names, max_tokens=12))
        assert outcome.stats.by_source.keys() == {"text"}
        assert never.limits == [], "it would have taken its time"

    def test_a_drafter_that_costs_is_asked_where_they_are_silent(self) -> None:
        silent = Script(lambda want: Proposal(), "text", free=True)
        made = Engine(FakeModel(WORDS), [silent, chain(ORACLE, 2)])
        outcome = run(made, request(PROMPT, drafters=("text", "script"), max_tokens=12))
        assert outcome.stats.by_source.keys() == {"script"}


class TestGuesses:
    """What a free drafter says and nobody verifies: a token that is said next, or not."""

    @pytest.mark.parametrize("offsets", [(0,), (1,), (1, 0)], ids=str)
    def test_each_is_learned_from_once(self, clock: Clock, offsets: Sequence[int]) -> None:
        """Also where its round broke off, so that nothing was said next."""
        made = engine(clock, free("text", *offsets), cost=dear)
        target_of(made).faults[3] = Fault(EngineError)
        live = made.add(ask([0, 1, 2]))
        acceptance = made.scheduler.acceptance("text")
        first, ranks = acceptance.at_depth(0), acceptance.by_rank()
        for _ in range(2):
            made.step()
        with pytest.raises(EngineError):
            made.step()
        for _ in range(3):
            made.step()
        assert live.stats.drafted == 0
        assert acceptance.trials == pytest.approx(sum(0.98**n for n in range(4)))
        assert (acceptance.at_depth(0) > first) == (0 in offsets)
        right_rank = offsets.index(0) if 0 in offsets else None
        grown = [now > then for now, then in zip(acceptance.by_rank(), ranks, strict=True)]
        assert grown == [rank == right_rank for rank in range(len(ranks))]


class TestTries:
    """Of a drafter that does not pay."""

    def test_a_try_is_verified_whatever_it_promises(self, clock: Clock) -> None:
        made = engine(clock, costly(clock), cost=dear)
        live = made.add(ask([0, 1, 2], max_tokens=40))
        finish(made, live)
        assert live.stats.by_source["script"].accepted == 1

    def test_another_drafters_guess_is_not_what_is_tried(self, clock: Clock) -> None:
        silent = Script(lambda want: Proposal())
        made = engine(clock, free("text", 0), silent, cost=dear)
        live = made.add(ask([0, 1, 2], max_tokens=40))
        finish(made, live)
        assert silent.limits
        assert live.stats.drafted == 0

    def test_a_try_that_the_budget_does_not_bear_is_put_off(self, clock: Clock) -> None:
        made = engine(clock, costly(clock))
        live = made.add(ask([0, 1, 2]))
        live.account.book(live.account.slack_s - DRAFT_S / 2, 0.0)
        assert live.account.may_draft, "what is free"
        for _ in range(FIRST_CALM + 8):
            made.step()
        assert live.stats.drafted == 0
        live.account.book(0.0, 1.0)
        for _ in range(1 + REST):
            made.step()
        assert live.stats.drafted == 1, "the next one was not due before 32 further rounds"


def test_a_drafter_that_costs_is_asked_where_a_guess_is_worth_less(clock: Clock) -> None:
    """A guess that is always wrong, though verifying it costs nothing."""
    drafter = costly(clock, seconds=0.0001)
    made = engine(clock, free("text", 1), drafter, cost=flat, draft_s=0.0001)
    outcome = finish(made, made.add(ask([0, 1, 2], draft_max=4)))
    assert outcome.stats.by_source["script"].accepted > 120


def test_what_was_drawn_from_a_law_is_verified_whatever_it_promises(clock: Clock) -> None:
    """A rule that reads laws would see a choice by what was drawn."""
    law = Distribution.from_weights(np.arange(4), np.ones(4))

    def says(want: Want) -> Proposal:
        return Proposal.chain(want.chance.children(law, want.position, 1), [law])

    made = engine(clock, Script(says, "text", free=True), cost=dear)
    live = made.add(ask([0, 1, 2], rule="rejection", sampling=PLAIN))
    for _ in range(5):
        made.step()
    assert live.stats.drafted == 5


def test_how_sure_a_draft_is_of_its_first_token_is_learned(clock: Clock) -> None:
    """Whether it was worth drafting or not."""
    made = Engine(FakeModel(WORDS), [following(FakeModel(WORDS))])
    outcome = run(made, request(PROMPT, draft_p_min=1.1, max_tokens=9))
    assert outcome.stats.drafted == 0
    looks = made.scheduler.acceptance("model").looks()
    assert sum(share for share, _ in looks[:-1]) == pytest.approx(8 / 12, abs=0.05)


class TestUnread:
    """A drafter that has not followed what was said while nobody asked it."""

    def lagging(
        self, clock: Clock, drafter: Script, read_s: float = 0.001, **settings: Any
    ) -> tuple[Engine, Live]:
        """An engine that knows what drafts cost, and a reply that its drafter has not read."""
        made = engine(clock, drafter, **settings)
        live = made.add(ask([0, 1, 2], adaptive=False, max_tokens=30))
        finish(made, live)
        drafter.reads = lambda n_tokens: clock.advance(read_s * n_tokens)
        drafter.limits.clear()
        return made, live

    def test_reading_is_not_the_price_of_a_look(self, clock: Clock) -> None:
        made, live = self.lagging(clock, costly(clock))
        costs = made.scheduler.costs
        price = costs.draft_s("script", 1)
        made.add(ask(live.ids, adaptive=False))
        made.step()
        assert costs.draft_s("script", 1) == price
        assert costs.catching_up_s(33) == pytest.approx(0.033, rel=0.05)

    @pytest.mark.parametrize(
        ("read_s", "limits"), [(0.0001, {15}), (0.00055, range(1, 15)), (0.001, {0})]
    )
    def test_what_reading_costs_is_not_there_for_drafts(
        self, clock: Clock, read_s: float, limits: Collection[int]
    ) -> None:
        drafter = costly(clock, seconds=0.0002)
        made, live = self.lagging(clock, drafter, read_s, cost=flat, draft_s=0.0002)
        made.scheduler.costs.observe_catching_up(100, 100 * read_s)
        made.add(ask(live.ids, draft_max=15))
        made.step()
        assert sum(drafter.limits) in limits

    def test_a_try_is_put_off_while_there_is_too_much_to_read(self, clock: Clock) -> None:
        drafter = costly(clock)
        made, live = self.lagging(clock, drafter)
        made.scheduler.costs.observe_catching_up(100, 0.1)
        again = made.add(ask(live.ids))
        for _ in range(2 * REST):
            made.step()
        assert again.stats.drafted == 0
        drafter.reads = None
        for _ in range(1 + REST):
            made.step()
        assert again.stats.drafted == 1
