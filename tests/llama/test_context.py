"""Decoding over the real target: rows, cells, sequences, refusals that are no aborts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from specllama.errors import EngineError, UsageError
from specllama.llama import context as context_module
from specllama.llama.context import Context, default_threads
from specllama.llama.model import Model

pytestmark = pytest.mark.model

IDS = [504, 2365, 282, 4649, 314, 3575, 28, 284, 260, 2240]


def read(context: Context, ids: Sequence[int], seq: int = 0, start: int = 0) -> np.ndarray:
    """Decode ids in one batch with all logits; a copy of the rows."""
    places = range(start, start + len(ids))
    rows = context.decode(ids, places, [(seq,)] * len(ids), [True] * len(ids))
    return np.stack(rows)


class TestRows:
    def test_a_batch_gives_what_single_tokens_give(self, context: Context) -> None:
        """One thread, flash attention: bit by bit."""
        batch = read(context, IDS)
        context.drop(0)
        single = np.vstack([read(context, [t], start=n) for n, t in enumerate(IDS)])
        assert np.array_equal(batch[:7], single[:7])
        assert np.allclose(batch, single, atol=2e-3)

    def test_only_what_is_wanted(self, context: Context) -> None:
        every = read(context, IDS)
        context.drop(0)
        wanted = [n in (3, 9) for n in range(10)]
        rows = context.decode(IDS, range(10), [(0,)] * 10, wanted)
        assert [row.shape for row in rows] == [(49152,)] * 2
        assert {row.dtype for row in rows} == {np.dtype(np.float32)}
        assert np.array_equal(rows, every[[3, 9]])

    def test_nothing_wanted(self, context: Context) -> None:
        assert context.decode(IDS, range(10), [(0,)] * 10, [False] * 10) == []
        assert context.length(0) == 10

    def test_the_prefix_is_seen(self, context: Context) -> None:
        first = read(context, IDS)
        context.drop(0)
        other = read(context, [IDS[1], *IDS[1:]])
        assert np.abs(first[9] - other[9]).max() > 0.1

    def test_seconds(self, context: Context) -> None:
        before = context.seconds
        read(context, IDS)
        assert 0.0 < context.seconds - before < 10.0


def decode(context: Context, meanwhile: Callable[[], None] | None = None) -> np.ndarray:
    """Ten tokens of sequence 0, anew; a copy of the last two rows."""
    context.drop(0)
    wanted = [n > 7 for n in range(10)]
    return np.stack(context.decode(IDS, range(10), [(0,)] * 10, wanted, meanwhile))


class Times:
    """A clock that only what is told takes time on: of each look at it, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: list[float] = []

    def perf_counter(self) -> float:
        self.now += self.steps.pop(0) if self.steps else 0.0
        return self.now


