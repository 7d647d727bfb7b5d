"""A small model of the same vocabulary that drafts a chain, one decode a token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.follower import FollowingDrafter
from specllama.drafting.protocol import Want
from specllama.sampling.distribution import Distribution
from specllama.verification.types import Proposal


class ModelDrafter(FollowingDrafter):
    """Drafts with a model; all wanting sequences share its batches."""

    name = "model"

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        """Catch up with each sequence's ids, then draft for all of them in step."""
        chains = {want.key: _Chain(want) for want in wants}
        eager = [want for want in wants if want.go_on(0, None)]
        live = [
            chains[want.key]
            for want, row in self._follower.read(eager)
            if self._draw(chains[want.key], row)
        ]
        while live:
            rows = self._follower.decode(
                [chain.want.key for chain in live], [chain.tokens[-1:] for chain in live]
            )
            live = [c for c, row in zip(live, rows, strict=True) if self._draw(c, row)]
        return [chains[want.key].proposal(self.name) for want in wants]

    def _draw(self, chain: _Chain, row: NDArray[np.float32]) -> bool:
        """Draw the next token of a chain, if it is worth it; True while the chain goes on."""
        want, drafted = chain.want, len(chain.tokens)
        best = self._follower.best(want, row, chain.tokens)
        if best is not None:
            token, confidence = best
            if not want.go_on(drafted, confidence):
                return False
            chain.tokens.append(token)
        else:
            law = self._follower.law(want, row, chain.tokens)
            if law is None or not want.go_on(drafted, law.highest):
                return False
            chain.tokens += want.chance.children(law, want.position + drafted, 1)
            if want.keeps_laws:
                chain.laws.append(law)
        return drafted + 1 < want.limit and want.go_on(drafted + 1, None)


class _Chain:
    """A chain while it is drafted: its tokens and the laws they came from."""

    __slots__ = ("laws", "tokens", "want")

    def __init__(self, want: Want) -> None:
        self.want = want
        self.tokens: list[int] = []
        self.laws: list[Distribution] = []

    def proposal(self, source: str) -> Proposal:
        laws = self.laws if self.want.keeps_laws else None
        return Proposal.chain(self.tokens, laws, source)
