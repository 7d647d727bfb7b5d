"""Costs, acceptance and the choices made of them, one at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate, pairwise, product
from operator import mul
from typing import ClassVar

import numpy as np
import pytest

from specllama.results import SpecStats
from specllama.sampling.distribution import Distribution
from specllama.scheduling import outlook
from specllama.scheduling.acceptance import Acceptance, Step
from specllama.scheduling.account import (
    _RISKED_SHARE,
    _STAKED_SHARE,
    BUDGET_S,
    BUDGET_SHARE,
    Account,
)
from specllama.scheduling.costs import Costs
from specllama.scheduling.outlook import Outlook
from specllama.scheduling.policy import Expectation, Policy, Stopping, node_chances
from specllama.scheduling.scheduler import _FRESH_AGE, _SIZE_AGE, _WITHIN, Bet, Scheduler, Share
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

    @pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-9, math.nan])
    def test_nor_does_it_bound_what_a_size_costs_where_changing_it_does(
        self, seconds: float
    ) -> None:
        costs = graphs().costs
        for size in (1, 1, 1, 1, 2, 2, 1, 1, 2, 1):
            costs.observe_target(size, H100[size] + FIRST_S)
        costs.observe_target(2, H100[2])
        costs.observe_target(1, seconds)
        for _ in range(4):
            costs.observe_target(1, H100[1])
        assert costs.target_s(1) == pytest.approx(H100[1], rel=0.4)

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

    @pytest.mark.parametrize("times", [1, 2])
    def test_a_hiccup_makes_no_length_seem_dear(self, times: int) -> None:
        """It would not be tried again; a look further costs no more than the first."""
        costs = Costs()
        costs.observe_draft("model", 1, 0.002)
        for _ in range(times):
            costs.observe_draft("model", 3, 0.5)
        assert costs.draft_s("model", 3) == pytest.approx(3 * 0.002)
        assert costs.draft_s("model", 2) == pytest.approx(2 * 0.002), "nor those between"
        assert costs.draft_s("model", 5) == pytest.approx(5 * 0.002), "nor those beyond"

    def test_longer_looks_of_a_burst_of_hiccups_are_measured_by_shorter_ones(self) -> None:
        """However many they were."""
        costs = Costs()
        for _ in range(9):
            costs.observe_draft("model", 2, 0.05)
        assert costs.draft_s("model", 2) == pytest.approx(0.05), "there is nothing else to go by"
        costs.observe_draft("model", 1, 0.002)
        assert costs.draft_s("model", 2) == pytest.approx(0.004)

    def test_prices_follow_when_a_burst_is_over(self) -> None:
        """Though what is measured then is what it ever was."""
        known = scheduler(0.01, 0.02, 8, 0.002)
        for n_looks, seconds in [(1, 0.002)] * 9 + [(2, 0.05)] * 9:
            known.costs.observe_draft("model", n_looks, seconds)
        known.begin(1)
        assert known.draft_s("model", 2) == pytest.approx(0.05)
        known.costs.observe_draft("model", 1, 0.002)
        known.begin(1)
        assert known.draft_s("model", 2) == pytest.approx(0.004)

    def test_a_drafter_that_became_slow_is_believed(self) -> None:
        """Long chains are all that is drafted, and the short ones were measured before."""
        costs = Costs()
        for _ in range(5):
            costs.observe_draft("model", 1, 0.001)
            costs.observe_draft("model", 8, 0.008)
        for _ in range(5):
            costs.observe_draft("model", 8, 0.08)
        assert costs.draft_s("model", 8) == pytest.approx(0.08)
        costs.observe_draft("model", 1, 0.01)
        assert costs.draft_s("model", 8) == pytest.approx(0.08), "measured now, if not yet usual"

    def test_longer_looks_cost_no_less_than_they_did(self) -> None:
        """Cheap ones say nothing of shorter ones, whose first look may be what is dear."""
        costs = Costs()
        costs.observe_draft("model", 1, 0.005)
        costs.observe_draft("model", 4, 0.006)
        costs.observe_draft("model", 8, 0.5)
        assert costs.draft_s("model", 1) == pytest.approx(0.005)
        assert costs.draft_s("model", 4) == pytest.approx(0.006)
        assert costs.draft_s("model", 8) == pytest.approx(8 * 0.006 / 4), "the cheapest counts"

    def test_fewer_looks_cost_no_more_than_more_do(self) -> None:
        """A hiccup was the only time of one look: no drafting seemed affordable after it."""
        costs = Costs()
        costs.observe_draft("model", 1, 0.005)
        costs.observe_draft("model", 2, 0.0009)
        costs.observe_draft("model", 3, 0.0012)
        assert costs.draft_s("model", 1) == pytest.approx(0.0009)
        assert costs.draft_s("model", 3) == pytest.approx(0.0012)

    def test_looks_further_cost_no_more_than_a_decode_of_the_draft_alone(self) -> None:
        costs = Costs(CostTable(same={1: 0.010}, draft={"model": {1: 0.002, 4: 0.006}}))
        costs.observe_draft("model", 1, 0.004)
        assert costs.draft_s("model", 5) == pytest.approx(0.004 + 4 * 0.0015)

    @pytest.mark.parametrize("larger_s, size", [(0.0196, 2), (0.0186, 3)])
    def test_a_larger_size_is_taken_where_it_is_clearly_cheaper(
        self, larger_s: float, size: int
    ) -> None:
        known = Scheduler()
        known.recall(CostTable(same={1: 0.01, 2: 0.02, 3: larger_s}))
        known.begin(1)
        assert known.padded(2) == size

    def test_a_change_of_a_twentieth_is_news(self) -> None:
        costs = Costs()
        seen(costs, 1, 0.0100, 33)  # behind a regular renewal, and well before the next
        version = costs.version
        seen(costs, 1, 0.0105, 12)
        assert costs.version > version
        assert costs.target_s(1) == pytest.approx(0.0105)

    def test_a_hiccup_in_company_is_none_alone(self) -> None:
        costs = Costs()
        costs.observe_draft("model", 1, 0.002)
        costs.observe_draft("model", 4, 0.02, 3)
        assert costs.draft_s("model", 4, 3) == pytest.approx(0.02)

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


FIRST_S, SECOND_S = 0.0013, 0.0047
"""What the first and the second decode of another size cost more, as on an H100."""


class TestSwitching:
    """Devices that replay captured graphs: the first decodes of another size cost more."""

    def machine(self, first: float = FIRST_S, second: float = SECOND_S) -> Costs:
        costs = Costs()
        for n_tokens in (1, 2, 4) * 3:
            for extra in (first, second, 0.0, 0.0):
                costs.observe_target(n_tokens, 0.003 + 0.0003 * n_tokens + extra)
        return costs

    def test_is_found(self) -> None:
        costs = self.machine()
        assert costs.extra_s["first"] == pytest.approx(FIRST_S)
        assert costs.extra_s["second"] == pytest.approx(SECOND_S)
        assert costs.switch_s == pytest.approx(FIRST_S + SECOND_S)
        assert costs.target_s(2) == pytest.approx(0.0036), "without what changing costs"

    def test_the_capture_is_learned_from_second_decodes(self) -> None:
        """Even where the first decode of another size costs nothing."""
        costs = self.machine(first=0.0)
        assert costs.extra_s["first"] == 0.0
        assert costs.extra_s["second"] == costs.switch_s == pytest.approx(SECOND_S)
        assert costs.target_s(4) == pytest.approx(0.0042)

    def test_where_no_second_decode_is_dearer_there_is_no_capture(self) -> None:
        costs = self.machine(second=0.0)
        assert (costs.extra_s["first"], costs.extra_s["second"]) == (pytest.approx(FIRST_S), 0.0)

    def test_is_none_where_it_is_none(self) -> None:
        costs = self.machine(0.00002, 0.00002)
        assert costs.switch_s == 0.0
        assert costs.change_s(2) == 0.0
        costs.observe_target(2, 0.0036)
        assert costs.change_s(2) == 0.0
        assert not costs.is_changing
        assert costs.table().other == costs.table().second == {}

    def test_is_kept(self) -> None:
        table = self.machine().table()
        assert table.same[2] == pytest.approx(0.0036)
        assert table.other[2] == pytest.approx(0.0036 + FIRST_S)
        assert table.second[2] == pytest.approx(0.0036 + SECOND_S)
        costs = Costs(CostTable.of(table.to_dict()))
        assert costs.extra_s["first"] == pytest.approx(FIRST_S, rel=0.01)
        assert costs.extra_s["second"] == pytest.approx(SECOND_S, rel=0.01)
        assert not costs.changed

    def test_a_capture_that_became_dearer_is_news(self) -> None:
        costs = Costs(self.machine().table())
        for n_tokens in (1, 2, 4) * 3:
            for extra in (FIRST_S, 2 * SECOND_S, 0.0, 0.0):
                costs.observe_target(n_tokens, 0.003 + 0.0003 * n_tokens + extra)
        assert costs.extra_s["second"] == pytest.approx(2 * SECOND_S)
        assert costs.changed

    def test_one_size_that_is_in_use_tells_what_a_capture_costs(self) -> None:
        """More than a first look, which replaced graphs by others of the same kind."""
        costs = Costs(self.machine().table())
        for _ in range(3):
            for n_tokens, extra in ((1, FIRST_S), (1, 2 * SECOND_S), (1, 0.0), (4, FIRST_S)):
                costs.observe_target(n_tokens, 0.003 + 0.0003 * n_tokens + extra)
        assert costs.extra_s["second"] == pytest.approx(2 * SECOND_S)

    def test_two_sizes_reveal_no_captures_where_none_are_known(self) -> None:
        """As on a CPU: now and then a first decode takes longer."""
        costs = Costs(CostTable(same={1: 0.010, 2: 0.017}))
        for _ in range(9):
            for n_tokens, extra in ((1, 0.003), (1, 0.004), (1, 0.0), (2, 0.003), (2, 0.004)):
                costs.observe_target(n_tokens, 0.003 + 0.007 * n_tokens + extra)
        assert (costs.extra_s["first"], costs.extra_s["second"]) == (0.0, 0.0)

    def test_nothing_is_learned_where_no_graphs_are_replayed(self) -> None:
        """Whatever the noise is like, and whatever a table says that was kept before."""
        table = self.machine().table()
        costs = Costs(table, kept_graphs="none")
        for _ in range(9):
            for n_tokens in (1, 2, 3, 4):
                for extra in (FIRST_S, SECOND_S, 0.0, 0.0, 0.0):
                    costs.observe_target(n_tokens, 0.003 * n_tokens + extra)
        assert (costs.extra_s["first"], costs.extra_s["second"], costs.switch_s) == (0.0, 0.0, 0.0)
        assert costs.target_s(4) == pytest.approx(0.012)
        assert costs.table().other == costs.table().second == {}

    def test_where_changing_is_free_short_first_decodes_lower_nothing(self) -> None:
        """Else the ordinary ones would seem to be dear beside them, and changing to cost."""
        costs = Costs()
        for place in range(36):
            for n_tokens in (1, 2, 4):
                for seconds in (0.009 if place % 5 == 0 else 0.010, 0.010, 0.010):
                    costs.observe_target(n_tokens, seconds * n_tokens)
        assert costs.switch_s == 0.0
        assert costs._times["same"][4].value == pytest.approx(0.040)

    def test_a_burst_of_hiccups_is_not_believed_for_ever(self) -> None:
        """A size that seems dear is hardly tried, and then its first decodes are all there is."""
        costs = self.machine()
        for _ in range(9):
            costs.observe_target(4, 0.009)
        assert costs.target_s(4) == pytest.approx(0.009)
        for _ in range(2):
            costs.observe_target(1, 0.0033)
            costs.observe_target(4, 0.0042 + FIRST_S)
        assert costs.target_s(4) == pytest.approx(0.0042, rel=0.01)

    def test_a_first_decode_that_took_long_says_nothing_of_others(self) -> None:
        costs = self.machine()
        costs.observe_target(1, 0.0033)
        costs.observe_target(4, 0.02)
        assert costs.target_s(4) == pytest.approx(0.0042)

    def test_is_due_twice(self) -> None:
        """The first decode of another size finds no graph, the second captures one."""
        costs = self.machine()
        assert (costs.change_s(4), costs.is_changing) == (0.0, False)
        due = []
        for _ in range(4):
            due.append(costs.change_s(2))
            costs.observe_target(2, 0.0036 + due[-1])
            assert costs.is_changing == (len(due) < 3)
        assert due == pytest.approx([FIRST_S, SECOND_S, 0.0, 0.0])

    def test_two_changes_in_a_row_capture_nothing(self) -> None:
        costs = self.machine()
        costs.observe_target(2, 0.0036 + FIRST_S)
        assert costs.change_s(4) == pytest.approx(FIRST_S)
        costs.observe_target(4, 0.0042 + FIRST_S)
        assert costs.change_s(2) == pytest.approx(FIRST_S)

    def test_a_decode_nobody_timed_counts_all_the_same(self) -> None:
        costs = self.machine()
        costs.pass_by(2)
        assert (costs.size, costs.change_s(2)) == (2, pytest.approx(SECOND_S))
        costs.pass_by(2)
        assert costs.change_s(2) == 0.0
        assert costs.n_decodes == self.machine().n_decodes, "but its time teaches nothing"

    def test_behind_a_prompt_the_size_before_it_needs_no_capture(self) -> None:
        costs = self.machine()
        costs.observe_reading(10, 0.02)
        assert costs.behind_prompt
        assert costs.change_s(4) == costs.change_s(2) == pytest.approx(FIRST_S)
        costs.observe_target(4, 0.0042 + FIRST_S)
        assert not costs.behind_prompt
        assert (costs.change_s(4), costs.is_changing) == (0.0, False)

    def test_behind_a_prompt_another_size_needs_one(self) -> None:
        costs = self.machine()
        costs.observe_reading(10, 0.02)
        costs.observe_target(2, 0.0036 + FIRST_S)
        assert costs.change_s(2) == pytest.approx(SECOND_S)
        assert costs.is_changing

    def test_without_graphs_there_is_no_size_to_come_back_to(self) -> None:
        costs = self.machine()
        assert costs.change_s(4) == 0.0
        costs.lost_graphs()
        assert costs.change_s(4) == costs.change_s(1) == pytest.approx(FIRST_S)
        costs.pass_by(4)
        assert costs.change_s(4) == pytest.approx(SECOND_S), "plain decoding would pay it, too"
        assert not costs.is_changing

    def test_the_very_first_size_is_no_change(self) -> None:
        """Nothing was decoded before it, and plain decoding would capture its graph as well."""
        costs = Costs(self.machine().table())
        costs.observe_target(1, 0.0033 + FIRST_S)
        assert not costs.is_changing

    def test_prompts_between_decodes_of_a_size_teach_nothing_of_captures(self) -> None:
        costs = self.machine()
        for n_tokens in (1, 2, 4):
            for extra in (FIRST_S, SECOND_S, 0.0):
                costs.observe_target(n_tokens, 0.003 + 0.0003 * n_tokens + extra)
            for _ in range(6):
                costs.observe_reading(10, 0.02)
                for extra in (FIRST_S, 0.0, 0.0):
                    costs.observe_target(n_tokens, 0.003 + 0.0003 * n_tokens + extra)
        assert costs.extra_s["first"] == pytest.approx(FIRST_S)
        assert costs.extra_s["second"] == pytest.approx(SECOND_S)
        assert costs.target_s(2) == pytest.approx(0.0036)

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

    def test_measuring_the_yardstick_is_put_off_where_it_costs_a_change(self) -> None:
        waits = []
        for costs in (self.machine(), self.machine(0.0, 0.0)):
            waits.append(0)
            while not costs.stale():
                costs.observe_target(4, 0.0042)
                waits[-1] += 1
        assert waits[0] >= 10 * waits[1] > 0

    def test_a_yardstick_measured_after_another_size_is_none(self) -> None:
        costs = self.machine()
        while not costs.stale():
            costs.observe_target(4, 0.0042)
        for extra in (FIRST_S, SECOND_S):
            costs.observe_target(1, 0.0033 + extra)
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
        """What is usual over many replies, each much like the others."""
        before = Acceptance()
        for _ in range(30):
            before.fade()
            for _ in range(40):
                before.look(0.5)
                observe(before, 2, 0, 1, [0.5])
        after = Acceptance(before.known())
        assert after.at_depth(0) == pytest.approx(before.at_depth(0), abs=0.05)
        assert after.at_confidence(0.5) == pytest.approx(before.at_confidence(0.5), abs=0.05)
        assert after.at_depth(0) < 0.05
        assert [share for share, _ in after.looks()] == pytest.approx([20 / 24, 4 / 24])

    @pytest.mark.parametrize("length", [1, 10, 1000])
    @pytest.mark.parametrize("accepted", [0, 1])
    def test_a_reply_changes_what_is_usual_only_a_little(self, length: int, accepted: int) -> None:
        acceptance = Acceptance()
        usual = acceptance.known()["depths"][0]
        for _ in range(length):
            observe(acceptance, 1, accepted, 1, [0.5])
        way = (acceptance.known()["depths"][0] - usual) / (accepted - usual)
        assert 0.01 < way <= 0.15, "of the way to what it was like, however long"

    def test_a_new_reply_is_expected_to_be_as_usual(self) -> None:
        """Far nearer to what is usual than to the reply before it, and quick to learn."""
        acceptance = Acceptance()
        for _ in range(100):
            observe(acceptance, 1, 0, 1, [0.5])
        before, unsure = acceptance.at_depth(0), acceptance.at_confidence(0.5)
        usual = acceptance.known()["depths"][0]
        acceptance.fade()
        assert before < 0.1
        assert 3 * before < acceptance.at_depth(0) < usual
        assert acceptance.at_confidence(0.5) > 3 * unsure
        for _ in range(4):
            observe(acceptance, 1, 1, 1, [])
        assert acceptance.at_depth(0) > 0.5

    def test_one_refused_token_turns_no_reply(self) -> None:
        """It was given up after a single one, though drafts usually are good; many are believed."""
        acceptance = Acceptance({"depths": [0.8]})
        usual, sure = acceptance.at_depth(0), acceptance.at_confidence(0.5)
        observe(acceptance, 1, 0, 1, [0.5])
        assert 0.85 * usual < acceptance.at_depth(0) < usual
        assert 0.8 * sure < acceptance.at_confidence(0.5) < sure, "though it counts there twice"
        for _ in range(40):
            observe(acceptance, 1, 0, 1, [0.5])
        assert acceptance.at_depth(0) < 0.1
        assert acceptance.at_confidence(0.5) < 0.1

    def test_what_is_usual_weighs_as_much_in_each_new_reply(self) -> None:
        """However often its weight has waned before."""
        acceptance = Acceptance({"depths": [0.8]})
        moved = []
        for _ in range(2):
            before = acceptance.at_depth(0)
            observe(acceptance, 1, 0, 1, [])
            moved.append(1 - acceptance.at_depth(0) / before)
            for _ in range(100):
                observe(acceptance, 5, 4, 5, [])
            for _ in range(4):  # short replies that say next to nothing
                acceptance.fade()
        assert moved[1] == pytest.approx(moved[0], rel=0.1)

    def test_replies_change_what_is_usual_in_the_long_run(self) -> None:
        acceptance, usual = Acceptance(), [1.0]
        for _ in range(12):
            for _ in range(50):
                observe(acceptance, 1, 0, 1, [])
            acceptance.fade()
            usual.append(acceptance.known()["depths"][0])
        assert usual == sorted(usual, reverse=True)
        assert usual[-1] < 0.15 < usual[3]

    def test_a_first_look_leaves_most_open(self) -> None:
        """Four looks' worth of a token like any other: one look says little, many say all."""
        acceptance = Acceptance()
        assert acceptance.looks() == []
        acceptance.look(0.99)
        sure, open_ = acceptance.looks()
        assert sure == (pytest.approx(1 / 5), acceptance.at_confidence(0.99))
        assert open_ == (pytest.approx(4 / 5), acceptance.at_depth(0))
        for _ in range(300):
            acceptance.look(0.99)
        sure, open_ = acceptance.looks()
        assert sure[0] + open_[0] == pytest.approx(1.0)
        assert open_[0] == pytest.approx(4 / 54, rel=0.02)
        acceptance.fade()
        assert acceptance.looks()[1][0] == pytest.approx(4 / 9, rel=0.02), "another text begins"

    def test_priors_of_another_shape_are_ignored(self) -> None:
        assert Acceptance({"bins": [0.1]}).at_confidence(0.99) == Acceptance().at_confidence(0.99)

    def test_doubting_keeps_the_estimate_and_opens_it(self) -> None:
        stubborn, doubted = Acceptance(), Acceptance()
        for acceptance in (stubborn, doubted):
            for _ in range(100):
                observe(acceptance, 1, 0, 1, [])
        before, usual = doubted.at_depth(0), doubted.known()["depths"][0]
        for _ in range(4):
            doubted.doubt()
        assert doubted.at_depth(0) == pytest.approx(before)
        assert doubted.known()["depths"][0] == pytest.approx(usual), "no reply has ended"
        for acceptance in (stubborn, doubted):
            for _ in range(4):
                observe(acceptance, 1, 1, 1, [])
        assert doubted.at_depth(0) > 0.35 > stubborn.at_depth(0)

    def test_no_estimate_leaves_its_bounds(self) -> None:
        acceptance = Acceptance()
        for accepted, change in zip((0, 1, 0) * 20, ("doubt", "fade", "doubt") * 20, strict=True):
            for _ in range(30):
                observe(acceptance, 1, accepted, 1, [0.5])
            getattr(acceptance, change)()
            known = acceptance.known()
            assert all(0.0 <= rate <= 1.0 for rates in known.values() for rate in rates)
            assert 0.0 <= acceptance.at_depth(0) <= 1.0

    @pytest.mark.parametrize("accepted", [0, 1])
    def test_nor_where_it_is_doubted_again_and_again(self, accepted: int) -> None:
        """As of a drafter that is tried now and then in one long reply, always with one result."""
        acceptance = Acceptance()
        for _ in range(6):
            acceptance.doubt()
            for _ in range(8):
                observe(acceptance, 1, accepted, 1, [0.5])
                values = [acceptance.at_confidence(0.5), *acceptance.by_rank()]
                assert all(0.0 <= value <= 1.0 for value in (acceptance.at_depth(0), *values))

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


