"""How the chances of the tree rules draw siblings."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from specllama.sampling.distribution import Distribution
from specllama.sampling.noise import GreedyPlusOne, IndependentDrafts
from specllama.verification import RULES
from specllama.verification.types import ROOT, Proposal

from .enumeration import law

Q = law([0.1, 0.4, 0.2, 0.3])


def test_independent_siblings_have_the_law_of_independent_draws() -> None:
    chance = IndependentDrafts(1)
    runs = 20_000
    drawn = Counter(tuple(chance.children(Q, 0, 2)) for _ in range(runs))
    pairs = [(a, b) for a in range(4) for b in range(4)]
    expected = [runs * Q.prob(a) * Q.prob(b) for a, b in pairs]
    assert stats.chisquare([drawn[pair] for pair in pairs], expected).pvalue > 1e-4


def test_a_certain_token_is_drawn_once_however_many_are_asked_for() -> None:
    """Its copies would be decoded for nothing."""
    assert IndependentDrafts(1).children(Distribution.point(7), 0, 3) == [7]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_greedy_siblings_come_first_and_one_is_drawn_from_the_rest(count: int) -> None:
    chance = GreedyPlusOne(2)
    runs = 5000
    drawn = [chance.children(Q, 0, count) for _ in range(runs)]
    greedy, rest = Q.top(4)[: count - 1], Q.top(4)[count - 1 :]
    assert all(tokens[:-1] == greedy for tokens in drawn)
    counts = Counter(tokens[-1] for tokens in drawn)
    weights = np.array([Q.prob(token) for token in rest])
    expected = runs * weights / weights.sum()
    assert stats.chisquare([counts[token] for token in rest], expected).pvalue > 1e-4


@pytest.mark.parametrize("count", [4, 5, 9])
def test_a_small_law_gives_each_of_its_tokens_once(count: int) -> None:
    assert GreedyPlusOne(3).children(Q, 0, count) == [1, 3, 2, 0]


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.shape == "tree"])
def test_a_rule_for_trees_takes_the_siblings_its_own_chance_draws(name: str) -> None:
    rule = RULES[name]
    p = law([0.3, 0.3, 0.3, 0.1])
    accepted = 0
    for seed in range(200):
        chance = rule.chance(seed)
        tokens = chance.children(Q, 0, 3)
        proposal = Proposal(tuple(tokens), (ROOT,) * len(tokens), (Q, *([None] * len(tokens))))
        verdict = rule.verify(proposal, lambda node: p, chance, 0)
        accepted += len(verdict.path)
        if verdict.path:
            assert verdict.path[0] in range(len(tokens))
    assert accepted > 150
