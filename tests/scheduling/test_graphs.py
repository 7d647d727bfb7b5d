"""Which decodes pay for what, where graphs are captured."""

from __future__ import annotations

import pytest

from specllama.machine import LARGEST_KEPT, MOST_KEPT
from specllama.results import SpecStats
from specllama.scheduling import graphs
from specllama.scheduling.costs import Costs
from specllama.scheduling.graphs import Latest, Parts, Sized
from specllama.scheduling.scheduler import Bet, Scheduler, Share
from specllama.scheduling.table import CostTable

FIRST, SECOND, BACK = ("first",), ("second",), ("back",)
SAME = {1: 0.0026, 2: 0.0029, 3: 0.0033, 4: 0.0037}
EXTRA = {"first": 0.0016, "second": 0.0054, "back": 0.0006}


def paid(device: graphs.Graphs, sizes: list[int]) -> list[Parts]:
    """What each of these decodes pays."""
    told = []
    for size in sizes:
        told.append(device.pays(size))
        device.decode(size)
    return told


class TestLatest:
    def test_another_size_drops_the_graph_before(self) -> None:
        assert paid(Latest(), [1, 1, 1, 3, 3, 3, 1, 3]) == [
            FIRST, SECOND, (), FIRST, SECOND, (), FIRST, FIRST,
        ]  # fmt: skip

    def test_behind_a_prompt_the_graph_still_fits(self) -> None:
        device = Latest()
        paid(device, [1, 1, 1])
        device.read_prompt()
        assert paid(device, [1, 1]) == [FIRST, ()]

    def test_another_block_of_cells_drops_it(self) -> None:
        device = Latest()
        paid(device, [1, 1, 1])
        device.enter(1)
        assert paid(device, [1, 1, 1]) == [FIRST, SECOND, ()]


class TestSized:
    def test_each_size_captures_once(self) -> None:
        assert paid(Sized(), [1, 1, 1, 3, 3, 3, 1, 3, 3]) == [
            FIRST, SECOND, (), FIRST, SECOND, (), BACK, BACK, (),
        ]  # fmt: skip

    def test_the_second_decode_captures_whenever_it_comes(self) -> None:
        device = Sized()
        assert paid(device, [1, 3, 1, 3, 1]) == [
            FIRST, FIRST, ("second", "back"), ("second", "back"), BACK,
        ]  # fmt: skip
        assert device.phase == "back"

    def test_large_sizes_are_new_each_time(self) -> None:
        """They share one graph, which the next of another size drops."""
        large = LARGEST_KEPT + 1
        device = Sized()
        assert paid(device, [large, 1, large, 1, large]) == [
            FIRST, FIRST, FIRST, ("second", "back"), FIRST,
        ]  # fmt: skip
        assert not device.captures(large)

    def test_a_prompt_costs_the_way_back(self) -> None:
        device = Sized()
        paid(device, [1, 1])
        device.read_prompt()
        assert paid(device, [1, 1]) == [BACK, ()]

    def test_lost_graphs_are_captured_anew(self) -> None:
        device = Sized()
        paid(device, [1, 1, 3, 3])
        device.lose()
        assert (device.size, device.behind_prompt) == (0, True)
        assert device.dues(1) == (FIRST, SECOND)
        assert paid(device, [3, 3, 1]) == [FIRST, SECOND, FIRST]

    def test_each_block_of_cells_has_graphs_of_its_own(self) -> None:
        device = Sized()
        paid(device, [1, 1, 3, 3])
        device.enter(1)
        assert (device.size, device.behind_prompt) == (0, True)
        assert device.dues(1) == (FIRST, SECOND), "as plain decoding would pay there"
        assert paid(device, [3, 3, 1]) == [FIRST, SECOND, FIRST]
        device.enter(0)
        assert device.dues(1) == (BACK, ())
        assert paid(device, [3, 3, 1, 3]) == [BACK, (), BACK, BACK]
        device.lose()
        assert paid(device, [3]) == [FIRST], "all blocks lose theirs"
        device.enter(1)
        assert paid(device, [3]) == [FIRST]

    def test_the_oldest_graphs_make_room(self) -> None:
        device = Sized()
        for block in range(MOST_KEPT + 1):
            device.enter(block)
            paid(device, [1, 1])
            device.enter(0)
            device.decode(1)
        device.enter(0)
        assert device.pays(1) == BACK, "used all along"
        device.enter(1)
        assert device.pays(1) == FIRST
        device.enter(2)
        assert device.pays(1) == BACK

    @pytest.mark.parametrize(
        ("sizes", "dues"),
        [([], (FIRST, SECOND)), ([3], (("second", "back"), ())), ([3, 3], (BACK, ()))],
    )
    def test_plain_decoding_would_have_its_graph_by_now(
        self, sizes: list[int], dues: tuple[Parts, Parts]
    ) -> None:
        """Whatever was decoded in its stead."""
        device = Sized()
        paid(device, sizes)
        device.read_prompt()
        assert device.dues(1) == dues

    def test_what_a_size_costs_until_it_is_captured(self) -> None:
        device = Sized()
        assert device.toll(3) == ("first", "second")
        paid(device, [3])
        assert (device.toll(3), device.captures(3)) == (SECOND, True)
        assert device.toll(3, away=True) == ("second", "back")
        paid(device, [3])
        assert (device.toll(3), device.captures(3)) == ((), False)
        assert device.toll(3, away=True) == BACK

    def test_only_the_kept_size_is_worth_a_capture(self) -> None:
        device = Sized()
        paid(device, [1, 1])
        assert device.move(3, before=1, kept=3) == BACK
        assert device.move(5, before=1, kept=3) == FIRST
        assert device.move(1, before=3, kept=3) == BACK
        assert device.move(3, before=3, kept=3) == ()

    def test_is_changing_where_it_paid_for_another_size(self) -> None:
        device, changes = Sized(), []
        for size in [1, 1, 3, 3, 3, 1, 1]:
            device.decode(size)
            changes.append(device.changes)
        assert changes == [False, False, True, True, False, True, False]