def prompted(known: Scheduler) -> None:
    """A reply begins."""
    known.costs.observe_reading(10, 0.02)
    known.begin(1)


def chain(known: Scheduler, limit: int = 8) -> Outlook:
    return known.chain_outlook("model", "model, greedy", limit)


class TestOutlook:
    def test_a_chain_of_its_own_rate(self) -> None:
        """No other threshold for each first confidence gives more tokens a second."""
        acceptance = Acceptance()
        for number in range(400):
            sure = number % 2
            observe(acceptance, 8, 8 if sure else 0, 9 if sure else 1, [0.95 if sure else 0.05] * 8)
            acceptance.look(0.95 if sure else 0.05)
        batch = [0.01 + 0.004 * n for n in range(9)]
        draft = [0.0005 * n for n in range(9)]
        looks = acceptance.looks()
        survivals = accumulate((acceptance.at_depth(depth) for depth in range(1, 8)), mul)
        given = list(accumulate([1.0, *survivals]))

        def rate(lengths: tuple[int, ...]) -> float:
            tokens = seconds = 0.0
            for (part, first), n in zip(looks, lengths, strict=True):
                tokens += part * (1.0 + (first * given[n - 1] if n else 0.0))
                seconds += part * (batch[n] + draft[max(n, 1)])
            return tokens / seconds

        best = max(map(rate, product(range(9), repeat=len(looks))))
        assert outlook.chain(acceptance, batch, draft).rate == pytest.approx(best, rel=1e-3)

    def test_nothing_pays(self) -> None:
        for few in (scheduler(0.01, 0.09, 8, 0.004), scheduler(0.01, 0.01, 0, 0.001)):
            assert chain(few).rate < few.plain_rate()

    def test_the_limit_where_it_is_free(self) -> None:
        look = chain(scheduler(0.01, 0.01, 8))
        assert look.drafted == 8
        assert look.rate == pytest.approx(900, rel=0.05)

    def test_stops_where_acceptance_stops(self) -> None:
        assert chain(scheduler(0.01, 0.02, 3, 0.001)).drafted == 3

    def test_what_choosing_takes_counts_in_each_round_that_chooses(self) -> None:
        """Plain decoding never pays it, and longer chains pay it less often."""
        quick, slow = (scheduler(0.01, 0.014, 8, 0.0005) for _ in range(2))
        slow.begin(1)
        slow.settle(0.02, 0.005, [share(Account(slow), 0, 1)])
        assert (quick.asking_s, slow.asking_s) == (0.0, pytest.approx(0.005))
        for limit in (1, 8):
            before, after = chain(quick, limit), chain(slow, limit)
            assert after.seconds - before.seconds == pytest.approx(0.005)
        assert slow.plain_rate() == quick.plain_rate()

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


