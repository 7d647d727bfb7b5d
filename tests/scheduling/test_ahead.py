"""Drafting while the target works: how much fits into that time, and what it takes off prices."""

from __future__ import annotations

import pytest

from specllama.results import SpecStats
from specllama.scheduling.acceptance import Acceptance
from specllama.scheduling.ahead import _LESS, _RETRY, _SHADOW
from specllama.scheduling.policy import Policy, Stopping
from specllama.scheduling.scheduler import Bet, Scheduler, Share
from specllama.scheduling.table import CostTable
from tests.scheduling.machines import chain, scheduler

TARGET_S = 0.01
LOOK_S = 0.001
ALONE_S = 0.0007
"""What a look costs by itself: little less than beside the target's work."""


def known() -> Scheduler:
    """A target of which three tokens take twice as long as one."""
    found = Scheduler()
    same = {1: TARGET_S, 2: TARGET_S, 3: 2 * TARGET_S}
    found.recall(CostTable(same=same, draft={"model": {1: ALONE_S}}))
    found.begin(1)
    return found


class TestFitting:
    def test_what_it_took_decides(self) -> None:
        """With something to spare, so that the target's answer is not kept waiting."""
        fits = known()
        fits.ahead.observe("model", 4, 4 * LOOK_S)
        assert fits.ahead.fitting("model", 1, 1) == int(_SHADOW * TARGET_S / LOOK_S) < 10
        assert fits.ahead.fitting("model", 3, 1) == int(_SHADOW * 2 * TARGET_S / LOOK_S)

    def test_before_that_a_look_is_taken_to_be_slower_than_alone(self) -> None:
        fits = known()
        n_alone = int(_SHADOW * TARGET_S / ALONE_S)
        assert 1 < fits.ahead.fitting("model", 1, 1) < n_alone

    def test_more_sequences_have_less_time_each(self) -> None:
        """Until it is known what it takes in company."""
        fits = known()
        assert 1 <= fits.ahead.fitting("model", 1, 4) < fits.ahead.fitting("model", 1, 1)

    @pytest.mark.parametrize("missing", ["the draft's costs", "the target's"])
    def test_one_look_where_nothing_is_known(self, missing: str) -> None:
        """Else neither would ever be known."""
        fits = known() if missing == "the draft's costs" else Scheduler()
        assert fits.ahead.fitting("other", 3, 1) == 1

    def test_none_where_none_fits(self) -> None:
        fits = known()
        fits.ahead.observe("model", 2, 4 * TARGET_S)
        assert fits.ahead.fitting("model", 1, 1) == 0

    def test_one_is_tried_again_after_a_while(self) -> None:
        """What seemed too dear may have been a hiccup, and nothing else would ever show that."""
        fits, counts = known(), []
        fits.ahead.observe("model", 1, 4 * TARGET_S)
        for _ in range(_RETRY + 1):
            counts.append(fits.ahead.fitting("model", 1, 1))
            fits.ahead.observe("model", counts[-1], counts[-1] * LOOK_S)
        assert counts == [0] * _RETRY + [1]
        assert fits.ahead.fitting("model", 1, 1) == int(_SHADOW * TARGET_S / LOOK_S)

    def test_tries_that_fail_stay_seldom(self) -> None:
        fits, counts = known(), []
        for _ in range(3 * _RETRY):
            counts.append(fits.ahead.fitting("model", 1, 1))
            fits.ahead.observe("model", counts[-1], counts[-1] * 4 * TARGET_S)
        assert sum(counts[1:]) == 2

    def test_looks_not_taken_say_nothing(self) -> None:
        fits = known()
        fits.ahead.observe("model", 4, 4 * LOOK_S)
        before = fits.ahead.fitting("model", 1, 1)
        for _ in range(9):
            fits.ahead.observe("model", 0, 100 * LOOK_S)
        assert fits.ahead.fitting("model", 1, 1) == before

    def test_each_drafter_has_its_own(self) -> None:
        fits = known()
        fits.ahead.observe("model", 1, LOOK_S)
        fits.ahead.observe("staged", 1, 3 * LOOK_S)
        assert [fits.ahead.fitting(name, 1, 1) for name in ("model", "staged")] == [9, 3]

    def test_less_fits_after_an_overrun_for_a_while(self) -> None:
        fits = known()
        fits.ahead.observe("model", 1, LOOK_S / 10)
        before = fits.ahead.fitting("model", 1, 1)
        for _ in range(2):
            fits.overran(1)
        less = fits.ahead.fitting("model", 1, 1)
        assert less == fits.ahead.fitting("model", 1, 1) == pytest.approx(_LESS**2 * before, abs=2)
        later = []
        for _ in range(100):
            fits.ahead.observe("model", 1, LOOK_S / 10)
            later.append(fits.ahead.fitting("model", 1, 1))
        assert later == sorted(later)
        assert later[0] <= less + 1, "slowly"
        assert later[-1] == before, "and never more than at first"


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_an_overrun_says_nothing_of_the_decode(order: tuple[int, int]) -> None:
    """Neither of its time nor, whatever else was decoded, of the round; but its size was."""
    fits, stats = known(), SpecStats()
    for _ in range(5):
        fits.begin(1)
        for size in order:
            if size == 1:
                fits.observe_batch(1, TARGET_S)
            else:
                fits.overran(2)
        fits.settle(9 * TARGET_S, 0.0, [Share(fits.open_account(9), stats, Bet(), 1, 1)])
    assert fits.costs.size == order[-1]
    assert fits.costs.target_s(2) == TARGET_S
    assert fits.costs.n_decodes == 5
    assert stats.forecast.rounds == 0


