"""A small model of the same vocabulary that drafts a chain, one decode a token."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.protocol import Want
from specllama.llama.cache import Backend, TokenCache
from specllama.sampling.distribution import Distribution
from specllama.verification.types import Proposal


class ModelDrafter:
    """Drafts with a model; all wanting sequences share its batches.

    Args:
        backend: the draft's context.
        n_shared: token ids below this mean the same in target and draft.
        never: ids below `n_shared` that do not, and so are never drafted.
    """

    name = "model"
    free = False

    def __init__(
        self, backend: Backend, n_shared: int | None = None, never: Collection[int] = ()
    ) -> None:
        self._cache = TokenCache(backend)
        self._agreed: dict[int, int] = {}
        self._n_shared = backend.n_vocab if n_shared is None else n_shared
        self._never = np.array(sorted(never), np.int64)

    @property
    def seconds(self) -> float:
        """Seconds spent inside the draft model's calls so far."""
        return self._cache.backend.seconds

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        """Catch up with each sequence's ids, then draft for all of them in step."""
        chains = [_Chain(want) for want in wants]
        live = [c for c in chains if c.want.go_on(0, None) and self._catch_up(c)]
        first = True
        while live:
            rows = self._decode(live)
            if first:
                self._guard(live)
                first = False
            live = [c for c, row in zip(live, rows, strict=True) if self._draw(c, row)]
        return [chain.proposal(self.name) for chain in chains]

    def prepare(self, key: int, ids: Sequence[int]) -> None:
        """Read a prompt, all but its last token."""
        if self._hold_prefix(key, ids):
            self._cache.fill(key, ids[:-1])

    def _hold_prefix(self, key: int, ids: Sequence[int]) -> bool:
        """Hold nothing but a proper prefix of the ids; False where the draft cannot read on."""
        if len(ids) >= self._cache.backend.n_ctx:
            return False
        if self._cache.keep_prefix(key, ids, self._agreed.get(key, 0)) == len(ids):
            self._cache.truncate(key, len(ids) - 1)
        self._agreed[key] = len(ids)
        return max(ids[self._cache.length(key) :]) < self._n_shared

    def _catch_up(self, chain: _Chain) -> bool:
        """Leave at most one batch of ids pending; False where the draft cannot follow."""
        want, cache = chain.want, self._cache
        room = cache.backend.n_ctx - len(want.ids)
        if room < want.limit or not self._hold_prefix(want.key, want.ids):
            return False
        if len(want.ids) - cache.length(want.key) > cache.backend.n_batch:
            cache.fill(want.key, want.ids[:-1])
        chain.pending = list(want.ids[cache.length(want.key) :])
        return True

    def _guard(self, chains: Sequence[_Chain]) -> None:
        """Drafted tokens follow: what came before them must survive a refusal."""
        for chain in chains:
            self._cache.guard(chain.want.key, chain.want.ids)

    def _decode(self, chains: Sequence[_Chain]) -> list[NDArray[np.float32]]:
        """One decode: the pending tokens of every chain, logits of the last ones only.

        Chains whose first batches together are too large go one by one.
        """
        total = sum(len(chain.pending) for chain in chains)
        if total > self._cache.backend.n_batch and len(chains) > 1:
            return [self._decode([chain])[0].copy() for chain in chains]
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[tuple[int, ...]] = []
        outputs: list[bool] = []
        for chain in chains:
            start = self._cache.length(chain.want.key)
            tokens += chain.pending
            positions += range(start, start + len(chain.pending))
            sequences += [(chain.want.key,)] * len(chain.pending)
            outputs += [False] * (len(chain.pending) - 1) + [True]
        rows = self._cache.backend.decode(tokens, positions, sequences, outputs)
        for chain in chains:
            self._cache.record(chain.want.key, chain.pending)
        return list(rows)

    def _draw(self, chain: _Chain, row: NDArray[np.float32]) -> bool:
        """Draw the next token of a chain, if it is worth it; True while the chain goes on."""
        want = chain.want
        law = self._known(want.law(row[: self._n_shared], chain.tokens))
        if law is None or not want.go_on(len(chain.tokens), float(law.probs.max())):
            return False
        (token,) = want.chance.children(law, want.position + len(chain.tokens), 1)
        chain.tokens.append(token)
        chain.pending = [token]
        if want.keeps_laws:
            chain.laws.append(law)
        return len(chain.tokens) < want.limit and want.go_on(len(chain.tokens), None)

    def _known(self, law: Distribution) -> Distribution | None:
        """The law without tokens that mean something else to the target."""
        if not len(self._never):
            return law
        foreign = np.isin(law.ids, self._never, assume_unique=True)
        return Distribution.from_weights(law.ids, np.where(foreign, 0.0, law.probs))

    def rewind(self, key: int, length: int) -> None:
        """Compare the cache with the ids again from `length` on."""
        self._agreed[key] = min(length, self._agreed.get(key, 0))

    def close(self) -> None:
        """Nothing: the context belongs to whoever opened it."""


class _Chain:
    """A chain while it is drafted: tokens, the laws they came from, what to decode next."""

    __slots__ = ("laws", "pending", "tokens", "want")

    def __init__(self, want: Want) -> None:
        self.want = want
        self.pending: list[int] = []
        self.tokens: list[int] = []
        self.laws: list[Distribution] = []

    def proposal(self, source: str) -> Proposal:
        laws = self.laws if self.want.keeps_laws else None
        return Proposal.chain(self.tokens, laws, source)
