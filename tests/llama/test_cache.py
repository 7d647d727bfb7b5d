"""TokenCache over the strict fake: mirror and cells never part, whatever the memory can undo."""

from __future__ import annotations

from typing import Any

import pytest

from specllama.errors import EngineError
from specllama.llama.cache import TokenCache
from tests.engine.fake_model import FakeModel, Fault, language

FIRST = [1, 2, 3, 4, 5, 6]
OTHER = [9, 8, 7, 6, 5, 4, 3, 2]


def cache_over(rollback: Any, **settings: Any) -> TokenCache:
    return TokenCache(FakeModel(language(0), rollback=rollback, **settings))


def agree(cache: TokenCache, ids: list[int]) -> None:
    """Cells and mirror hold the same prefix of `ids`."""
    held = cache.backend.tokens(0)  # type: ignore[attr-defined]
    assert len(held) == cache.length(0)
    assert held == tuple(ids[: len(held)])


@pytest.fixture(params=["free", "checkpoint"])
def cache(request: pytest.FixtureRequest) -> TokenCache:
    return cache_over(request.param)


def test_fill_reads_what_is_missing_in_chunks() -> None:
    cache = cache_over("free", n_batch=4)
    cache.fill(0, FIRST[:2])
    cache.fill(0, FIRST)
    assert cache.backend.batches == [2, 4]  # type: ignore[attr-defined]
    agree(cache, FIRST)


@pytest.mark.parametrize("length", range(8))
def test_truncate(cache: TokenCache, length: int) -> None:
    cache.fill(0, FIRST)
    cache.truncate(0, length)
    assert cache.length(0) <= length
    if cache.backend.rollback == "free":
        assert cache.length(0) == min(length, 6)
    agree(cache, FIRST)


def test_a_guarded_state_comes_back() -> None:
    cache = cache_over("checkpoint")
    cache.guard(0, FIRST)
    cache.backend.decode([9, 9], [6, 7], [(0,), (0,)], [True, True])
    cache.record(0, [9, 9])
    cache.truncate(0, 7)
    assert cache.length(0) == 6
    agree(cache, FIRST)


def test_guarding_costs_nothing_where_cells_can_be_dropped() -> None:
    cache = cache_over("free")
    cache.guard(0, FIRST)
    assert cache.length(0) == 0


def forget(cache: TokenCache) -> None:
    cache.forget(0)


def rewrite(cache: TokenCache) -> None:
    cache.keep_prefix(0, OTHER)


def break_off(cache: TokenCache) -> None:
    fake = cache.backend
    assert isinstance(fake, FakeModel)
    fake.faults[len(fake.batches)] = Fault(KeyboardInterrupt, "half")
    with pytest.raises(KeyboardInterrupt):
        cache.fill(0, [*FIRST, 7, 8])
    cache.repair(0)
    cache.keep_prefix(0, OTHER)


@pytest.mark.parametrize("change", [forget, rewrite, break_off])
def test_a_saved_state_is_never_another_texts(cache: TokenCache, change: Any) -> None:
    """A state saved for one text must not come back under the next one."""
    cache.guard(0, FIRST)
    cache.fill(0, FIRST)
    change(cache)
    cache.fill(0, OTHER)
    cache.truncate(0, 7)
    agree(cache, OTHER)


def test_keep_prefix_believes_what_it_is_told(cache: TokenCache) -> None:
    cache.fill(0, FIRST)
    assert cache.keep_prefix(0, [*FIRST, 7], agreed=5) == 6
    assert cache.keep_prefix(0, FIRST[:3], agreed=99) <= 3
    agree(cache, FIRST)


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("count", range(7))
def test_ends_with(cache: TokenCache, start: int, count: int) -> None:
    """From that place on these tokens, and nothing behind them."""
    cache.fill(0, FIRST)
    run = FIRST[start : start + count]
    assert cache.ends_with(0, start, run) == (start + len(run) == 6)
    assert not cache.ends_with(0, start, [*run[:-1], 9])
    assert cache.ends_with(1, start, []) == (start == 0)


@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_repair(cache: TokenCache, when: Any) -> None:
    fake = cache.backend
    assert isinstance(fake, FakeModel)
    cache.fill(0, FIRST)
    fake.faults[1] = Fault(KeyboardInterrupt, when)
    with pytest.raises(KeyboardInterrupt):
        cache.fill(0, [*FIRST, 7, 8])
    cache.repair(0)
    agree(cache, FIRST)
    cache.fill(0, [*FIRST, 7, 8])
    agree(cache, [*FIRST, 7, 8])


def test_repair_where_nothing_was_ever_held(cache: TokenCache) -> None:
    cache.repair(0)
    assert cache.length(0) == 0


class TestSharing:
    def test_cells_are_shared_and_counted_once(self) -> None:
        cache = cache_over("free", n_seq=3)
        cache.fill(0, FIRST)
        assert cache.share_prefix(1, [*FIRST[:4], 9, 9]) == 4
        assert (cache.n_cells, len(cache.backend.cells)) == (6, 6)  # type: ignore[attr-defined]
        cache.fill(1, [*FIRST[:4], 9, 9])
        cache.truncate(0, 2)
        cache.forget(0)
        assert cache.backend.tokens(1) == (*FIRST[:4], 9, 9)  # type: ignore[attr-defined]
        assert (cache.n_cells, len(cache.backend.cells)) == (6, 6)  # type: ignore[attr-defined]
        cache.forget(1)
        assert cache.n_cells == 0

    def test_own_cells_come_first(self) -> None:
        cache = cache_over("free", n_seq=2)
        cache.fill(0, FIRST)
        cache.fill(1, FIRST)
        assert cache.share_prefix(1, FIRST) == 6
        assert cache.n_cells == 12

    def test_what_cannot_be_cut_is_not_shared(self) -> None:
        cache = cache_over("checkpoint", n_seq=2)
        cache.fill(0, FIRST)
        assert cache.share_prefix(1, FIRST) == 0

    def test_room_is_made_of_what_was_unused_for_longest(self) -> None:
        cache = cache_over("free", n_seq=4, n_ctx=20)
        for seq in (2, 0, 1):
            cache.fill(seq, FIRST)
        cache.fill(2, [*FIRST, 7])
        assert cache.make_room(1, keep=())
        assert cache.n_cells == 19
        assert cache.make_room(5, keep=())
        assert [cache.length(seq) for seq in (0, 1, 2)] == [0, 6, 7]
        assert not cache.make_room(9, keep=(1, 2))
        assert cache.n_cells == 13


class TestLoading:
    def test_a_state_comes_back_anywhere(self, cache: TokenCache) -> None:
        cache.fill(0, FIRST)
        state = cache.backend.state(0)
        other = cache_over(cache.backend.rollback, n_seq=2)
        other.fill(0, OTHER)
        other.load(0, FIRST, state)
        agree(other, FIRST)
        other.fill(0, [*FIRST, 7])
        agree(other, [*FIRST, 7])
        assert other.n_cells == 7

    def test_another_texts_state(self, cache: TokenCache) -> None:
        cache.fill(0, FIRST)
        state = cache.backend.state(0)
        with pytest.raises(EngineError, match="not of this text"):
            cache.load(0, FIRST[:3], state)
        assert cache.n_cells <= 3
        agree(cache, FIRST)

    def test_no_room(self) -> None:
        cache = cache_over("free", n_ctx=5)
        with pytest.raises(EngineError, match="no room"):
            cache.load(0, FIRST, bytes(FIRST))
        assert cache.length(0) == 0