def test_a_pause_beside_a_decode_counts_as_two_rounds() -> None:
    """As any other: a machine that stops for a moment decides nothing."""
    fits = known()
    account = fits.open_account(9)
    before = account.slack_s
    fits.overran(2)
    fits.settle(10 * TARGET_S, 0.0, [Share(account, SpecStats(), Bet(), 1, 1)])
    assert before - account.slack_s == pytest.approx(TARGET_S, rel=0.05)


class TestReady:
    """Looks that were taken ahead cost nothing."""

    DRAFT_S = 0.004

    def costly(self, draft_s: float = DRAFT_S) -> Scheduler:
        return scheduler(0.01, 0.012, 8, draft_s)

    @pytest.mark.parametrize("n_ready", [0, 2, 4])
    def test_the_share_of_ready_looks_lowers_the_price_of_chains(self, n_ready: int) -> None:
        usual = self.costly()
        for _ in range(200):
            usual.ahead.observe_ready("model", n_ready, 4)
        cheaper = chain(self.costly(self.DRAFT_S * (4 - n_ready) / 4))
        assert chain(usual).rate == pytest.approx(cheaper.rate, rel=0.001)
        assert chain(usual).drafted == cheaper.drafted

    def test_it_is_what_is_usual(self) -> None:
        """One proposal that was ready is no promise, and one that was not breaks none."""
        rates = []
        usual = self.costly()
        for ready in (0, 4, *[4] * 100, 0):
            usual.ahead.observe_ready("model", ready, 4)
            usual._outlooks.clear()
            rates.append(chain(usual).rate)
        most = rates[-2] - rates[0]
        assert 0 < rates[1] - rates[0] < 0.2 * most
        assert 0 < rates[-2] - rates[-1] < 0.2 * most

    def test_who_looked_at_nothing_says_nothing(self) -> None:
        usual = self.costly()
        usual.ahead.observe_ready("model", 4, 4)
        before = chain(usual).rate
        for _ in range(99):
            usual.ahead.observe_ready("model", 0, 0)
        usual._outlooks.clear()
        assert chain(usual).rate == before

    def test_another_drafter_costs_what_it_costs(self) -> None:
        usual = self.costly()
        for _ in range(99):
            usual.ahead.observe_ready("staged", 4, 4)
        assert chain(usual).rate == chain(self.costly()).rate

    @staticmethod
    def stopping(dear: Scheduler, ready: int) -> Stopping:
        acceptance, rate = dear.acceptance("model"), dear.plain_rate()
        return Stopping(dear, "model", acceptance, rate=rate, p_min=0.0, most=8, ready=ready)

    @pytest.mark.parametrize("ready", [0, 1, 3])
    @pytest.mark.parametrize("confidence", [None, 0.99])
    def test_a_chain_goes_on_while_it_is_ready(self, ready: int, confidence: float | None) -> None:
        """Where a token more would pay only if it had no price."""
        policy = self.stopping(scheduler(0.01, 0.01, 8, draft_s=0.02), ready)
        drawn = 0
        while policy.go_on(drawn, None) and policy.go_on(drawn, confidence):
            drawn += 1
        assert drawn == ready

    @pytest.mark.parametrize("ready", [0, 3])
    def test_what_is_ready_need_not_be_drafted(self, ready: int) -> None:
        """Verifying it has its price all the same."""
        policy = self.stopping(scheduler(0.01, 0.01 * 9, 0), ready)
        assert not policy.go_on(0, None)

    def test_fixed_lengths_know_it_too(self) -> None:
        """For the scheduler to learn what drafting takes."""
        assert (Policy(Acceptance(), 0.0).ready, Policy(Acceptance(), 0.0, 3).ready) == (0, 3)
