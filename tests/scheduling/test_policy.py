"""Decisions inside one proposal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specllama.sampling.distribution import Distribution
from specllama.scheduling.acceptance import Acceptance
from specllama.scheduling.policy import Policy, Stopping, node_chances
from specllama.scheduling.scheduler import Scheduler
from specllama.scheduling.table import CostTable
from specllama.verification.types import Proposal
from tests.scheduling.machines import (
    chain,
    scheduler,
    seen,
)


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
