"""A tree of continuations of one text in a KV cache: paths that share what they have in common.

A path is a chain of nodes below the text's last token (the root). Each path in the cache has a
sequence id that holds all of it, the text included; cells are shared through forks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.llama.cache import TokenCache


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A token on a path.

    Attributes:
        depth: tokens below the root; 0 is the root, the last token of the text.
        children: the nodes right below, by token.
    """

    token: int
    parent: Node | None
    depth: int
    children: dict[int, Node]

    @classmethod
    def root(cls, token: int) -> Node:
        """The last token of a text."""
        return cls(token, None, 0, {})

    def child(self, token: int) -> Node:
        """The node of a token right below; there is one for each."""
        if token not in self.children:
            self.children[token] = Node(token, self, self.depth + 1, {})
        return self.children[token]

    def path(self) -> list[int]:
        """The tokens from below the root down to this one."""
        tokens: list[int] = []
        node = self
        while node.parent is not None:
            tokens.append(node.token)
            node = node.parent
        return tokens[::-1]


class Branches:
    """Which nodes a cache holds.

    Args:
        key: a sequence that holds the text before the root, and nothing else.
        spare: sequence ids for the paths.
        in_order: put every token behind all earlier ones, never into the cell of a dropped one, as
            long as there is room. The order of cells along a path is then that of its tokens, and
            so are llama.cpp's sums: the same bits whatever else was decoded (docs/exactness.md).

    Attributes:
        n_before: tokens before the root.
    """

    def __init__(
        self, cache: TokenCache, key: int, spare: Sequence[int], *, in_order: bool = False
    ) -> None:
        self._cache = cache
        self._backend = cache.backend
        self._key = key
        # whatever was decoded stays with one of the ids, so that its cells are not used again
        self._attic = spare[0] if in_order else None
        self._spare = spare[in_order:]
        self._free = list(self._spare)
        self._n_cells = 0
        self._homes: dict[Node, int] = {}
        self.n_before = cache.length(key)

    def __contains__(self, node: Node) -> bool:
        return node in self._homes

    @property
    def n_free(self) -> int:
        """How many more paths there may be."""
        return len(self._free)

    def missing(self, node: Node) -> list[Node]:
        """The nodes of a path that are not held, from the top."""
        nodes: list[Node] = []
        here: Node | None = node
        while here is not None and here not in self._homes:
            nodes.append(here)
            here = here.parent
        return nodes[::-1]

    def make_room(self, n_nodes: int) -> bool:
        """Whether so many nodes fit beside those that are held; idle sequences give way."""
        if self._cache.make_room(self._n_cells + n_nodes, (self._key,)):
            return True
        self._clear_attic()
        return self._cache.make_room(self._n_cells + n_nodes, (self._key,))

    def _clear_attic(self) -> None:
        if self._attic is not None:
            self._backend.drop(self._attic)
        self._n_cells = len(self._homes)

    def decode(self, nodes: Sequence[Node]) -> list[NDArray[np.float32]]:
        """Put nodes into the cache and get the logits after each.

        Args:
            nodes: parents before children; every parent is held or among them. Each leaf takes a
                free id.

        Returns:
            float32 [n_vocab] for each node, views as `Backend.decode` gives them.
        """
        inner = {node.parent for node in nodes}
        ids: dict[Node, list[int]] = {node: [] for node in nodes}
        for leaf in nodes:
            if leaf not in inner:
                self._fork_for(leaf, ids)
        rows = self._backend.decode(
            [node.token for node in nodes],
            [self.n_before + node.depth for node in nodes],
            [tuple(ids[node]) for node in nodes],
            [True] * len(nodes),
        )
        self._homes.update((node, ids[node][0]) for node in nodes)
        self._n_cells += len(nodes)
        return rows

    def _fork_for(self, leaf: Node, ids: dict[Node, list[int]]) -> None:
        """Give a path a sequence id, which holds what of it is in the cache."""
        fresh = self._free.pop()
        node: Node | None = leaf
        while node is not None and node in ids:
            ids[node].append(fresh)
            node = node.parent
        self._backend.fork(self._key if node is None else self._homes[node], fresh)
        self._backend.truncate(fresh, self.n_before + (0 if node is None else node.depth + 1))

    def keep(self, tips: Sequence[Node]) -> None:
        """Hold nothing but the paths down to these nodes, as far as they are held."""
        used = [seq for seq in self._spare if seq not in self._free]
        if self._attic is not None:
            for seq in used:
                self._backend.retain(seq, self._attic)
        homes: dict[Node, int] = {}
        lowest = map(self._lowest_held, tips)
        held = {node for node in lowest if node is not None}
        for tip in sorted(held, key=lambda node: -node.depth):
            if tip in homes:
                continue
            home = self._homes[tip]
            self._backend.truncate(home, self.n_before + tip.depth + 1)
            node: Node | None = tip
            while node is not None and node not in homes:
                homes[node] = home
                node = node.parent
        kept = set(homes.values())
        for seq in used:
            if seq not in kept:
                self._backend.drop(seq)
        self._homes = homes
        self._free = [seq for seq in self._spare if seq not in kept]
        if self._attic is None:
            self._n_cells = len(homes)

    def _lowest_held(self, node: Node) -> Node | None:
        here: Node | None = node
        while here is not None and here not in self._homes:
            here = here.parent
        return here

    def close(self) -> None:
        """Leave nothing but the text; also after a decode that was broken off."""
        for seq in self._spare:
            self._backend.drop(seq)
        self._homes = {}
        self._free = list(self._spare)
        self._clear_attic()
