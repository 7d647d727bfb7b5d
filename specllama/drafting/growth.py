"""Proposals out of a law that costs no model: a chain, or a tree that grows where it is likeliest.

For drafters that can say, at any place, which tokens may follow and how probably. Tokens are chosen
without chance, so the nodes carry no laws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar

from specllama.drafting.protocol import Want
from specllama.verification.types import ROOT, Proposal

S = TypeVar("S")
Ways = Sequence[tuple[int, float, S]]
"""What may follow: (token, its probability, the place behind it), likeliest first."""


@dataclass(frozen=True, slots=True)
class Growth(Generic[S]):
    """How proposals grow.

    Attributes:
        source: name of the drafter.
        ways: what may follow a place.
        is_end: tokens that end a turn; nothing is drafted from there on.
        least: the least probability of a path for its last token to be drafted.
        nodes: the most nodes of a tree.
    """

    source: str
    ways: Callable[[S], Ways[S]]
    is_end: Callable[[int], bool]
    least: float
    nodes: int

    def propose(self, want: Want, place: S, limit: int) -> Proposal:
        """A tree where branches are allowed and the rule reads no laws, else a chain.

        Args:
            place: where the sequence ends.
            limit: the most tokens in a row.
        """
        if want.branches > 0 and not want.keeps_laws:
            return self._tree(want, place, limit)
        return self._chain(want, place, limit)

    def _chain(self, want: Want, place: S, limit: int) -> Proposal:
        tokens: list[int] = []
        value = 1.0
        while len(tokens) < limit:
            ways = self.ways(place)
            if not ways:
                break
            token, prob, place = ways[0]
            value *= prob
            if value < self.least or self.is_end(token) or not want.go_on(len(tokens), prob):
                break
            tokens.append(token)
        return Proposal.chain(tokens, source=self.source)

    def _tree(self, want: Want, place: S, limit: int) -> Proposal:
        """The likeliest paths first, as SuffixDecoding and EAGLE-2 expand theirs."""
        if not want.go_on(0, None):
            return Proposal()
        tree = _Tree(1 + want.branches)
        most = min(self.nodes, want.nodes)
        heap: list[tuple[float, int, int, int, S]] = []
        serial = self._push(heap, 0, ROOT, 1.0, place)
        while heap and len(tree.tokens) < most:
            loss, _, parent, token, place = heappop(heap)
            if not tree.has_room_below(parent) or self.is_end(token):
                continue
            node = tree.add(token, parent, -loss)
            if tree.depths[node] < limit:
                serial = self._push(heap, serial, node, -loss, place)
        return tree.proposal(self.source)

    def _push(
        self,
        heap: list[tuple[float, int, int, int, S]],
        serial: int,
        node: int,
        value: float,
        place: S,
    ) -> int:
        """Offer what may follow a node; the serial number settles ties."""
        for token, prob, after in self.ways(place):
            if value * prob >= self.least:
                serial += 1
                heappush(heap, (-value * prob, serial, node, token, after))
        return serial


@dataclass(slots=True)
class _Tree:
    """A tree while it grows; nodes of one parent are added best first."""

    leaves_left: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    children: dict[int, list[int]] = field(default_factory=lambda: {ROOT: []})

    def has_room_below(self, parent: int) -> bool:
        """A first child takes its parent's place as a leaf; at the root and beside it, one more."""
        return self.leaves_left > 0 or (parent != ROOT and not self.children[parent])

    def add(self, token: int, parent: int, value: float) -> int:
        if parent == ROOT or self.children[parent]:
            self.leaves_left -= 1
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.values.append(value)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        self.children[parent].append(node)
        self.children[node] = []
        return node

    def proposal(self, source: str) -> Proposal:
        """Depth first, so that the likeliest path comes first in line."""
        order: list[int] = []
        waiting = self.children[ROOT][::-1]
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting += self.children[node][::-1]
        at = {node: index for index, node in enumerate(order)} | {ROOT: ROOT}
        return Proposal(
            tokens=tuple(self.tokens[node] for node in order),
            parents=tuple(at[self.parents[node]] for node in order),
            laws=(None,) * (1 + len(order)),
            source=source,
            values=tuple(self.values[node] for node in order),
        )
