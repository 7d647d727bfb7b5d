"""A proposal tree as a batch: which sequence ids each node belongs to.

A chain lives in its sequence's own id. In a tree every leaf needs an id of its own; a node carries
the ids of all leaves below it, so that each branch sees its own ancestors and nobody else's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from specllama.verification.types import ROOT, SHAPES, Proposal


@dataclass(frozen=True, slots=True)
class Layout:
    """Sequence ids of a proposal.

    Attributes:
        nodes: per node, the ids it belongs to.
        branches: ids besides the sequence's own, each to be forked from it before the decode.
    """

    nodes: list[tuple[int, ...]]
    branches: tuple[int, ...]

    def pending(self, key: int) -> tuple[int, ...]:
        """Ids of a token above the whole tree."""
        return (key, *self.branches)


_NOTHING = Layout([], ())


def lay_out(proposal: Proposal, key: int, spare: Sequence[int]) -> Layout:
    """Give every leaf an id: the sequence's own to the first, then spare ones.

    Raises:
        ValueError: more leaves than ids (a drafter's limit is set so that this cannot happen).
    """
    if not len(proposal):
        return _NOTHING
    n_leaves = len(_leaves(proposal.parents))
    if n_leaves > 1 + len(spare):
        raise ValueError(f"A tree with {n_leaves} leaves; there are {1 + len(spare)} ids.")
    return _laid_out(proposal.parents, key, tuple(spare[: n_leaves - 1]))


@lru_cache(maxsize=SHAPES)
def _leaves(parents: tuple[int, ...]) -> Sequence[int]:
    inner = set(parents)
    return [node for node in range(len(parents)) if node not in inner]


@lru_cache(maxsize=SHAPES)
def _laid_out(parents: tuple[int, ...], key: int, branches: tuple[int, ...]) -> Layout:
    ids: list[list[int]] = [[] for _ in parents]
    for leaf, seq in zip(_leaves(parents), (key, *branches), strict=True):
        node = leaf
        while node != ROOT:
            ids[node].append(seq)
            node = parents[node]
    return Layout(list(map(tuple, ids)), branches)
