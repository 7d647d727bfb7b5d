"""A language model as a table, behind a cache as strict as llama.cpp's.

The logits after a token are a function of the exact sequence of tokens it sees, so that a stale
cell, a wrong position or a wrong sequence id gives another text; a batch that llama.cpp refuses
is a `BatchError` here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specllama.machine import GraphsKept

Tokens = tuple[int, ...]
Row = NDArray[np.float32]
Language = Callable[[Tokens], Row]
"""The logits after a sequence of tokens, float32 [n_vocab]."""

N_VOCAB = 16
END = 15


class BatchError(AssertionError):
    """The engine asked for something that llama.cpp refuses, or answers wrongly."""


def language(seed: int, n_vocab: int = N_VOCAB, spread: float = 1.5) -> Language:
    """Independent normal logits for every sequence of tokens."""

    @cache
    def row(context: Tokens) -> Row:
        random = np.random.default_rng([seed, len(context), *context])
        return random.normal(0.0, spread, n_vocab).astype(np.float32)

    return row


def near(target: Language, seed: int, share: float = 0.5, n_vocab: int = N_VOCAB) -> Language:
    """A draft's language: the target's logits mixed with `share` of its own."""
    own = language(seed, n_vocab)

    @cache
    def row(context: Tokens) -> Row:
        mixed = own(context).copy()
        known = target(context)
        shared = min(len(known), n_vocab)
        mixed[:shared] = share * mixed[:shared] + (1.0 - share) * known[:shared]
        return mixed

    return row


@dataclass
class Cell:
    position: int
    token: int
    sequences: set[int]


@dataclass(frozen=True)
class Fault:
    """An exception in the middle of a decode: before it, after half its cells, or after all."""

    error: type[BaseException]
    when: Literal["before", "half", "after"] = "before"


@dataclass
class FakeModel:
    """`llama.cache.Backend` over a `Language`.

    Attributes:
        faults: by number of the decode call (from 0), what happens in it.
        batches: size of each decode so far.
        cost: seconds that a decode of n tokens adds to `seconds`.
    """

    language: Language
    n_ctx: int = 64
    n_batch: int = 16
    n_seq: int = 1
    n_outputs: int = 64
    n_vocab: int = N_VOCAB
    rollback: Literal["free", "checkpoint"] = "free"
    cost: Callable[[int], float] = lambda n_tokens: 0.001 + 0.0001 * n_tokens
    faults: dict[int, Fault] = field(default_factory=dict)
    seconds: float = 0.0
    kept_graphs: GraphsKept = "latest"
    graphs_alive: bool = True
    answers_later: bool = False
    overran: bool = False
    batches: list[int] = field(default_factory=list)
    on_decode: Callable[[float], None] = lambda seconds: None

    def __post_init__(self) -> None:
        self.n_ctx_seq = self.n_ctx
        self.cells: list[Cell] = []
        self._saved: dict[int, Tokens] = {}
        self._buffer = np.full((self.n_batch, self.n_vocab), np.nan, np.float32)

    # what the engine uses

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
        meanwhile: Callable[[], None] | None = None,
    ) -> Row:
        fault = self.faults.pop(len(self.batches), None)
        self.batches.append(len(tokens))
        if fault and fault.when == "before":
            raise fault.error("broken off")
        self._check(tokens, positions, sequences, outputs)
        self._buffer[:] = np.nan
        n_rows = 0
        for done, (token, position, ids, wanted) in enumerate(
            zip(tokens, positions, sequences, outputs, strict=True)
        ):
            if fault and fault.when == "half" and 2 * done >= len(tokens):
                raise fault.error("broken off")
            self.cells.append(Cell(position, token, set(ids)))
            if wanted:
                self._buffer[n_rows] = self.language(self._visible(ids, position))
                n_rows += 1
        if meanwhile is not None:
            meanwhile()
        seconds = self.cost(len(tokens))
        self.seconds += seconds
        self.on_decode(seconds)
        if fault:
            raise fault.error("broken off")
        return list(self._buffer[:n_rows])

    def reaches(self, seq: int, length: int) -> bool:
        return True

    def truncate(self, seq: int, length: int) -> bool:
        if self.rollback == "checkpoint" and 0 < length < self.length(seq):
            return False
        self._remove(seq, length)
        return True

    def fork(self, source: int, target: int) -> None:
        self.drop(target)
        for cell in self.cells:
            if source in cell.sequences:
                cell.sequences.add(target)

    def retain(self, source: int, target: int) -> None:
        for cell in self.cells:
            if source in cell.sequences:
                cell.sequences.add(target)

    def adopt(self, source: int, target: int, start: int) -> None:
        self._remove(target, start)
        for cell in self.cells:
            if source in cell.sequences and cell.position >= start:
                cell.sequences.add(target)

    def drop(self, seq: int) -> None:
        self._remove(seq, 0)

    def length(self, seq: int) -> int:
        return len(self.tokens(seq))

    def save(self, seq: int) -> None:
        if self.rollback != "checkpoint":
            raise BatchError("saving costs time where tokens can be dropped at will")
        self._saved[seq] = self.tokens(seq)

    def restore(self, seq: int, length: int) -> None:
        saved = self._saved[seq]
        if len(saved) != length:
            raise BatchError(f"the saved state has {len(saved)} tokens, not {length}")
        self.drop(seq)
        self.cells += [Cell(place, token, {seq}) for place, token in enumerate(saved)]

    def state(self, seq: int) -> bytes:
        return bytes(self.tokens(seq))

    def set_state(self, seq: int, state: bytes) -> None:
        self.cells += [Cell(place, token, {seq}) for place, token in enumerate(state)]

    # what tests look at

    def tokens(self, seq: int) -> Tokens:
        """The tokens of a sequence, which must lie in a line."""
        cells = sorted((c for c in self.cells if seq in c.sequences), key=lambda c: c.position)
        if [cell.position for cell in cells] != list(range(len(cells))):
            raise BatchError(f"holes or doubles: {[c.position for c in cells]}")
        return tuple(cell.token for cell in cells)

    @property
    def held(self) -> set[int]:
        """The sequence ids that hold anything."""
        return {seq for cell in self.cells for seq in cell.sequences}

    # llama.cpp's rules (llama-batch.cpp, llama-kv-cache.cpp)

    def _remove(self, seq: int, length: int) -> None:
        for cell in self.cells:
            if cell.position >= length:
                cell.sequences.discard(seq)
        self.cells = [cell for cell in self.cells if cell.sequences]

    def _visible(self, ids: tuple[int, ...], position: int) -> Tokens:
        contexts = {self.tokens(seq)[: position + 1] for seq in ids}
        if len(contexts) != 1:
            raise BatchError(f"the sequences {ids} of one token have different pasts")
        return contexts.pop()

    def _check(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
    ) -> None:
        count = len(tokens)
        if not count == len(positions) == len(sequences) == len(outputs):
            raise BatchError("arrays of different lengths")
        if not 0 < count <= self.n_batch:
            raise BatchError(f"a batch of {count} tokens, capacity {self.n_batch}")
        if len(self.cells) + count > self.n_ctx:
            raise BatchError(f"{len(self.cells)} + {count} cells of {self.n_ctx}")
        if sum(outputs) > self.n_outputs:
            raise BatchError(f"logits of {sum(outputs)} tokens; there is room for {self.n_outputs}")
        if max(positions) >= self.n_ctx_seq:
            raise BatchError(f"position {max(positions)} of {self.n_ctx_seq}")
        if not all(0 <= token < self.n_vocab for token in tokens):
            raise BatchError(f"foreign tokens in {tokens}")
        ids = {seq for owned in sequences for seq in owned}
        if not all(owned for owned in sequences) or not ids <= set(range(self.n_seq)):
            raise BatchError(f"sequence ids {ids} of {self.n_seq}")
        for seq in ids:
            own = [p for p, owned in zip(positions, sequences, strict=True) if seq in owned]
            first = self.length(seq)
            if own != list(range(first, first + len(own))):
                raise BatchError(f"positions {own} of sequence {seq}, which has {first} tokens")
