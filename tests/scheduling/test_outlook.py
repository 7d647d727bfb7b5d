"""What chains and trees promise."""

from __future__ import annotations

from itertools import accumulate, product
from operator import mul

import pytest

from specllama.scheduling import outlook
from specllama.scheduling.acceptance import Acceptance, Step
from specllama.scheduling.account import Account
from specllama.scheduling.scheduler import Scheduler
from specllama.scheduling.table import CostTable
from tests.scheduling.machines import chain, observe, scheduler, share


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

    def test_trees_that_do_not_pay_promise_less_than_none(self) -> None:
        dear = outlook.tree(Acceptance(), [0.01, 0.03, 0.05], [0.0, 0.01], width=4)
        assert dear.drafted == 1
        assert dear.rate < 1.0 / 0.01

    def test_a_tree_is_no_deeper_than_was_asked(self) -> None:
        """All nodes of two levels, where they cost next to nothing."""
        acceptance = Acceptance()
        for _ in range(100):
            acceptance.observe([Step(0, 4)], [], n_nodes=4)
        look = outlook.tree(acceptance, [0.01] * 30, [0.0, 1e-5, 2e-5], width=4)
        first = sum(acceptance.by_rank())
        assert look.drafted == 4 + 16
        assert look.tokens == pytest.approx(1 + first + first**2)
        assert look.seconds == pytest.approx(0.01 + 2e-5)