def graphs(
    same: dict[int, float] = H100,
    *,
    first: float = FIRST_S,
    second: float = SECOND_S,
    good: int = 0,
) -> Scheduler:
    """A device that replays graphs; of each four drafted tokens more, `good` were accepted."""
    known = Scheduler()
    other, captured = ({n: s + extra for n, s in same.items()} for extra in (first, second))
    draft = {"model": {1: 0.0002, 8: 0.0016}}
    known.recall(CostTable(same=dict(same), other=other, second=captured, draft=draft))
    known.begin(1)
    for _ in range(100):
        observe(known.acceptance("model"), good + 1, good, good + 1, [])
    return known


def trying(known: Scheduler) -> int:
    """The size that drafting would keep."""
    return known._drafting_size


def pays(known: Scheduler) -> bool:
    account = Account(known, 128)
    account.promised = 0.5
    return known.pays("model, greedy", "model", account)


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
        known = graphs(good=2)
        assert known.padded(1) == 1, "plain decoding is what is kept at first"
        known.settle_size(lambda: chain(known).rate)
        assert known.padded(1) == 1, "and until drafting pays"
        assert pays(known)
        assert [known.padded(n) for n in range(1, 5)] == [3, 3, 3, 4]
        known.begin(1)
        assert known.padded(1) == 1

    @pytest.mark.parametrize(("good", "size"), [(1, 2), (2, 3), (3, 4), (5, 6)])
    def test_it_holds_as_many_as_are_accepted(self, good: int, size: int) -> None:
        known = graphs(good=good)
        known.settle_size(lambda: chain(known).rate)
        assert pays(known)
        assert [known.padded(n) for n in range(1, size + 1)] == [size] * size

    def test_the_smaller_of_two_that_are_as_good(self) -> None:
        """Little is lost when drafting fails."""
        rates = dict.fromkeys((1, 2, 3), 1.0) | {4: 1.95, 8: 2.0}
        known = graphs()
        known.settle_size(lambda: rates.get(trying(known), 1.5))
        assert pays(known)
        assert known.padded(1) == 4

    def test_it_changes_between_replies_where_that_pays(self) -> None:
        """A rate that is as good at a smaller size is not worth going there."""
        known, settled, age = graphs(), [], 2 * _FRESH_AGE
        for four, eight in ((400.0, 300.0), (384.0, 405.0), (403.0, 405.0), (420.0, 405.0)):
            self.ask(known, {4: four, 8: eight}, age)
            age *= 2  # each time it is chosen, the next time is farther away
            assert trying(known) == (settled or [4])[-1], "not within a reply"
            known.costs.observe_reading(10, 0.02)
            known.begin(1)
            self.ask(known, {4: four, 8: eight})
            known.observe_batch(1, H100[1])
            known.begin(1)
            settled.append(trying(known))
        assert settled == [4, 8, 8, 4]

    def test_a_long_reply_may_change_it(self) -> None:
        """Later than the next reply would, the more so the more often it was chosen."""
        known = graphs()
        known.observe_batch(1, H100[1])
        known.begin(1)
        self.ask(known, {4: 400.0})
        wait = 2 * _FRESH_AGE * _WITHIN  # it was chosen once
        self.ask(known, {8: 500.0}, wait)
        assert trying(known) == 4
        self.ask(known, {8: 500.0})
        assert trying(known) == 8
        self.ask(known, {4: 600.0}, 2 * wait)
        assert trying(known) == 8
        self.ask(known, {4: 600.0})
        assert trying(known) == 4

    def test_each_number_of_sequences_has_its_own_patience(self) -> None:
        """Who joins late need not wait because others chose often."""
        known = graphs()
        known.costs.observe_reading(10, 0.02)
        known.begin(1)
        for best in (4, 8) * 3:
            self.ask(known, {best: 400.0}, 3 * _FRESH_AGE)
        known.begin(2)
        self.ask(known, {4: 400.0})
        assert trying(known) == 4
        self.ask(known, {8: 500.0}, 2 * _FRESH_AGE + 1)
        assert trying(known) == 8

    def test_it_is_chosen_ever_more_seldom(self) -> None:
        """Trying all sizes takes milliseconds before a reply."""
        known, asked = graphs(), []
        for n in range(4000):
            known.costs.observe_reading(10, 0.02)
            known.begin(1)
            known.settle_size(lambda n=n: asked.append(n) or 1.0)  # type: ignore[misc, func-returns-value]
            known.observe_batch(1, H100[1])
        times = sorted(set(asked))
        gaps = [later - sooner for sooner, later in pairwise(times)]
        assert gaps == [1 + min(2**n * _FRESH_AGE, _SIZE_AGE) for n in range(1, len(gaps) + 1)]
        assert gaps[-1] == 1 + _SIZE_AGE

    @staticmethod
    def ask(known: Scheduler, rates: dict[int, float], times: int = 1) -> None:
        for _ in range(times):
            known.settle_size(lambda: rates.get(trying(known), 1.0))

    def test_a_size_is_kept_that_was_never_measured(self) -> None:
        known = graphs({n: H100[n] for n in (1, 2, 3)}, good=3)
        known.settle_size(lambda: chain(known).rate)
        assert pays(known)
        assert [known.padded(n) for n in (1, 2, 3, 4)] == [4, 4, 4, 4]

    @pytest.mark.parametrize("n_live", [1, 2])
    @pytest.mark.parametrize("size", [1, 2, 3, 5])
    def test_chains_are_promised_that_fit_the_size(self, size: int, n_live: int) -> None:
        """Though all that is drafted is right, and going to a larger size costs next to nothing."""
        known = graphs(dict.fromkeys(H100, 0.003), first=0.0002, second=0.0002, good=15)
        known.begin(n_live)
        known.settle_size(lambda: 2.0 if trying(known) == n_live * size else 1.0)
        assert trying(known) == n_live * size
        assert chain(known, 16).drafted == max(1, size - 1)
        assert chain(known, 1).drafted == 1

    def test_each_number_of_sequences_has_its_own(self) -> None:
        known = graphs(good=3)
        for n_live in (1, 2):
            known.begin(n_live)
            known.settle_size(lambda: chain(known).rate)
        sizes = []
        for n_live in (1, 2, 1):
            known.begin(n_live)
            assert pays(known)
            sizes.append(known.padded(n_live))
        assert sizes == [4, 8, 4]

    def test_more_sequences_than_a_decode_takes_tokens_have_a_size_too(self) -> None:
        known = Scheduler(max_batch=2)
        known.recall(graphs(good=3).table())
        known.begin(4)
        known.settle_size(lambda: chain(known).rate)
        assert trying(known) == 2

    def test_trees_are_planned_for_the_size_to_keep_not_for_the_way_there(self) -> None:
        """The round that goes there is cheaper than none: plain decoding would pay for the way
        back."""
        known, shapes = graphs(second=0.006, good=3), []
        known.settle_size(lambda: 2.0 if trying(known) == 4 else 1.0)
        for size in (1, 4, 4, 4):
            known.observe_batch(size, H100[size])
            known.begin(1)
            assert pays(known)
            shapes.append(known.planned_shape("model", "model, greedy", 8, 4))
            known._plans.clear()
        assert [shape.depth for shape in shapes] == [3] * 4

    def test_a_fixed_length_takes_no_notice(self) -> None:
        known = graphs(good=3)
        known.settle_size(lambda: chain(known).rate)
        assert pays(known)
        assert [known.fixed_size(n) for n in (1, 2, 3, 4)] == [1, 2, 3, 4]
        assert known.padded(2) == 4

    def test_the_budget_must_bear_a_first_token(self) -> None:
        """Else nothing changes: neither the size nor whether plain rounds are filled up."""
        known = graphs(good=3)
        known.settle_size(lambda: chain(known).rate)
        account = Account(known, 128)
        account.book(1.0, 0.0)
        assert not known.pays("model, greedy", "model", account)
        assert [known.padded(n) for n in (1, 2)] == [1, 2]
        assert known.size_for(1) == 1

    def test_a_round_that_cannot_draft_keeps_the_size(self) -> None:
        """As a reply's last token does; going back to one token would cost two captures."""
        known = graphs(good=3)
        known.settle_size(lambda: chain(known).rate)
        for _ in range(3):
            known.begin(1)
            known.observe_batch(4, H100[4])
        known.begin(1)
        assert known.size_for(1) == 1
        known.stay()
        assert known.size_for(1) == 4
        assert known.undrafted_s() == pytest.approx(H100[4])

    @pytest.mark.parametrize("size", [1, 2, 8])
    def test_it_goes_nowhere_to_keep_it(self, size: int) -> None:
        known = graphs(good=3)
        known.settle_size(lambda: chain(known).rate)
        known.observe_batch(size, H100[size])
        known.begin(1)
        known.stay()
        assert known.size_for(1) == 1

    def test_there_is_no_size_to_keep_where_changing_is_free(self) -> None:
        known = scheduler(0.01, 0.02, 8)
        known.begin(1)
        known.observe_batch(1, 0.01)
        known.begin(1)
        known.stay()
        assert known.undrafted_s() == known.plain_s
        assert known.size_for(1) == 1

    def test_nothing_is_filled_up_where_changing_is_free(self) -> None:
        known = scheduler(0.01, 0.02, 8)
        known.settle_size(lambda: chain(known).rate)
        assert [known.padded(n) for n in range(1, 10)] == list(range(1, 10))