class TestMeanwhile:
    @pytest.fixture
    def times(self, monkeypatch: pytest.MonkeyPatch) -> Times:
        times = Times()
        monkeypatch.setattr(context_module, "time", times)
        return times

    def timed(self, context: Context, times: Times, queued_s: float, waited_s: float) -> None:
        """A decode whose call takes so long, and whose rows so much longer."""
        times.steps = [0.0, queued_s, 0.0, waited_s]
        decode(context)

    def busy(self, context: Context, times: Times, seconds: float, waited_s: float) -> None:
        """A decode that is queued at once, and so much is done meanwhile."""
        times.steps = [0.0, 0.0, 0.0, seconds, 0.0, waited_s]
        decode(context, lambda: None)

    def test_once_between_queueing_and_rows(
        self, context: Context, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = decode(context)
        rows = context._logits
        order: list[str] = []

        def watched(count: int) -> Any:
            order.append("rows")
            return rows(count)

        monkeypatch.setattr(context, "_logits", watched)

        def meanwhile() -> None:
            order.append(f"meanwhile {context.length(0)}")

        assert np.array_equal(decode(context, meanwhile), expected)
        assert order == ["meanwhile 10", "rows"]

    def test_another_context_decodes_meanwhile(self, model: Model, context: Context) -> None:
        expected = decode(context)
        other = Context(model, n_ctx=256, n_batch=32, threads=1, flash_attn="on")
        found: list[np.ndarray] = []
        rows = decode(context, lambda: found.append(read(other, IDS[:3])))
        assert np.array_equal(rows, expected)
        assert found[0].shape == (3, 49152)
        other.close()

    @pytest.mark.parametrize("error", [EngineError, KeyboardInterrupt])
    def test_an_exception_leaves_the_context_usable(
        self, context: Context, error: type[BaseException]
    ) -> None:
        def meanwhile() -> None:
            raise error("broken off")

        expected = decode(context)
        with pytest.raises(error, match="broken off"):
            decode(context, meanwhile)
        assert context.length(0) == 10, "all that was queued"
        assert np.array_equal(decode(context), expected)

    def test_not_where_llama_cpp_refuses(self, context: Context) -> None:
        called: list[int] = []
        read(context, IDS[:3])
        with pytest.raises(EngineError):
            context.decode([5], [7], [(0,)], [True], lambda: called.append(1))
        with pytest.raises(EngineError):
            context.decode([5], [0], [(9,)], [True], lambda: called.append(1))
        assert not called

    def test_its_time_is_not_the_models(self, context: Context, times: Times) -> None:
        before = context.seconds
        times.steps = [0.0, 0.25, 0.0, 64.0, 0.0, 0.5]
        decode(context, lambda: None)
        assert context.seconds - before == pytest.approx(0.75)
        assert not times.steps

    def test_a_cpu_answers_at_once(self, context: Context) -> None:
        for _ in range(5):
            read(context, IDS)
            context.drop(0)
        assert not context.answers_later

    def test_a_fresh_context_has_not_been_seen_to_wait(self, context: Context) -> None:
        context._waits.clear()
        assert not context.answers_later

    def test_most_of_the_latest_decodes_count(self, context: Context, times: Times) -> None:
        """Nine of them: five that waited for longer than it took to queue them."""
        for _ in range(9):
            self.timed(context, times, 0.5, 0.25)
        seen = []
        for waited_s in (1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.25):
            self.timed(context, times, 0.5, waited_s)
            seen.append(context.answers_later)
        assert seen == [False] * 4 + [True] * 3
        for _ in range(3):
            self.timed(context, times, 0.5, 0.5)
        assert not context.answers_later, "five of the latest nine did not wait"

    def test_one_hiccup_says_nothing(self, context: Context, times: Times) -> None:
        for n in range(30):
            self.timed(context, times, 0.1, 1.0 if n % 4 else 0.0)
            assert n < 9 or context.answers_later

    def test_decodes_that_something_was_done_beside_do_not_count(
        self, context: Context, times: Times
    ) -> None:
        """Their rows may have come meanwhile."""
        for _ in range(9):
            self.timed(context, times, 0.1, 1.0)
        for _ in range(12):
            self.busy(context, times, 1.0, 0.0)
        assert context.answers_later

    def test_overran(self, context: Context, times: Times) -> None:
        """Nothing was left to wait for: what was done took longer than the decode."""
        seen = []
        for seconds, waited_s in ((1.0, 0.0), (1.0, 0.04), (1.0, 0.06), (0.0, 0.0), (0.1, 0.1)):
            self.busy(context, times, seconds, waited_s)
            seen.append(context.overran)
        assert seen == [True, True, False, False, False]
        self.busy(context, times, 1.0, 0.0)
        self.timed(context, times, 0.1, 0.0)
        assert not context.overran, "of the latest decode"


class TestRefusals:
    @pytest.fixture(autouse=True)
    def works_afterwards(self, context: Context) -> object:
        yield
        for seq in range(4):
            context.drop(seq)
        read(context, IDS[:3])
        assert context.length(0) == 3

    @pytest.mark.parametrize("count", [0, 33, 1000])
    def test_batch_size(self, context: Context, count: int) -> None:
        with pytest.raises(EngineError, match=f"{count} tokens.*1..32"):
            context.decode([5] * count, range(count), [(0,)] * count, [False] * count)

    def test_too_many_rows(self, context: Context) -> None:
        with pytest.raises(EngineError, match=r"17 tokens.*16"):
            context.decode([5] * 17, range(17), [(0,)] * 17, [True] * 17)

    @pytest.mark.parametrize("token", [-1, 49152, 2**31 - 1])
    def test_tokens_outside_the_vocabulary(self, context: Context, token: int) -> None:
        with pytest.raises(EngineError, match="token"):
            context.decode([token], [0], [(0,)], [True])

    @pytest.mark.parametrize("seq", [-1, 4])
    def test_sequences_outside(self, context: Context, seq: int) -> None:
        with pytest.raises(EngineError):
            context.decode([5], [0], [(seq,)], [True])

    def test_a_gap(self, context: Context) -> None:
        read(context, IDS[:3])
        with pytest.raises(EngineError, match="position"):
            context.decode([5], [7], [(0,)], [True])
        assert context.length(0) == 3

    def test_a_full_cache(self, context: Context) -> None:
        for start in range(0, 256, 32):
            context.decode([5] * 32, range(start, start + 32), [(0,)] * 32, [False] * 32)
        with pytest.raises(EngineError, match="no room"):
            context.decode([5], [256], [(0,)], [True])
        assert context.length(0) == 256


class TestCells:
    def test_truncate(self, context: Context) -> None:
        whole = read(context, IDS)
        assert context.rollback == "free"
        assert context.truncate(0, 4)
        assert context.length(0) == 4
        assert np.allclose(read(context, IDS[4:], start=4), whole[4:], atol=2e-3)

    def test_drop(self, context: Context) -> None:
        read(context, IDS)
        read(context, IDS, seq=1)
        context.drop(0)
        assert (context.length(0), context.length(1)) == (0, 10)

    def test_branches_see_their_own_past(self, context: Context) -> None:
        """A tree in one batch: each leaf has the logits of its own path."""
        read(context, IDS)
        context.fork(0, 1)
        tokens, seqs = [28, 284, 260, 3575], [(0,), (1,), (0,), (1,)]
        rows = np.stack(context.decode(tokens, [10, 10, 11, 11], seqs, [True] * 4))
        context.drop(1)
        context.truncate(0, 10)
        left = read(context, [28, 260], start=10)
        context.truncate(0, 10)
        right = read(context, [284, 3575], start=10)
        assert np.allclose(rows[[0, 2]], left, atol=1e-2)
        assert np.allclose(rows[[1, 3]], right, atol=1e-2)
        assert np.abs(rows[2] - right[1]).max() > 0.5

    def test_adopt(self, context: Context) -> None:
        read(context, IDS)
        context.fork(0, 1)
        context.decode([28, 284, 260], [10, 10, 11], [(0,), (1,), (1,)], [False] * 3)
        context.adopt(1, 0, 10)
        context.drop(1)
        assert context.length(0) == 12
        adopted = read(context, [3575], start=12)
        context.drop(0)
        plain = read(context, [*IDS, 284, 260, 3575])
        assert np.abs(adopted[0] - plain[12]).max() < 1.0  # holes change the order of sums
        assert int(adopted[0].argmax()) == int(plain[12].argmax())

    def test_forks_share_cells(self, context: Context) -> None:
        """Four sequences of 200 tokens in 256 cells."""
        for start in range(0, 192, 32):
            context.decode([5] * 32, range(start, start + 32), [(0,)] * 32, [False] * 32)
        for seq in (1, 2, 3):
            context.fork(0, seq)
        assert context.length(3) == 192
        context.decode([7], [192], [(3,)], [True])


class TestOpening:
    def test_n_ctx_is_rounded_up(self, model: Model) -> None:
        context = Context(model, n_ctx=300, threads=1)
        assert context.n_ctx == 512
        context.close()
        context.close()

    def test_quantised_v_needs_flash_attention(self, model: Model) -> None:
        with pytest.raises(UsageError, match="flash attention"):
            Context(model, n_ctx=256, threads=1, flash_attn="off", cache_type_v="q8_0")

    def test_threads(self) -> None:
        assert default_threads() >= 1

    def test_memory_does_not_grow_with_the_context(self, model: Model) -> None:
        """Logits are kept for a batch, never for a conversation."""
        import tracemalloc

        context = Context(model, n_ctx=1024, n_batch=64, threads=1)
        ids = [5 + n for n in range(64)]
        context.decode(ids, range(64), [(0,)] * 64, [False] * 63 + [True])
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for start in range(64, 256, 64):
            wanted = [False] * 32 + [True] * 32
            context.decode(ids, range(start, start + 64), [(0,)] * 64, wanted)
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        context.close()
        assert grown < 100_000, "one row of logits takes 200 kB"
