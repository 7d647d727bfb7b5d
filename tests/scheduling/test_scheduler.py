"""Replies, rounds of many, and forecasts."""

from __future__ import annotations

import math

import pytest

from specllama.results import SpecStats
from specllama.scheduling.acceptance import Step
from specllama.scheduling.account import Account
from specllama.scheduling.outlook import Outlook
from specllama.scheduling.policy import Expectation
from specllama.scheduling.scheduler import Bet, Scheduler, Share
from specllama.scheduling.table import CostTable
from specllama.verification.types import Proposal
from tests.scheduling.machines import (
    chain,
    graphs,
    observe,
    prompted,
    scheduler,
    seen,
    share,
)


class TestRecall:
    """Another model may bear the name of the one before."""

    def given_up(self) -> Scheduler:
        known = graphs(good=3)
        known.settle_size(lambda: 2.0 if known.kept.size == 4 else 1.0)
        for _ in range(200):
            known.probe_due("model, greedy")
        known.planned_shape("model", "model, greedy", 8, 4)
        known.ahead.observe_ready("model", 1, 1)
        known.ahead.observe("model", 1, 1.0)
        return known

    def test_nothing_is_left_of_the_draft_before(self) -> None:
        known, table = self.given_up(), graphs().table()
        before = known.kept.size, known.planned_shape("model", "model, greedy", 8, 4)
        fitting = known.ahead.fitting("model", 4, 1)
        table.acceptance.clear()
        known.recall(table)
        known.begin(1)
        new = Scheduler()
        new.recall(table)
        new.begin(1)
        assert known.kept.size == new.kept.size != before[0]
        assert known.ahead.ready_share("model") == 0.0
        assert known.ahead.fitting("model", 4, 1) == new.ahead.fitting("model", 4, 1) != fitting
        shape = new.planned_shape("model", "model, greedy", 8, 4)
        assert known.planned_shape("model", "model, greedy", 8, 4) == shape != before[1]
        assert chain(known) == chain(new)

    def test_it_gets_its_own_tries(self) -> None:
        known = self.given_up()
        known.recall(graphs().table())
        known.begin(1)
        assert [known.probe_due("model, greedy") for _ in range(16)] == [False] * 15 + [True]

    def test_its_costs_count_at_once(self) -> None:
        known = Scheduler()
        for seconds in (0.01, 0.02):
            known.recall(CostTable(same={1: seconds}))
            assert known.plain_s == seconds

    def test_what_it_promises_is_looked_at_anew(self) -> None:
        """Though it is accepted as often as the one before."""
        known, same = Scheduler(), {1: 0.01, 9: 0.011}
        known.recall(CostTable(same=same, draft={"model": {1: 0.0001}}))
        before = chain(known).rate
        known.recall(CostTable(same=same, draft={"model": {1: 0.009}}))
        assert chain(known).rate < 0.8 * before


class TestKept:
    """What goes into the table for later sessions."""

    def test_what_was_learned_of_drafters_that_rested_stays(self) -> None:
        known = Scheduler()
        known.recall(CostTable(acceptance={"old, greedy": {"depths": [0.4]}}))
        observe(known.acceptance("model"), 1, 0, 1, [])
        kept = known.table().acceptance
        assert kept.keys() == {"old, greedy", "model, greedy"}
        assert kept["old, greedy"] == {"depths": [0.4]}

    def test_costs_or_acceptance_alone_are_worth_keeping(self) -> None:
        table = scheduler(0.01, 0.02, 8).table()
        dearer, refused = Scheduler(), Scheduler()
        for known in (dearer, refused):
            known.recall(table)
            assert not known.changed
        seen(dearer.costs, 9, 0.04, times=3)
        for _ in range(100):
            observe(refused.acceptance("model"), 1, 0, 1, [])
        assert dearer.changed and not refused.costs.changed
        assert refused.changed


