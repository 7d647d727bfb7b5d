"""Captured CUDA graphs kept for each shape of decode, where llama.cpp keeps that of the latest.

llama.cpp's CUDA backend captures the kernels of a decode and replays them. It finds a captured
graph by the address of the first node, and decodes of all sizes are built in the same memory, so
that each size drops the graph of the one before: on an H200, a draft and the way back to single
tokens cost 13 ms with a model of 8B and 30 with one of 70B. Here a node that computes nothing,
another one for each size, is put in front of what the backend is given: that costs 1.1 and 3.4 ms.
So has each number of cells that attention looks at, in blocks of 256: the next chat finds the
graphs of the last one, whose tokens stood in the same blocks.

ggml asks a backend to optimise each graph that it builds (`graph_optimize` of its interface,
ggml-backend-impl.h), before it takes memory for it. That pointer is replaced. What is computed, and
where its numbers lie, stays as it was. It is done for releases of ggml that were read for it, where
the structures lie as they should. Elsewhere llama.cpp works as it always did.

The backend also drops what it captured once nothing asked for it in ten seconds, as between the
turns of a chat. A thread asks for it every few seconds, for as long as the context is open.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import os
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specllama.llama import library
from specllama.machine import LARGEST_KEPT, MOST_KEPT, GraphsKept

KNOWN = ("0.25.3",)
"""Releases of ggml whose CUDA backend was read, and measured."""
VARIABLE = "SPECLLAMA_GRAPHS"
"""Set to "latest", it leaves llama.cpp as it is: one graph for all sizes."""
_OTHER_WAYS = "GGML_CUDA_DISABLE_GRAPHS", "GGML_CUDA_GRAPH_OPT"
"""Who sets these has no graphs, or has them arranged in another way."""
_API_VERSION = 2
_MOST_GRAPHS = 1024
"""Of all shapes: what lies on the CPU in part is computed in many pieces."""
_MARK_BYTES = 1024
DROPPED_S = 10.0
"""llama.cpp's CUDA backend drops captured graphs that were not used for so long."""
_TOUCHED_S = 4.0
_TESTED = 4, 3

_Key = tuple[int | None, ...]
_Address = ctypes.c_void_p
_Init = ctypes.CFUNCTYPE(_Address, _Address, _Address)
_Optimize = ctypes.CFUNCTYPE(None, _Address, _Address, _Address)


def _pointers(*names: str) -> list[tuple[str, Any]]:
    return [(name, _Address) for name in names]


class _Device(ctypes.Structure):
    """The beginning of ggml_backend_device."""

    _fields_ = _pointers(
        "get_name", "get_description", "get_memory", "get_type", "get_props", "init_backend"
    )


class _Backend(ctypes.Structure):
    """ggml_backend, ggml_backend_i within it."""

    _fields_ = _pointers(
        "guid", "get_name", "free", "set_tensor_async", "get_tensor_async", "set_tensor_2d_async",
        "get_tensor_2d_async", "cpy_tensor_async", "synchronize", "graph_plan_create",
        "graph_plan_free", "graph_plan_update", "graph_plan_compute", "graph_compute",
        "event_record", "event_wait", "graph_optimize", "device", "context",
    )  # fmt: skip


class _Graph(ctypes.Structure):
    """The beginning of ggml_cgraph."""

    _fields_ = (
        ("size", ctypes.c_int),
        ("n_nodes", ctypes.c_int),
        ("n_leafs", ctypes.c_int),
        ("nodes", ctypes.POINTER(_Address)),
    )


