"""What a round costs, looked up."""

from __future__ import annotations

import pytest

from specllama.scheduling.account import Account
from specllama.scheduling.scheduler import Scheduler
from specllama.scheduling.table import CostTable
from tests.scheduling.machines import FIRST_S, H100, SECOND_S, graphs


class TestPadded:
    """Which size a batch is decoded at, where changing sizes is free."""

    def test_a_larger_kernel_may_be_the_faster_one(self) -> None:
        known = Scheduler()
        known.recall(CostTable(same={1: 0.02, 5: 0.0569, 6: 0.0612, 8: 0.0500, 12: 0.068}))
        assert [known.padded(n) for n in (1, 5, 6, 8, 12)] == [1, 8, 8, 8, 12]
        assert known.batch_s(6) == pytest.approx(0.05)

    def test_never_beyond_the_largest_batch(self) -> None:
        known = Scheduler(max_batch=7)
        known.recall(CostTable(same={1: 0.02, 6: 0.0612, 8: 0.0500}))
        assert known.padded(6) == 6

    def test_plain_rounds_are_plain_while_drafting_does_not_pay(self) -> None:
        """Though a larger kernel is faster: they are what drafting is measured by."""
        known = Scheduler()
        known.recall(CostTable(same={1: 0.02, 2: 0.03, 4: 0.01}))
        known.begin(1)
        assert [known.size_for(n) for n in (1, 2)] == [1, 4]

    def test_a_size_that_was_never_measured_is_tried(self) -> None:
        known = Scheduler()
        known.recall(CostTable(same={1: 0.02, 5: 0.0569, 8: 0.0500}))
        assert [known.padded(n) for n in (5, 6)] == [8, 6]


class TestKept:
    """Where changing the size of decodes costs."""

    def test_the_way_back_is_charged_once(self) -> None:
        """To rounds that leave the size of plain decoding, not to those that stay away."""
        known, extra = graphs(), []
        for size in (1, 4):
            for _ in range(3):
                known.observe_batch(size, H100[size])
            known.begin(1)
            extra.append(known.batch_s(4) - H100[4])
        assert extra == pytest.approx([2 * FIRST_S + SECOND_S, 0.0])

    def test_drafting_is_not_given_up_to_measure_plain_decoding_again(self) -> None:
        known = graphs()
        while not known.costs.stale():
            known.observe_batch(4, H100[4])
        known.begin(1)
        assert known.knows_plain
        known.observe_batch(1, H100[1] + FIRST_S)
        assert not known.knows_plain, "the change is paid for"

    def test_without_graphs_nothing_is_in_the_way_of_measuring(self) -> None:
        known = graphs()
        while not known.costs.stale():
            known.observe_batch(4, H100[4])
        known.costs.lost_graphs()
        assert not known.knows_plain


class TestDrafting:
    def test_is_known_where_it_was_measured_or_is_none(self) -> None:
        known = graphs()
        assert known.drafting_s("model", 1, 1) == pytest.approx(0.0002)
        assert known.drafting_s("other", 1, 1) is None
        assert known.drafting_s("other", 0, 1) == 0.0


class TestAmong:
    """Some sequences draft, and the others wait for them."""

    def known(self, n_live: int) -> Scheduler:
        known = Scheduler()
        known.recall(CostTable(same={n: 0.01 + 0.001 * n**0.5 for n in range(1, 65)}))
        known.begin(n_live)
        return known

    @pytest.mark.parametrize("n_live", [1, 4])
    def test_all_of_them(self, n_live: int) -> None:
        known = self.known(n_live)
        for n in (1, 2, 9):
            whole = known.costs.target_s(n_live * n)
            assert known.among_s(n_live, n) == known.batch_s(n) == pytest.approx(whole)
            assert known.worst_among_s(n_live, n) == pytest.approx(whole)

    @pytest.mark.parametrize(("n_live", "n_drafting"), [(2, 1), (4, 1), (4, 3)])
    def test_what_some_add_counts_for_all(self, n_live: int, n_drafting: int) -> None:
        known = self.known(n_live)
        plain = known.costs.target_s(n_live)
        for n in (2, 9):
            more = known.costs.target_s(n_live + n_drafting * (n - 1)) - plain
            expected = plain + n_live * more / n_drafting
            assert known.among_s(n_drafting, n) == pytest.approx(expected)
            assert known.worst_among_s(n_drafting, n) == pytest.approx(expected)
        assert known.among_s(n_drafting, 1) == known.batch_s(1)

    def test_milliseconds_of_the_budget_are_shared(self) -> None:
        slack = [Account(self.known(n_live), 10_000).slack_s for n_live in (1, 4)]
        assert slack[1] == pytest.approx(slack[0] / 4, rel=0.1)
