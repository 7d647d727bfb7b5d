"""Drafts what the target thought of before: Token Recycling (Luo et al. 2024, arXiv 2408.08696).

Whenever the target has judged a token, its most probable successors are on hand anyway. They are
kept, one short list for every token of the vocabulary, and the lists chain up to a tree of guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.protocol import Drafter, Seen, Want
from specllama.sampling.rows import largest
from specllama.verification.types import ROOT, Proposal

UNKNOWN = -1

CHANCES = (0.36, 0.09, 0.05, 0.04, 0.02, 0.02, 0.013, 0.01)
"""How often the token that really comes is the first, second, ... of the list: 2,700 tokens of
SmolLM2-135M, half of them greedy, half drawn at temperature 0.8."""

WORTH = 0.04
"""A node is drafted when its path, by these chances, comes this often. On the same texts chains
then give 1.34 tokens a round for 2 drafted, trees 1.48 for 4; at 0.01 it is 1.58 for 10."""


class RecycleDrafter(Drafter):
    """Proposes the remembered successors: a chain of first ones, or a small tree.

    What it knows belongs to the target, not to a sequence: it stays from one text to the next.

    Args:
        n_vocab: size of the vocabulary; the memory takes 4 bytes x 8 for each token.
        nodes: the most nodes of a tree.
    """

    name = "recycle"
    learns = True

    def __init__(self, n_vocab: int, nodes: int = 8) -> None:
        self._successors = np.full((n_vocab, len(CHANCES)), UNKNOWN, np.int32)
        self._nodes = nodes

    def observe(self, key: int, seen: Sequence[Seen]) -> None:
        """Replace the successors of each token by what the target thinks of now."""
        for one in seen:
            likely = _falling(one.row, self._successors.shape[1])
            self._successors[one.token, : len(likely)] = likely

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        """Fill the template that fits each want from the lists."""
        return [self._propose(want) for want in wants]

    def _propose(self, want: Want) -> Proposal:
        depth = next((d for d in range(want.limit) if not want.go_on(d, None)), want.limit)
        slots = template(min(want.nodes, self._nodes), depth, min(want.branches, self._nodes))
        tokens: list[int] = []
        parents: list[int] = []
        lists = {ROOT: self._list(want.ids[-1])}
        # a slot without a known token is left out, and so is everything below it
        nodes = {ROOT: ROOT}
        for number, slot in enumerate(slots):
            successors = lists.get(slot.parent)
            if successors is None or successors[slot.rank] == UNKNOWN:
                continue
            nodes[number] = len(tokens)
            parents.append(nodes[slot.parent])
            tokens.append(successors[slot.rank])
            if slot.has_children:
                lists[number] = self._list(tokens[-1])
        return Proposal(tuple(tokens), tuple(parents), (None,) * (len(tokens) + 1), self.name)

    def successors(self, token: int) -> list[int]:
        """What the target last thought of after a token, best first."""
        return [token for token in self._list(token) if token != UNKNOWN]

    def _list(self, token: int) -> list[int]:
        successors: list[int] = self._successors[token].tolist()
        return successors

    def forget(self) -> None:
        """Forget everything."""
        self._successors.fill(UNKNOWN)


@dataclass(frozen=True, slots=True)
class Slot:
    """A node of a template: which successor of its parent it is.

    Attributes:
        parent: index of the parent's slot, ROOT for the first level.
        rank: place in the parent's list, from 0.
    """

    parent: int
    rank: int
    has_children: bool


@lru_cache(maxsize=1024)
def template(nodes: int, depth: int, branches: int) -> tuple[Slot, ...]:
    """The most valuable tree, depth first, so that the likeliest path comes first in line.

    The value of a node is the product of the chances along its path. Adding the most valuable
    node that may be added, again and again, is optimal, since no node is worth more than its parent
    or its elder sibling.

    Args:
        branches: the most leaves beside the first.
    """
    grown: list[tuple[int, int]] = []  # (parent, rank), in the order of their value
    possible = [(-CHANCES[0], 1, ROOT, 0, 1.0)]
    while possible and len(grown) < nodes:
        value, level, parent, rank, above = heappop(possible)
        if -value < WORTH:
            break
        if level > depth or (rank > 0 and branches == 0):
            continue
        branches -= rank > 0
        if rank + 1 < len(CHANCES):
            heappush(possible, (-above * CHANCES[rank + 1], level, parent, rank + 1, above))
        heappush(possible, (value * CHANCES[0], level + 1, len(grown), 0, -value))
        grown.append((parent, rank))
    return _depth_first(grown)


def _depth_first(grown: Sequence[tuple[int, int]]) -> tuple[Slot, ...]:
    order: list[int] = []

    def walk(parent: int) -> None:
        for node, (above, _) in enumerate(grown):
            if above == parent:
                order.append(node)
                walk(node)

    walk(ROOT)
    place = {node: index for index, node in enumerate(order)} | {ROOT: ROOT}
    parents = {parent for parent, _ in grown}
    return tuple(Slot(place[grown[n][0]], grown[n][1], n in parents) for n in order)


def _falling(row: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The most probable tokens, most probable first, ties by lowest id."""
    likely = largest(row, min(count, len(row)))[:count]  # of NaN there may be more
    falling: NDArray[np.int64] = likely[np.argsort(-row[likely], kind="stable")]
    return falling
