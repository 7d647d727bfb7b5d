"""Which tokens a KV cache holds, and how it is brought to hold others.

`TokenCache` mirrors a backend's cells as lists of ids, so that one mechanism serves every way ids
and cache come apart: a new turn that shares a prefix, refused drafts, a rewritten history, a memory
that can only go back to a saved state. Whatever is missing is simply *pending* and goes into the
next batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from specllama.errors import EngineError
from specllama.machine import GraphsKept

Progress = Callable[[int, int], None]
"""(tokens done, tokens in all) of a prompt."""


class Backend(Protocol):
    """What the engine needs of a model with a cache (see `llama.context.Context`)."""

    n_ctx: int
    n_ctx_seq: int
    n_batch: int
    n_seq: int
    n_outputs: int
    n_vocab: int
    seconds: float
    rollback: Literal["free", "checkpoint"]
    overran: bool

    @property
    def kept_graphs(self) -> GraphsKept:
        """Which captured graphs its device may keep, as far as the settings go."""

    @property
    def answers_later(self) -> bool:
        """Whether a decode is only queued by its call, and the device works on its own."""

    @property
    def graphs_alive(self) -> bool:
        """Whether what was captured by the latest decodes is still there."""

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[NDArray[np.float32]]:
        """Logits of each wanted token, float32 [n_vocab]; views that the next decode overwrites.

        Args:
            meanwhile: done while the device works, where it works on its own (`answers_later`).
        """

    def reaches(self, seq: int, length: int) -> bool:
        """Whether all is there that a token behind the first `length` of a sequence looks at."""

    def truncate(self, seq: int, length: int) -> bool:
        """Drop the cells at positions >= length; False where the memory cannot."""

    def fork(self, source: int, target: int) -> None:
        """Let `target` share the cells of `source`."""

    def retain(self, source: int, target: int) -> None:
        """Let `target` hold the cells of `source` beside its own; it can only be dropped then."""

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

    def state(self, seq: int) -> bytes:
        """All that the cache holds of a sequence."""

    def set_state(self, seq: int, state: bytes) -> None:
        """Give an empty sequence what `state` told of one."""


class TokenCache:
    """The ids in a backend's cache, per sequence id.

    Attributes:
        n_cells: cells in use; one that several sequences share counts once.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.n_cells = 0
        self._tokens: dict[int, list[int]] = {}
        self._cells: dict[int, list[int]] = {}
        self._sharers: Counter[int] = Counter()  # of a cell, beside the first that held it
        self._saved: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._next_cell = 0

    def length(self, seq: int) -> int:
        """Tokens of `seq` in the cache."""
        return len(self._tokens.get(seq, ()))

    def tokens(self, seq: int) -> list[int]:
        """Those tokens."""
        return list(self._tokens.get(seq, ()))

    def ends_with(self, seq: int, start: int, tokens: Sequence[int]) -> bool:
        """Whether exactly these tokens are in the cache from position `start` on."""
        held = self._tokens.get(seq, [])
        return len(held) == start + len(tokens) and held[start:] == list(tokens)

    def record(self, seq: int, tokens: Sequence[int]) -> None:
        """Note tokens that a batch has just put at the end of `seq`."""
        first, self._next_cell = self._next_cell, self._next_cell + len(tokens)
        self._tokens.setdefault(seq, []).extend(tokens)
        self._cells.setdefault(seq, []).extend(range(first, self._next_cell))
        self._used[seq] = self._next_cell
        self.n_cells += len(tokens)

    def _cut(self, seq: int, length: int) -> None:
        """Mirror that cells at positions >= length are gone."""
        del self._tokens.setdefault(seq, [])[length:]
        cells = self._cells.setdefault(seq, [])
        for cell in cells[length:]:
            if self._sharers[cell]:
                self._sharers[cell] -= 1
            else:
                del self._sharers[cell]
                self.n_cells -= 1
        del cells[length:]
        if self._saved.get(seq, 0) > length:  # what comes next may differ
            del self._saved[seq]

    def truncate(self, seq: int, length: int) -> None:
        """Hold at most the first `length` tokens; fewer where the memory cannot stop there."""
        if length >= self.length(seq):
            return
        if not self.backend.truncate(seq, length):
            length = self._go_back(seq, length)
        self._cut(seq, length)

    def _go_back(self, seq: int, length: int) -> int:
        saved = self._saved.pop(seq, None)
        if saved is not None and saved <= length:
            self.backend.restore(seq, saved)
            return saved
        self.backend.drop(seq)
        return 0

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
        self.truncate(seq, self._common(seq, ids, agreed))
        return self.length(seq)

    def _common(self, seq: int, ids: Sequence[int], agreed: int = 0) -> int:
        held = self._tokens.get(seq, [])
        limit = min(len(held), len(ids))
        place = min(agreed, limit)
        while place < limit and held[place] == ids[place]:
            place += 1
        return place

    def share_prefix(self, seq: int, ids: Sequence[int]) -> int:
        """As `keep_prefix`, but of all sequences: cells of another one are shared, not copied.

        Where cells cannot be dropped at will, only the sequence's own are kept.
        """
        if self.backend.rollback == "free":
            source = max(self._tokens, key=lambda other: self._usable(other, ids), default=seq)
            common = self._usable(source, ids)
            if common > self._usable(seq, ids):
                self.forget(seq)
                self.backend.fork(source, seq)
                self.backend.truncate(seq, common)
                self._tokens[seq] = list(ids[:common])
                self._cells[seq] = self._cells[source][:common]
                self._sharers.update(self._cells[seq])
        self._used[seq] = self._next_cell
        return self.keep_prefix(seq, ids)

    def _usable(self, seq: int, ids: Sequence[int]) -> int:
        """Length of the common prefix where the sequence can go on from there, else 0."""
        common = self._common(seq, ids)
        return common if common and self.backend.reaches(seq, common) else 0

    def make_room(self, n_tokens: int, keep: Collection[int]) -> bool:
        """Forget sequences, least recently used first, until so many more tokens fit.

        Args:
            keep: sequences that must stay.

        Returns:
            Whether they fit now.
        """
        while self.n_cells + n_tokens > self.backend.n_ctx:
            idle = [seq for seq in self._tokens if seq not in keep and self._tokens[seq]]
            if not idle:
                return False
            self.forget(min(idle, key=lambda seq: self._used[seq]))
        return True

    def fill(self, seq: int, ids: Sequence[int], chunk: int | None = None) -> None:
        """Decode what is missing of `ids`, without logits.

        The cache must hold a prefix of `ids` (`keep_prefix`).

        Args:
            chunk: the most tokens a decode; None takes all that a batch holds.
        """
        step = min(chunk or self.backend.n_batch, self.backend.n_batch)
        for first in range(self.length(seq), len(ids), step):
            part = list(ids[first : first + step])
            self.backend.decode(
                part,
                range(first, first + len(part)),
                [(seq,)] * len(part),
                [False] * len(part),
            )
            self.record(seq, part)

    def load(self, seq: int, ids: Sequence[int], state: bytes) -> None:
        """Hold `ids`, whose `Backend.state` was this; other sequences may have to go.

        Raises:
            EngineError: there is no room, or it is not such a state.
        """
        self.forget(seq)
        try:
            if not self.make_room(len(ids), (seq,)):
                raise EngineError("The KV cache has no room for this conversation.")
            self.backend.set_state(seq, state)
            if self.backend.length(seq) != len(ids):
                raise EngineError("The saved state is not of this text.")
        except BaseException:
            self.repair(seq)
            raise
        self.record(seq, ids)

    def forget(self, seq: int) -> None:
        """Empty a sequence."""
        if self.length(seq):
            self.backend.drop(seq)
        self._cut(seq, 0)
        self._saved.pop(seq, None)

    def clear(self) -> None:
        """Empty all sequences."""
        for seq in self._tokens:
            self.forget(seq)

    def repair(self, seq: int) -> None:
        """Make backend and mirror agree after a call that was broken off half-way."""
        length = min(self.length(seq), self.backend.length(seq))
        if not self.backend.truncate(seq, length):
            self.backend.drop(seq)
            length = 0
        self._cut(seq, length)
