"""Drafts that read the target's hidden states beside the tokens it says.

The state behind the last layer, which said a token, knows what the target has in mind for what
comes next; a small draft need not find that out itself (EAGLE, Li et al. 2024, arXiv 2401.15077).
Such a draft is a model of its own, which also works where no state is known. Its file has a matrix
W [width, width of the target] in its metadata, and reads E[token] + W h / rms(h) in place of
E[token], the row of its embedding (docs/distil.md).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.errors import NotAModel
from specllama.hub.ggml_types import BLOCKS
from specllama.hub.gguf import Header
from specllama.llama import library

Row = NDArray[np.float32]

WEIGHTS = "specllama.states"
_EMBEDDING = "token_embd.weight"
_ARCHITECTURE = "llama"  # others scale what they read


class HiddenReader:
    """What such a draft reads in place of token ids.

    Args:
        header: of the draft, in one file.

    Attributes:
        width: of the target's states.
        n_embd: of the draft's own.

    Raises:
        NotAModel: the matrix does not fit the model.
    """

    def __init__(self, header: Header) -> None:
        table = next((t for t in header.tensors if t.name == _EMBEDDING), None)
        weights = _numbers(header.metadata[WEIGHTS])
        if table is None or header.n_parts > 1 or table.type not in BLOCKS:
            raise _unfit(header)
        self.n_embd, n_vocab = table.shape
        if not weights.size or weights.size % self.n_embd or not np.isfinite(weights).all():
            raise _unfit(header)
        self._weights = weights.reshape(self.n_embd, -1)
        self.width = self._weights.shape[1]
        self._table = np.memmap(
            header.path, np.uint8, "r", header.data_start + table.offset, table.n_bytes
        )
        self._row_bytes = table.n_bytes // n_vocab
        self._to_float = library.to_float(table.type)

    def read(
        self, tokens: Sequence[int], hidden: Mapping[int, Row], rows: NDArray[np.float32]
    ) -> None:
        """Write what is read for tokens into the first of some rows.

        Args:
            hidden: by place in `tokens`, the target's state that said it, float32 [width].
            rows: float32 [at least tokens, n_embd].
        """
        source, into = self._table.ctypes.data, rows.ctypes.data
        for place, token in enumerate(tokens):
            start = into + place * rows.strides[0]
            self._to_float(source + token * self._row_bytes, start, self.n_embd)
        for place, state in hidden.items():
            size = np.sqrt(np.einsum("i,i", state, state) / len(state))  # no BLAS: it has threads
            if size > 0.0:
                rows[place] += np.einsum("ij,j->i", self._weights, state) / size


def hidden_reader(header: Header, width: int) -> HiddenReader | None:
    """What a draft reads beside a target with states of that width; None for tokens alone."""
    if WEIGHTS not in header.metadata or header.architecture != _ARCHITECTURE:
        return None
    reader = HiddenReader(header)
    return reader if reader.width == width else None


def _numbers(values: Any) -> NDArray[np.float32]:
    """Metadata as numbers; none where it is something else."""
    try:
        return np.array(values, np.float32).ravel()
    except (TypeError, ValueError):
        return np.empty(0, np.float32)


def _unfit(header: Header) -> NotAModel:
    return NotAModel(
        f"{header.path.name} is damaged: what it makes of hidden states does not fit the model.",
        "Get the file again.",
    )


class EmbeddedBatch:
    """A `llama_batch` with what a draft reads in the place of token ids.

    Args:
        like: the batch with the ids; it and this one share the other arrays.
    """

    def __init__(self, lib: Any, like: Any, capacity: int, reader: HiddenReader) -> None:
        self._reader = reader
        self._rows = np.zeros((capacity, reader.n_embd), np.float32)
        pointer = self._rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self.struct = lib.llama_batch(
            0, None, pointer, like.pos, like.n_seq_id, like.seq_id, like.logits
        )

    def fill(self, tokens: Sequence[int], hidden: Mapping[int, Row]) -> Any:
        """The batch for these tokens and states (`HiddenReader.read`)."""
        self._reader.read(tokens, hidden, self._rows)
        self.struct.n_tokens = len(tokens)
        return self.struct
