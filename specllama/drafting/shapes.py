"""The shapes of draft trees: how many children a node gets, and which nodes are worth a decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

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
