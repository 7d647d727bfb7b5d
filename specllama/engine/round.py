"""One round: propose, verify, commit.

Plain decoding is this very round with empty proposals. Between rounds the last emitted token is in
neither cache; what a cache lacks of a sequence's ids is *pending* and goes in front of the drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.engine.layout import Layout, lay_out
from specllama.engine.sequence import Sequence as Live
from specllama.llama.cache import TokenCache
from specllama.sampling.distribution import Distribution
from specllama.verification.types import Proposal, Rows, Verdict


@dataclass(frozen=True, slots=True)
class Verified:
    """What a round found out about one sequence.

    Attributes:
        row: the target's logits after a node (ROOT: after the last emitted token), a view.
    """

    live: Live
    proposal: Proposal
    verdict: Verdict
    row: Callable[[int], NDArray[np.float32]]

    @property
    def tokens(self) -> list[int]:
        """The tokens to emit: the accepted path and the one after it."""
        return [*(self.proposal.tokens[n] for n in self.verdict.path), self.verdict.token]


def verify(
    cache: TokenCache, lives: Sequence[Live], proposals: Sequence[Proposal], spare: Sequence[int]
) -> list[Verified]:
    """Check every sequence's proposal in one target batch; the caches keep what was accepted."""
    layouts = _layouts(lives, proposals, spare)
    batch = _Batch()
    for live, proposal, layout in zip(lives, proposals, layouts, strict=True):
        if len(proposal):
            cache.guard(live.key, live.ids[:-1])
        for branch in layout.branches:
            cache.backend.fork(live.key, branch)
        batch.add(live, proposal, layout, cache.length(live.key))
    rows = cache.backend.decode(batch.tokens, batch.positions, batch.sequences, batch.outputs)
    found = []
    for live, proposal, first in zip(lives, proposals, batch.first_rows, strict=True):
        verdict = live.request.rule.verify(
            proposal, _laws(live, proposal, rows, first), live.chance, len(live.ids)
        )
        found.append(Verified(live, proposal, verdict, _row(rows, first)))
    for verified, layout in zip(found, layouts, strict=True):
        _commit(cache, verified, layout)
    return found


def _layouts(
    lives: Sequence[Live], proposals: Sequence[Proposal], spare: Sequence[int]
) -> list[Layout]:
    layouts = []
    for live, proposal in zip(lives, proposals, strict=True):
        layouts.append(lay_out(proposal, live.key, spare))
        spare = spare[len(layouts[-1].branches) :]
    return layouts


class _Batch:
    """The arrays of one decode. `first_rows[i]` is the output row after sequence i's last token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.sequences: list[tuple[int, ...]] = []
        self.outputs: list[bool] = []
        self.first_rows: list[int] = []
        self._n_rows = 0

    def add(self, live: Live, proposal: Proposal, layout: Layout, held: int) -> None:
        """Pending ids first (logits of the last), then the drafted nodes (logits of all)."""
        pending = live.ids[held:]
        self.tokens += pending
        self.positions += range(held, len(live.ids))
        self.sequences += [layout.pending(live.key)] * len(pending)
        self.outputs += [False] * (len(pending) - 1) + [True]
        self.tokens += proposal.tokens
        before = len(live.ids) - 1
        self.positions += [before + depth for depth in proposal.depths()]
        self.sequences += layout.nodes
        self.outputs += [True] * len(proposal)
        self.first_rows.append(self._n_rows)
        self._n_rows += 1 + len(proposal)


def _row(rows: NDArray[np.float32], first: int) -> Callable[[int], NDArray[np.float32]]:
    def row(node: int) -> NDArray[np.float32]:
        result: NDArray[np.float32] = rows[first + 1 + node]
        return result

    return row


def _laws(live: Live, proposal: Proposal, rows: NDArray[np.float32], first: int) -> Rows:
    """The target's laws, each computed once and only when a rule asks for it."""
    known: dict[int, Distribution] = {}

    def law(node: int) -> Distribution:
        if node not in known:
            known[node] = live.law(rows[first + 1 + node], proposal.path(node))
        return known[node]

    return law


def _commit(cache: TokenCache, verified: Verified, layout: Layout) -> None:
    """Keep the cells of the accepted path as far as they lie in line; the rest becomes pending.

    Cells of another branch would leave holes, and holes change the order of llama.cpp's sums:
    decoding those few tokens again keeps the bits of plain decoding (docs/exactness.md).
    """
    live, proposal = verified.live, verified.proposal
    for branch in layout.branches:
        cache.backend.drop(branch)
    cache.record(live.key, live.ids[cache.length(live.key) :])
    own = [node for node, ids in enumerate(layout.nodes) if live.key in ids]
    cache.record(live.key, [proposal.tokens[node] for node in own])
    in_line = 0
    for node, cell in zip(verified.verdict.path, own, strict=False):
        if node != cell or node != in_line:
            break
        in_line += 1
    cache.truncate(live.key, len(live.ids) + in_line)