class TestForgotten:
    """A card without a captured graph: the first reply, or one after ten idle seconds."""

    LARGE: ClassVar = {n: 0.0149 + 0.0014 * (n - 1) for n in range(1, 9)}

    def large(self) -> Scheduler:
        known = graphs(self.LARGE, first=0.003, second=0.0152, good=2)
        prompted(known)
        return known

    def test_drafts_where_plain_decoding_would_capture_a_graph_as_well(self) -> None:
        """Behind plain decoding the budget does not bear going over, behind nothing it does."""
        known = self.large()
        known.observe_batch(1, self.LARGE[1])
        prompted(known)
        account = known.open_account(96)
        assert known.affordable(account, "model", 2, 2) == 0
        known.costs.lost_graphs()
        prompted(known)
        account = known.open_account(96)
        assert known.affordable(account, "model", 2, 2) == 2

    def test_what_plain_decoding_pays_for_its_own_graph_is_no_loss(self) -> None:
        known = self.large()
        known.costs.lost_graphs()
        prompted(known)
        account = known.open_account(96)
        for extra in (0.003, 0.0152, 0.0):
            seconds = self.LARGE[1] + extra
            known.observe_batch(1, seconds)
            known.settle(seconds, 0.0, [share(account, 0, 1)])
            known.begin(1)
        assert account._lost == pytest.approx(0.0, abs=1e-4)


