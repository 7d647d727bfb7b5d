"""A draft model's cache, following what the sequences say."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.protocol import Drafter, Want
from specllama.errors import EngineError
from specllama.llama.cache import Backend, TokenCache
from specllama.sampling.distribution import Distribution

_FEW = 2


class Follower:
    """What every drafter with a model does before it drafts.

    Args:
        backend: the draft's context.
        n_shared: token ids below this mean the same in target and draft.
        never: ids below `n_shared` that do not, and so are never drafted.
        one_by_one: read the few tokens of a round in decodes of one, since the device replays a
            captured graph for a decode like the one before.
    """

    def __init__(
        self,
        backend: Backend,
        n_shared: int | None = None,
        never: Collection[int] = (),
        *,
        one_by_one: bool = False,
    ) -> None:
        self._one_by_one = one_by_one
        self.cache = TokenCache(backend)
        self._agreed: dict[int, int] = {}
        self._n_shared = backend.n_vocab if n_shared is None else n_shared
        self._never = np.array(sorted(never), np.int64)

    @property
    def backend(self) -> Backend:
        """The draft's context."""
        return self.cache.backend

    def begin(self, key: int, ids: Sequence[int]) -> None:
        """Before a new generation: hold what any sequence has of its prompt."""
        if len(ids) < self.backend.n_ctx_seq:
            self.cache.share_prefix(key, ids[:-1])
            self._agreed[key] = self.cache.length(key)

    def read_prompt(self, key: int, ids: Sequence[int]) -> None:
        """Read the first ids of a prompt, as far as they go, but for the last one."""
        self.begin(key, ids)
        if not self._hold_prefix(key, ids):
            return
        if self.cache.make_room(len(ids) - self.cache.length(key), (key,)):
            self.cache.fill(key, ids[:-1])

    def _hold_prefix(self, key: int, ids: Sequence[int]) -> bool:
        """Hold nothing but a proper prefix of the ids; False where the draft cannot read on."""
        if len(ids) >= self.backend.n_ctx_seq:
            return False
        if self.cache.keep_prefix(key, ids, self._agreed.get(key, 0)) == len(ids):
            self.cache.truncate(key, len(ids) - 1)
        self._agreed[key] = len(ids)
        return max(ids[self.cache.length(key) :]) < self._n_shared

    def able(
        self, wants: Sequence[Want], most_pending: int, beside: Sequence[Want] = ()
    ) -> list[Want]:
        """Those that the draft can follow and has room for; little of them is left to read.

        Args:
            most_pending: so many of their ids are left at most, the last one among them.
            beside: what is drafted for as well, and needs room too.
        """
        found: list[Want] = []
        n_new = self._lacking(beside)
        keep = [want.key for want in (*wants, *beside)]
        for want in wants:
            room = self.backend.n_ctx_seq - len(want.ids)
            if room < want.limit or not self._hold_prefix(want.key, want.ids):
                continue
            if not self.cache.make_room(n_new + self._lacking([want]), keep):
                continue
            if len(want.ids) - self.cache.length(want.key) > most_pending:
                self.cache.fill(want.key, want.ids[:-1])
            n_new += self._lacking([want])
            found.append(want)
        return found

    def _lacking(self, wants: Sequence[Want]) -> int:
        """The most cells that reading them to their ends and drafting behind them takes."""
        lengths = (want.limit + len(want.ids) - self.cache.length(want.key) for want in wants)
        return sum(max(0, length) for length in lengths)

    def resumes(self, want: Want, tokens: Sequence[int], beside: Sequence[Want] = ()) -> bool:
        """Whether drafting can go on behind tokens of which all but the last were read.

        Args:
            beside: as of `able`.
        """
        start = len(want.ids)
        if not self.cache.ends_with(want.key, start, tokens[:-1]):
            return False
        self._agreed[want.key] = start
        return self.has_room(self._lacking([want, *beside]))

    def has_room(self, n_tokens: int) -> bool:
        """Whether so many more tokens fit beside all that is held."""
        return self.cache.n_cells + n_tokens <= self.backend.n_ctx

    def read(
        self, wants: Sequence[Want], beside: Sequence[Want] = ()
    ) -> list[tuple[Want, NDArray[np.float32]]]:
        """Read every sequence to its end, in one batch; the draft's logits after each.

        Sequences that the draft cannot follow (no room, ids it does not know) are left out. The
        rows are views, valid until the next decode. What comes after can be dropped again.

        Args:
            beside: as of `able`.
        """
        able = self.able(wants, self.backend.n_batch, beside)
        if not able:
            return []
        if self._one_by_one and len(able) == 1:
            self._read_singly(able[0])
        pending = [want.ids[self.cache.length(want.key) :] for want in able]
        rows = self.decode([want.key for want in able], pending)
        for want in able:
            self.cache.guard(want.key, want.ids)
        return list(zip(able, rows, strict=True))

    def _read_singly(self, want: Want) -> None:
        """Read all but the last of a few pending tokens."""
        pending = want.ids[self.cache.length(want.key) : -1]
        if len(pending) <= _FEW:
            for token in pending:
                self.decode([want.key], [[token]])

    def decode(
        self, keys: Sequence[int], tokens: Sequence[Sequence[int]]
    ) -> list[NDArray[np.float32]]:
        """Append tokens to sequences in one batch; the logits after the last token of each.

        Too much for one batch goes sequence by sequence.
        """
        if sum(map(len, tokens)) > self.backend.n_batch and len(keys) > 1:
            return [
                self.decode([key], [run])[0].copy() for key, run in zip(keys, tokens, strict=True)
            ]
        flat: list[int] = []
        positions: list[int] = []
        sequences: list[tuple[int, ...]] = []
        outputs: list[bool] = []
        for key, run in zip(keys, tokens, strict=True):
            start = self.cache.length(key)
            flat += run
            positions += range(start, start + len(run))
            sequences += [(key,)] * len(run)
            outputs += [False] * (len(run) - 1) + [True]
        rows = self.backend.decode(flat, positions, sequences, outputs)
        for key, run in zip(keys, tokens, strict=True):
            self.cache.record(key, run)
        return rows

    def knows(self, token: int) -> bool:
        """Whether an id means the same to draft and target."""
        return token < self._n_shared and token not in self._never

    def shared(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """The part of a row of logits whose ids may mean the same to the target."""
        return row[: self._n_shared] if self._n_shared < len(row) else row

    def law(self, want: Want, row: NDArray[np.float32], path: Sequence[int]) -> Distribution | None:
        """The law of the next draft token, over ids that mean the same to the target.

        None where nothing can be drafted, for want of tokens or of finite logits.
        """
        try:
            law = want.law(self.shared(row), path)
        except EngineError:  # a draft that computes nonsense may not end the target's reply
            return None
        if law is None or not len(self._never):
            return law
        foreign = np.isin(law.ids, self._never, assume_unique=True)
        return Distribution.from_weights(law.ids, np.where(foreign, 0.0, law.probs))

    def best(
        self, want: Want, row: NDArray[np.float32], path: Sequence[int]
    ) -> tuple[int, float] | None:
        """The most probable next token and its probability; None where it takes the whole law."""
        if want.best is None or len(self._never):
            return None
        with suppress(EngineError):
            return want.best(self.shared(row), path)
        return None

    def forget(self) -> None:
        """Empty the cache."""
        self.cache.clear()
        self._agreed.clear()

    def rewind(self, key: int, length: int) -> None:
        """Compare the cache with the ids again from `length` on; it may hold half a batch."""
        self.cache.repair(key)
        self._agreed[key] = min(length, self._agreed.get(key, 0))


class FollowingDrafter(Drafter):
    """A drafter with a model behind it; several of them may share one follower."""

    free = False

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    @property
    def backend(self) -> Backend:
        """The draft model's context."""
        return self._follower.backend

    def prepare(self, key: int, ids: Sequence[int]) -> None:
        """Keep what the cache has of a prompt."""
        self._follower.begin(key, ids)

    def unread(self, key: int, ids: Sequence[int]) -> int:
        """How many of the ids the draft's cache lacks; some that it has may prove wrong."""
        return max(0, len(ids) - self._follower.cache.length(key))

    def read(self, key: int, ids: Sequence[int]) -> None:
        """Read so much of a prompt, all but the last token."""
        self._follower.read_prompt(key, ids)

    def rewind(self, key: int, length: int) -> None:
        """Compare the cache with the ids again from `length` on."""
        self._follower.rewind(key, length)

    def forget(self) -> None:
        """Empty the cache."""
        self._follower.forget()
