"""Trees for beam search: what a drafter holds to be the next beams, level by level.

A drafter's own beam search starts from the target's live beams and their scores. Its beams are
wider than the target's, because a step of the target needs all of its next beams to be foreseen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from specllama.drafting.follower import Follower
from specllama.drafting.recycle import CHANCES, RecycleDrafter
from specllama.llama.branches import Branches, Node
from specllama.sampling.chain import top_logprobs

Ways = Sequence[tuple[int, float]]
"""What may follow a node: tokens with their log-probabilities, falling."""
Beam = tuple[Node, float]
"""A node and the log-probability of the path to it."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a tree may be: nodes a level, levels, nodes and leaves in all."""

    width: int
    depth: int
    nodes: int
    leaves: int


class BeamDrafter(Protocol):
    """What beam search needs of a drafter.

    Attributes:
        name: for statistics.
        batches: decodes of a draft model so far.
        seconds: spent in them, by all that use the model.
    """

    name: str
    batches: int

    @property
    def seconds(self) -> float: ...

    def ways(self, nodes: Sequence[Node], count: int) -> list[Ways]:
        """At least `count` tokens that may follow each node, none where nothing is known."""

    def close(self) -> None:
        """The search is over."""


def draft_beams(
    drafter: BeamDrafter, live: Sequence[Beam], is_end: Callable[[int], bool], size: Size
) -> list[Node]:
    """The nodes below the live beams that a drafter's beam search passes, parents first."""
    found: list[Node] = []
    level = list(live)
    leaves_left = size.leaves
    for _ in range(size.depth):
        options = []
        known = drafter.ways([node for node, _ in level], size.width)
        for place, ((_, score), ways) in enumerate(zip(level, known, strict=True)):
            options += [(-(score + logp), place, t) for t, logp in ways if not is_end(t)]
        below: list[Beam] = []
        for cost, place, token in sorted(options):
            parent = level[place][0]
            # a first child takes its parent's place as a leaf
            more = int(bool(parent.children) or not found)
            if len(below) < min(size.width, size.nodes - len(found)) and more <= leaves_left:
                leaves_left -= more
                below.append((parent.child(token), -cost))
        level = below
        found += [node for node, _ in level]
        if not level:
            break
    return found


class ModelBeams:
    """A draft model's beams.

    Args:
        ids: the text, its last token being the root.
        spare: sequence ids of its cache for the paths.
    """

    name = "model"

    def __init__(
        self, follower: Follower, key: int, ids: Sequence[int], spare: Sequence[int]
    ) -> None:
        self._follower = follower
        self.batches = 0
        self._known: dict[Node, Ways] = {}
        follower.begin(key, ids)
        follower.read_prompt(key, ids)
        self._can_read = follower.cache.length(key) == len(ids) - 1
        self._branches = Branches(follower.cache, key, spare)

    @property
    def seconds(self) -> float:
        """Seconds in the draft model's calls."""
        return self._follower.backend.seconds

    def ways(self, nodes: Sequence[Node], count: int) -> list[Ways]:
        """The likeliest tokens after each node; one decode for all that is not known yet.

        None for nodes whose path the draft cannot read, or has no room for. The cache then holds
        the paths to these nodes and no others.
        """
        self._branches.keep(nodes)
        self._known = {node: ways for node, ways in self._known.items() if node in self._branches}
        new: dict[Node, None] = {}
        for node in nodes if self._can_read else ():
            path = self._branches.missing(node)
            if self._fits(path, new) and all(self._follower.knows(one.token) for one in path):
                new.update(dict.fromkeys(path))
        if new and self._branches.make_room(len(new)):
            rows = self._branches.decode(list(new))
            self.batches += 1
            for node, row in zip(new, rows, strict=True):
                likely = top_logprobs(self._follower.shared(row), count)
                self._known[node] = [way for way in likely if self._follower.knows(way[0])]
        return [self._known.get(node, ()) for node in nodes]

    def _fits(self, path: Sequence[Node], new: dict[Node, None]) -> bool:
        backend = self._follower.backend
        n_nodes = len(new) + len(path)
        # at worst every node of the batch is a leaf
        return n_nodes <= min(backend.n_batch, backend.n_outputs, self._branches.n_free)

    def close(self) -> None:
        """Leave nothing but the text in the draft's cache."""
        self._branches.close()


class RecycledBeams:
    """Beams out of what the target thought of before (drafting/recycle.py); they cost nothing."""

    name = "recycle"
    batches = 0
    seconds = 0.0

    def __init__(self, drafter: RecycleDrafter) -> None:
        self._drafter = drafter
        self._costs = [math.log(chance) for chance in CHANCES]

    def ways(self, nodes: Sequence[Node], count: int) -> list[Ways]:
        """The remembered successors of each node's token."""
        return [
            list(zip(self._drafter.successors(node.token), self._costs, strict=False))
            for node in nodes
        ]

    def close(self) -> None:
        """Nothing to leave."""