class TestWorth:
    """Whether drafting is worth changing the size of decodes."""

    def known(self, size: int) -> Scheduler:
        known = graphs(good=3)
        known.settle_size(lambda: chain(known).rate)
        assert trying(known) == 4
        for _ in range(3 if size else 0):
            known.observe_batch(size, H100[size])
            known.begin(1)
        return known

    def saving(self, known: Scheduler, seconds: float) -> bool:
        """Drafting that saves so many seconds in 100 tokens."""
        return known.is_worth(1.0 / (known.plain_s - seconds / 100), 100)

    @pytest.mark.parametrize(
        ("size", "least"), [(0, 0.0), (1, FIRST_S + SECOND_S), (4, -FIRST_S - SECOND_S)]
    )
    def test_more_than_the_change(self, size: int, least: float) -> None:
        """At the very first a graph is captured anyway; and going back costs as much."""
        known = self.known(size)
        assert self.saving(known, least + 0.0001)
        assert not self.saving(known, least - 0.0001)

    def test_the_longer_the_more(self) -> None:
        known = self.known(1)
        rate = 1.0 / (known.plain_s - 0.001)
        assert [known.is_worth(rate, n) for n in (1, 5, 7, 100)] == [False, False, True, True]

    def test_at_the_plain_size_there_is_nothing_to_leave(self) -> None:
        """Not even where no larger size promised more: slower is slower then."""
        known = graphs()
        known.begin(1)
        known.settle_size(lambda: 1.0)
        known.observe_batch(1, H100[1])
        known.begin(1)
        assert known.costs.size == trying(known) == 1
        assert not known.is_worth(0.99 * known.plain_rate(), 100)

    def test_where_changing_is_free_any_gain_is(self) -> None:
        known = scheduler(0.01, 0.02, 8)
        assert known.is_worth(known.plain_rate() * 1.001, 1)
        assert not known.is_worth(known.plain_rate() * 0.999, 100)


