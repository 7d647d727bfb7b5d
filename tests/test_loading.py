"""How large the contexts are that several sequences share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specllama import ModelOptions, OutOfMemory, loading
from specllama.llama.context import padded


class Memory:
    """Stands in for `Context`; so many cells fit."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self.asked: list[dict[str, Any]] = []

    def __call__(self, model: Any, **settings: Any) -> Memory:
        self.asked.append(settings)
        if settings["n_ctx"] > self.cells:
            raise OutOfMemory("full")
        return self


def opened(monkeypatch: pytest.MonkeyPatch, cells: int, **options: Any) -> list[dict[str, Any]]:
    memory = Memory(cells)
    monkeypatch.setattr(loading, "Context", memory)
    model: Any = SimpleNamespace(offloaded=False)
    loading._target_context(model, ModelOptions(**options), 1000)
    return memory.asked


def test_cells_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    (asked,) = opened(monkeypatch, 10**6, parallel=4)
    assert asked["n_ctx"] == 4 * padded(1000) == 4096
    assert asked["n_seq"] == 4 + loading.TREE_BRANCHES
    assert not asked["apart"]


def test_fewer_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = opened(monkeypatch, 2000, parallel=4)
    assert [one["n_ctx"] for one in asked] == [4096, 2048, 1024]


def test_never_fewer_than_one_conversation_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutOfMemory):
        opened(monkeypatch, 1000, parallel=4)


def test_exact_sequences_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    (asked,) = opened(monkeypatch, 10**6, parallel=4, exact=True)
    assert (asked["apart"], asked["n_seq"], asked["n_ctx"]) == (True, 4, 4096)
    (asked,) = opened(monkeypatch, 10**6, parallel=1, exact=True)
    assert not asked["apart"]


def test_cells_of_ones_own_cannot_be_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutOfMemory):
        opened(monkeypatch, 2000, parallel=4, exact=True)
