"""A draft model that drafts a tree, one decode a level.

Each node lives in one sequence id of the draft's cache: a first child goes on in its parent's,
every other child in a fork of it. Forks share cells, so a tree costs as many cells as nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.follower import Follower, FollowingDrafter
from specllama.drafting.protocol import Want
from specllama.drafting.shapes import Node
from specllama.sampling.distribution import Distribution
from specllama.verification.types import ROOT, SHAPES, Proposal


class TreeDrafter(FollowingDrafter):
    """Drafts trees with a model, of the shape each sequence wants.

    Args:
        follower: the draft's cache; sequence ids from `first_branch` on are the tree's.
    """

    name = "tree"
    trees = True

    def __init__(self, follower: Follower, first_branch: int) -> None:
        super().__init__(follower)
        self._first_branch = first_branch

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        """A tree for each sequence, one after the other."""
        return [self._propose(want) for want in wants]

    def _propose(self, want: Want) -> Proposal:
        check_shape(want)
        read = self._follower.read([want])
        if not read or not self._follower.cache.make_room(want.nodes, (want.key,)):
            return Proposal()
        spare = range(self._first_branch, self._follower.backend.n_seq)[: want.branches]
        growth = Growth(self._follower, want, list(spare))
        try:
            growth.run(read[0][1])
        finally:
            for seq in spare:
                self._follower.backend.drop(seq)
        return growth.proposal(self.name)


class Growth:
    """One tree while it grows.

    Args:
        spare: sequence ids for its branches.
        branches: the most leaves beside the first; None: as many as there are spare ids.
    """

    def __init__(
        self, follower: Follower, want: Want, spare: list[int], branches: int | None = None
    ) -> None:
        self._follower = follower
        self._want = want
        self._shape = want.shape
        self._spare = spare
        self._leaves_left = 1 + (len(spare) if branches is None else branches)
        self._nodes: list[Node] = []
        self._seqs: list[int] = []
        self._laws: dict[int, Distribution] = {}

    def run(self, row: NDArray[np.float32]) -> None:
        """Grow level by level from the logits after the sequence."""
        self._leaves_left -= 1
        level = self._branch([ROOT], [row])
        for _ in range(1, min(self._shape.depth, self._want.limit)):
            parents = self._shape.expand(self._nodes, level)
            parents = parents[: self._want.nodes - len(self._nodes)]
            if not parents:
                return
            level = self._branch(parents, self._decode(parents))

    def _branch(self, parents: Sequence[int], rows: Sequence[NDArray[np.float32]]) -> range:
        """Draw the children of nodes of one level; the nodes of the next one."""
        first = len(self._nodes)
        for parent, row in zip(parents, rows, strict=True):
            self._draw(parent, row)
        return range(first, len(self._nodes))

    def _draw(self, parent: int, row: NDArray[np.float32]) -> None:
        """Draw the children of a node."""
        nodes, want = self._nodes, self._want
        path = self._path(parent)
        law = self._follower.law(want, row, path)
        width = self._shape.width(nodes, parent)
        count = min(width, 1 + self._leaves_left, want.nodes - len(nodes))
        if law is None or count < 1:
            return
        tokens = want.chance.children(law, want.position + len(path), count)
        self._leaves_left -= len(tokens) - 1
        if want.keeps_laws:
            self._laws[parent] = law
        values, depth = self._values(parent, law, tokens), len(path) + 1
        for rank, token in enumerate(tokens):
            nodes.append(Node(token, parent, depth, rank, values[rank]))
        self._place(parent, tokens)

    def _place(self, parent: int, tokens: Sequence[int]) -> None:
        """Give new nodes their sequences: the first goes on in its parent's."""
        own = self._want.key if parent == ROOT else self._seqs[parent]
        self._seqs.append(own)
        for _ in range(1, len(tokens)):
            self._seqs.append(self._forked(own))

    def _values(self, parent: int, law: Distribution, tokens: Sequence[int]) -> Sequence[float]:
        """The probabilities of the paths to new nodes; 0 where shapes may not look at them."""
        if self._want.keeps_laws:
            return (0.0,) * len(tokens)
        above = 1.0 if parent == ROOT else self._nodes[parent].value
        return [above * law.prob(token) for token in tokens]

    def _forked(self, own: int) -> int:
        fork = self._spare.pop()
        self._follower.backend.fork(own, fork)
        return fork

    def _path(self, node: int) -> list[int]:
        path: list[int] = []
        while node != ROOT:
            path.append(self._nodes[node].token)
            node = self._nodes[node].parent
        return path[::-1]

    def _decode(self, nodes: Sequence[int]) -> list[NDArray[np.float32]]:
        """Decode nodes of one level, each in its own sequence."""
        before = len(self._want.ids) - 1
        rows = self._follower.backend.decode(
            [self._nodes[node].token for node in nodes],
            [before + self._nodes[node].depth for node in nodes],
            [(self._seqs[node],) for node in nodes],
            [True] * len(nodes),
        )
        for node in nodes:
            if self._seqs[node] == self._want.key:
                self._follower.cache.record(self._want.key, [self._nodes[node].token])
        return rows

    def proposal(self, source: str) -> Proposal:
        """The kept nodes in depth-first order, so that the likeliest path comes first in line."""
        parents = tuple([node.parent for node in self._nodes])
        order = _in_depth(parents, tuple(self._shape.keep(self._nodes, self._want.nodes)))
        kept = [self._nodes[node] for node in order]
        place = dict(zip(order, range(len(order)), strict=True))
        place[ROOT] = ROOT
        keeps = self._want.keeps_laws
        return Proposal(
            tokens=tuple([node.token for node in kept]),
            parents=tuple([place[node.parent] for node in kept]),
            laws=tuple(map(self._laws.get, (ROOT, *order))),
            source=source,
            values=() if keeps else tuple([node.value for node in kept]),
        )


def check_shape(want: Want) -> None:
    """Raise ValueError where a rule reads laws and the shape looks at what was drawn."""
    if want.keeps_laws and not want.shape.chosen_before:
        raise ValueError("This rule reads laws: it needs a shape chosen before the draws.")


@lru_cache(maxsize=SHAPES)
def _in_depth(parents: tuple[int, ...], kept: tuple[int, ...]) -> Sequence[int]:
    """Kept nodes, rising, in depth-first order."""
    below: dict[int, list[int]] = {}
    for node in reversed(kept):
        below.setdefault(parents[node], []).append(node)
    order: list[int] = []
    waiting = below.get(ROOT, [])[:]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += below.get(node, ())
    return order
