"""A tree whose draft model is itself drafted for: the tree of staged speculative decoding (Spector
and Re 2023).

Guessers without a model propose a tree of what the draft model might draw; the draft model reads
it in one batch with what is pending. Then the tree grows as ever, level by level and drawn from the
draft model's laws: a node that was guessed has its logits already, only the others are decoded. To
the target's rule nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.follower import Follower
from specllama.drafting.protocol import Drafter, Seen, Want
from specllama.drafting.staged import GuessedDrafter
from specllama.drafting.tree import Growth, check_shape
from specllama.results import SourceStats, SpecStats
from specllama.verification.types import ROOT, Proposal

_GUESSES = 8
"""The most guessed nodes: each is one more token of the draft's batch."""

Path = tuple[int, ...]


class StagedTreeDrafter(GuessedDrafter):
    """Drafts trees with a model that reads ahead what guessers foresee.

    Args:
        first_branch: sequence ids of the draft's cache from here on are the tree's.
    """

    name = "staged-tree"
    trees = True

    def __init__(self, follower: Follower, first_branch: int, guessers: Sequence[Drafter]) -> None:
        super().__init__(follower, guessers)
        self._first_branch = first_branch

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        """A tree for each sequence, one after the other."""
        return [self._propose(want) for want in wants]

    def _propose(self, want: Want) -> Proposal:
        check_shape(want)
        backend = self._follower.backend
        able = self._follower.able([want], backend.n_batch // 2)
        guesses = next((n for n in (_GUESSES, 0) if able and self._has_room(want, n)), None)
        if guesses is None:
            return Proposal()
        spare = list(range(self._first_branch, backend.n_seq))
        try:
            growth = self._read_ahead(want, spare[:], guesses)
            growth.run(growth.ahead[()].row)
        finally:
            for seq in spare:
                backend.drop(seq)
        self._teach(want.key, growth.seen)
        _count(self.stages.setdefault(want.key, SpecStats()), growth)
        return growth.proposal(self.name)

    def _has_room(self, want: Want, guesses: int) -> bool:
        """Whether the tree fits behind what is pending, beside so many guesses."""
        cache = self._follower.cache
        pending = len(want.ids) - cache.length(want.key)
        return cache.make_room(pending + guesses + want.nodes, (want.key,))

    def _read_ahead(self, want: Want, spare: list[int], guesses: int) -> AheadGrowth:
        """Decode what is pending and the guesses, each path of them in a sequence of its own."""
        cache, backend = self._follower.cache, self._follower.backend
        held = cache.length(want.key)
        pending = want.ids[held:]
        guess = self._guess(want, len(spare) // 2, guesses)
        leaves = [node for node in range(len(guess)) if node not in guess.parents]
        homes = [want.key, *(spare.pop() for _ in leaves[1:])]
        nodes: list[list[int]] = [[] for _ in guess.tokens]
        for leaf, home in zip(leaves, homes, strict=False):
            while leaf != ROOT:
                nodes[leaf].append(home)
                leaf = guess.parents[leaf]
        for home in homes[1:]:
            backend.fork(want.key, home)
        before = len(want.ids) - 1
        rows = backend.decode(
            [*pending, *guess.tokens],
            [*range(held, len(want.ids)), *(before + depth for depth in guess.depths())],
            [tuple(homes)] * len(pending) + [tuple(ids) for ids in nodes],
            [False] * (len(pending) - 1) + [True] * (1 + len(guess)),
        )
        own = [guess.tokens[n] for n, ids in enumerate(nodes) if want.key in ids]
        cache.record(want.key, [*pending, *own])
        # the next decode overwrites the rows
        ahead: dict[Path, _Read] = {(): _Read(rows[0].copy(), want.key)}
        for node, ids in enumerate(nodes):
            ahead[tuple(guess.path(node))] = _Read(rows[1 + node].copy(), ids[0])
        branches = min(want.branches, len(spare) - 1)  # the first leaf is in a fork as well
        return AheadGrowth(self._follower, want, spare, branches, guess, ahead)

    def _guess(self, want: Want, branches: int, guesses: int) -> Proposal:
        """A guessed tree; none where the draft's memory cannot give parts of it up."""
        backend = self._follower.backend
        pending = len(want.ids) - self._follower.cache.length(want.key)
        most = min(guesses, backend.n_batch - pending, backend.n_outputs - 1)
        limit = min(want.limit, want.shape.depth) - 1
        if backend.rollback != "free" or min(most, limit) < 1:
            return Proposal()
        return self._guessed(
            replace(
                want,
                limit=min(limit, most),
                nodes=most,
                branches=branches,
                keeps_laws=False,
                go_on=lambda drafted, confidence: True,
            )
        )


@dataclass(frozen=True, slots=True)
class _Read:
    """The logits after a path that was read, and a sequence that holds it (and maybe more)."""

    row: NDArray[np.float32]
    seq: int


class AheadGrowth(Growth):
    """A tree while it grows; it decodes only nodes that were not read ahead.

    Attributes:
        guess: the guessed tree.
        ahead: what was read, by the drafted path; () is the end of the sequence.
        seen: each token that was asked about, and the draft model's logits after it.
        decodes, hits: batches of the draft model; nodes that had been read ahead.
    """

    def __init__(
        self,
        follower: Follower,
        want: Want,
        spare: list[int],
        branches: int,
        guess: Proposal,
        ahead: dict[Path, _Read],
    ) -> None:
        super().__init__(follower, want, spare, branches)
        self.guess = guess
        self.ahead = ahead
        self.seen = [Seen(want.ids[-1], ahead[()].row)]
        self.decodes = 1
        self.hits: list[Path] = []
        # of each sequence opened here, how many of its tokens are drafted ones
        self._depths: dict[int, int] = {}

    def _place(self, parent: int, tokens: Sequence[int]) -> None:
        """A node gets a sequence when it has to be decoded."""

    def _decode(self, nodes: Sequence[int]) -> list[NDArray[np.float32]]:
        """The logits after each node, from what was read ahead or from one decode."""
        paths = [tuple(self._path(node)) for node in nodes]
        missing = [path for path in paths if path not in self.ahead]
        self.hits += [path for path in paths if path in self.ahead]
        if missing:
            before = len(self._want.ids) - 1
            seqs = [self._open(path) for path in missing]
            rows = self._follower.backend.decode(
                [path[-1] for path in missing],
                [before + len(path) for path in missing],
                [(seq,) for seq in seqs],
                [True] * len(missing),
            )
            self.decodes += 1
            for path, seq, row in zip(missing, seqs, rows, strict=True):
                self.ahead[path] = _Read(row.copy(), seq)
        self.seen += [Seen(path[-1], self.ahead[path].row) for path in paths]
        return [self.ahead[path].row for path in paths]

    def _open(self, path: Path) -> int:
        """A sequence that holds all of a path but its last token."""
        source, held = self.ahead[path[:-1]].seq, len(path) - 1
        if self._depths.get(source) == held:
            # decoded here, and nothing follows it yet
            self._depths[source] = len(path)
            return source
        fork = self._forked(source)
        self._follower.backend.truncate(fork, len(self._want.ids) + held)
        self._depths[fork] = len(path)
        return fork


def _count(stats: SpecStats, growth: AheadGrowth) -> None:
    """Add one tree to the statistics of the draft model's own speculation."""
    guess, hits = growth.guess, set(growth.hits)
    stats.rounds += growth.decodes
    if not len(guess):
        return
    source = stats.by_source.setdefault(guess.source, SourceStats())
    depths = guess.depths()
    stats.by_depth += [SourceStats() for _ in range(max(depths) - len(stats.by_depth))]
    for node, depth in enumerate(depths):
        path = tuple(guess.path(node))
        for part in (stats, source, stats.by_depth[depth - 1]):
            part.drafted += 1
            part.tested += depth == 1 or path[:-1] in hits
            part.accepted += path in hits
