"""Which tokens a KV cache holds, and how it is brought to hold others.

`TokenCache` mirrors a backend's cells as lists of ids, so that one mechanism serves every way ids
and cache come apart: a new turn that shares a prefix, refused drafts, a rewritten history, a memory
that can only go back to a saved state. Whatever is missing is simply *pending* and goes into the
next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Progress = Callable[[int, int], None]
"""(tokens done, tokens in all) of a prompt."""


class Backend(Protocol):
    """What the engine needs of a model with a cache (see `llama.context.Context`)."""

    n_ctx: int
    n_batch: int
    n_seq: int
    n_outputs: int
    n_vocab: int
    seconds: float
    rollback: Literal["free", "checkpoint"]

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
    ) -> NDArray[np.float32]:
        """Logits of the wanted tokens, float32 [sum(outputs), n_vocab], a view."""

    def truncate(self, seq: int, length: int) -> bool:
        """Drop the cells at positions >= length; False where the memory cannot."""

    def fork(self, source: int, target: int) -> None:
        """Let `target` share the cells of `source`."""

    def adopt(self, source: int, target: int, start: int) -> None:
        """Replace the cells of `target` from position `start` on by those of `source`."""

    def drop(self, seq: int) -> None:
        """Forget a sequence."""

    def length(self, seq: int) -> int:
        """Tokens of a sequence in the cache."""

    def save(self, seq: int) -> None:
        """Remember the state of a sequence that cannot be truncated."""

    def restore(self, seq: int, length: int) -> None:
        """Go back to the saved state, which had `length` tokens."""


class TokenCache:
    """The ids in a backend's cache, per sequence id."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._tokens: dict[int, list[int]] = {}
        self._saved: dict[int, int] = {}

    def length(self, seq: int) -> int:
        """Tokens of `seq` in the cache."""
        return len(self._tokens.get(seq, ()))

    def record(self, seq: int, tokens: Sequence[int]) -> None:
        """Note tokens that a batch has just put at the end of `seq`."""
        self._tokens.setdefault(seq, []).extend(tokens)

    def truncate(self, seq: int, length: int) -> None:
        """Hold at most the first `length` tokens; fewer where the memory cannot stop there."""
        held = self._tokens.setdefault(seq, [])
        if length >= len(held):
            return
        if not self.backend.truncate(seq, length):
            length = self._go_back(seq, length)
        del held[length:]
        self._outdate(seq)

    def _go_back(self, seq: int, length: int) -> int:
        saved = self._saved.pop(seq, None)
        if saved is not None and saved <= length:
            self.backend.restore(seq, saved)
            return saved
        self.backend.drop(seq)
        return 0

    def _outdate(self, seq: int) -> None:
        """Forget a saved state of more tokens than are left: what comes next may differ."""
        if self._saved.get(seq, 0) > self.length(seq):
            del self._saved[seq]

    def guard(self, seq: int, ids: Sequence[int]) -> None:
        """Before drafts are risked behind `ids`: hold them, and save what a rollback will need.

        Costs nothing where the memory can be truncated.
        """
        if self.backend.rollback == "checkpoint":
            self.fill(seq, ids)
            self.backend.save(seq)
            self._saved[seq] = self.length(seq)

    def keep_prefix(self, seq: int, ids: Sequence[int], agreed: int = 0) -> int:
        """Drop everything behind the longest common prefix with `ids`.

        Args:
            agreed: so many first ids are known to be equal.

        Returns:
            The length kept, at most len(ids).
        """
        held = self._tokens.get(seq, [])
        place = min(agreed, len(held), len(ids))
        limit = min(len(held), len(ids))
        while place < limit and held[place] == ids[place]:
            place += 1
        self.truncate(seq, place)
        return self.length(seq)

    def fill(self, seq: int, ids: Sequence[int], on_progress: Progress | None = None) -> None:
        """Decode what is missing of `ids`, in chunks, without logits.

        The cache must hold a prefix of `ids` (`keep_prefix`).
        """
        start = self.length(seq)
        for first in range(start, len(ids), self.backend.n_batch):
            chunk = list(ids[first : first + self.backend.n_batch])
            self.backend.decode(
                chunk,
                range(first, first + len(chunk)),
                [(seq,)] * len(chunk),
                [False] * len(chunk),
            )
            self.record(seq, chunk)
            if on_progress is not None:
                on_progress(first + len(chunk) - start, len(ids) - start)

    def forget(self, seq: int) -> None:
        """Empty a sequence."""
        if self._tokens.pop(seq, None):
            self.backend.drop(seq)
        self._saved.pop(seq, None)

    def repair(self, seq: int) -> None:
        """Make backend and mirror agree after a call that was broken off half-way."""
        held = self._tokens.get(seq, [])
        del held[self.backend.length(seq) :]
        if not self.backend.truncate(seq, len(held)):
            self.backend.drop(seq)
            held.clear()
        self._outdate(seq)
