"""A small model of the same vocabulary that drafts a chain, one decode a token.

Where the target works on its own (a GPU), the draft goes on while a proposal is being verified: it
guesses that everything is accepted, and what comes then (post-verify of PEARL, Liu et al. 2024,
arXiv 2408.11850). Where it was right, the next proposal is there at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.follower import Follower, FollowingDrafter
from specllama.drafting.protocol import Want
from specllama.sampling.distribution import Distribution
from specllama.verification.types import Proposal


class ModelDrafter(FollowingDrafter):
    """Drafts with a model; all wanting sequences share its batches."""

    name = "model"

    def __init__(self, follower: Follower) -> None:
        super().__init__(follower)
        self._chains: dict[int, _Chain] = {}
        self.runs_ahead = follower.backend.rollback == "free"

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        """Catch up with each sequence's ids, then draft for all of them in step."""
        resumed: list[Want] = []
        chains = [self._begin(want, resumed) for want in wants]
        eager = [chain for chain in chains if chain.want.go_on(0, None)]
        live = [chain for chain in eager if chain.drawn and chain.use_drawn()]
        fresh = {chain.want.key: chain for chain in eager if not chain.drawn}
        for want, row in self._follower.read([chain.want for chain in fresh.values()], resumed):
            if self._draw(fresh[want.key], row):
                live.append(fresh[want.key])
        while live:
            rows = self._decode(live)
            live = [c for c, row in zip(live, rows, strict=True) if self._draw(c, row)]
        return [chain.proposal(self.name) for chain in chains]

    def _begin(self, want: Want, resumed: list[Want]) -> _Chain:
        """A chain that begins with what was drafted ahead and proved right.

        Args:
            resumed: those that do; this one is added if it does.
        """
        old, chain = self._chains.get(want.key), _Chain(want)
        self._chains[want.key] = chain
        drawn = old.behind(want.ids) if old is not None else []
        if drawn and self._follower.resumes(want, [look.token for look in drawn], resumed):
            chain.drawn, chain.is_read = drawn, True
            resumed.append(want)
        return chain

    def _decode(self, chains: Sequence[_Chain]) -> list[NDArray[np.float32]]:
        """Read the last token of each; the logits after it."""
        return self._follower.decode(
            [chain.want.key for chain in chains], [[chain.drawn[-1].token] for chain in chains]
        )

    def _draw(self, chain: _Chain, row: NDArray[np.float32]) -> bool:
        """Draw the next token of a chain, if it is worth it; True while the chain goes on."""
        look = self._look(chain, row)
        chain.is_read = look is not None
        return look is not None and chain.use(look)

    def _look(self, chain: _Chain, row: NDArray[np.float32]) -> _Look | None:
        """What the draft says next, None where it can say nothing."""
        path = chain.path()
        best = self._follower.best(chain.want, row, path)
        if best is not None:
            return _Look(*best)
        law = self._follower.law(chain.want, row, path)
        return None if law is None else _Look(-1, law.highest, law)

    def ready(self, key: int, ids: Sequence[int]) -> int:
        """How many tokens were drafted ahead that the ids have not proved wrong."""
        chain = self._chains.get(key)
        return 0 if chain is None else len(chain.behind(ids))

    def go_ahead(self, proposals: Mapping[int, Sequence[int]], count: int) -> int:
        """Draft on behind proposals of this drafter, whatever that promises: it costs no time."""
        chains = map(self._chains.get, proposals)
        live = [
            chain
            for chain, tokens in zip(chains, proposals.values(), strict=True)
            if chain is not None and chain.is_proposed(tokens)
        ]
        for chain in live:
            chain.draw_refused()
        n_looks, most = 0, self._follower.backend.n_ctx_seq
        while live := [chain for chain in live if chain.goes_ahead(count, most)]:
            if not self._follower.has_room(len(live)):
                break
            rows = self._decode(live)
            n_looks += 1
            for chain, row in zip(live, rows, strict=True):
                look = self._look(chain, row)
                if look is None:
                    chain.is_read = False
                else:
                    chain.draw(look)
        return n_looks

    def prepare(self, key: int, ids: Sequence[int]) -> None:
        """Keep what the cache has of a prompt."""
        self._chains.pop(key, None)
        super().prepare(key, ids)

    def rewind(self, key: int, length: int) -> None:
        """Compare the cache with the ids again from `length` on."""
        self._chains.pop(key, None)
        super().rewind(key, length)

    def forget(self) -> None:
        """Empty the cache."""
        self._chains.clear()
        super().forget()


@dataclass(slots=True)
class _Look:
    """What the draft says at one position.

    Attributes:
        token: -1 until it is drawn from the law.
        confidence: the probability of the likeliest token.
    """

    token: int
    confidence: float
    law: Distribution | None = None


class _Chain:
    """A chain while it is drafted.

    Attributes:
        drawn: its tokens; the first `n_used` are the proposal, the others were drafted ahead.
        refused: a look behind `drawn` that was not worth a token.
        is_read: the draft's cache holds the sequence and all of `drawn` but the last.
    """

    __slots__ = ("_start", "drawn", "is_read", "n_used", "refused", "want")

    def __init__(self, want: Want) -> None:
        self.want = want
        self.drawn: list[_Look] = []
        self.n_used = 0
        self.refused: _Look | None = None
        self.is_read = False
        self._start = len(want.ids)

    def path(self) -> list[int]:
        """All drawn tokens."""
        return [look.token for look in self.drawn]

    def use_drawn(self) -> bool:
        """Take over what was drafted ahead, as far as it is worth it; True while it goes on."""
        return all(self._may_use(look) for look in self.drawn)

    def use(self, look: _Look) -> bool:
        """Draw a token if it is worth it; True while the chain goes on."""
        if not self.want.go_on(self.n_used, look.confidence):
            self.refused = look
            return False
        self.draw(look)
        return self._counts()

    def _may_use(self, look: _Look) -> bool:
        return self.want.go_on(self.n_used, look.confidence) and self._counts()

    def _counts(self) -> bool:
        """One more token is the proposal's; whether another look is worth it."""
        self.n_used += 1
        return self.n_used < self.want.limit and self.want.go_on(self.n_used, None)

    def draw(self, look: _Look) -> None:
        """Append a token."""
        if look.law is not None:
            place = self._start + len(self.drawn)
            (look.token,) = self.want.chance.children(look.law, place, 1)
        self.drawn.append(look)

    def draw_refused(self) -> None:
        """Append the token that was not worth proposing."""
        if self.refused is not None:
            self.draw(self.refused)
            self.refused = None

    def proposal(self, source: str) -> Proposal:
        used = self.drawn[: self.n_used]
        laws = [look.law for look in used if look.law is not None]
        tokens = [look.token for look in used]
        return Proposal.chain(tokens, laws if self.want.keeps_laws else None, source)

    def is_proposed(self, tokens: Sequence[int]) -> bool:
        """Whether this is what is being verified now."""
        used = [look.token for look in self.drawn[: self.n_used]]
        return len(self.want.ids) == self._start and used == list(tokens)

    def goes_ahead(self, count: int, most: int) -> bool:
        """Whether to draft on behind the proposal, up to `most` tokens of a sequence."""
        ends = min(self.n_used + count, most - self._start)
        return self.is_read and len(self.drawn) < ends

    def behind(self, ids: Sequence[int]) -> list[_Look]:
        """What was drawn behind the proposal and the token after it, if the ids went that way."""
        said = len(ids) - self._start
        agrees = self.n_used < said and all(
            look.token == token for look, token in zip(self.drawn, ids[self._start :], strict=False)
        )
        return self.drawn[said:] if agrees else []
