"""One round: propose, verify, commit.

Plain decoding is this very round with empty proposals. Between rounds the last emitted token is in
neither cache; what a cache lacks of a sequence's ids is *pending* and goes in front of the drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specllama.drafting.protocol import Seen
from specllama.engine.layout import Layout, lay_out
from specllama.engine.sequence import Sequence as Live
from specllama.llama.cache import TokenCache
from specllama.sampling.distribution import Distribution
from specllama.sampling.rows import Row
from specllama.scheduling.acceptance import Step
from specllama.verification.types import ROOT, Proposal, Rows, Verdict

Meanwhile = Callable[[], None] | None
"""See `Backend.decode`."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What a round found out about one sequence.

    Attributes:
        last: the last emitted token before this round.
        row: the target's logits after a node (ROOT: after the last emitted token), a view.
    """

    live: Live
    proposal: Proposal
    verdict: Verdict
    last: int
    row: Callable[[int], Row]

    @property
    def tokens(self) -> list[int]:
        """The tokens to emit: the accepted path and the one after it."""
        return [*map(self.proposal.tokens.__getitem__, self.verdict.path), self.verdict.token]

    def steps(self) -> list[Step]:
        """Per tested depth, which of how many children was accepted."""
        steps: list[Step] = []
        parent = ROOT
        for node in self.verdict.path:
            siblings = self.proposal.children(parent)
            steps.append(Step(siblings.index(node), len(siblings)))
            parent = node
        refused = len(self.proposal.children(parent))
        return [*steps, Step(None, refused)] if self.verdict.tested > len(steps) else steps

    def seen(self) -> list[Seen]:
        """The target's rows along the accepted path, from the last emitted token on."""
        nodes = [ROOT, *self.verdict.path]
        tokens = [self.last, *(self.proposal.tokens[node] for node in self.verdict.path)]
        return [Seen(t, self.row(node)) for t, node in zip(tokens, nodes, strict=True)]


def verify(
    cache: TokenCache,
    lives: Sequence[Live],
    proposals: Sequence[Proposal],
    spare: Sequence[int],
    *,
    size: int = 0,
    linear: bool,
    meanwhile: Meanwhile = None,
) -> tuple[list[Verified], int]:
    """Check every sequence's proposal in one target batch; the caches keep what was accepted.

    Args:
        spare: sequence ids for the branches of trees.
        size: fill the batch up to so many tokens, where there is room: devices that replay captured
            graphs are faster at a size they have just had.
        linear: keep only cells that lie in line, as plain decoding would have laid them.
        meanwhile: done while the target is at work.

    Returns:
        What was found out per sequence, and the tokens of the batch.
    """
    if not size and not any(map(len, proposals)):
        return _drawn(cache, lives, proposals, meanwhile)
    layouts = _layouts(lives, proposals, spare)
    batch = _Batch()
    for live, proposal, layout in zip(lives, proposals, layouts, strict=True):
        if len(proposal):
            cache.guard(live.key, live.ids[:-1])
        for branch in layout.branches:
            cache.backend.fork(live.key, branch)
        batch.add(live, proposal, layout, cache.length(live.key))
    n_tokens = len(batch.tokens)
    if size > n_tokens and _fits(cache, size, batch.positions[-1] + size - n_tokens):
        batch.fill_up(size)
    rows = batch.decode(cache, meanwhile)
    if len(batch.tokens) > n_tokens:
        cache.backend.truncate(batch.sequences[-1][0], batch.positions[n_tokens])
    found = []
    for live, proposal, first in zip(lives, proposals, batch.first_rows, strict=True):
        verdict = live.request.rule.verify(
            proposal, _laws(live, proposal, rows, first), live.chance, len(live.ids)
        )
        found.append(Verified(live, proposal, verdict, live.ids[-1], _row(rows, first)))
    for verified, layout in zip(found, layouts, strict=True):
        _commit(cache, verified, layout, linear)
    return found, len(batch.tokens)


def next_rows(cache: TokenCache, lives: Sequence[Live], meanwhile: Meanwhile = None) -> list[Row]:
    """The target's logits after each sequence's last token: a round where nobody drafts.

    It is `verify` without proposals, whose machinery costs as much as all the rest then.

    Returns:
        float32 [n_vocab] for each, views that are valid until the next decode.
    """
    batch = _Batch()
    for live in lives:
        batch.add_pending(live.ids, cache.length(live.key), (live.key,))
    rows = batch.decode(cache, meanwhile)
    for live in lives:
        cache.record(live.key, live.ids[cache.length(live.key) :])
    return rows