class TestReplies:
    """What changes when another text begins."""

    def test_what_drafting_promises_is_looked_at_anew(self) -> None:
        """Also where acceptance is no other than it was."""
        known = Scheduler()
        known.recall(CostTable(same={1: 0.01, 9: 0.05}, draft={"model": {1: 0.001}}))
        known.begin(1)
        before = chain(known)
        assert chain(known) is before
        known.open_account(100)
        assert chain(known) is not before

    def test_acceptance_fades_once(self) -> None:
        """However many pieces its prompt, or another's, is read in."""
        known = scheduler(0.01, 0.02, 8)
        known.begin(1)
        known.observe_batch(1, 0.01)
        before = known.acceptance("model").trials
        known.open_account(128)
        assert known.acceptance("model").trials == pytest.approx(before / 10)
        for _ in range(3):
            known.costs.observe_reading(10, 0.02)
            known.begin(1)
            known.observe_batch(1, 0.01)
        assert known.acceptance("model").trials == pytest.approx(before / 10)

    def test_a_promise_is_looked_at_anew_when_the_draft_proves_bad(self) -> None:
        known = scheduler(0.01, 0.011, 8)
        before = chain(known).rate
        assert chain(known).rate == before
        for _ in range(30):
            observe(known.acceptance("model"), 1, 0, 1, [])
        assert chain(known).rate < 0.7 * before

    @pytest.mark.parametrize("changing_costs", [True, False])
    def test_the_first_draftings_behind_a_prompt_say_nothing_of_later(
        self, changing_costs: bool
    ) -> None:
        """Where graphs are captured, the second one pays for the draft's; that was kept for ever.

        A shorter time says something whenever it is.
        """
        known = graphs() if changing_costs else Scheduler(kept_graphs="none")
        prompted(known)
        known.observe_draft("new", 1, 0.002, 1)
        assert known.costs.draft_s("new", 1) == 0.002, "better than nothing"
        for number in range(9):
            prompted(known)
            known.observe_draft("new", 1, 0.005, 1)
            known.observe_batch(1, known.plain_s or 0.01)
            known.begin(1)
            if changing_costs:
                known.observe_draft("new", 1, 0.005, 1)
            known.observe_draft("new", 1, 0.001 if number else 0.002, 1)
        assert known.costs.draft_s("new", 1) == 0.001

    def test_each_reply_has_first_draftings_of_its_own(self) -> None:
        """Also one that begins with a round in which nobody drafts."""
        known = graphs()
        for seconds in (0.001, 0.005, 0.005, 0.005):
            prompted(known)
            known.observe_batch(1, known.plain_s)
            for _ in range(2):
                known.begin(1)
                known.observe_draft("new", 1, seconds, 1)
        assert known.costs.draft_s("new", 1) == 0.001

    def test_a_drafter_that_became_slow_behind_a_prompt_is_believed_later(self) -> None:
        known = graphs()
        prompted(known)
        known.observe_draft("new", 1, 0.001, 1)
        known.observe_batch(1, known.plain_s)
        known.begin(1)
        for _ in range(9):
            known.observe_draft("new", 1, 0.005, 1)
        assert known.costs.draft_s("new", 1) == 0.005

    def test_looks_of_a_draft_that_lagged_are_not_learned(self) -> None:
        known = scheduler(0.01, 0.02, 0)
        known.begin(1)
        known.observe_batch(1, known.plain_s)
        known.begin(1)
        known.observe_draft("new", 1, 0.030, 1, 40)
        assert known.costs.draft_s("new", 1) == 0.0, "not even where nothing else is known"
        known.observe_draft("new", 1, 0.001, 1, 2)
        assert known.costs.draft_s("new", 1) == 0.001
        for _ in range(9):
            known.observe_draft("new", 1, 0.017, 1, 40)
        assert known.costs.draft_s("new", 1) == 0.001
        assert known.costs.catching_up_s(40) == pytest.approx(0.016)
        assert known.drafting_s("new", 1, 1, 40) == pytest.approx(0.017)

    def test_a_try_that_the_budget_does_not_bear_stays_due(self) -> None:
        known = scheduler(0.01, 0.02, 0)
        known.observe_batch(1, 0.01)
        known.begin(1)
        assert not any(known.probe_due("model, greedy", may=False) for _ in range(40))
        assert known.probe_due("model, greedy")
        assert not known.probe_due("model, greedy")

    def test_a_drafter_that_paid_is_tried_soon_when_it_stops_to(self) -> None:
        known = scheduler(0.01, 0.01, 8)
        known.observe_batch(1, 0.01)
        known.begin(1)

        def wait() -> int:
            return next(n for n in range(1, 1000) if known.probe_due("model, greedy"))

        assert [wait() for _ in range(3)] == [16, 32, 64]
        assert known.pays("model, greedy", "model", Account(known))
        assert wait() == 16

    @pytest.mark.parametrize("changing_costs", [True, False])
    def test_tries_wait_for_a_reply_where_changing_costs(self, changing_costs: bool) -> None:
        known = graphs() if changing_costs else scheduler(0.01, 0.02, 0)
        known.begin(1)
        known.observe_batch(1, known.plain_s)
        known.begin(1)
        due = [known.probe_due("model, greedy") for _ in range(20)]
        assert any(due) != changing_costs
        known.costs.observe_reading(10, 0.02)
        known.begin(1)
        assert known.probe_due("model, greedy") == changing_costs

    def test_a_try_doubts_what_is_known_but_keeps_it(self) -> None:
        """Else a draft that is never right would seem to pay after each try, and be tried soon."""
        known = scheduler(0.01, 0.02, 0)
        known.observe_batch(1, 0.01)
        known.begin(1)
        acceptance = known.acceptance("model")
        before, trials = acceptance.at_depth(0), acceptance.trials
        assert any(known.probe_due("model, greedy") for _ in range(20))
        assert acceptance.at_depth(0) == pytest.approx(before)
        assert acceptance.trials == pytest.approx(trials / 2)


