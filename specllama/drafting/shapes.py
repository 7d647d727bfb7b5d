"""The shapes of draft trees: how many children a node gets, and which nodes are worth a decode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol, TypeAlias

from specllama.verification.types import ROOT


@dataclass(slots=True)
class Node:
    """A drafted token.

    Attributes:
        token, parent, depth: see `verification.types.Proposal`; the first level has depth 1.
        rank: its place among its siblings, best first, from 0.
        value: the draft's probability of the whole path.
    """

    token: int
    parent: int
    depth: int
    rank: int
    value: float


class Shape(Protocol):
    """How a tree grows, level by level."""

    @property
    def depth(self) -> int:
        """The most levels."""

    @property
    def chosen_before(self) -> bool:
        """Which nodes there are does not depend on the tokens drawn, so that the shape may be used
        with rules that read laws."""

    def width(self, nodes: Sequence[Node], node: int) -> int:
        """How many children to draw below a node (ROOT: the first level)."""

    def expand(self, nodes: Sequence[Node], level: Sequence[int]) -> list[int]:
        """Which nodes of a level to decode, so that they can have children."""

    def keep(self, nodes: Sequence[Node], room: int) -> list[int]:
        """Which nodes to propose, at most `room`; with every node its parent."""


@dataclass(frozen=True, slots=True)
class FixedShape:
    """The same number of children for all nodes of a level: `widths=(2, 2, 1)` has 10 nodes."""

    widths: tuple[int, ...]
    chosen_before: bool = field(default=True, init=False)

    @property
    def depth(self) -> int:
        """Levels."""
        return len(self.widths)

    def width(self, nodes: Sequence[Node], node: int) -> int:
        """The width of the level below."""
        return self.widths[0 if node == ROOT else nodes[node].depth]

    def expand(self, nodes: Sequence[Node], level: Sequence[int]) -> list[int]:
        """All of them."""
        return list(level)

    def keep(self, nodes: Sequence[Node], room: int) -> list[int]:
        """The first ones; levels come in order, so parents do too."""
        return list(range(min(room, len(nodes))))


@dataclass(frozen=True, slots=True)
class ValueShape:
    """EAGLE-2's dynamic tree (Li et al. 2024): grow by the path's probability, keep the best.

    Each level, the `width` most valuable nodes are decoded and get `width` children; in the end the
    `nodes` most valuable ones stay. Values fall along a path, so parents stay with their children.
    """

    nodes: int
    width_: int
    depth: int
    chosen_before: bool = field(default=False, init=False)

    def width(self, nodes: Sequence[Node], node: int) -> int:
        """The same everywhere."""
        return self.width_

    def expand(self, nodes: Sequence[Node], level: Sequence[int]) -> list[int]:
        """The most valuable ones."""
        return sorted(level, key=lambda node: -nodes[node].value)[: self.width_]

    def keep(self, nodes: Sequence[Node], room: int) -> list[int]:
        """The most valuable ones; of equals, those nearer to the root."""
        order = sorted(range(len(nodes)), key=lambda node: (-nodes[node].value, node))
        return sorted(order[: min(room, self.nodes)])


Topology: TypeAlias = "tuple[Topology, ...]"
"""A planned tree without tokens: the trees below the children of a node, by rank."""


@dataclass(frozen=True, slots=True)
class PlannedShape:
    """A tree planned from measurements before anything is drawn (`plan`)."""

    topology: Topology
    chosen_before: bool = field(default=True, init=False)

    @property
    def depth(self) -> int:
        """Levels."""
        return _depth(self.topology)

    def width(self, nodes: Sequence[Node], node: int) -> int:
        """As planned for a node of these ranks."""
        return len(self._planned(nodes, node))

    def expand(self, nodes: Sequence[Node], level: Sequence[int]) -> list[int]:
        """Those with children in the plan."""
        return [node for node in level if self._planned(nodes, node)]

    def keep(self, nodes: Sequence[Node], room: int) -> list[int]:
        """The first ones; levels come in order, so parents do too."""
        return list(range(min(room, len(nodes))))

    def _planned(self, nodes: Sequence[Node], node: int) -> Topology:
        if node == ROOT:
            return self.topology
        return self._planned(nodes, nodes[node].parent)[nodes[node].rank]


def plan(
    acceptance: Sequence[float],
    nodes: int,
    depth: int,
    batch_cost: Callable[[int], float],
    level_cost: float,
) -> Topology:
    """The tree that emits the most tokens per second (Sequoia, Chen et al. 2024).

    A node is taken to be emitted with the product of the acceptances on its path, whatever its
    tokens; dynamic programming finds the best tree for each number of nodes and levels.

    Args:
        acceptance: per rank, the probability that this child is the accepted one.
        nodes, depth: the most nodes and levels.
        batch_cost: tokens -> seconds of a target batch, for 1 to 1 + `nodes` tokens.
        level_cost: seconds to draft one level.

    Returns:
        The topology, empty where plain decoding is fastest; of equals, the shallowest.
    """
    best = _best_forests(tuple(acceptance))
    fastest, chosen = 0.0, (0, 0)
    for levels in range(depth + 1):
        for size in range(nodes + 1):
            seconds = levels * level_cost + batch_cost(1 + size)
            rate = (1.0 + best(size, levels, 0)[0]) / seconds
            if rate > fastest:
                fastest, chosen = rate, (size, levels)
    return _built(best, *chosen, rank=0)


_Forests: TypeAlias = Callable[[int, int, int], tuple[float, int]]


def _best_forests(acceptance: tuple[float, ...]) -> _Forests:
    """(size, levels, rank) -> expected tokens of the best forest, and the size of its first tree.

    The forest hangs below one node: children from `rank` on, `size` nodes in at most `levels`
    levels; -inf where there is none.
    """

    @cache
    def best(size: int, levels: int, rank: int) -> tuple[float, int]:
        if size == 0:
            return 0.0, 0
        if levels == 0 or rank == len(acceptance):
            return -math.inf, 0
        return max(
            (acceptance[rank] * (1.0 + below) + best(size - first, levels, rank + 1)[0], first)
            for first in range(1, size + 1)
            if (below := best(first - 1, levels - 1, 0)[0]) > -math.inf
        )

    return best


def _built(best: _Forests, size: int, levels: int, rank: int) -> Topology:
    if size == 0:
        return ()
    first = best(size, levels, rank)[1]
    tree = _built(best, first - 1, levels - 1, 0)
    return (tree, *_built(best, size - first, levels, rank + 1))


def _depth(topology: Topology) -> int:
    return 1 + max(map(_depth, topology)) if topology else 0