def _drawn(
    cache: TokenCache,
    lives: Sequence[Live],
    proposals: Sequence[Proposal],
    meanwhile: Meanwhile,
) -> tuple[list[Verified], int]:
    """`verify` where there happens to be nothing to verify."""
    n_tokens = sum(len(live.ids) - cache.length(live.key) for live in lives)
    rows = next_rows(cache, lives, meanwhile)
    found = []
    for index, (live, proposal) in enumerate(zip(lives, proposals, strict=True)):
        verdict = Verdict((), next_token(live, rows[index]), 0)
        found.append(Verified(live, proposal, verdict, live.ids[-1], _row(rows, index)))
    return found, n_tokens


def next_token(live: Live, row: Row) -> int:
    """What every rule makes of an empty proposal: one draw from the law of the row."""
    token: int = live.chance.pick(live.law(row, ()), len(live.ids))
    return token


def _layouts(
    lives: Sequence[Live], proposals: Sequence[Proposal], spare: Sequence[int]
) -> list[Layout]:
    layouts = []
    for live, proposal in zip(lives, proposals, strict=True):
        layouts.append(lay_out(proposal, live.key, spare))
        spare = spare[len(layouts[-1].branches) :]
    return layouts


def _fits(cache: TokenCache, size: int, last: int) -> bool:
    """Whether a batch of that size, all logits wanted, can be decoded without giving way.

    Args:
        last: the position of its last token.
    """
    backend = cache.backend
    room = min(backend.n_batch, backend.n_outputs, backend.n_ctx - cache.n_cells)
    return backend.rollback == "free" and size <= room and last < backend.n_ctx_seq


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
        self.add_pending(live.ids, held, layout.pending(live.key))
        self.first_rows.append(self._n_rows)
        self._n_rows += 1 + len(proposal)
        if len(proposal):
            self.tokens += proposal.tokens
            before = len(live.ids) - 1
            self.positions += [before + depth for depth in proposal.depths()]
            self.sequences += layout.nodes
            self.outputs += [True] * len(proposal)

    def add_pending(self, ids: Sequence[int], held: int, sequences: tuple[int, ...]) -> None:
        """The ids behind the first `held`; logits of the last."""
        pending = ids[held:]
        self.tokens += pending
        self.positions += range(held, len(ids))
        self.sequences += [sequences] * len(pending)
        self.outputs += [False] * (len(pending) - 1) + [True]

    def decode(self, cache: TokenCache, meanwhile: Meanwhile) -> list[Row]:
        """Logits of the wanted tokens."""
        return cache.backend.decode(
            self.tokens, self.positions, self.sequences, self.outputs, meanwhile
        )

    def fill_up(self, size: int) -> None:
        """Add tokens that mean nothing behind the last one, up to `size` in all.

        A sequence of their own would make another graph, which llama.cpp had to build each time.
        """
        extra, start = size - len(self.tokens), self.positions[-1] + 1
        self.tokens += [0] * extra
        self.positions += range(start, start + extra)
        self.sequences += [self.sequences[-1][:1]] * extra
        self.outputs += [True] * extra


def _row(rows: list[Row], first: int) -> Callable[[int], Row]:
    def row(node: int) -> Row:
        return rows[first + 1 + node]

    return row


def _laws(live: Live, proposal: Proposal, rows: list[Row], first: int) -> Rows:
    """The target's laws, each computed once and only when a rule asks for it."""
    known: dict[int, Distribution] = {}

    def law(node: int) -> Distribution:
        if node not in known:
            known[node] = live.law(rows[first + 1 + node], proposal.path(node))
        return known[node]

    return law


def _commit(cache: TokenCache, verified: Verified, layout: Layout, linear: bool) -> None:
    """Keep the cells of the accepted path and drop the rest of the tree.

    Another branch's cells leave holes, and holes change the order of llama.cpp's sums. In linear
    mode those few tokens become pending instead: decoding them again keeps the bits of plain
    decoding (docs/exactness.md).
    """
    live, proposal, path = verified.live, verified.proposal, verified.verdict.path
    cache.record(live.key, live.ids[cache.length(live.key) :])
    if not len(proposal):
        return
    home = live.key
    if path and not linear and live.key not in layout.nodes[path[-1]]:
        home = layout.nodes[path[-1]][0]
        cache.backend.adopt(home, live.key, len(live.ids))
    branch = [node for node, ids in enumerate(layout.nodes) if home in ids]
    cache.record(live.key, [proposal.tokens[node] for node in branch])
    for spare in layout.branches:
        cache.backend.drop(spare)
    kept = _in_line(path, branch) if linear else len(path)
    cache.truncate(live.key, len(live.ids) + kept)


def _in_line(path: Sequence[int], branch: Sequence[int]) -> int:
    """How many of the first accepted nodes are both on the branch and first in the batch."""
    for n, (accepted, cell) in enumerate(zip(path, branch, strict=False)):
        if not accepted == cell == n:
            return n
    return min(len(path), len(branch))