class TestCompany:
    """Several sequences share a round."""

    def test_plain_rounds_cost_nobody_anything(self) -> None:
        known = scheduler(0.01, 0.05, 8)
        known.begin(2)
        seen(known.costs, 2, 0.014)
        accounts = [Account(known) for _ in range(2)]
        for seconds in [0.014] * 100 + [0.044]:
            known.settle(seconds, 0.0, [share(account, 0, 1) for account in accounts])
        assert all(account.may_draft for account in accounts)

    def test_who_drafts_pays(self) -> None:
        """What a round takes beyond a plain one is nobody else's loss."""
        known = scheduler(0.01, 0.05, 8)
        known.begin(2)
        seen(known.costs, 2, 0.014)
        eager, plain = Account(known), Account(known)
        for _ in range(10):
            known.settle(0.05, 0.0, [share(eager, 7, 1), share(plain, 0, 1)])
        assert not eager.may_draft
        assert plain.may_draft

    def test_the_yardstick_is_a_plain_round_of_as_many(self) -> None:
        known = scheduler(0.01, 0.05, 8)
        assert Account(known).may_draft
        known.begin(3)
        assert not Account(known).may_draft
        for _ in range(2):
            known.observe_batch(3, 0.02, 3)
        assert Account(known).may_draft
        assert known.plain_rate() == pytest.approx(1 / 0.02)

    def test_drafts_cost_what_all_of_them_cost(self) -> None:
        """One sequence uses what the machine has to spare; eight have used it up."""

        def best(n_live: int) -> Outlook:
            known = scheduler(0.01, 0.01, 8)
            for n_tokens in range(2, 80):
                seen(known.costs, n_tokens, 0.01 if n_tokens <= 9 else 0.0025 * n_tokens)
            known.begin(n_live)
            return chain(known)

        assert best(1).drafted == 8
        assert best(8).drafted == 0

    def test_more_than_a_decode_takes_costs_several(self) -> None:
        known = Scheduler(max_batch=7)
        for n_tokens in (3, 7):
            seen(known.costs, n_tokens, 0.01 * n_tokens)
        known.begin(4)
        assert known.batch_s(6) == pytest.approx(0.24)


class TestForecast:
    def test_learns_how_much_longer_rounds_take_than_medians_say(self) -> None:
        known = scheduler(0.01, 0.05, 8)
        stats, bet = SpecStats(), Bet("model, greedy", Expectation(1.0), (), 0.0)
        for _ in range(100):
            known.begin(1)
            known.observe_batch(1, 0.01)
            known.settle(0.015, 0.0, [Share(Account(known), stats, bet, 0, 1)])
        before = stats.forecast.seconds
        known.begin(1)
        known.observe_batch(1, 0.01)
        known.settle(0.015, 0.0, [Share(Account(known), stats, bet, 0, 1)])
        assert stats.forecast.seconds - before == pytest.approx(0.015, rel=0.02)

    @pytest.mark.parametrize("seconds", [-3600.0, 0.0, 3600.0, math.nan, math.inf])
    def test_a_clock_that_was_set_spoils_nothing(self, seconds: float) -> None:
        known = scheduler(0.01, 0.05, 8)
        stats, bet = SpecStats(), Bet("model, greedy", Expectation(1.0), (), 0.0)
        for taken in (seconds, 0.01):
            known.begin(1)
            known.observe_batch(1, 0.01)
            known.settle(taken, 0.0, [Share(Account(known), stats, bet, 0, 1)])
        assert stats.forecast.rounds == 1
        assert stats.forecast.seconds == pytest.approx(0.01, rel=0.1)

    def test_expected_beside_measured(self) -> None:
        known = scheduler(0.01, 0.03, 8, 0.002)
        stats = SpecStats()
        known.begin(1)
        known.observe_batch(9, 0.033)
        bet = Bet("model, greedy", Expectation(5.0, [0.9] * 8), draft_s=0.016)
        known.settle(0.05, 0.017, [Share(Account(known), stats, bet, 8, 6)])
        forecast = stats.forecast
        assert (forecast.rounds, forecast.tokens, forecast.measured_tokens) == (1, 5.0, 6)
        assert forecast.seconds == pytest.approx(0.046)
        assert forecast.measured_s == 0.05
        assert forecast.error == pytest.approx(5 / 0.046 / (6 / 0.05) - 1)

    def test_what_was_not_known_is_not_compared(self) -> None:
        known, stats = Scheduler(), SpecStats()
        known.begin(1)
        known.observe_batch(1, 0.01)
        known.settle(0.01, 0.0, [Share(Account(known), stats, Bet(), 0, 1)])
        assert stats.forecast.rounds == 0
        assert stats.forecast.error is None

    def test_predicted_chances_meet_what_happened(self) -> None:
        known, stats = Scheduler(), SpecStats()
        bet = Bet("model, greedy", Expectation(2.0, [0.95, 0.31]), [0.9, 0.4])
        known.learn(bet, stats, [Step(0, 1), Step(None, 1)], Proposal.chain([1, 2]), [0])
        assert (stats.reliability[9].tested, stats.reliability[9].accepted) == (1, 1)
        assert (stats.reliability[3].tested, stats.reliability[3].accepted) == (1, 0)
        assert stats.reliability[3].predicted == pytest.approx(0.31)
