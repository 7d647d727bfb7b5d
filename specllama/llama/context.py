"""A context: one KV cache and the decodes that fill it.

The engine needs few things of a model (`llama.cache.Backend` names them), and here llama.cpp
provides them. Logits are views that the next decode overwrites. Behind a decode Python and numpy
come out of memory, not out of a cache: the arrays of a batch are C's, views are made once.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import psutil
from numpy.typing import NDArray

from specllama.errors import EngineError, OutOfMemory, UsageError
from specllama.llama import graphs, library
from specllama.llama.model import Model
from specllama.machine import GraphsKept
from specllama.options import ModelOptions, micro_batch

Row = NDArray[np.float32]
Rollback = Literal["free", "checkpoint"]

CACHE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30,
}  # fmt: skip
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_CELLS = 256  # llama.cpp pads a context to a multiple of this
_PARTIAL_ONLY = 1
_LATELY = 9
_NO_WAIT = 0.05
_NO_SLOT = 1
_ABORTED = 2


class Context:
    """A KV cache over a model, for up to `n_seq` sequences.

    Args:
        n_ctx: cells of the cache, in tokens (rounded up to a multiple of 256).
        n_batch: the most tokens one `decode` takes.
        n_seq: the most sequence ids.
        apart: give each sequence an equal part of the cells for itself, where its tokens lie in
            line whatever the others do. Otherwise all share one buffer, and a token can belong to
            several.
        n_outputs: the most tokens of a batch whose logits can be asked for.
        threads, threads_batch: CPU threads for one token and for more; None takes the cores.

    Attributes:
        n_ctx_seq: the most tokens of one sequence.
        rollback: "free" where tokens can be dropped at will; "checkpoint" for recurrent and hybrid
            models, whose state has to be saved before it is risked (`save`, `restore`).
        seconds: time spent inside llama.cpp calls so far.
        overran: what was done meanwhile took longer than the latest decode.

    Raises:
        OutOfMemory, UsageError (a quantised V cache without flash attention), EngineError.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_batch: int = 512,
        n_seq: int = 1,
        apart: bool = False,
        n_outputs: int = 64,
        threads: int | None = None,
        threads_batch: int | None = None,
        flash_attn: str = "auto",
        cache_type_k: str = "f16",
        cache_type_v: str = "f16",
    ) -> None:
        self._lib: Any = library.load()
        self.model = model
        params = self._lib.llama_context_default_params()
        params.n_ctx = padded(n_ctx)
        params.n_batch = min(n_batch, params.n_ctx)
        params.n_ubatch = micro_batch(params.n_batch, flash_attn)
        params.n_seq_max = n_seq
        params.n_outputs_max = max(n_outputs, n_seq)
        params.kv_unified = not apart
        params.n_threads = threads or default_threads()
        params.n_threads_batch = threads_batch or params.n_threads
        params.flash_attn_type = FLASH_ATTENTION[flash_attn]
        params.type_k = CACHE_TYPES[cache_type_k]
        params.type_v = CACHE_TYPES[cache_type_v]
        self._graphs = graphs.ContextGraphs()
        self._handle = self._open(params)
        self._end = weakref.finalize(self, _free, self._lib, self._handle, self._graphs, model)
        self._end.atexit = False
        self._keeps_graphs = bool(self._graphs)
        if self._keeps_graphs:
            graphs.keeper.add(self, self._graphs)
        self._memory = self._lib.llama_get_memory(self._handle)
        self.n_ctx = int(self._lib.llama_n_ctx(self._handle))
        self.n_ctx_seq = int(self._lib.llama_n_ctx_seq(self._handle))
        if model.n_places is not None:
            self.n_ctx_seq = min(self.n_ctx_seq, model.n_places)
        self._window = model.window
        self.n_batch = int(self._lib.llama_n_batch(self._handle))
        self.n_seq = n_seq
        self.n_outputs = int(params.n_outputs_max)
        self.n_vocab = model.n_vocab
        self._batch = _Batch(self._lib, self.n_batch, n_seq)
        self._saved: dict[int, ctypes.Array[ctypes.c_uint8]] = {}
        self._get_logits = library.logits_address()
        self._rows_address = 0
        self._rows: list[Row] = []
        self.seconds = 0.0
        self.overran = False
        self._waits: deque[bool] = deque(maxlen=_LATELY)
        self.rollback: Rollback = self._probe_rollback()

    def _open(self, params: Any) -> Any:
        library.forget_log()
        handle = self._initialise(params)
        if handle:
            return handle
        errors = " ".join(library.recent_errors())
        if "quantized V cache" in errors:
            raise UsageError(
                "A quantised V cache needs flash attention.", "Use -fa on, or -ctv f16."
            )
        if "cache type" in errors:
            raise UsageError(
                f"This model cannot have such a cache ({errors}).", "Use -ctk f16 -ctv f16."
            )
        raise OutOfMemory(
            f"Not enough memory for a context of {params.n_ctx} tokens ({errors or 'no reason'}).",
            "Try a smaller context (-c).",
        )

    def _initialise(self, params: Any) -> Any:
        def initialise() -> Any:
            return self._lib.llama_init_from_model(self.model.handle, params)

        if not self.model.offloaded:
            return initialise()
        handle, self._graphs = graphs.opened(initialise)
        return handle

    def _probe_rollback(self) -> Rollback:
        """Two dummy tokens, one dropped: also warms the weights up."""
        self.decode([0, 0], [0, 1], [(0,), (0,)], [False, True])
        free = self.truncate(0, 1)
        self._lib.llama_memory_clear(self._memory, True)
        return "free" if free else "checkpoint"

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Row]:
        """Decode one batch and wait for it.

        Args:
            tokens, positions, sequences, outputs: per token its id, its position in its sequences,
                the sequence ids it belongs to, and whether its logits are wanted.
            meanwhile: done before waiting; it must not use this context.

        Returns:
            float32 [n_vocab] for each wanted token in order: views, valid until the next decode.

        Raises:
            EngineError: llama.cpp refused; cells of this batch may be left behind (`truncate`).
        """
        self._batch.fill(tokens, positions, sequences, outputs)
        wanted = sum(outputs)
        if wanted > self.n_outputs:  # llama.cpp would abort the process
            raise EngineError(f"Logits of {wanted} tokens; this context gives {self.n_outputs}.")
        library.forget_log()
        started = self._graphs.used_at = time.perf_counter()
        if self._keeps_graphs:
            status = self._decode_alone()
        else:
            status = self._lib.llama_decode(self._handle, self._batch.struct)
        queued_s = time.perf_counter() - started
        self.seconds += queued_s
        if status != 0:
            raise EngineError(_reason(status))
        busy_s = 0.0
        if meanwhile is not None:
            started = time.perf_counter()
            meanwhile()
            busy_s = time.perf_counter() - started
        started = time.perf_counter()
        rows = self._logits(wanted)
        waited_s = time.perf_counter() - started
        self.seconds += waited_s
        self.overran = waited_s < _NO_WAIT * busy_s
        if meanwhile is None:
            self._waits.append(waited_s > queued_s)
        return rows

    def _decode_alone(self) -> int:
        """The same while nobody asks for graphs; raise what a callback could not."""
        with self._graphs.lock:
            status = self._lib.llama_decode(self._handle, self._batch.struct)
        graphs.interruptions.raise_any()
        return int(status)

    @property
    def kept_graphs(self) -> GraphsKept:
        """Which captured graphs the device may keep: the CPU has none."""
        if not self.model.offloaded:
            return "none"
        return "sized" if self._graphs.are_one_a_shape else "latest"

    @property
    def graphs_alive(self) -> bool:
        """Whether what was captured by the latest decodes is still there."""
        return self._graphs.alive

    def forget_graphs(self) -> None:
        """Let none that is kept for its size fit any more (to measure what that costs)."""
        self._graphs.forget()

    @property
    def answers_later(self) -> bool:
        """Whether most decodes of late were only queued by their call, as on a GPU."""
        return 2 * sum(self._waits) > len(self._waits)

    def _logits(self, count: int) -> list[Row]:
        if count == 0:
            self._lib.llama_synchronize(self._handle)
            return []
        address = self._get_logits(self._handle)
        if address != self._rows_address:
            buffer = (ctypes.c_float * (self.n_outputs * self.n_vocab)).from_address(address)
            self._rows = list(np.ctypeslib.as_array(buffer).reshape(self.n_outputs, -1))
            self._rows_address = address
        return self._rows[:count]

    def set_threads(self, single: int, batched: int) -> None:
        """CPU threads for one token and for more, from the next decode on."""
        self._lib.llama_set_n_threads(self._handle, single, batched)

    def reaches(self, seq: int, length: int) -> bool:
        """Whether the cache has all that a token behind the first `length` of `seq` looks back at.

        Cells that left a sliding window are taken by other sequences, and a saved state lacks them;
        llama.cpp drops what is behind the window's end all the same, and says that it could.
        """
        if not self._window:
            return True
        first = self._lib.llama_memory_seq_pos_min(self._memory, seq)
        return int(first) <= max(0, length + 1 - self._window)

    def truncate(self, seq: int, length: int) -> bool:
        """Drop the cells of `seq` at positions >= length; False where the memory cannot."""
        return self.reaches(seq, length) and bool(
            self._lib.llama_memory_seq_rm(self._memory, seq, length, -1)
        )

    def fork(self, source: int, target: int) -> None:
        """Let `target` share all cells of `source` (copied where sequences are apart)."""
        self._lib.llama_memory_seq_rm(self._memory, target, -1, -1)
        self._lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def retain(self, source: int, target: int) -> None:
        """Let `target` hold the cells of `source` beside its own; it can only be dropped then."""
        self._lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def adopt(self, source: int, target: int, start: int) -> None:
        """Replace the cells of `target` from position `start` on by those of `source`."""
        self._lib.llama_memory_seq_rm(self._memory, target, start, -1)
        self._lib.llama_memory_seq_cp(self._memory, source, target, start, -1)

    def drop(self, seq: int) -> None:
        """Forget a sequence altogether."""
        self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)

    def length(self, seq: int) -> int:
        """Tokens of `seq` in the cache."""
        return int(self._lib.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def save(self, seq: int) -> None:
        """Remember the recurrent state of `seq` (one per sequence), for `restore`."""
        self._saved[seq] = self._read_state(seq, _PARTIAL_ONLY)

    def _read_state(self, seq: int, flags: int) -> ctypes.Array[ctypes.c_uint8]:
        size = self._lib.llama_state_seq_get_size_ext(self._handle, seq, flags)
        buffer: ctypes.Array[ctypes.c_uint8] = (ctypes.c_uint8 * int(size))()
        self._lib.llama_state_seq_get_data_ext(self._handle, buffer, size, seq, flags)
        return buffer

    def restore(self, seq: int, length: int) -> None:
        """Go back to the saved state, taken when `seq` had `length` tokens."""
        buffer = self._saved[seq]
        read = self._lib.llama_state_seq_set_data_ext(
            self._handle, buffer, len(buffer), seq, _PARTIAL_ONLY
        )
        if read == 0 or not self.truncate(seq, length):
            raise EngineError("llama.cpp could not restore a saved state of this model.")

    def state(self, seq: int) -> bytes:
        """All that the cache holds of `seq`, in llama.cpp's own format."""
        return bytes(self._read_state(seq, 0))

    def set_state(self, seq: int, state: bytes) -> None:
        """Give `seq`, which is empty, what `state` told of a sequence of this model.

        Raises:
            EngineError: it is of another model or cache, or there is no room.
        """
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        library.forget_log()
        if not self._lib.llama_state_seq_set_data_ext(self._handle, buffer, len(state), seq, 0):
            errors = " ".join(library.recent_errors())
            raise EngineError(f"llama.cpp cannot use a saved state: {errors or 'no reason given'}.")

    def close(self) -> None:
        """Free the cache, as the last reference does. The model stays loaded."""
        self._end()
        self._lib, self._handle = library.Closed(), None


def _free(lib: Any, handle: Any, kept: graphs.ContextGraphs, _model: Model) -> None:
    """Free a context, until when its model must not be, nor what its backends call."""
    kept.close()
    lib.llama_free(handle)


class _Batch:
    """A llama_batch over memory of its own, refilled for every decode."""

    def __init__(self, lib: Any, capacity: int, n_seq: int) -> None:
        self.capacity = capacity
        self._n_seq = n_seq
        self._token = (lib.llama_token * capacity)()
        self._position = (lib.llama_pos * capacity)()
        self._count = (ctypes.c_int32 * capacity)()
        self._seq = (lib.llama_seq_id * (capacity * n_seq))()
        self._output: Any = (ctypes.c_int8 * capacity)()
        rows = ((lib.llama_seq_id * n_seq) * capacity).from_buffer(self._seq)
        pointer = ctypes.POINTER(lib.llama_seq_id)
        self._rows = (pointer * capacity)(*[ctypes.cast(row, pointer) for row in rows])
        self.struct = lib.llama_batch(
            0, self._token, None, self._position, self._count, self._rows, self._output
        )

    def fill(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
    ) -> None:
        """Write the batch; too large a one would abort the process inside llama.cpp."""
        count = len(tokens)
        if not 0 < count <= self.capacity:
            raise EngineError(f"A batch of {count} tokens; this context takes 1..{self.capacity}.")
        self._token[:count] = tokens
        self._position[:count] = positions
        self._output[:count] = outputs
        for index, ids in enumerate(sequences):
            self._count[index] = len(ids)
            start = index * self._n_seq
            self._seq[start : start + len(ids)] = ids
        self.struct.n_tokens = count


def padded(n_ctx: int) -> int:
    """The length that llama.cpp makes of a context's."""
    return -(-n_ctx // _CELLS) * _CELLS


def default_threads() -> int:
    """Physical cores this process may use: more threads than cores only wait for each other."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(psutil.cpu_count(logical=False) or 1, allowed or 1))


def threads_of(options: ModelOptions) -> dict[str, int]:
    """The thread counts that take effect, by the options' names."""
    threads = options.threads or default_threads()
    return {
        "threads": threads,
        "threads_batch": options.threads_batch or threads,
        "draft_threads": options.draft_threads or threads,
    }


def _reason(status: int) -> str:
    if status == _NO_SLOT:
        return "The KV cache has no room for this batch."
    if status == _ABORTED:
        return "llama.cpp stopped in the middle of a batch."
    errors = " ".join(library.recent_errors())
    return f"llama.cpp could not decode a batch (status {status}): {errors or 'no reason given'}."
