"""Trees of a draft model, over a strict fake cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specllama.drafting.follower import Follower
from specllama.drafting.protocol import Want
from specllama.drafting.shapes import FixedShape, Shape, ValueShape
from specllama.drafting.tree import TreeDrafter
from specllama.sampling.distribution import Distribution
from specllama.sampling.noise import RandomStream
from specllama.verification.types import Proposal
from tests.drafting.test_model import WORDS
from tests.drafting.test_model import want as chain_want
from tests.engine.fake_model import FakeModel

SHAPES = [FixedShape((3, 2, 2)), ValueShape(nodes=12, width_=3, depth=4)]


def drafter_over(
    n_seq: int = 12, first_branch: int = 2, **limits: int
) -> tuple[TreeDrafter, FakeModel]:
    fake = FakeModel(WORDS, n_seq=n_seq, **limits)  # type: ignore[arg-type]
    return TreeDrafter(Follower(fake), first_branch), fake


def want(ids: Sequence[int], key: int = 0, shape: Shape = SHAPES[0], **limits: int) -> Want:
    defaults = {"limit": 4, "nodes": 30, "branches": 10}
    return replace(chain_want(ids, key), shape=shape, **defaults | limits)  # type: ignore[arg-type]


def leaves(proposal: Proposal) -> int:
    return sum(not proposal.children(node) for node in range(len(proposal)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("limit", [1, 2, 4])
@pytest.mark.parametrize("nodes", [1, 2, 5, 30])
@pytest.mark.parametrize("branches", [0, 1, 3, 10])
def test_never_more_than_was_asked_for(shape: Shape, limit: int, nodes: int, branches: int) -> None:
    drafter, fake = drafter_over()
    (tree,) = drafter.propose(
        [want([1, 2, 3], shape=shape, limit=limit, nodes=nodes, branches=branches)]
    )
    assert 1 <= len(tree) <= nodes
    assert max(tree.depths()) <= min(limit, shape.depth)
    assert leaves(tree) <= 1 + branches
    assert fake.held == {0}
    assert drafter._follower.cache.tokens(0) == list(fake.tokens(0))


def test_no_more_is_drawn_than_may_be_said() -> None:
    drawn: list[int] = []

    class Counting(RandomStream):
        def children(self, law: Distribution, position: int, count: int) -> list[int]:
            drawn.append(count)
            return super().children(law, position, count)

    drafter, _ = drafter_over()
    asked = want([1, 2, 3], shape=FixedShape((2, 3)), nodes=4)
    (tree,) = drafter.propose([replace(asked, keeps_laws=True, chance=Counting(1))])
    assert drawn == [2, 2]
    assert len(tree) == 4


def test_the_most_valuable_nodes_are_kept() -> None:
    some, every = (
        drafter_over()[0].propose([want([1, 2, 3], shape=ValueShape(nodes, 3, 3))])[0]
        for nodes in (5, 99)
    )
    assert len(every) > 10
    assert sorted(some.values) == sorted(every.values)[-5:]


def test_a_tree_is_told_depth_first() -> None:
    """So that the likeliest path comes first in line."""
    drafter, _ = drafter_over()
    (tree,) = drafter.propose([want([1, 2, 3], shape=FixedShape((2, 2)))])
    assert tree.parents == (-1, 0, 0, -1, 3, 3)


def test_only_nodes_that_can_have_children_are_decoded() -> None:
    drafter, fake = drafter_over()
    drafter.propose([want([1, 2, 3], shape=FixedShape((3, 1)), nodes=4)])
    assert fake.batches == [3, 1]


def test_a_tree_tells_laws_or_values() -> None:
    """A rule that reads laws may not learn from what was drawn how likely it was to be kept."""
    drafter, _ = drafter_over()
    asked = want([1, 2, 3])
    (valued,) = drafter.propose([asked])
    assert len(valued.values) == len(valued) and not valued.is_drawn
    (drawn,) = drafter.propose([replace(asked, keeps_laws=True, chance=RandomStream(1))])
    assert drawn.values == () and drawn.is_drawn


def test_a_tree_takes_the_cells_of_another_sequence_not_its_own() -> None:
    drafter, fake = drafter_over(n_ctx=24)
    drafter.read(1, [5] * 9)
    (tree,) = drafter.propose([want([1, 2, 3], nodes=15)])
    assert len(tree) == 15
    assert fake.length(1) == 0
    assert not len(drafter.propose([want([1, 2, 3], nodes=22)])[0]), "more than there is"
    assert fake.tokens(0)[:3] == (1, 2, 3)
