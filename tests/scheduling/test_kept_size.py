"""Which size drafting keeps where changing it costs."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import pytest

from specllama.scheduling.account import Account
from specllama.scheduling.kept_size import _AGE, _FRESH_AGE, _WITHIN
from specllama.scheduling.scheduler import Scheduler
from tests.scheduling.machines import (
    FIRST_S,
    H100,
    SECOND_S,
    chain,
    graphs,
    pays,
    prompted,
    scheduler,
    share,
    trying,
)


class TestSizes:
    """Which size a batch is decoded at."""

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
        assert gaps == [1 + min(2**n * _FRESH_AGE, _AGE) for n in range(1, len(gaps) + 1)]
        assert gaps[-1] == 1 + _AGE

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

    @pytest.mark.parametrize(("size", "beside"), [(4, 3), (3, 2), (2, 3)])
    def test_a_size_beside_it_captures_no_graph(self, size: int, beside: int) -> None:
        """Not that of plain decoding, whose graph would be captured in its stead."""
        known = graphs(good=3)
        known.settle_size(lambda: 2.0 if trying(known) == size else 1.0)
        sizes = [list(known.kept.candidates())]
        for _ in range(2):
            known.observe_batch(size, H100[size])
            sizes.append(list(known.kept.candidates()))
        assert sizes == [[size], [size, beside], [size]]

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
        return known.kept.is_worth(1.0 / (known.plain_s - seconds / 100), 100)

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
        assert [known.kept.is_worth(rate, n) for n in (1, 5, 7, 100)] == [False, False, True, True]

    def test_at_the_plain_size_there_is_nothing_to_leave(self) -> None:
        """Not even where no larger size promised more: slower is slower then."""
        known = graphs()
        known.begin(1)
        known.settle_size(lambda: 1.0)
        known.observe_batch(1, H100[1])
        known.begin(1)
        assert known.costs.size == trying(known) == 1
        assert not known.kept.is_worth(0.99 * known.plain_rate(), 100)

    def test_where_changing_is_free_any_gain_is(self) -> None:
        known = scheduler(0.01, 0.02, 8)
        assert known.kept.is_worth(known.plain_rate() * 1.001, 1)
        assert not known.kept.is_worth(known.plain_rate() * 0.999, 100)