class TestCosts:
    def table(self) -> CostTable:
        def more(part: str) -> dict[int, float]:
            return {n: seconds + EXTRA[part] for n, seconds in SAME.items()}

        return CostTable(
            same=dict(SAME), other=more("first"), second=more("second"), back=more("back")
        )

    def test_are_told_by_a_table(self) -> None:
        costs = Costs(self.table(), kept_graphs="sized")
        assert costs.extra_s == pytest.approx(EXTRA)
        assert costs.switch_s == pytest.approx(0.0006)
        assert costs.change_s(3) == pytest.approx(0.0016)
        costs.pass_by(3)
        assert costs.change_s(3) == pytest.approx(0.0054)

    def test_one_graph_for_all_sizes_pays_for_each_change(self) -> None:
        costs = Costs(self.table(), kept_graphs="latest")
        assert costs.switch_s == pytest.approx(0.0070)

    def test_without_graphs_nothing_is_paid(self) -> None:
        costs = Costs(self.table(), kept_graphs="none")
        assert costs.extra_s == {"first": 0.0, "second": 0.0, "back": 0.0}

    def test_are_learned(self) -> None:
        device, costs = Sized(), Costs(kept_graphs="sized")
        for size in (1, 1, 1, 2, 2, 2, 4, 4, 4) * 4:
            seconds = SAME[size] + sum(EXTRA[part] for part in device.pays(size))
            device.decode(size)
            costs.observe_target(size, seconds)
        assert costs.extra_s["back"] == costs.switch_s == pytest.approx(0.0006)
        assert costs.target_s(4) == pytest.approx(0.0037)
        kept = costs.table().back
        assert kept == pytest.approx({n: SAME[n] + 0.0006 for n in (1, 2, 4)})
        assert Costs(costs.table(), kept_graphs="sized").switch_s == pytest.approx(0.0006)

    def test_prices_follow_what_was_captured(self) -> None:
        """Though nothing was measured since."""
        known = Scheduler(kept_graphs="sized")
        known.recall(self.table())
        prices = []
        for captured in ([1, 1], [4, 1], [4, 1], []):
            if not captured:
                known.costs.lost_graphs()
            for size in captured:
                known.costs.pass_by(size)
            known.begin(1)
            prices.append(known.batch_s(4))
        new, seen, captured_once, lost = prices
        assert new == lost
        assert seen > new > captured_once, "a capture is the dearest"

    def test_sizes_that_never_followed_each_other_are_known_from_their_first_decodes(self) -> None:
        """A capture takes now this long, now that."""
        costs = Costs(self.table(), kept_graphs="sized")
        for _ in range(3):
            costs.observe_target(5, 0.0042 + 0.0016)
            costs.observe_target(5, 0.0042 + 0.0120)
            costs.lost_graphs()
        costs._renew()
        assert costs.target_s(5) == pytest.approx(0.0042)

    def test_a_single_short_decode_behind_another_size_says_nothing_of_later_ones(self) -> None:
        """Less what changing is taken to cost, it would make single tokens seem twice as fast."""
        costs = Costs(self.table(), kept_graphs="sized")
        for size in (1, 1, 3, 3):
            costs.pass_by(size)
        for _ in range(3):
            for size in (1, 3):
                costs.observe_target(size, SAME[size] + EXTRA["back"])
                costs.observe_target(size, SAME[size])
        costs.observe_target(1, 0.97 * SAME[1])
        assert costs.target_s(1) == pytest.approx(SAME[1])

    @pytest.mark.parametrize("n_cells", [254, 510])
    def test_where_a_decode_reaches_its_own_size_decides(self, n_cells: int) -> None:
        """Not that of the one before, of which it is only known that it would reach further."""
        costs = Costs(self.table(), kept_graphs="sized")
        costs.reach(n_cells - 10)
        for size in (1, 1, 3, 3):
            costs.pass_by(size)
        costs.reach(n_cells)
        assert costs.change_s(3) == pytest.approx(EXTRA["first"]), "in the next block"
        costs.observe_target(1, SAME[1] + EXTRA["back"])
        costs.reach(n_cells + 1)
        assert costs.change_s(1) == 0.0
        costs.pass_by(1)
        costs.reach(n_cells + 2)
        assert costs.change_s(1) == pytest.approx(EXTRA["first"])

    def test_what_a_round_is_expected_to_take_goes_by_its_own_size(self) -> None:
        known, stats = Scheduler(kept_graphs="sized"), SpecStats()
        known.recall(self.table())
        known.costs.reach(244)
        for size in (1, 1, 3, 3):
            known.costs.pass_by(size)
        known.costs.reach(254)
        known.begin(1)
        known.observe_batch(1, SAME[1] + EXTRA["back"])
        known.settle(SAME[1], 0.0, [Share(known.open_account(9), stats, Bet(), 0, 1)])
        assert stats.forecast.seconds == pytest.approx(SAME[1] + EXTRA["back"])

    def test_a_new_way_back_is_worth_keeping(self) -> None:
        costs = Costs(self.table(), kept_graphs="sized")
        for part in ("first", "second", "back", "back"):
            for size in (1, 2, 3, 4):
                back = EXTRA["back"] if part == "second" else 0.0
                costs.observe_target(size, SAME[size] + EXTRA[part] + back)
        assert not costs.changed
        for size in (1, 2, 3, 4) * 5:
            costs.observe_target(size, SAME[size] + 0.0012)
        assert costs.changed