class _Tensor(ctypes.Structure):
    """The beginning of ggml_tensor."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", _Address),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", _Address * 10),
    )


class MarkedBackend:
    """A backend whose graphs are told apart by their sizes and cells, too.

    Args:
        address: of the backend, which uses this object until it is freed.
    """

    def __init__(self, address: int) -> None:
        self._backend = _Backend.from_address(address)
        self._before = _Optimize(self._backend.graph_optimize or 0)
        self._graphs: OrderedDict[tuple[int, int], dict[_Key, tuple[Any, Any]]] = OrderedDict()
        self._attention: dict[tuple[int | None, int], int] = {}
        self._new = _Optimize(self._optimize)
        self._backend.graph_optimize = ctypes.cast(self._new, _Address).value

    @property
    def n_graphs(self) -> int:
        """How many graphs are told apart so far."""
        return sum(map(len, self._graphs.values()))

    def told_apart(self) -> list[_Key]:
        """By what: rows of the first node, cells, that node, what it reads, last rows, nodes."""
        return [(*shape, *key) for shape, rooms in self._graphs.items() for key in rooms]

    def _marks(self) -> list[Any]:
        """Of all graphs, those of the latest shape last."""
        return [mark for rooms in self._graphs.values() for mark, _ in rooms.values()]

    def forget(self) -> None:
        """Let no graph that was captured so far fit any more."""
        for mark in self._marks():
            mark.op_params[0] += 1

    def touch(self) -> None:
        """Ask for the latest graphs, which does no work."""
        if not self._before:
            return
        node = (_Address * 1)()
        empty, nothing = _Graph(1, 0, 0, node), (_Address * 2)()
        for mark in self._marks()[-MOST_KEPT:]:
            node[0] = ctypes.addressof(mark)
            self._before(ctypes.addressof(self._backend), ctypes.addressof(empty), nothing)

    def _optimize(self, backend: int, address: int, params: int) -> None:
        """Stands in for `graph_optimize`; an exception in here leaves the graph as it was."""
        if self._before:
            self._before(backend, address, params)
        graph = _Graph.from_address(address)
        room = self._room(graph) if graph.n_nodes else None
        if room is None:
            return
        mark, nodes = room
        nodes[0] = ctypes.addressof(mark)
        width = ctypes.sizeof(_Address)
        ctypes.memmove(ctypes.byref(nodes, width), graph.nodes, width * graph.n_nodes)
        marked = _Graph(graph.size, graph.n_nodes + 1, graph.n_leafs, nodes)
        ctypes.memmove(address, ctypes.byref(marked), ctypes.sizeof(marked))  # all of it at once

    def _room(self, graph: _Graph) -> tuple[Any, Any] | None:
        """The mark of such graphs (of GGML_OP_NONE), and where its nodes go; None for prompts."""
        first = _Tensor.from_address(graph.nodes[0])
        last = _Tensor.from_address(graph.nodes[graph.n_nodes - 1])
        n_tokens = first.ne[1]
        if n_tokens > LARGEST_KEPT:
            return None
        rooms = self._rooms((n_tokens, self._n_cells(graph)))
        # with several cards, ggml has more than one copy of what is handed on, and takes turns
        key = graph.nodes[0], first.src[0], last.ne[1], graph.n_nodes
        if key not in rooms and self.n_graphs < _MOST_GRAPHS:
            memory = ctypes.create_string_buffer(_MARK_BYTES)
            rooms[key] = _Tensor.from_buffer(memory), (_Address * (graph.n_nodes + 1))()
        return rooms.get(key)

    def _rooms(self, shape: tuple[int, int]) -> dict[_Key, tuple[Any, Any]]:
        """Those of a shape, which is the latest now; those of the oldest are no longer kept."""
        rooms = self._graphs.setdefault(shape, {})
        self._graphs.move_to_end(shape)
        if len(self._graphs) > MOST_KEPT:
            self._graphs.popitem(last=False)
        return rooms

    def _n_cells(self, graph: _Graph) -> int:
        """How many cells the first attention in it looks at; 0 where there is none."""
        part = graph.nodes[0], graph.n_nodes
        place = self._attention.get(part, 0)
        found = _cells_of(graph.nodes[place]) if place >= 0 else 0
        if found is None:
            nodes = enumerate(graph.nodes[: graph.n_nodes])
            looks = ((at, cells) for at, node in nodes if (cells := _cells_of(node)) is not None)
            self._attention[part], found = next(looks, (-1, 0))
        return found


def _cells_of(node: int) -> int | None:
    """How many cells a node of attention looks at, None for other nodes."""
    flash, softmax = _attentions()
    tensor = _Tensor.from_address(node)
    if tensor.op == flash:
        return int(_Tensor.from_address(tensor.src[1]).ne[1])  # the keys
    return int(tensor.ne[0]) if tensor.op == softmax else None


@functools.cache
def _attentions() -> tuple[int, int]:
    """Numbers of the operations that attention is made of, with flash attention and without."""
    name = library.ggml_base().ggml_op_name
    flash, softmax = (
        next(op for op in itertools.count() if name(op) == wanted)
        for wanted in (b"FLASH_ATTN_EXT", b"SOFT_MAX")
    )
    return flash, softmax


class ContextGraphs:
    """The graphs of one context.

    Args:
        backends: those of it that are changed (addresses).

    Attributes:
        lock: held while llama.cpp gives them work, or frees them.
        used_at: when it did so last (`time.perf_counter`).
    """

    def __init__(self, backends: Sequence[int] = ()) -> None:
        self._backends = [MarkedBackend(address) for address in backends]
        self._is_closed = False
        self.lock = threading.Lock()
        self.used_at = time.perf_counter()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return len(self._backends) > 0

    @property
    def are_one_a_shape(self) -> bool:
        """Whether each shape has one: several cards take turns with several for each."""
        return len(self._backends) == 1

    @property
    def alive(self) -> bool:
        """Whether what was captured is still there."""
        return time.perf_counter() - self.used_at < DROPPED_S

    def told_apart(self) -> list[tuple[int | None, ...]]:
        """See `MarkedBackend.told_apart`."""
        return [key for backend in self._backends for key in backend.told_apart()]

    def forget(self) -> None:
        """Let no graph that was captured so far fit any more."""
        for backend in self._backends:
            backend.forget()

    def touch(self) -> None:
        """Let llama.cpp know that they are wanted, unless it has dropped them already."""
        with self.lock:
            if self.alive and not self._is_closed:
                for backend in self._backends:
                    backend.touch()
                self.used_at = time.perf_counter()

    def close(self) -> None:
        """The context is about to be freed."""
        with self.lock:
            self._is_closed = True


# which backends


def opened(
    open_context: Callable[[], Any], devices: Sequence[int] | None = None
) -> tuple[Any, ContextGraphs]:
    """Open a context whose graphs are kept for each size, where that can be done.

    Args:
        open_context: a call of llama.cpp, whose result is false where it failed.
        devices: those whose backends are meant (handles); None takes the CUDA devices.

    Returns:
        Its result, and the graphs, which are to live as long as the context.
    """
    if devices is None:
        devices = _devices()
    if not devices:
        return open_context(), ContextGraphs()
    with _opening, _listening(devices) as calls:
        handle = open_context()
    made = [
        call(device, None)  # known already: nothing is made
        for device, call in zip(devices, calls, strict=True)
        if handle and call.cache_info().misses == 1
    ]
    interruptions.listen()
    return handle, ContextGraphs(made)


_opening = threading.Lock()


@contextmanager
def _listening(devices: Sequence[int]) -> Iterator[list[Any]]:
    """Remember what `init_backend` of each device returns meanwhile.

    No Python runs in these callbacks: an exception (Ctrl-C) in one would be a wrong address.
    """
    found = [_Device.from_address(device) for device in devices]
    before = [device.init_backend for device in found]
    calls = [functools.cache(_Init(address)) for address in before]
    callbacks = [_Init(call) for call in calls]
    try:
        for device, callback in zip(found, callbacks, strict=True):
            device.init_backend = ctypes.cast(callback, _Address).value
        yield calls
    finally:
        for device, address in zip(found, before, strict=True):
            device.init_backend = address


@functools.cache
def _devices() -> tuple[int, ...]:
    """Handles of the devices that capture graphs, where ggml is as this module knows it."""
    if os.environ.get(VARIABLE) == "latest" or any(name in os.environ for name in _OTHER_WAYS):
        return ()
    found = tuple(
        handle
        for device in library.devices()
        if device["name"].startswith("CUDA")
        and (handle := library.device_handle(device["name"])) is not None
    )
    return found if found and is_known() else ()


def kept() -> GraphsKept:
    """Which captured graphs are kept on the cards of this machine."""
    if not library.gpus():
        return "none"
    return "sized" if _devices() else "latest"


def is_known() -> bool:
    """Whether ggml is of a release that was read, and built so that its structures are found."""
    base = library.ggml_base()
    cpu = library.device_handle("CPU")
    if base is None or cpu is None or base.ggml_version().decode() not in KNOWN:
        return False
    registry = base.ggml_backend_dev_backend_reg(cpu)
    version = ctypes.c_int.from_address(registry).value
    return version == _API_VERSION and _is_as_read(base, cpu)


def _is_as_read(base: Any, cpu: int) -> bool:
    """Whether a small graph, with a node in front, is what it was and computes what it should."""
    backend, kept = opened(lambda: base.ggml_backend_dev_init(cpu, None), [cpu])
    try:
        own = _Backend.from_address(backend)
        if not kept or (own.guid, own.device) != (base.ggml_backend_guid(backend), cpu):
            return False
        given, first, correct = _compute(base, backend)
        n_rows = _TESTED[1]
        return correct and kept.told_apart() == [(n_rows, 0, first, given, n_rows, 2)]
    finally:
        base.ggml_backend_free(backend)


def _compute(base: Any, backend: int) -> tuple[int, int, bool]:
    """Scale a matrix twice; it, the first node, and whether the result is right."""
    context = base.ggml_init(library.GgmlInit(1 << 20, None, True))
    backends = (_Address * 1)(backend)
    scheduler = base.ggml_backend_sched_new(backends, None, 1, 64, False, False)
    try:
        given = base.ggml_new_tensor_2d(context, 0, *_TESTED)
        first = base.ggml_scale(context, given, 2.0)
        last = base.ggml_scale(context, first, 3.0)
        graph = base.ggml_new_graph(context)
        base.ggml_build_forward_expand(graph, last)
        base.ggml_backend_sched_alloc_graph(scheduler, graph)
        values = (ctypes.c_float * (_TESTED[0] * _TESTED[1]))(*range(_TESTED[0] * _TESTED[1]))
        size = ctypes.sizeof(values)
        base.ggml_backend_tensor_set(given, values, 0, size)
        base.ggml_backend_sched_graph_compute(scheduler, graph)
        found = type(values)()
        base.ggml_backend_tensor_get(last, found, 0, size)
        return given, first, list(found) == [6.0 * value for value in values]
    finally:
        base.ggml_backend_sched_free(scheduler)
        base.ggml_free(context)


# what must not be lost


class _Keeper:
    """A thread that touches the graphs of every context there is."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[Any, ContextGraphs] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._end = threading.Event()

    def add(self, context: Any, kept: ContextGraphs) -> None:
        """Look after the graphs of this one, too, until it is gone."""
        with self._lock:
            self._kept[context] = kept
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="graphs", daemon=True)
                self._thread.start()
                atexit.register(self._end.set)

    def _run(self) -> None:
        while not self._end.wait(_TOUCHED_S):
            if not self._touch_all():
                return

    def _touch_all(self) -> bool:
        """False where none is left, and the thread ends."""
        with self._lock:
            all_kept = list(self._kept.items())  # no context is freed as long as this list is there
            if not all_kept:
                self._thread = None
        for _, kept in all_kept:
            kept.touch()
        return len(all_kept) > 0


keeper = _Keeper()


class _Interruptions:
    """Exceptions in `MarkedBackend._optimize` (Ctrl-C), which ctypes cannot hand to its caller."""

    def __init__(self) -> None:
        self._found: dict[int, BaseException] = {}
        self._before: Callable[[Any], None] | None = None

    def listen(self) -> None:
        """From now on."""
        if self._before is None:
            self._before, sys.unraisablehook = sys.unraisablehook, self._take

    def _take(self, unraisable: Any) -> None:
        trace = unraisable.exc_traceback
        if trace is not None and trace.tb_frame.f_code is MarkedBackend._optimize.__code__:
            self._found[threading.get_ident()] = unraisable.exc_value
        elif self._before is not None:
            self._before(unraisable)

    def raise_any(self) -> None:
        """Raise what this thread could not."""
        if self._found and (error := self._found.pop(threading.get_ident(), None)):
            raise error


interruptions = _Interruptions()
