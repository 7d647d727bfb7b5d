"""Costs, acceptance and the choices made of them, one at a time."""

from __future__ import annotations

import pytest

from specllama.scheduling.acceptance import Acceptance, Step
from specllama.scheduling.costs import Costs
from specllama.scheduling.scheduler import Account, FixedLength, Scheduler, Share, Stopping


def seen(costs: Costs, n_tokens: int, seconds: float, times: int = 2) -> None:
    """A size counts from its second measurement on."""
    for _ in range(times):
        costs.observe_target(n_tokens, seconds)


class TestCosts:
    def test_interpolates(self) -> None:
        costs = Costs()
        for n_tokens, seconds in ((1, 0.010), (5, 0.030), (9, 0.020)):
            seen(costs, n_tokens, seconds)
        assert costs.target_s(5) == pytest.approx(0.030)
        assert costs.target_s(3) == pytest.approx(0.020)
        assert costs.target_s(7) == pytest.approx(0.025)

    def test_unseen_sizes_are_taken_to_be_cheap(self) -> None:
        costs = Costs()
        seen(costs, 1, 0.010)
        assert 0.010 < costs.target_s(17) < 0.030

    def test_follows_a_change(self) -> None:
        costs = Costs()
        for seconds in [0.010] * 30 + [0.020] * 30:
            costs.observe_target(1, seconds)
        assert costs.target_s(1) == pytest.approx(0.020, rel=0.1)

    @pytest.mark.parametrize("place", [0, 1, 9])
    @pytest.mark.parametrize("slow", [0.0001, 1.0])
    def test_an_outlier_does_not_count(self, place: int, slow: float) -> None:
        costs = Costs()
        for number in range(10):
            costs.observe_target(1, slow if number == place else 0.010)
            costs.observe_draft("model", 4, slow if number == place else 0.008)
        assert costs.target_s(1) == pytest.approx(0.010)
        assert costs.draft_s("model") == pytest.approx(0.002)

    def test_nothing_is_known_before_plain_decodes(self) -> None:
        costs = Costs()
        seen(costs, 5, 0.010)
        assert not costs.known()
        costs.observe_target(1, 0.5)
        assert not costs.known(), "the first may be a hiccup"
        costs.observe_target(1, 0.010)
        assert costs.known()
        assert costs.target_s(1) == 0.010

    def test_the_yardstick_grows_stale(self) -> None:
        """Ever more seldom while it proves right; at once again when it proves wrong."""
        costs = Costs()
        seen(costs, 1, 0.010)
        waits = []
        for _ in range(7):
            waits.append(0)
            while not costs.stale():
                costs.observe_target(5, 0.010)
                waits[-1] += 1
            costs.observe_target(1, 0.011)
            assert not costs.stale()
        assert waits == sorted(waits)
        assert waits[0] < 20
        assert waits[-1] == waits[-2] > 200
        while not costs.stale():
            costs.observe_target(5, 0.010)
        costs.observe_target(1, 0.002)
        assert costs.stale(), "a measurement that disagrees is not believed, but repeated"
        while costs.stale():
            costs.observe_target(1, 0.002)
        assert costs.target_s(1) == 0.002

    def test_drafters_are_apart(self) -> None:
        costs = Costs()
        costs.observe_draft("model", 4, 0.004)
        costs.observe_draft("suffix", 0, 0.0001)
        assert costs.draft_s("model") == pytest.approx(0.001)
        assert costs.draft_s("suffix") == pytest.approx(0.0001)
        assert costs.draft_s("other") == 0.0


def observe(
    acceptance: Acceptance, drafted: int, accepted: int, tested: int, confidences: list[float]
) -> None:
    """A chain of which `tested` tokens were judged and the first `accepted` kept."""
    steps = [Step(0 if depth < accepted else None, 1) for depth in range(tested)]
    acceptance.observe(steps, confidences, n_nodes=drafted)


