"""Graphs kept by size: here on the CPU, which has none but is given the same nodes in front."""

from __future__ import annotations

import ctypes
import functools
import gc
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specllama.llama import graphs, library
from specllama.llama.context import Context
from specllama.llama.graphs import ContextGraphs, MarkedBackend
from specllama.llama.model import Model

SIZES = [1, 3, 1, 1, 2, 3, 40, 3]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU passes for a card."""
    cpu = library.device_handle("CPU")
    monkeypatch.setattr(graphs, "_devices", lambda: (cpu,))


@pytest.fixture
def card(cards: None, model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """A context whose graphs are kept by size."""
    monkeypatch.setattr(model, "offloaded", True)
    context = Context(model, n_ctx=256, n_batch=64, n_seq=1, threads=1, flash_attn="on")
    yield context
    context.close()


def decode(context: Context, sizes: list[int]) -> list[bytes]:
    """Decode one batch behind the other; the bits of all logits."""
    found, held = [], 0
    for size in sizes:
        tokens = [100 + 7 * place for place in range(held, held + size)]
        rows = context.decode(tokens, range(held, held + size), [(0,)] * size, [True] * size)
        found += [row.tobytes() for row in rows]
        held += size
    return found


def chat(context: Context, n_held: int) -> Iterator[bytes]:
    """Read a prompt, then decode one, one and three tokens; the bits of the logits behind each."""
    context.drop(0)
    for size in (n_held, 1, 1, 3):
        held = context.length(0)
        wanted = [False] * (size - 1) + [True]
        rows = context.decode([7] * size, range(held, held + size), [(0,)] * size, wanted)
        yield rows[0].tobytes()


class TestKept:
    def test_each_size_is_told_apart_and_computes_what_it_did(
        self, card: Context, model: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (backend,) = card._graphs._backends
        before = backend.n_graphs
        found = decode(card, SIZES)
        assert card.kept_graphs == "sized"
        assert backend.n_graphs == before + len({1, 2, 3}), "40 tokens are no round of drafts"
        monkeypatch.setattr(model, "offloaded", False)
        usual = Context(model, n_ctx=256, n_batch=64, n_seq=1, threads=1, flash_attn="on")
        assert usual.kept_graphs == "none"
        assert not usual._graphs, "the CPU's graphs are nobody's business"
        assert decode(usual, SIZES) == found
        usual.close()

    @pytest.mark.parametrize("flash_attn", ["on", "off"])
    def test_each_block_of_cells_is_told_apart(
        self, flash_attn: str, cards: None, model: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And what is computed has the bits that it has elsewhere."""
        found, shapes = [], set()
        for offloaded in (True, False):
            monkeypatch.setattr(model, "offloaded", offloaded)
            context = Context(model, n_ctx=768, n_batch=512, threads=1, flash_attn=flash_attn)
            before = set(context._graphs.told_apart())
            found.append([row for held in (100, 250, 300, 100, 300) for row in chat(context, held)])
            shapes |= {key[:2] for key in set(context._graphs.told_apart()) - before}
            context.close()
        assert shapes == {(1, 256), (1, 512), (3, 256), (3, 512)}
        assert found[0] == found[1]

    def test_only_contexts_that_are_opened_here_are_changed(self, cards: None) -> None:
        cpu = library.device_handle("CPU")
        device = graphs._Device.from_address(cpu)
        before = device.init_backend
        base = library.ggml_base()
        backend, kept = graphs.opened(lambda: base.ggml_backend_dev_init(cpu, None))
        assert kept
        assert device.init_backend == before
        other = base.ggml_backend_dev_init(cpu, None)
        changed, plain = (graphs._Backend.from_address(one) for one in (backend, other))
        assert changed.graph_optimize != plain.graph_optimize
        for one in (backend, other):
            base.ggml_backend_free(one)

    def test_a_context_that_cannot_be_opened_leaves_nothing(self, cards: None) -> None:
        cpu = library.device_handle("CPU")
        base = library.ggml_base()

        def fail() -> None:
            base.ggml_backend_free(base.ggml_backend_dev_init(cpu, None))

        before = graphs._Device.from_address(cpu).init_backend
        assert graphs.opened(fail) == (None, ANY_EMPTY)
        with pytest.raises(ZeroDivisionError):
            graphs.opened(lambda: 1 / 0)
        assert graphs._Device.from_address(cpu).init_backend == before

    def test_where_no_graphs_are_captured_nothing_is_changed(
        self, model: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As with Metal or Vulkan."""
        assert graphs._devices() == ()
        monkeypatch.setattr(model, "offloaded", True)
        context = Context(model, n_ctx=256, n_batch=64, n_seq=1, threads=1)
        assert context.kept_graphs == "latest"
        context.close()


class Empty:
    """Equal to graphs of no backend."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContextGraphs) and not other


ANY_EMPTY = Empty()


class TestKnown:
    def test_this_build_is(self) -> None:
        assert graphs.is_known()

    def test_another_release_is_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(graphs, "KNOWN", ("0.0.0",))
        assert not graphs.is_known()

    def test_another_interface_is_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(graphs, "_API_VERSION", 3)
        assert not graphs.is_known()

    def test_a_build_without_the_functions_is_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(library, "ggml_base", lambda: None)
        assert not graphs.is_known()

    def test_a_build_whose_devices_start_otherwise_is_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @contextmanager
        def deaf(devices: Sequence[int]) -> Iterator[list[Any]]:
            yield [functools.cache(lambda *_: 0) for _ in devices]

        monkeypatch.setattr(graphs, "_listening", deaf)
        assert not graphs.is_known()

    @pytest.mark.parametrize("change", ["wrong result", "other node", "other source", "other guid"])
    def test_a_build_that_differs_is_not(
        self, change: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compute = graphs._compute

        def other(base: Any, backend: int) -> tuple[int, int, bool]:
            given, first, correct = compute(base, backend)
            given += 8 * (change == "other source")
            first += 8 * (change == "other node")
            return given, first, correct and change != "wrong result"

        if change == "other guid":
            moved = [("context", ctypes.c_void_p), *graphs._Backend._fields_[:-1]]
            fields = {"_fields_": moved}
            monkeypatch.setattr(graphs, "_Backend", type("_Moved", (ctypes.Structure,), fields))
            monkeypatch.setattr(graphs.MarkedBackend, "__init__", lambda self, address: None)
        else:
            monkeypatch.setattr(graphs, "_compute", other)
        assert not graphs.is_known()

    def test_doctor_tells_what_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert library.describe()["graphs"] == graphs.kept() == "none"
        monkeypatch.setattr(library, "gpus", lambda: ["CUDA0"])
        assert graphs.kept() == "latest"
        monkeypatch.setattr(graphs, "_devices", lambda: (1,))
        assert graphs.kept() == "sized"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            (graphs.VARIABLE, "latest"),
            ("GGML_CUDA_DISABLE_GRAPHS", "1"),
            ("GGML_CUDA_GRAPH_OPT", "1"),
        ],
    )
    def test_users_can_have_llama_cpp_as_it_is(
        self, name: str, value: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cuda = [{"name": "CUDA0", "description": "a card"}]
        monkeypatch.setattr(library, "devices", lambda: cuda)
        monkeypatch.setattr(
            library, "device_handle", lambda name, get=library.device_handle: get("CPU")
        )
        graphs._devices.cache_clear()
        assert len(graphs._devices()) == 1
        monkeypatch.setenv(name, value)
        graphs._devices.cache_clear()
        assert graphs._devices() == ()
        monkeypatch.undo()
        graphs._devices.cache_clear()


class Built:
    """A graph of so many nodes, whose first has `n_tokens` rows."""

    def __init__(self, n_tokens: int, n_nodes: int = 3, first: Any = None) -> None:
        self.tensors = [first or tensor(n_tokens), *(tensor(1) for _ in range(n_nodes - 1))]
        self.nodes = (ctypes.c_void_p * n_nodes)(*map(ctypes.addressof, self.tensors))
        self.own = graphs._Graph(n_nodes, n_nodes, 0, self.nodes)

    def optimize(self, backend: MarkedBackend) -> None:
        backend._optimize(0, ctypes.addressof(self.own), 0)

    def listed(self) -> list[int]:
        return [self.own.nodes[n] for n in range(self.own.n_nodes)]

    @property
    def is_marked(self) -> bool:
        return self.listed()[1:] == list(map(ctypes.addressof, self.tensors))

    @property
    def is_as_before(self) -> bool:
        return self.listed() == list(map(ctypes.addressof, self.tensors))


def tensor(n_rows: int) -> Any:
    made = graphs._Tensor()
    made.ne[1] = n_rows
    return made


@pytest.fixture
def backend() -> MarkedBackend:
    own = graphs._Backend()
    sized = MarkedBackend(ctypes.addressof(own))
    sized.own = own  # type: ignore[attr-defined]  # as long as the other
    return sized


class TestMarks:
    def test_a_size_has_the_same_mark_each_time_and_another_size_another(
        self, backend: MarkedBackend
    ) -> None:
        shared = tensor(0)
        marks = []
        for n_tokens in (1, 3, 1, 3):
            shared.ne[1] = n_tokens
            built = Built(n_tokens, first=shared)
            built.optimize(backend)
            assert built.is_marked
            marks.append(built.listed()[0])
        assert marks[:2] == marks[2:]
        assert marks[0] != marks[1]

    def test_parts_of_one_graph_have_marks_and_nodes_of_their_own(
        self, backend: MarkedBackend
    ) -> None:
        """A model that lies on the CPU in part is computed in several, which all exist at once."""
        parts = [Built(1) for _ in range(3)]
        for part in parts:
            part.optimize(backend)
        assert all(part.is_marked for part in parts)
        assert len({part.listed()[0] for part in parts}) == 3

    def test_copies_that_take_turns_have_marks_of_their_own(self, backend: MarkedBackend) -> None:
        """As with several cards; which one it is shows in what the first node reads."""
        marks = []
        shared = tensor(1)
        for source in (8, 16, 8):
            shared.src[0] = source
            built = Built(1, first=shared)
            built.optimize(backend)
            marks.append(built.listed()[0])
        assert marks[0] == marks[2] != marks[1]

    @pytest.mark.parametrize(("n_tokens", "marked"), [(1, True), (31, True), (32, False)])
    def test_prompts_stay_as_they_are(
        self, n_tokens: int, marked: bool, backend: MarkedBackend
    ) -> None:
        built = Built(n_tokens)
        built.optimize(backend)
        assert built.is_marked == marked
        assert built.is_as_before != marked

    def test_an_empty_graph_stays_as_it_is(self, backend: MarkedBackend) -> None:
        built = Built(1)
        built.own.n_nodes = 0
        built.optimize(backend)
        assert built.own.n_nodes == 0

    def test_shapes_make_room_for_later_ones(
        self, backend: MarkedBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each graph takes memory of the card. All parts of a shape go at once."""
        monkeypatch.setattr(graphs, "MOST_KEPT", 2)
        parts = {n_tokens: [Built(n_tokens) for _ in range(2)] for n_tokens in (1, 2, 3)}
        marks: dict[int, list[int]] = {}

        def optimize(n_tokens: int) -> None:
            before = marks.get(n_tokens)
            marks[n_tokens] = []
            for part in parts[n_tokens]:
                built = Built(n_tokens, first=part.tensors[0])
                built.optimize(backend)
                marks[n_tokens].append(built.listed()[0])
            assert before in (None, marks[n_tokens])

        for n_tokens in (1, 2, 1, 3, 1):
            optimize(n_tokens)
        assert {key[0] for key in backend.told_apart()} == {1, 3}
        assert backend.n_graphs == 4

    def test_attention_tells_the_cells(self, backend: MarkedBackend) -> None:
        flash, softmax = graphs._attentions()
        keys = tensor(512)
        flashed, softened = tensor(4), tensor(4)
        flashed.op, softened.op = flash, softmax
        flashed.src[1] = ctypes.addressof(keys)
        softened.ne[0] = 768
        shared, other = tensor(1), tensor(1)
        for attention in (flashed, softened, tensor(4), flashed):
            built = Built(1, first=shared if attention.op else other)
            built.tensors[1] = attention
            built.nodes[1] = ctypes.addressof(attention)
            built.optimize(backend)
            assert built.is_marked
        assert [key[1] for key in backend.told_apart()] == [768, 0, 512]

    def test_there_is_an_end_to_graphs(
        self, backend: MarkedBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(graphs, "_MOST_GRAPHS", 2)
        built = [Built(1) for _ in range(3)]
        for one in built:
            one.optimize(backend)
        assert [one.is_marked for one in built] == [True, True, False]
        again = Built(1, first=built[0].tensors[0])
        again.optimize(backend)
        assert again.is_marked

    def test_a_mark_is_an_empty_node(self, backend: MarkedBackend) -> None:
        """Of GGML_OP_NONE, with no elements and no memory."""
        built = Built(2)
        built.optimize(backend)
        mark = ctypes.string_at(built.listed()[0], graphs._MARK_BYTES)
        assert not any(mark)

    def test_what_is_forgotten_fits_no_more(self, backend: MarkedBackend) -> None:
        built = Built(2)
        built.optimize(backend)
        address = built.listed()[0]
        before = ctypes.string_at(address, graphs._MARK_BYTES)
        backend.forget()
        assert ctypes.string_at(address, graphs._MARK_BYTES) != before


class TestInterruptions:
    @pytest.fixture
    def heard(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As where nobody else wants to hear of such exceptions (pytest does)."""
        own = graphs._Interruptions()
        monkeypatch.setattr(graphs, "interruptions", own)
        monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
        own.listen()

    def test_ctrl_c_while_a_graph_is_built_is_raised_behind_the_decode(
        self, card: Context, heard: None
    ) -> None:
        expected = decode(card, [1, 2])
        card.drop(0)
        (backend,) = card._graphs._backends
        before = backend._before

        def interrupt(*_: Any) -> None:
            signal.raise_signal(signal.SIGINT)

        backend._before = interrupt  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            decode(card, [1])
        backend._before = before
        card.drop(0)
        assert decode(card, [1, 2]) == expected

    def test_also_one_that_came_before_python_was_called(self, card: Context, heard: None) -> None:
        """The interpreter raises it on the way into the function, where nothing can catch it."""

        def trace(frame: FrameType, event: str, arg: Any) -> None:
            if frame.f_code is MarkedBackend._optimize.__code__:
                sys.settrace(None)
                raise KeyboardInterrupt

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                decode(card, [1])
        finally:
            sys.settrace(before)

    def test_opening_a_context_listens(
        self, cards: None, model: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heard: list[str] = []
        monkeypatch.setattr(graphs.interruptions, "listen", lambda: heard.append("listens"))
        monkeypatch.setattr(model, "offloaded", True)
        Context(model, n_ctx=256, n_batch=64, n_seq=1, threads=1).close()
        assert heard == ["listens"]

    def test_what_others_cannot_raise_is_not_ours(self) -> None:
        told: list[Any] = []
        own = graphs._Interruptions()
        own._before = told.append
        own._take(SimpleNamespace(exc_traceback=None, exc_value=ValueError()))
        assert len(told) == 1
        own.raise_any()

    def test_each_thread_has_its_own(self) -> None:
        own = graphs._Interruptions()
        own._found[-1] = KeyboardInterrupt()
        own.raise_any()
        assert own._found


def test_several_cards_have_more_than_one_graph_of_a_size() -> None:
    owns = [graphs._Backend() for _ in range(2)]
    one, two = (ContextGraphs([ctypes.addressof(own) for own in owns[:n]]) for n in (1, 2))
    assert (one.are_one_a_shape, two.are_one_a_shape) == (True, False)
    assert not ContextGraphs().are_one_a_shape


class TestTouching:
    @pytest.fixture
    def touched(self) -> Iterator[tuple[ContextGraphs, list[int]]]:
        own, found = graphs._Backend(), list[int]()

        def optimize(backend: int, graph: int, params: int) -> None:
            told = graphs._Graph.from_address(graph)
            assert (backend, told.n_nodes) == (ctypes.addressof(own), 0)
            found.append(told.nodes[0])

        callback = graphs._Optimize(optimize)
        own.graph_optimize = ctypes.cast(callback, ctypes.c_void_p).value
        yield ContextGraphs([ctypes.addressof(own)]), found

    def test_every_graph_is_asked_for(self, touched: tuple[ContextGraphs, list[int]]) -> None:
        kept, found = touched
        (backend,) = kept._backends
        marks = []
        backend._before, before = None, backend._before  # type: ignore[assignment]
        for n_tokens in (1, 2):
            built = Built(n_tokens)
            built.optimize(backend)
            marks.append(built.listed()[0])
        backend._before = before
        kept.touch()
        assert found == marks

    def test_no_more_than_the_latest(
        self, touched: tuple[ContextGraphs, list[int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each takes memory of the card."""
        monkeypatch.setattr(graphs, "MOST_KEPT", 2)
        kept, found = touched
        (backend,) = kept._backends
        backend._before, before = None, backend._before  # type: ignore[assignment]
        firsts = {n_tokens: tensor(n_tokens) for n_tokens in (1, 2, 3)}
        marks: dict[int, int] = {}
        for n_tokens in (1, 2, 3, 1):
            built = Built(n_tokens, first=firsts[n_tokens])
            built.optimize(backend)
            marks[n_tokens] = built.listed()[0]
        backend._before = before
        kept.touch()
        assert found == [marks[3], marks[1]]

    def test_not_when_it_is_too_late(self, touched: tuple[ContextGraphs, list[int]]) -> None:
        """As behind a pause of the process: llama.cpp has dropped them by then."""
        kept, found = touched
        kept._backends[0]._graphs[0, 0] = graphs._Tensor(), None
        kept.used_at = time.perf_counter() - graphs.DROPPED_S - 1
        assert not kept.alive
        kept.touch()
        assert not kept.alive
        assert not found

    def test_not_what_was_freed(self, touched: tuple[ContextGraphs, list[int]]) -> None:
        kept, found = touched
        kept._backends[0]._graphs[0, 0] = graphs._Tensor(), None
        kept.close()
        kept.touch()
        assert not found

    def test_the_thread_looks_after_open_contexts_and_ends_behind_the_last(
        self, card: Context, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keeper = graphs._Keeper()
        kept = card._graphs
        monkeypatch.setattr(graphs, "_TOUCHED_S", 0.01)
        kept.used_at = before = time.perf_counter() - 5

        class Owner:
            pass

        owner = Owner()
        keeper.add(owner, kept)
        thread = keeper._thread
        assert thread is not None and thread.daemon
        wait_for(lambda: kept.used_at > before)
        gone = weakref.ref(owner)
        del owner
        gc.collect()
        assert gone() is None or wait_for(lambda: gone() is None)
        wait_for(lambda: not thread.is_alive())
        assert keeper._thread is None

    def test_open_contexts_are_looked_after(self, card: Context) -> None:
        assert graphs.keeper._kept[card] is card._graphs

    def test_a_decode_counts_as_use(self, card: Context) -> None:
        card._graphs.used_at -= graphs.DROPPED_S + 1
        assert not card.graphs_alive
        decode(card, [1])
        assert card.graphs_alive

    def test_a_decode_waits_for_it(self, card: Context) -> None:
        with card._graphs.lock:
            decoding = threading.Thread(target=decode, args=(card, [1]))
            decoding.start()
            decoding.join(0.1)
            assert decoding.is_alive()
        decoding.join()

    def test_decoding_and_touching_take_turns(self, card: Context) -> None:
        expected = decode(card, SIZES)
        stop = threading.Event()

        def touch() -> None:
            while not stop.is_set():
                card._graphs.touch()

        thread = threading.Thread(target=touch)
        thread.start()
        for _ in range(5):
            card.drop(0)
            assert decode(card, SIZES) == expected
        stop.set()
        thread.join()

    def test_a_closed_context_waits_for_it(self, card: Context) -> None:
        with card._graphs.lock:
            closing = threading.Thread(target=card.close)
            closing.start()
            closing.join(0.05)
            assert closing.is_alive()
        closing.join()
        card._graphs.touch()


def wait_for(done: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)
    return True


def test_no_python_runs_while_a_context_is_opened() -> None:
    """Ctrl-C there would hand llama.cpp a wrong address."""
    cpu = library.device_handle("CPU")
    assert cpu is not None
    with graphs._listening([cpu]) as calls:
        assert all(type(call).__module__ == "functools" for call in calls)


def test_rows_are_views_as_before(card: Context) -> None:
    (row,) = card.decode([5], [0], [(0,)], [True])
    assert row.dtype == np.float32
