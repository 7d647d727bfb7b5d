"""Chains and trees out of a table of laws, against all paths enumerated."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafting.growth import Growth
from specllama.verification.types import Proposal
from tests.drafting.wants import want

END = 9
Path = tuple[int, ...]
LAWS = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=3), min_size=1, max_size=8)


def law_of(table: list[list[int]], path: Path) -> list[tuple[int, float]]:
    """A law for each path, likeliest first; token 2 ends a turn in some places."""
    weights = sorted(table[(len(path) + sum(path)) % len(table)], reverse=True)
    tokens = [0, 1, END if len(path) % 3 == 2 else 2]
    return [(token, weight / 24) for token, weight in zip(tokens, weights, strict=False)]


def growth(table: list[list[int]], least: float = 0.0, nodes: int = 64) -> Growth[Path]:
    return Growth(
        "table",
        lambda path: [(t, prob, (*path, t)) for t, prob in law_of(table, path)],
        lambda token: token == END,
        least,
        nodes,
    )


def value(table: list[list[int]], path: Path) -> float:
    product = 1.0
    for depth, token in enumerate(path):
        product *= dict(law_of(table, path[:depth]))[token]
    return product


def paths(proposal: Proposal) -> list[Path]:
    return [tuple(proposal.path(node)) for node in range(len(proposal))]


def leaves(proposal: Proposal) -> int:
    return sum(not proposal.children(node) for node in range(len(proposal)))


@given(LAWS, st.integers(1, 5), st.floats(0, 0.1), st.integers(1, 12))
def test_a_tree_holds_the_likeliest_paths(
    table: list[list[int]], limit: int, least: float, nodes: int
) -> None:
    proposal = growth(table, least, nodes).propose(want([0], branches=99), (), limit)
    candidates: list[Path] = [()]
    for path in candidates:
        if len(path) < limit:
            candidates += [
                (*path, token)
                for token, _ in law_of(table, path)
                if token != END and value(table, (*path, token)) >= least
            ]
    values = sorted((value(table, path) for path in candidates[1:]), reverse=True)
    found = paths(proposal)
    assert len(set(found)) == len(found)
    assert set(found) <= set(candidates)
    assert sorted((value(table, path) for path in found), reverse=True) == pytest.approx(
        values[:nodes]
    )


@given(LAWS, st.integers(1, 6), st.integers(1, 4), st.integers(1, 12))
def test_a_tree_keeps_to_what_it_may(
    table: list[list[int]], limit: int, branches: int, nodes: int
) -> None:
    proposal = growth(table).propose(want([0], branches=branches, nodes=nodes), (), limit)
    assert len(proposal) <= nodes
    assert leaves(proposal) <= 1 + branches
    assert max(proposal.depths(), default=0) <= limit
    assert END not in proposal.tokens
    assert all(parent < node for node, parent in enumerate(proposal.parents))
    assert set(proposal.laws) == {None}
    # depth first, likeliest first
    siblings: dict[int, list[float]] = {}
    for node, parent in enumerate(proposal.parents):
        assert parent == node - 1 or not proposal.children(node - 1)
        siblings.setdefault(parent, []).append(value(table, tuple(proposal.path(node))))
    assert all(
        first >= second for values in siblings.values() for first, second in pairwise(values)
    )


@given(LAWS, st.integers(1, 6))
def test_the_first_path_of_a_tree_is_the_chain(table: list[list[int]], limit: int) -> None:
    chain = growth(table).propose(want([0]), (), limit)
    tree = growth(table, nodes=9999).propose(want([0], branches=9999, nodes=9999), (), limit)
    assert chain.parents == tuple(range(-1, len(chain) - 1))
    assert tree.tokens[: len(chain)] == chain.tokens
    assert tree.parents[: len(chain)] == chain.parents


def test_rules_that_read_laws_get_a_chain() -> None:
    proposal = growth([[4, 4]]).propose(replace(want([0], branches=4), keeps_laws=True), (), 3)
    assert proposal.parents == (-1, 0, 1)


def test_a_chain_stops_where_its_path_gets_unlikely() -> None:
    half = growth([[12]], least=0.25)
    assert len(half.propose(want([0]), (), 9)) == 2


def test_the_scheduler_is_asked_before_each_token() -> None:
    asked: list[tuple[int, float | None]] = []

    def two(drafted: int, confidence: float | None) -> bool:
        asked.append((drafted, confidence))
        return drafted < 2

    proposal = growth([[12]]).propose(want([0], go_on=two), (), 9)
    assert len(proposal) == 2
    assert asked == [(0, 0.5), (1, 0.5), (2, 0.5)]
    never = want([0], branches=3, go_on=lambda drafted, confidence: False)
    assert len(growth([[12]]).propose(never, (), 9)) == 0
