"""Planned shapes against brute force over all topologies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.drafting.shapes import (
    FixedShape,
    Node,
    PlannedShape,
    Shape,
    Topology,
    ValueShape,
    plan,
)
from specllama.verification.types import ROOT

CHAIN: Topology = (((),),)


def forests(nodes: int, depth: int, width: int) -> Iterator[Topology]:
    """Everything with at most these many nodes, levels and siblings."""
    yield ()
    if depth == 0 or width == 0:
        return
    for first in forests(nodes - 1, depth - 1, 3) if nodes else ():
        for others in forests(nodes - 1 - size(first), depth, width - 1):
            yield (first, *others)


def size(topology: Topology) -> int:
    return sum(1 + size(child) for child in topology)


def levels(topology: Topology) -> int:
    return 1 + max(levels(child) for child in topology) if topology else 0


def tokens(topology: Topology, acceptance: list[float]) -> float:
    """Expected tokens of a round, node by node."""
    drafted = (
        a * tokens(child, acceptance) for a, child in zip(acceptance, topology, strict=False)
    )
    return 1.0 + sum(drafted)


def rate(
    topology: Topology, acceptance: list[float], batch: Callable[[int], float], level: float
) -> float:
    seconds = batch(1 + size(topology)) + level * levels(topology)
    return tokens(topology, acceptance) / seconds


probability = st.floats(0.0, 1.0)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(probability, min_size=3, max_size=3),
    st.lists(st.floats(0.5, 2.0), min_size=6, max_size=6),
    st.floats(0.0, 0.5),
    st.integers(0, 5),
    st.integers(0, 3),
)
def test_a_plan_is_as_fast_as_the_best_of_all_trees(
    acceptance: list[float], costs: list[float], level: float, nodes: int, depth: int
) -> None:
    """Costs need not rise with the batch, nor acceptance fall with the rank."""
    acceptance = [a / 3 for a in acceptance]
    costs_of = dict(enumerate(costs, start=1)).__getitem__
    planned = plan(acceptance, nodes, depth, costs_of, level)
    assert size(planned) <= nodes
    assert levels(planned) <= depth
    fastest = max(rate(t, acceptance, costs_of, level) for t in forests(nodes, depth, 3))
    assert rate(planned, acceptance, costs_of, level) == pytest.approx(fastest)


def test_brute_force_sees_every_tree() -> None:
    """Ordered trees of n nodes below a root: the Catalan numbers."""
    counts = [0] * 4
    for topology in forests(3, 3, 3):
        counts[size(topology)] += 1
    assert counts == [1, 1, 2, 5]


def test_nothing_is_planned_where_drafts_are_never_accepted() -> None:
    assert plan([0.0, 0.0], 8, 4, lambda n: 1.0, 0.1) == ()


def test_nothing_is_planned_where_a_batch_costs_as_much_as_its_tokens() -> None:
    assert plan([0.9], 8, 8, lambda n: float(n), 0.2) == ()


def test_one_sure_rank_makes_a_chain_as_long_as_allowed() -> None:
    assert plan([1.0, 0.0], 8, 3, lambda n: 1.0, 0.01) == ((((),),),)


def test_dear_levels_make_a_bush() -> None:
    assert plan([0.5, 0.3, 0.2], 3, 3, lambda n: 1.0, 0.5) == ((), (), ())


def test_a_dear_size_is_left_out() -> None:
    """The measured costs have steps; five tokens here cost more than eight."""
    costs = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 9.0, 6: 9.0, 7: 9.0, 8: 1.4, 9: 9.0}
    planned = plan([0.8, 0.1], 8, 8, costs.__getitem__, 0.0)
    assert size(planned) == 7


def test_large_plans_use_what_they_are_given() -> None:
    planned = plan([0.6, 0.2, 0.1, 0.05], 64, 8, lambda n: 1.0 + 0.001 * n, 0.001)
    assert size(planned) == 64
    assert levels(planned) == 8


def grow(shape: Shape, support: int = 9) -> list[Node]:
    """As the tree drafter grows: level by level, `support` tokens in every law."""
    nodes: list[Node] = []

    def branch(parent: int) -> list[int]:
        count = min(support, shape.width(nodes, parent))
        depth = 1 if parent == ROOT else nodes[parent].depth + 1
        first = len(nodes)
        nodes.extend(Node(rank, parent, depth, rank, 0.5) for rank in range(count))
        return list(range(first, len(nodes)))

    level = branch(ROOT)
    for _ in range(1, shape.depth):
        level = [child for node in shape.expand(nodes, level) for child in branch(node)]
    return nodes


def topology_of(nodes: list[Node], parent: int = ROOT) -> Topology:
    children = [n for n, node in enumerate(nodes) if node.parent == parent]
    return tuple(topology_of(nodes, child) for child in children)


@pytest.mark.parametrize("topology", list(forests(5, 3, 3)))
def test_a_planned_shape_grows_its_plan(topology: Topology) -> None:
    shape = PlannedShape(topology)
    assert shape.depth == levels(topology)
    assert topology_of(grow(shape)) == topology


def test_a_small_law_prunes_the_plan() -> None:
    shape = PlannedShape((CHAIN, CHAIN, ()))
    assert topology_of(grow(shape, support=1)) == (CHAIN,)


def test_a_regular_plan_is_a_fixed_shape() -> None:
    planned = PlannedShape((((), ()), ((), ())))
    assert grow(planned) == grow(FixedShape((2, 2)))


@pytest.mark.parametrize("room", [0, 2, 9])
def test_what_is_kept_fits_and_has_its_parents(room: int) -> None:
    shape = PlannedShape((CHAIN, CHAIN, ()))
    nodes = grow(shape)
    kept = shape.keep(nodes, room)
    assert len(kept) == min(room, len(nodes))
    assert all(nodes[node].parent in (ROOT, *kept) for node in kept)


def test_a_planned_shape_serves_rules_that_read_laws() -> None:
    assert PlannedShape(CHAIN).chosen_before


@pytest.mark.parametrize(("room", "kept"), [(0, []), (2, [0, 2]), (3, [0, 1, 2]), (9, [0, 1, 2])])
def test_the_most_valuable_nodes_that_fit_are_kept(room: int, kept: list[int]) -> None:
    values = [0.5, 0.4, 0.45, 0.4]
    places = [(ROOT, 1), (ROOT, 1), (0, 2), (ROOT, 1)]
    nodes = [
        Node(n, *place, rank=n, value=value)
        for n, (place, value) in enumerate(zip(places, values, strict=True))
    ]
    assert ValueShape(nodes=3, width_=3, depth=2).keep(nodes, room) == kept
