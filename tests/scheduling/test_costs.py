"""What decodes and looks cost, measured and kept."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from specllama.scheduling.costs import Costs
from specllama.scheduling.scheduler import Scheduler
from specllama.scheduling.table import CostTable
from tests.scheduling.machines import (
    FIRST_S,
    H100,
    SECOND_S,
    graphs,
    scheduler,
    seen,
)

KEPT = CostTable(
    how="calibrated",
    same={1: 0.010, 2: 0.014, 5: 0.030},
    draft={"model": {1: 0.002, 4: 0.006}},
    prefill=0.001,
)


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
        assert not costs.measured()
        costs.observe_target(1, 0.5)
        assert not costs.measured(), "the first may be a hiccup"
        costs.observe_target(1, 0.010)
        assert costs.measured()
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


class TestKeptCosts:
    def test_are_known_from_the_start(self) -> None:
        costs = Costs(KEPT)
        assert costs.measured()
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

    def test_dearer_drafts_are_a_change(self) -> None:
        costs = Costs(KEPT)
        seen(costs, 1, KEPT.same[1])
        for _ in range(3):
            costs.observe_draft("model", 1, 0.004)
        assert costs.changed
        assert costs.table().draft["model"] == pytest.approx({1: 0.004, 4: 0.006})

    def test_looks_of_several_sequences_are_not_kept(self) -> None:
        costs = Costs()
        for _ in range(3):
            costs.observe_draft("model", 2, 0.009, 3)
            costs.observe_draft("staged", 2, 0.009, 3)
            costs.observe_draft("staged", 2, 0.004)
        assert costs.table().draft == {"staged": {2: 0.004}}


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