class TestAcceptance:
    def test_starts_hopeful(self) -> None:
        assert 0.5 < Acceptance().at_depth(0) < 1.0
        assert Acceptance().at_confidence(0.95) > Acceptance().at_confidence(0.15)

    def test_learns_by_depth(self) -> None:
        acceptance = Acceptance()
        for _ in range(100):
            observe(acceptance, 2, 1, 2, [])
        assert acceptance.at_depth(0) > 0.9
        assert acceptance.at_depth(1) < 0.1
        assert acceptance.at_depth(5) == acceptance.at_depth(1)

    def test_learns_by_confidence(self) -> None:
        acceptance = Acceptance()
        for _ in range(100):
            observe(acceptance, 2, 1, 2, [0.5, 0.9])
        assert acceptance.at_confidence(0.5) > 0.9
        assert acceptance.at_confidence(0.9) < 0.2
        assert acceptance.at_confidence(1.0) < 0.2

    def test_what_was_not_tested_teaches_nothing(self) -> None:
        acceptance = Acceptance()
        observe(acceptance, 2, 0, 0, [0.9, 0.9])
        assert acceptance.at_depth(0) == Acceptance().at_depth(0)
        assert acceptance.at_confidence(0.9) == Acceptance().at_confidence(0.9)

    def test_forgets(self) -> None:
        acceptance = Acceptance()
        for accepted in [0] * 200 + [1] * 100:
            observe(acceptance, 1, accepted, 1, [])
        assert acceptance.at_depth(0) > 0.9


def scheduler(one: float, many: float, accepted: int, draft_s: float = 0.0) -> Scheduler:
    """One that has seen 100 rounds of 8 drafted tokens, `accepted` of them kept."""
    scheduler = Scheduler()
    seen(scheduler.costs, 1, one)
    seen(scheduler.costs, 9, many)
    scheduler.costs.observe_draft("model", 1, draft_s)
    for _ in range(100):
        observe(scheduler.acceptance("model"), 8, accepted, min(8, accepted + 1), [])
    return scheduler


class TestBestLength:
    def test_zero_where_nothing_pays(self) -> None:
        assert scheduler(0.01, 0.09, 8, 0.004).best_length("model", 8)[0] == 0
        assert scheduler(0.01, 0.01, 0, 0.001).best_length("model", 8)[0] == 0

    def test_the_limit_where_it_is_free(self) -> None:
        length, rate = scheduler(0.01, 0.01, 8).best_length("model", 8)
        assert length == 8
        assert rate == pytest.approx(900, rel=0.05)

    def test_stops_where_acceptance_stops(self) -> None:
        assert scheduler(0.01, 0.02, 3, 0.001).best_length("model", 8)[0] == 3

    def test_plain_is_always_a_candidate(self) -> None:
        few = scheduler(0.01, 0.09, 0, 0.01)
        assert few.best_length("model", 0) == (0, few.plain_rate())


class TestAccount:
    def settle(self, account: Account, seconds: float, n_emitted: int) -> None:
        """A round of one sequence that drafted one token; nothing is known of such rounds."""
        self.known.settle(seconds, [Share(account, "model", 1, n_emitted)])

    @pytest.fixture(autouse=True)
    def machine(self) -> None:
        self.known = scheduler(0.01, 0.01, 8)

    def test_spends_its_budget_and_stops(self) -> None:
        account = Account(self.known)
        assert account.within_budget
        self.settle(account, 0.05, 1)
        assert not account.within_budget
        for _ in range(200):
            self.settle(account, 0.01, 1)
        assert account.within_budget, "the share grows with what is said"

    def test_gains_are_kept(self) -> None:
        account = Account(self.known)
        self.settle(account, 0.01, 9)
        self.settle(account, 0.05, 1)
        assert account.within_budget

    def test_a_hiccup_counts_as_two_rounds(self) -> None:
        seen(self.known.costs, 2, 0.01)
        account = Account(self.known)
        self.settle(account, 1.0, 1)
        assert account.within_budget
        seen(self.known.costs, 2, 0.02, times=5)
        self.settle(account, 1.0, 1)
        assert not account.within_budget

    def test_nothing_is_risked_before_a_plain_decode(self) -> None:
        assert not Account(Scheduler()).may_draft


