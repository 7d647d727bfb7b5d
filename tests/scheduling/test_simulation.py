"""What the scheduler does on machines of known cost: how much it drafts, and what it may lose."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.propose import _overhear
from specllama.engine.sequence import Guess
from specllama.scheduling.acceptance import Acceptance
from specllama.scheduling.account import BUDGET_S, BUDGET_SHARE
from tests.scheduling.simulation import Machine, company


def linear(n_tokens: int) -> float:
    """A machine without spare power: n tokens cost n times as much as one."""
    return 0.01 * n_tokens


def flat(n_tokens: int) -> float:
    """A machine that reads its weights once for all tokens."""
    return 0.01


def stairs(n_tokens: int) -> float:
    """Kernels for 1, 8 and 16 tokens; not monotone, as on real machines."""
    return 0.01 if n_tokens == 1 else 0.04 if n_tokens < 8 else 0.02 if n_tokens == 8 else 0.05


def everything(number: int) -> int:
    return 99


def nothing(number: int) -> int:
    return 0


def test_drafts_nothing_where_it_cannot_pay() -> None:
    """Every token costs as much as decoding it, and drafting comes on top."""
    machine = Machine(linear, draft_s=0.004, good=everything)
    machine.reply(300)
    assert sum(machine.drafted) < 40
    assert sum(machine.drafted[-100:]) < 10


def test_drafts_nothing_where_nothing_is_accepted() -> None:
    machine = Machine(flat, draft_s=0.004, good=nothing)
    machine.reply(300)
    assert sum(n > 0 for n in machine.drafted[-100:]) <= 1


@pytest.mark.parametrize(("cost", "calibrated"), [(flat, False), (stairs, True)])
def test_drafts_long_chains_where_they_are_free(
    cost: Callable[[int], float], calibrated: bool
) -> None:
    """Only a table knows that a batch of 8 is cheaper than one of 2: trying costs too much."""
    machine = Machine(cost, draft_s=0.0001, good=everything, calibrated=calibrated)
    seconds = machine.reply(300)
    assert sorted(machine.drafted[1:-1])[len(machine.drafted) // 2] >= 7
    assert seconds < 0.35 * 300 * cost(1)


def test_finds_a_middling_length() -> None:
    """Three tokens are right and cheap, the fourth never is: longer chains only cost."""
    machine = Machine(lambda n: 0.01 + 0.002 * n, draft_s=0.001, good=lambda number: 3)
    machine.reply(600)
    late = machine.drafted[len(machine.drafted) // 2 :]
    assert 2.5 < sum(late) / len(late) < 5.5


def test_confidence_ends_chains() -> None:
    """Where the draft knows that its third token is bad, that token is not drafted."""
    machine = Machine(
        lambda n: 0.01 + 0.002 * n,
        draft_s=0.001,
        good=lambda number: 2,
        confidence=lambda depth: 0.95 if depth < 2 else 0.15,
    )
    machine.reply(600)
    late = machine.drafted[len(machine.drafted) // 2 :]
    assert sum(n == 2 for n in late) > 0.8 * len(late)


@pytest.mark.parametrize("bad", [50, 100, 200])
def test_comes_back_when_drafts_become_good(bad: int) -> None:
    """Within a few tries and a hundred or two tokens, and then all drafts are long."""
    machine = Machine(flat, draft_s=0.002, good=lambda number: 0 if number < bad else 99)
    machine.reply(1200)
    n_tries = sum(n > 0 for n in machine.drafted[:bad])
    assert n_tries <= 14, "it gave up"
    since = machine.drafted[bad:]
    back = next(number for number, n in enumerate(since) if n >= 4)
    assert sum(n > 0 for n in since[:back]) <= 12
    assert sum(emitted for _, emitted in machine.times[bad : bad + back]) <= 200
    later = since[back:]
    assert sorted(later)[len(later) // 2] >= 7


def test_each_drafter_is_probed() -> None:
    """Two that do not pay; the first becomes good, and must not wait behind the second."""
    machine = Machine(
        flat,
        draft_s=0.002,
        names=("suffix", "model"),
        free=("suffix",),
        goods={"suffix": lambda number: 0 if number < 150 else 99, "model": nothing},
    )
    machine.reply(1200)
    assert "suffix" in machine.sources[150:]
    assert sum(source == "suffix" for source in machine.sources[-20:]) > 10


def test_probes_become_rarer() -> None:
    machine = Machine(linear, draft_s=0.004, good=nothing)
    machine.reply(1000)
    probes = [number for number, n in enumerate(machine.drafted) if n]
    gaps = [after - before for before, after in pairwise(probes)]
    assert gaps[-1] > 100
    assert gaps[-3:] == sorted(gaps[-3:])


@pytest.mark.parametrize("slow", [0, 1, 2, 5, 20])
@pytest.mark.parametrize("factor", [5.0, 50.0])
def test_a_hiccup_does_not_decide(slow: int, factor: float) -> None:
    """One decode that takes far too long, the very first one too, does not spoil the choice."""
    for cost, good, pays in ((linear, nothing, False), (flat, everything, True)):
        calls = 0

        def hiccup(n_tokens: int, cost: Callable[[int], float] = cost) -> float:
            nonlocal calls
            calls += 1
            return cost(n_tokens) * (factor if calls == slow + 1 else 1.0)

        machine = Machine(hiccup, draft_s=0.001, good=good)
        machine.reply(200)
        machine.reply(600)
        late = machine.drafted[len(machine.drafted) // 2 :]
        assert (sum(late) / len(late) > 4) == pays
        if not pays:
            assert sum(n > 0 for n in late) <= 0.03 * len(late)


def test_the_yardstick_is_kept() -> None:
    """A machine whose plain decoding becomes fast: drafting must notice that it no longer pays."""
    machine = Machine(lambda n: 0.05 if machine.round < 100 else 0.003 * n, draft_s=0.01)
    machine.good = lambda number: 2
    machine.reply(300)
    machine.reply(1200)
    assert sum(n > 0 for n in machine.drafted[-200:]) <= 10


@pytest.mark.parametrize("good", [3, 8])
def test_a_drafter_that_becomes_slow_is_given_up(good: int) -> None:
    """A draft that took a tenth of a decode takes more than one: what was gained is not lost."""
    machine = Machine(flat, draft_s=0.001, good=lambda number: good)
    machine.reply(150)
    machine.draft_s = 0.012
    machine.reply(1200)
    assert sum(n > 0 for n in machine.drafted[-500:]) <= 10


def test_sizes_that_once_were_dear_are_tried_again() -> None:
    """A table from a busy hour: one token does not pay by it, and the budget bears no more."""

    def cost(n_tokens: int) -> float:
        return 0.016 if n_tokens == 1 else 0.014 + 0.007 * n_tokens

    machine = Machine(cost, good=lambda number: 99, free=("model",), confidence=lambda depth: 0.98)
    machine.reply(200)
    table = machine.engine.scheduler.table()
    dear = {n: seconds * (1 if n == 1 else 2) for n, seconds in table.same.items()}
    machine.engine.scheduler.recall(replace(table, same=dear))
    machine.reply(600)
    assert sum(machine.drafted[:90]) == 0
    assert sum(machine.drafted[90:130]) > 200
    assert machine.engine.scheduler.costs.target_s(2) == pytest.approx(cost(2), rel=0.1)


def test_dear_sizes_are_tried_ever_more_seldom() -> None:
    """Where two tokens cost as much as two decodes, asking again and again would cost, too.

    Though they would all be accepted, which is known without a try.
    """
    machine = Machine(
        lambda n_tokens: 0.016 * n_tokens,
        good=lambda number: 99,
        free=("model",),
        confidence=lambda depth: 0.98,
    )
    machine.reply(1500)
    seconds = machine.reply(1500)
    assert sum(n > 0 for n in machine.drafted) <= 16
    assert seconds <= 1.001 * 1500 * 0.016


def dear_at_first(n_tokens: int) -> float:
    """One token more costs more than it saves, many less."""
    return 0.016 if n_tokens == 1 else 0.022 + 0.006 * n_tokens


def test_guesses_of_a_free_drafter_count_though_nobody_verifies_them() -> None:
    """Three of four drafts that are right would not pay here; that all are has to be seen."""
    told = {}
    for good in (0, 99):
        machine = Machine(
            dear_at_first, good=lambda number, good=good: good, free=("model",), calibrated=True
        )
        seconds = machine.reply(300)
        told[good] = machine.engine.scheduler.acceptance("model").at_depth(0)
        assert (sum(machine.drafted) > 0) == (good > 0)
        assert seconds < (0.8 if good else 1.001) * 300 * dear_at_first(1)
    assert told[0] < 0.1 and told[99] > 0.95


def test_a_guess_is_weighed_against_the_very_next_token() -> None:
    """Whoever brought it, and once: what is verified counts as that."""
    known, before = Acceptance(), Acceptance()
    not_yet, second, wrong = (
        Guess(3, (7,), known, 0.9),
        Guess(2, (5, 3), known, None),
        Guess(1, (3,), known, None),
    )
    live: Any = SimpleNamespace(ids=[1, 2, 3], guesses=[not_yet, second, wrong])
    _overhear(live)
    assert (live.guesses, known.trials) == ([], pytest.approx(1.98))
    assert known.by_rank()[1] > before.by_rank()[1]
    assert known.at_confidence(0.9) == before.at_confidence(0.9)


goods = st.lists(st.sampled_from([0, 0, 1, 2, 99]), min_size=1, max_size=12)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    goods=goods,
    repeat=st.sampled_from([1, 5, 40]),
    slope=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    jump=st.sampled_from([0.0, 0.3]),
    draft_share=st.sampled_from([0.0, 0.05, 0.2]),
    read_share=st.sampled_from([0.0, 0.01, 0.05]),
    free=st.booleans(),
    confidence=st.sampled_from([0.05, 0.5, 0.99]),
    one=st.sampled_from([0.002, 0.02, 0.2]),
    calibrated=st.booleans(),
)
def test_the_budget_is_never_exceeded(
    goods: list[int],
    repeat: int,
    slope: float,
    jump: float,
    draft_share: float,
    read_share: float,
    free: bool,
    confidence: float,
    one: float,
    calibrated: bool,
) -> None:
    """At no time of a request, whatever the drafts do, however sure they are of it.

    Against plain decoding, that is `BUDGET_SHARE` of its time plus `BUDGET_S`. It holds with a
    table and without one where a batch costs no more than its tokens one by one, no more than the
    line between the sizes beside it, and a drafted token no more than a quarter of one.
    """

    def cost(n_tokens: int) -> float:
        stairs = jump * (3 <= n_tokens < 6)
        return one * min(n_tokens, 1 + slope * (n_tokens - 1) + stairs)

    machine = Machine(
        cost,
        draft_s=0.0 if free else draft_share * one,
        read_s=read_share * one,
        prompt=24,
        good=lambda number: goods[number // repeat % len(goods)],
        confidence=lambda depth: confidence,
        free=("model",) if free else (),
        calibrated=calibrated,
    )
    machine.reply(150, draft_max=8)
    elapsed, plain = -machine.engine.read_s, 0.0
    for seconds, emitted in machine.times:
        elapsed += seconds
        plain += emitted * one
        assert elapsed <= (1 + BUDGET_SHARE) * plain + BUDGET_S + 1e-3


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    goods=goods,
    cliff=st.integers(2, 12),
    high=st.sampled_from([0.5, 0.95]),
    draft_share=st.sampled_from([0.0, 0.05, 0.2]),
    one=st.sampled_from([0.002, 0.02, 0.2]),
)
def test_cliffs_that_were_measured_are_no_surprise(
    goods: list[int], cliff: int, high: float, draft_share: float, one: float
) -> None:
    """Decodes that suddenly cost nearly as much as their tokens: the budget holds with a table."""
    machine = Machine(
        lambda n_tokens: one if n_tokens < cliff else high * n_tokens * one,
        draft_s=draft_share * one,
        good=lambda number: goods[number % len(goods)],
        confidence=lambda depth: 0.99,
        calibrated=True,
    )
    machine.reply(150, draft_max=16)
    elapsed = plain = 0.0
    for seconds, emitted in machine.times:
        elapsed += seconds
        plain += emitted * one
        assert elapsed <= (1 + BUDGET_SHARE) * plain + BUDGET_S + 1e-3


@pytest.mark.parametrize("share", [0.002, 0.01])
def test_a_draft_that_gets_better_is_used_again_although_it_has_to_catch_up(share: float) -> None:
    machine = Machine(
        lambda n_tokens: 0.01 * (1 + 0.15 * (n_tokens - 1)),
        draft_s=0.0007,
        read_s=share * 0.01,
        prompt=24,
        good=lambda number: 0 if number < 200 else 99,
        confidence=lambda depth: 0.9,
        calibrated=True,
    )
    machine.reply(1500)
    assert any(n >= 4 for n in machine.drafted[200:400])
    assert machine.engine.scheduler.costs.draft_s("model", 1) < 0.0012


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    goods=goods,
    slope=st.sampled_from([0.1, 2.0]),
    draft_share=st.sampled_from([0.1, 1.5]),
    one=st.sampled_from([0.002, 0.02, 0.2]),
)
def test_a_machine_beyond_all_guesses_costs_one_try_of_each_size(
    goods: list[int], slope: float, draft_share: float, one: float
) -> None:
    """Without a table, where batches cost more than their tokens: known from the first try on."""
    machine = Machine(
        lambda n_tokens: one * (1 + slope * (n_tokens - 1)),
        draft_s=draft_share * one,
        good=lambda number: goods[number % len(goods)],
    )
    machine.reply(150, draft_max=8)
    elapsed = plain = tries = 0.0
    tried: set[int] = set()
    for (seconds, emitted), drafted in zip(machine.times, machine.drafted, strict=True):
        elapsed += seconds
        plain += emitted * one
        if drafted and drafted not in tried:
            tries += 2 * seconds  # a size's first measurement does not count
            tried.add(drafted)
        assert elapsed <= (1 + BUDGET_SHARE) * plain + BUDGET_S + tries + 1e-3


class TestCompany:
    """Several replies at once: each of them waits for the drafts of all."""

    @staticmethod
    def card(n_tokens: int) -> float:
        """An H200 with an 8B's weights: every token costs up to a dozen, then hardly any does."""
        return 0.0026 + 0.00045 * min(n_tokens - 1, 9) + 0.00008 * max(0, n_tokens - 10)

    @pytest.mark.parametrize("n_live", [1, 2, 4, 8])
    @pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.7])
    @pytest.mark.parametrize("ideas", [0.1, 0.3, 1.0])
    def test_nobody_waits_longer_than_the_budget(
        self, n_live: int, share: float, ideas: float
    ) -> None:
        """However often, and for how many of them, there is something that is partly right."""
        chance = random.Random(n_live)

        def right() -> int:
            return next(n for n in count() if chance.random() >= share)

        seconds, _ = company(n_live, self.card, 120, right=right, ideas=ideas)
        plain = 120 * self.card(n_live)
        assert seconds <= (1 + BUDGET_SHARE) * plain + BUDGET_S + 0.0005

    @pytest.mark.parametrize("n_live", [1, 4])
    def test_nor_for_a_model_that_is_wrong(self, n_live: int) -> None:
        seconds, _ = company(n_live, self.card, 120, right=lambda: 0, draft_s=0.0003)
        plain = 120 * self.card(n_live)
        assert seconds <= (1 + BUDGET_SHARE) * plain + BUDGET_S + 0.0005

    @pytest.mark.parametrize("n_live", [1, 4, 8])
    def test_what_is_copied_is_drafted_all_the_same(self, n_live: int) -> None:
        seconds, drafted = company(n_live, self.card, 60, right=lambda: 16)
        assert drafted > 40 * n_live
        assert seconds < 0.6 * 60 * self.card(n_live)