class TestReplies:
    def test_what_drafting_promises_is_looked_at_anew(self) -> None:
        """Also where acceptance is no other than it was."""
        known = Scheduler()
        known.recall(CostTable(same={1: 0.01, 9: 0.05}, draft={"model": {1: 0.001}}))
        known.begin(1)
        before = chain(known)
        assert chain(known) is before
        known.open_account(100)
        assert chain(known) is not before

    """What changes when another text begins."""

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

    def test_a_pause_while_it_looks_counts_as_two_looks(self) -> None:
        """Such as a collection of Python's garbage; what drafting itself took counts whole."""
        for _ in range(3):
            self.known.settle(0.01, 0.001, [share(Account(self.known), 0, 1)])
        for drafting_s in (0.0, 0.004):
            account = Account(self.known)
            before = account.slack_s
            self.known.begin(1)
            self.known.observe_draft("model", 1, drafting_s, 1)
            self.known.settle(0.03, 0.013 + drafting_s, [share(account, 0, 1)])
            lost = 2 * 0.001 + drafting_s - BUDGET_SHARE * 0.01
            assert before - account.slack_s == pytest.approx(lost)

    def test_long_replies_bear_more_from_the_start(self) -> None:
        """Up to the 15 ms that the budget gives, however long."""
        most = BUDGET_SHARE * 0.01 + BUDGET_S - 0.005
        short = int(most / (_RISKED_SHARE * 0.01))  # tokens of which a share is less than that
        slack = [Account(self.known, n).slack_s for n in (short // 2, short, 128, 4096, None)]
        shares = [_RISKED_SHARE * n * 0.01 for n in (short // 2, short)]
        assert slack == pytest.approx([*shares, most, most, most])
        assert most == pytest.approx(0.0152)

    def test_the_first_round_behind_a_prompt_changes_sizes_anyway(self) -> None:
        """Plain decoding does it too: it neither keeps from drafting nor counts as a loss."""
        known = Scheduler()
        sizes = {1: 0.003, 2: 0.0031, 3: 0.0032}
        known.recall(CostTable(same=sizes, other={n: s + 0.002 for n, s in sizes.items()}))
        account = Account(known, 12)
        known.costs.observe_reading(10, 0.02)
        known.begin(1)
        assert known.affordable(account, "", 1, 1) == 1
        known.observe_batch(2, 0.0051)
        known.settle(0.0051, 0.0, [share(account, 1, 1)])
        assert account.slack_s == pytest.approx(_RISKED_SHARE * 12 * 0.003 - 0.0001)
        known.begin(1)
        known.observe_batch(1, 0.005)
        known.begin(1)
        assert known.affordable(account, "", 1, 1) == 0, "there and back is dear now"

    @pytest.mark.parametrize("before", [1, 4])
    def test_a_reply_is_credited_what_plain_decoding_pays_for_its_size(self, before: int) -> None:
        """Behind a prompt the first decode finds no graph; where drafts were before, the second
        captures one, which keeping their size does not."""
        known = graphs()
        for _ in range(3):
            known.begin(1)
            known.observe_batch(before, H100[before])
        known.costs.observe_reading(10, 0.02)
        account, seconds, gains = Account(known, 128), H100[4], []
        due = [FIRST_S, SECOND_S if before == 4 else 0.0, 0.0]
        for extra in (FIRST_S, SECOND_S if before == 1 else 0.0, 0.0):
            known.begin(1)
            known.observe_batch(4, seconds + extra)
            lost = account._lost
            known.settle(seconds + extra, 0.0, [share(account, 3, 1)])
            gains.append(lost - account._lost + seconds + extra - H100[1])
        assert gains == pytest.approx(due)

    def test_plain_rounds_behind_a_prompt_lose_nothing(self) -> None:
        known = graphs()
        known.observe_batch(4, H100[4])
        known.costs.observe_reading(10, 0.02)
        account = Account(known, 128)
        for extra in (FIRST_S, SECOND_S, 0.0):
            known.begin(1)
            known.observe_batch(1, H100[1] + extra)
            known.settle(H100[1] + extra, 0.0, [share(account, 0, 1)])
        assert account._lost == pytest.approx(0.0)

    def test_going_back_is_a_loss(self) -> None:
        known = graphs()
        for _ in range(3):
            known.begin(1)
            known.observe_batch(4, H100[4])
        account = Account(known, 128)
        for extra in (FIRST_S, SECOND_S, 0.0):
            known.begin(1)
            known.observe_batch(1, H100[1] + extra)
            known.settle(H100[1] + extra, 0.0, [share(account, 0, 1)])
        assert account._lost == pytest.approx(FIRST_S + SECOND_S)

    def test_the_way_back_is_counted_before_going(self) -> None:
        known = graphs()
        for _ in range(3):
            known.begin(1)
            known.observe_batch(1, H100[1])
        assert known.worst_s(2) == pytest.approx(H100[2] + FIRST_S + FIRST_S + SECOND_S)
        assert known.worst_s(1) == pytest.approx(H100[1])
        known.begin(1)
        known.observe_batch(2, H100[2] + FIRST_S)
        known.begin(1)
        assert known.worst_s(2) == pytest.approx(H100[2] + SECOND_S + FIRST_S + SECOND_S)
        known.observe_batch(2, H100[2] + SECOND_S)
        known.begin(1)
        assert known.worst_s(2) == pytest.approx(H100[2] + FIRST_S + SECOND_S)

    @pytest.mark.parametrize(
        ("promised", "stake"),
        [
            (-1.0, _RISKED_SHARE),
            (0.0, _RISKED_SHARE),
            (0.9 * _RISKED_SHARE / _STAKED_SHARE, _RISKED_SHARE),
            (1.2 * _RISKED_SHARE / _STAKED_SHARE, 1.2 * _RISKED_SHARE),
            (0.2, _STAKED_SHARE * 0.2),
        ],
    )
    def test_the_stake_follows_the_promise(self, promised: float, stake: float) -> None:
        known = graphs()
        account = Account(known, 40)
        account.promised = promised
        assert account.slack_s == pytest.approx(stake * 40 * H100[1])

    @pytest.mark.parametrize("device", ["graphs", "none"])
    def test_whatever_is_promised_the_budget_stays(self, device: str) -> None:
        known = graphs() if device == "graphs" else scheduler(0.01, 0.01, 8)
        account, left = Account(known, 4096), 0.001 if device == "graphs" else 0.005
        account.promised = 0.99
        for n_tokens in range(1, 300):
            budget = 0.02 * n_tokens * known.plain_s + 0.02
            assert account.slack_s == pytest.approx(budget - left)
            account.book(known.plain_s, known.plain_s)

    def test_drafts_no_more_than_it_can_lose(self) -> None:
        """At 5 ms a token and 9 % of 22 of them in hand: six refused ones of 1.5 ms are borne."""
        known = Scheduler()
        known.recall(CostTable(same={n: 0.0035 + 0.0015 * n for n in range(1, 9)}))
        account = Account(known, 22)
        assert known.affordable(account, "", 8, 8) == 6
        known.costs.observe_draft("model", 1, 0.004)
        assert known.affordable(account, "model", 8, 8) == 1
        for _ in range(120):
            known.settle(0.005, 0.0, [share(account, 0, 1)])
        assert known.affordable(account, "", 8, 8) == 8

    def test_what_the_draft_has_to_read_first_counts(self) -> None:
        """A few tokens are part of a look; the others cost what reading the prompt told."""
        known = Scheduler()
        known.recall(CostTable(same={n: 0.0035 + 0.0015 * n for n in range(1, 9)}))
        known.costs.observe_draft("model", 1, 0.0005)
        account = Account(known, 22)
        assert known.affordable(account, "model", 8, 8, 8) == 4
        assert known.affordable(account, "model", 8, 8, 48) == 3, "a hundredth of a token each"
        for n_tokens in (7, 100):
            known.costs.observe_catching_up(n_tokens, 0.0001 * n_tokens if n_tokens > 8 else 9.0)
        assert known.affordable(account, "model", 8, 8, 48) == 2
        assert not known.pays("model, greedy", "model", account, 400)
        assert known.pays("model, greedy", "model", account, 8)

    def test_an_unknown_draft_is_taken_to_cost_a_quarter_of_a_token_each(self) -> None:
        known = Scheduler()
        known.recall(CostTable(same=dict.fromkeys(range(1, 9), 0.01)))
        account = Account(known, 1000)
        slack = account.slack_s
        assert 0.0125 <= slack < 0.0175
        assert known.affordable(account, "unknown", 8, 8) == int(slack / 0.0025)

    @pytest.mark.parametrize("seconds", [math.nan, math.inf])
    def test_a_time_that_is_none_is_not_booked(self, seconds: float) -> None:
        account = Account(self.known, 100)
        before = account.slack_s
        account.book(seconds, 0.01)
        assert account.slack_s == before

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


def stopping(known: Scheduler, rate: float, most: int = 8, p_min: float = 0.0) -> Stopping:
    acceptance = known.acceptance("model")
    return Stopping(known, "model", acceptance, rate=rate, p_min=p_min, most=most)


class TestStopping:
    def test_ends_where_acceptance_ends(self) -> None:
        known = scheduler(0.01, 0.02, 3, 0.001)
        policy = stopping(known, 0.98 * chain(known).rate)  # at its own rate nothing is gained
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

    def test_looks_that_were_taken_are_paid_for(self) -> None:
        """After two looks a chain of one token is no cheaper than the one of none."""
        known = scheduler(0.01, 0.09, 8, 0.01)
        known.begin(1)
        policy = stopping(known, known.plain_rate(), most=1)
        policy.looks = 2
        assert known.batch_s(2) - known.batch_s(1) == pytest.approx(0.01)
        assert not policy._pays(0, 0.5)
        assert policy._pays(0, 1.01)

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