class TestCompany:
    """Several sequences share a round."""

    def test_plain_rounds_cost_nobody_anything(self) -> None:
        known = scheduler(0.01, 0.05, 8)
        known.n_live = 2
        seen(known.costs, 2, 0.014)
        accounts = [Account(known) for _ in range(2)]
        for _ in range(100):
            known.settle(0.014, [Share(account, "", 0, 1) for account in accounts])
        assert all(account.within_budget for account in accounts)
        known.settle(0.044, [Share(account, "", 0, 1) for account in accounts])
        assert all(account.within_budget for account in accounts)

    def test_who_drafts_pays(self) -> None:
        """What a round takes beyond a plain one is nobody else's loss."""
        known = scheduler(0.01, 0.05, 8)
        known.n_live = 2
        seen(known.costs, 2, 0.014)
        eager, plain = Account(known), Account(known)
        for _ in range(10):
            known.settle(0.05, [Share(eager, "model", 7, 1), Share(plain, "", 0, 1)])
        assert not eager.within_budget
        assert plain.within_budget

    def test_the_yardstick_is_a_plain_round_of_as_many(self) -> None:
        known = scheduler(0.01, 0.05, 8)
        assert Account(known).may_draft
        known.n_live = 3
        assert not Account(known).may_draft
        for _ in range(2):
            known.costs.observe_target(3, 0.02, 3)
        assert Account(known).may_draft
        assert known.plain_rate() == pytest.approx(1 / 0.02)

    def test_drafts_cost_what_all_of_them_cost(self) -> None:
        """One sequence uses what the machine has to spare; eight have used it up."""

        def best(n_live: int) -> int:
            known = scheduler(0.01, 0.01, 8)
            for n_tokens in range(2, 80):
                seen(known.costs, n_tokens, 0.01 if n_tokens <= 9 else 0.0025 * n_tokens)
            known.n_live = n_live
            return known.best_length("model", 8)[0]

        assert best(1) == 8
        assert best(8) == 0

    def test_more_than_a_decode_takes_costs_several(self) -> None:
        known = Scheduler(max_batch=7)
        for n_tokens in (3, 7):
            seen(known.costs, n_tokens, 0.01 * n_tokens)
        known.n_live = 4
        assert known.batch_s(6) == pytest.approx(0.24)


class TestStopping:
    def test_goes_on_to_the_plan(self) -> None:
        known = scheduler(0.01, 0.02, 3, 0.001)
        planned, rate = known.best_length("model", 8)
        stopping = Stopping(known, "model", planned, rate, 0.0)
        assert [stopping.go_on(n, None) for n in range(5)] == [True] * 3 + [False] * 2

    def test_ends_where_the_draft_is_unsure(self) -> None:
        known = scheduler(0.01, 0.05, 8, 0.001)
        planned, rate = known.best_length("model", 8)
        assert planned
        assert Stopping(known, "model", planned, rate, 0.0).go_on(0, 0.99)
        assert not Stopping(known, "model", planned, rate, 0.0).go_on(0, 0.01)

    def test_p_min(self) -> None:
        known = scheduler(0.01, 0.01, 8)
        assert not Stopping(known, "model", 8, 100.0, 0.9).go_on(0, 0.85)
        assert not FixedLength(0.9).go_on(0, 0.85)
        assert FixedLength(0.9).go_on(0, None)
        assert FixedLength(0.9).go_on(0, 0.95)

    def test_remembers_what_it_let_pass(self) -> None:
        fixed = FixedLength(0.0)
        assert all(fixed.go_on(n, 0.5 + n / 10) for n in range(3))
        assert fixed.confidences == [0.5, 0.6, 0.7]
