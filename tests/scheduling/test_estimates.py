"""Costs, acceptance and the choices made of them, one at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from specllama.results import SpecStats
from specllama.sampling.distribution import Distribution
from specllama.scheduling.acceptance import Acceptance, Step
from specllama.scheduling.costs import Costs
from specllama.scheduling.outlook import Outlook
from specllama.scheduling.policy import Expectation, Policy, Stopping, node_chances
from specllama.scheduling.scheduler import Account, Bet, Scheduler, Share
from specllama.scheduling.table import CostTable
from specllama.verification.types import Proposal


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

    def test_sizes_beyond_cost_half_of_what_the_last_tokens_did(self) -> None:
        """A machine without spare power is known for it before every size was tried."""
        costs = Costs()
        seen(costs, 1, 0.010)
        seen(costs, 2, 0.018)
        assert costs.target_s(4) == pytest.approx(0.026)
        assert costs.worst_s(4) == pytest.approx(0.038)
        seen(costs, 3, 0.012)
        assert costs.target_s(4) == pytest.approx(0.012), "costs may fall, but not for ever"

    def test_follows_a_change(self) -> None:
        costs = Costs()
        for seconds in [0.010] * 30 + [0.020] * 30:
            costs.observe_target(1, seconds)
        assert costs.target_s(1) == pytest.approx(0.020, rel=0.1)

    @pytest.mark.parametrize("place", [0, 1, 9])
    @pytest.mark.parametrize("slow", [0.0001, 1.0, 3600.0])
    def test_an_outlier_does_not_count(self, place: int, slow: float) -> None:
        costs = Costs()
        for number in range(10):
            costs.observe_target(1, slow if number == place else 0.010)
            costs.observe_draft("model", 4, slow if number == place else 0.008)
        assert costs.target_s(1) == pytest.approx(0.010)
        assert costs.draft_s("model", 4) == pytest.approx(0.008)

    @pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
    def test_what_no_clock_should_show_is_dropped(self, seconds: float) -> None:
        costs = Costs(KEPT)
        for _ in range(9):
            costs.observe_target(1, seconds)
            costs.observe_draft("model", 1, seconds)
        assert costs.target_s(1) == 0.010
        assert costs.draft_s("model", 1) == 0.002
        assert costs.pace == 1.0
        assert not costs.changed

    def test_a_machine_that_became_slow_is_believed(self) -> None:
        """A hundred times slower happens: threads that wait for each other on a busy machine."""
        costs = Costs(KEPT)
        for _ in range(8):
            costs.observe_target(1, 1.0)
        assert costs.target_s(1) == 1.0

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
        costs.observe_draft("staged", 1, 0.0001)
        assert costs.draft_s("model", 4) == pytest.approx(0.004)
        assert costs.draft_s("staged", 1) == pytest.approx(0.0001)
        assert costs.draft_s("other", 4) == 0.0
        assert costs.draft_s("model", 0) == 0.0

    def test_the_first_look_may_cost_more(self) -> None:
        costs = Costs()
        costs.observe_draft("model", 1, 0.005)
        costs.observe_draft("model", 5, 0.009)
        assert costs.draft_s("model", 3) == pytest.approx(0.007)
        assert costs.draft_s("model", 8) == pytest.approx(0.012)

    def test_looks_of_several_sequences_are_a_table_of_their_own(self) -> None:
        costs = Costs()
        costs.observe_draft("model", 2, 0.004)
        assert costs.draft_s("model", 2, 3) == pytest.approx(0.012), "three times, until measured"
        costs.observe_draft("model", 2, 0.005, 3)
        assert costs.draft_s("model", 2, 3) == pytest.approx(0.005)
        assert costs.draft_s("model", 2) == pytest.approx(0.004)


KEPT = CostTable(
    how="calibrated",
    same={1: 0.010, 2: 0.014, 5: 0.030},
    draft={"model": {1: 0.002, 4: 0.006}},
    prefill=0.001,
)


class TestKeptCosts:
    def test_are_known_from_the_start(self) -> None:
        costs = Costs(KEPT)
        assert costs.known()
        assert (costs.target_s(1), costs.target_s(5)) == (0.010, 0.030)
        assert costs.draft_s("model", 4) == 0.006
        assert costs.readable(0.1, 32) == 100

    def test_count_at_the_pace_of_now(self) -> None:
        """A busy machine: sizes that were not measured today are slower too."""
        costs = Costs(KEPT)
        for _ in range(3):
            costs.observe_target(1, 0.020)
        assert costs.target_s(5) == pytest.approx(0.060)
        assert costs.draft_s("model", 1) == pytest.approx(0.004)
        seen(costs, 5, 0.031)
        assert costs.target_s(5) == pytest.approx(0.031)

    def test_a_calibrated_level_is_kept(self) -> None:
        """What a busy machine shows changes no calibrated table, unless its shape changed."""
        costs = Costs(KEPT)
        for _ in range(3):
            costs.observe_target(1, 0.020)
            costs.observe_target(2, 0.0285)
        assert not costs.changed
        assert costs.table().same == KEPT.same
        for _ in range(4):
            costs.observe_target(5, 0.080)
            costs.observe_target(1, 0.020)
        assert costs.changed
        assert costs.table().same[5] == pytest.approx(0.040, rel=0.03)

    def test_a_learned_level_follows(self) -> None:
        costs = Costs(replace(KEPT, how="learned"))
        for _ in range(3):
            costs.observe_target(1, 0.020)
        assert costs.changed
        assert costs.table().same[1] == pytest.approx(0.020)
        assert costs.table().same[5] == pytest.approx(0.060)

    def test_new_sizes_are_a_change(self) -> None:
        costs = Costs(KEPT)
        seen(costs, 3, 0.018, times=3)
        assert costs.changed
        assert costs.table().same[3] == pytest.approx(0.018)


class TestSwitching:
    """Devices that replay captured graphs: another size than before costs more."""

    def machine(self, extra: float) -> Costs:
        costs = Costs()
        for n_tokens in [1, 1, 1, 2, 2, 2, 4, 4, 4] * 3:
            same = n_tokens == costs.previous
            costs.observe_target(n_tokens, 0.003 + 0.0003 * n_tokens + (0.0 if same else extra))
        return costs

    def test_is_found(self) -> None:
        costs = self.machine(0.0015)
        assert costs.switch_s == pytest.approx(0.0015)
        assert costs.target_s(2) == pytest.approx(0.0036)
        assert costs.target_s(2, after=2) == pytest.approx(0.0036)
        assert costs.target_s(2, after=1) == pytest.approx(0.0051)

    def test_is_none_where_it_is_none(self) -> None:
        costs = self.machine(0.00002)
        assert costs.switch_s == 0.0
        assert costs.target_s(2, after=1) == costs.target_s(2)

    def test_is_kept(self) -> None:
        table = self.machine(0.0015).table()
        assert Costs(table).switch_s == pytest.approx(0.0015)

    def test_a_first_look_that_was_too_dear_is_put_right(self) -> None:
        """Plain decoding behind two prompts shows it, so that sizes are tried that say the rest."""
        same = {1: 0.0030, 2: 0.0031, 3: 0.0032}
        costs = Costs(CostTable(same=same, other={n: s + 0.03 for n, s in same.items()}))
        assert costs.switch_s == pytest.approx(0.03)
        for _ in range(2):
            costs.observe_reading(10, 0.02)
            for extra in (0.002, 0.0, 0.0):
                costs.observe_target(1, 0.003 + extra)
        assert costs.switch_s == pytest.approx(0.002)

    def test_a_yardstick_measured_after_another_size_is_none(self) -> None:
        costs = self.machine(0.0015)
        for _ in range(20):
            costs.observe_target(4, 0.0042)
        assert costs.stale()
        costs.observe_target(1, 0.0048)
        assert costs.stale(), "it has paid for the change"
        costs.observe_target(1, 0.0033)
        assert not costs.stale()


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
        assert acceptance.at_confidence(0.94) < 0.2

    def test_what_was_not_tested_teaches_nothing(self) -> None:
        acceptance = Acceptance()
        observe(acceptance, 2, 0, 0, [0.9, 0.9])
        assert acceptance.at_depth(0) == Acceptance().at_depth(0)
        assert acceptance.at_confidence(0.9) == Acceptance().at_confidence(0.9)

    def test_depth_and_confidence_together(self) -> None:
        """The second token is worse than the first, at the same confidence."""
        acceptance = Acceptance()
        for _ in range(100):
            observe(acceptance, 2, 1, 2, [0.85, 0.85])
        assert acceptance.at_confidence(0.85, 0) > 0.9
        assert acceptance.at_confidence(0.85, 1) < 0.1

    def test_what_is_kept_is_where_the_next_session_starts(self) -> None:
        before = Acceptance()
        for _ in range(100):
            before.look(0.5)
            observe(before, 2, 0, 1, [0.5])
        after = Acceptance(before.known())
        assert after.at_depth(0) == pytest.approx(before.at_depth(0))
        assert after.at_confidence(0.5) == pytest.approx(before.at_confidence(0.5), abs=0.05)
        assert [look for look, _ in after.looks()] == pytest.approx([1.0])

    def test_priors_of_another_shape_are_ignored(self) -> None:
        assert Acceptance({"bins": [0.1]}).at_confidence(0.99) == Acceptance().at_confidence(0.99)

    def test_fading_keeps_the_estimate_and_opens_it(self) -> None:
        stubborn, faded = Acceptance(), Acceptance()
        for acceptance in (stubborn, faded):
            for _ in range(100):
                observe(acceptance, 1, 0, 1, [])
        before = faded.at_depth(0)
        for _ in range(4):
            faded.fade()
        assert faded.at_depth(0) == pytest.approx(before)
        for acceptance in (stubborn, faded):
            for _ in range(4):
                observe(acceptance, 1, 1, 1, [])
        assert faded.at_depth(0) > 0.35 > stubborn.at_depth(0)

    def test_forgets(self) -> None:
        acceptance = Acceptance()
        for accepted in [0] * 200 + [1] * 150:
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


def chain(known: Scheduler, limit: int = 8) -> Outlook:
    return known.chain_outlook("model", "model, greedy", limit)


class TestOutlook:
    def test_nothing_pays(self) -> None:
        for few in (scheduler(0.01, 0.09, 8, 0.004), scheduler(0.01, 0.01, 0, 0.001)):
            assert chain(few).rate < few.plain_rate()

    def test_the_limit_where_it_is_free(self) -> None:
        look = chain(scheduler(0.01, 0.01, 8))
        assert look.drafted == 8
        assert look.rate == pytest.approx(900, rel=0.05)

    def test_stops_where_acceptance_stops(self) -> None:
        assert chain(scheduler(0.01, 0.02, 3, 0.001)).drafted == 3

    def test_plain_is_all_there_is(self) -> None:
        few = scheduler(0.01, 0.09, 0, 0.01)
        assert chain(few, 0).rate == few.plain_rate()

    def test_an_unsure_draft_may_pay_where_it_knows_when(self) -> None:
        """Half of the first tokens are right, which pays nothing; but it says which half."""
        known = scheduler(0.01, 0.02, 0, 0.0005)
        acceptance = known.acceptance("model")
        for number in range(200):
            confidence = 0.99 if number % 2 else 0.25
            acceptance.look(confidence)
            acceptance.observe([Step(0 if number % 2 else None, 1)], [confidence], n_nodes=1)
        assert acceptance.at_depth(0) == pytest.approx(0.5, abs=0.05)
        assert chain(known).rate > 1.03 * known.plain_rate()

    def test_a_machine_that_becomes_slow_changes_no_promise(self) -> None:
        """Looked at a moment ago, when all decodes took a tenth of the time."""
        known = Scheduler()
        known.recall(CostTable(same={1: 0.01, 2: 0.019, 4: 0.037}, draft={"model": {1: 0.002}}))
        assert chain(known).rate < known.plain_rate()
        for _ in range(6):
            known.begin(1)
            known.observe_batch(1, 0.1)
        assert known.plain_rate() == pytest.approx(10.0)
        assert chain(known).rate < known.plain_rate()

    @pytest.mark.parametrize(("wide_s", "least", "most"), [(0.011, 12, 15), (0.1, 1, 3)])
    def test_wide_trees_where_wide_is_cheap(self, wide_s: float, least: int, most: int) -> None:
        known = Scheduler()
        known.recall(
            CostTable(same={1: 0.01, 2: 0.0105, 16: wide_s, 17: 0.1}, draft={"tree": {1: 0.0001}})
        )
        for rank in (0, 0, 0, 1, None) * 40:
            known.acceptance("tree").observe([Step(rank, 4)], [], n_nodes=16)
        look = known.tree_outlook("tree", "tree, greedy", 24, 8)
        assert least <= look.drafted <= most
        assert look.rate > known.plain_rate()


H100 = {
    1: 3.031, 2: 3.279, 3: 3.738, 4: 4.163, 5: 4.753, 6: 5.106, 7: 5.53, 8: 6.036, 9: 6.845,
    10: 7.053, 12: 7.177, 16: 7.288, 20: 8.016, 24: 8.128, 32: 8.895,
}  # fmt: skip
H100 = {n: ms / 1000 for n, ms in H100.items()}


class TestSizes:
    """Which size a batch is decoded at."""

    def test_a_larger_kernel_may_be_the_faster_one(self) -> None:
        known = Scheduler()
        known.recall(CostTable(same={1: 0.02, 5: 0.0569, 6: 0.0612, 8: 0.0500, 12: 0.068}))
        assert [known.padded(n) for n in (1, 5, 6, 8, 12)] == [1, 8, 8, 8, 12]
        assert known.batch_s(6) == pytest.approx(0.05)

    def test_never_beyond_the_largest_batch(self) -> None:
        known = Scheduler(max_batch=7)
        known.recall(CostTable(same={1: 0.02, 6: 0.0612, 8: 0.0500}))
        assert known.padded(6) == 6

    def test_the_size_is_kept_where_changing_it_costs(self) -> None:
        other = {n: seconds + 0.0018 for n, seconds in H100.items()}
        known = Scheduler()
        known.recall(CostTable(same=H100, other=other, draft={"model": {1: 0.0002, 8: 0.0016}}))
        assert known.padded(1) == 1, "plain decoding is what is kept at first"
        for _ in range(100):
            observe(known.acceptance("model"), 3, 2, 3, [])
        known.settle_size(lambda: chain(known).rate)
        assert known.padded(1) == known.padded(2) == known.padded(3) == 3
        assert known.padded(4) == 4

    def test_a_size_is_kept_that_was_never_measured(self) -> None:
        same = {n: H100[n] for n in (1, 2, 3)}
        other = {n: seconds + 0.0022 for n, seconds in same.items()}
        known = Scheduler()
        known.recall(CostTable(same=same, other=other, draft={"model": {1: 0.0005}}))
        known.settle_size(lambda: float(known.padded(4) == 4 and known.padded(2) == 4))
        assert [known.padded(n) for n in (1, 2, 3, 4)] == [4, 4, 4, 4]

    def test_nothing_is_filled_up_where_changing_is_free(self) -> None:
        known = scheduler(0.01, 0.02, 8)
        known.settle_size(lambda: chain(known).rate)
        assert [known.padded(n) for n in range(1, 10)] == list(range(1, 10))


def share(account: Account, n_drafted: int, n_emitted: int) -> Share:
    return Share(account, SpecStats(), Bet("model, greedy"), n_drafted, n_emitted)


class TestAccount:
    def settle(self, account: Account, seconds: float, n_emitted: int) -> None:
        """A round of one sequence that drafted one token."""
        self.known.begin(1)
        self.known.observe_batch(2, seconds)
        self.known.settle(seconds, 0.0, [share(account, 1, n_emitted)])

    @pytest.fixture(autouse=True)
    def machine(self) -> None:
        self.known = scheduler(0.01, 0.01, 8)

    def test_spends_its_budget_and_stops(self) -> None:
        account = Account(self.known)
        assert account.may_draft
        self.settle(account, 0.05, 1)
        assert not account.may_draft
        for _ in range(200):
            self.known.settle(0.01, 0.0, [share(account, 0, 1)])
        assert account.may_draft, "the share grows with what is said"

    def test_gains_are_kept(self) -> None:
        account = Account(self.known)
        self.settle(account, 0.01, 9)
        self.settle(account, 0.05, 1)
        assert account.may_draft

    def test_a_hiccup_counts_as_two_rounds(self) -> None:
        seen(self.known.costs, 2, 0.01)
        account = Account(self.known)
        self.settle(account, 1.0, 1)
        assert account.slack_s == pytest.approx(0.0054, abs=0.0005)

    @pytest.mark.parametrize("seconds", [3600.0, -3600.0, 0.0])
    def test_a_clock_that_jumps_ruins_nobody(self, seconds: float) -> None:
        account = Account(self.known)
        for _ in range(3):
            self.settle(account, 0.01, 2)
        before = account.slack_s
        self.settle(account, seconds, 2)
        assert abs(account.slack_s - before) < 0.05

    def test_plain_rounds_lose_nothing_but_the_looking(self) -> None:
        account = Account(self.known)
        before = account.slack_s
        for _ in range(10):
            self.known.settle(0.05, 0.001, [share(account, 0, 1)])
        assert account.slack_s - before == pytest.approx(10 * (0.02 * 0.01 - 0.001))

    def test_long_replies_bear_more_from_the_start(self) -> None:
        """Up to the 15 ms that the budget gives, however long."""
        slack = [Account(self.known, n).slack_s for n in (8, 32, 128, 4096, None)]
        assert slack == pytest.approx([0.0024, 0.0096, 0.0152, 0.0152, 0.0152])

    def test_the_first_round_behind_a_prompt_changes_sizes_anyway(self) -> None:
        """Plain decoding does it too: it neither keeps from drafting nor counts as a loss."""
        known = Scheduler()
        sizes = {1: 0.003, 2: 0.0031, 3: 0.0032}
        known.recall(CostTable(same=sizes, other={n: s + 0.002 for n, s in sizes.items()}))
        account = Account(known, 40)
        known.costs.observe_reading(10, 0.02)
        known.begin(1)
        assert known.affordable(account, "", 1, 1) == 1
        known.observe_batch(2, 0.0051)
        known.settle(0.0051, 0.0, [share(account, 1, 1)])
        assert account.slack_s == pytest.approx(0.03 * 40 * 0.003 - 0.0001)
        known.begin(1)
        known.observe_batch(1, 0.005)
        known.begin(1)
        assert known.affordable(account, "", 1, 1) == 0, "there and back is dear now"

    def test_drafts_no_more_than_it_can_lose(self) -> None:
        """At 5 ms a token and 3 % of 40 of them in hand: four refused ones of 1.5 ms are borne."""
        known = Scheduler()
        known.recall(CostTable(same={n: 0.0035 + 0.0015 * n for n in range(1, 9)}))
        account = Account(known, 40)
        assert known.affordable(account, "", 8, 8) == 4
        known.costs.observe_draft("model", 1, 0.004)
        assert known.affordable(account, "model", 8, 8) == 1
        for _ in range(120):
            known.settle(0.005, 0.0, [share(account, 0, 1)])
        assert known.affordable(account, "", 8, 8) == 8

    def test_nothing_is_risked_before_a_plain_decode(self) -> None:
        assert not Account(Scheduler()).may_draft


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


def stopping(known: Scheduler, rate: float, most: int = 8, p_min: float = 0.0) -> Stopping:
    acceptance = known.acceptance("model")
    return Stopping(known, "model", acceptance, rate=rate, p_min=p_min, most=most)


class TestStopping:
    def test_ends_where_acceptance_ends(self) -> None:
        known = scheduler(0.01, 0.02, 3, 0.001)
        policy = stopping(known, chain(known).rate)
        assert [policy.go_on(n, None) for n in range(5)] == [True] * 3 + [False] * 2

    def test_ends_where_the_draft_is_unsure(self) -> None:
        known = scheduler(0.01, 0.05, 8, 0.001)
        rate = chain(known).rate
        assert stopping(known, rate).go_on(0, 0.99)
        assert not stopping(known, rate).go_on(0, 0.01)

    def test_looks_ahead_where_costs_are_not_monotone(self) -> None:
        """Four tokens cost as much as eight: a next token pays only together with its followers."""
        known = scheduler(0.01, 0.02, 8)
        for n_tokens in range(2, 9):
            seen(known.costs, n_tokens, 0.0195)
        assert known.plain_rate() * (known.batch_s(3) - known.batch_s(1)) + 0.1 > 1.0
        assert stopping(known, known.plain_rate() * 1.5).go_on(0, None)
        assert not stopping(known, known.plain_rate() * 1.5, most=1).go_on(0, None)

    def test_never_beyond_what_it_may(self) -> None:
        policy = stopping(scheduler(0.01, 0.01, 8), 100.0, most=3)
        assert [policy.go_on(n, 0.99) for n in range(5)] == [True] * 3 + [False] * 2

    def test_p_min(self) -> None:
        known = scheduler(0.01, 0.01, 8)
        assert not stopping(known, 100.0, p_min=0.9).go_on(0, 0.85)
        assert not Policy(Acceptance(), 0.9).go_on(0, 0.85)
        assert Policy(Acceptance(), 0.9).go_on(0, None)
        assert Policy(Acceptance(), 0.9).go_on(0, 0.95)

    def test_remembers_what_it_saw(self) -> None:
        policy = Policy(Acceptance(), 0.55)
        assert [policy.go_on(n, 0.7 - n / 10) for n in range(3)] == [True, True, False]
        assert policy.confidences == [0.7, 0.6]
        assert (policy.first_look, policy.looks) == (0.7, 3)

    def test_expects_what_the_confidences_say(self) -> None:
        acceptance = Acceptance()
        policy = Policy(acceptance, 0.0)
        assert policy.go_on(0, 0.99)
        assert policy.go_on(1, 0.15)
        first, second = acceptance.at_confidence(0.99), acceptance.at_confidence(0.15, 1)
        expected = policy.expect(Proposal.chain([5, 6]))
        assert expected.chances == [first, second]
        assert expected.tokens == pytest.approx(1 + first + first * second)
        assert policy.expect(Proposal()).tokens == 1.0


class TestTrees:
    TREE = Proposal((1, 2, 3, 4), (-1, -1, 0, 0), (None,) * 5, "x", (0.9, 0.05, 0.85, 0.02))

    def trimmed(self, costs: dict[int, float], tree: Proposal = TREE) -> Proposal:
        known = Scheduler()
        known.recall(CostTable(same=costs))
        return stopping(known, known.plain_rate()).trim(tree)

    def test_keeps_the_nodes_that_pay(self) -> None:
        dear = {n: 0.01 + 0.004 * (n - 1) for n in range(1, 9)}
        assert self.trimmed(dear).tokens == (1, 3)
        assert self.trimmed(dear).values == (0.9, 0.85)

    def test_keeps_all_where_they_cost_nothing(self) -> None:
        assert self.trimmed(dict.fromkeys(range(1, 9), 0.01)) == self.TREE

    def test_keeps_none_where_nothing_pays(self) -> None:
        assert len(self.trimmed({n: 0.01 * n for n in range(1, 9)})) == 0

    def test_goes_past_a_step_of_the_costs(self) -> None:
        """Two to four tokens cost the same: wide is worth it together."""
        steps = {1: 0.01} | dict.fromkeys(range(2, 9), 0.0155)
        assert len(self.trimmed(steps)) == 4

    def test_drawn_tokens_are_never_left_out(self) -> None:
        law = Distribution.from_weights(np.array([1, 2]), np.array([0.5, 0.5]))
        drawn = replace(self.TREE, laws=(law, None, None, None, None))
        assert self.trimmed({n: 0.01 * n for n in range(1, 9)}, drawn) == drawn

    def test_nodes_without_values_count_by_rank(self) -> None:
        acceptance = Acceptance()
        first, second = acceptance.by_rank()[:2]
        chances = node_chances(acceptance, replace(self.TREE, values=()))
        assert chances == pytest.approx([first, second, first * first, first * second])

    def test_values_are_calibrated(self) -> None:
        acceptance = Acceptance()
        for _ in range(200):
            acceptance.observe_values([0.9, 0.05], [1])
        assert acceptance.at_value(0.9) < 0.1
        assert acceptance.at_value(0.05) > 0.9
