"""Tables on disk: what is believed, what is not, and that nothing is left half written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specllama.scheduling.table import FORMAT, MOST_BYTES, MOST_FILES, CostTable, Place, Tables


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(1000))
    return path


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "costs")


def place(model: Path, *, build: str = "b1", machine: str = "cpu", threads: int = 2) -> Place:
    return Place.of(machine, build, model, None, {"threads": threads})


TABLE = CostTable(
    how="calibrated",
    date="2026-11-28T12:00",
    load=0.5,
    same={1: 0.0118, 4: 0.0313},
    other={1: 0.0119},
    second={1: 0.0165},
    draft={"model": {1: 0.0017, 4: 0.006}},
    prefill=0.004,
    acceptance={"model": {"depths": [0.7, 0.6]}},
    threads={"plain": 2, "batched": 2},
    exact_batch=7,
)


def test_what_was_kept_comes_back(tables: Tables, model: Path) -> None:
    tables.save(place(model), TABLE)
    assert tables.load(place(model)) == (TABLE, "")
    assert [path.suffix for path in tables.folder.iterdir()] == [".json"]


def test_nothing_kept_is_no_reason_to_warn(tables: Tables, model: Path) -> None:
    assert tables.load(place(model)) == (None, "")
    tables.save(place(model), TABLE)
    assert tables.load(place(model, threads=1)) == (None, ""), "other settings have their own"
    assert tables.load(place(model, machine="other")) == (None, "")


def test_another_build_is_told(tables: Tables, model: Path) -> None:
    tables.save(place(model), TABLE)
    table, warning = tables.load(place(model, build="b2"))
    assert table is None
    assert "another llama.cpp" in warning


@pytest.mark.parametrize("same_size", [True, False])
def test_a_model_swapped_under_the_same_name_is_noticed(
    tables: Tables, model: Path, same_size: bool
) -> None:
    tables.save(place(model), TABLE)
    before = model.stat().st_mtime_ns
    model.write_bytes(b"GGUF" + bytes([1]) * (1000 if same_size else 2000))
    os.utime(model, ns=(before, before))
    table, warning = tables.load(place(model))
    assert table is None
    assert "another target file" in warning


def test_a_foreign_file_under_our_name_is_not_believed(tables: Tables, model: Path) -> None:
    theirs = place(model, machine="theirs")
    tables.save(theirs, TABLE)
    tables.path(theirs).rename(tables.path(place(model)))
    table, warning = tables.load(place(model))
    assert table is None
    assert "another machine" in warning


def _set(*keys: str, to: Any) -> Callable[[dict[str, Any]], object]:
    def change(data: dict[str, Any]) -> object:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = to
        return None

    return change


@pytest.mark.parametrize(
    "damage",
    [
        _set("table", "same", to={"1": -0.1}),
        _set("table", "same", to={"1": float("nan")}),
        _set("table", "same", to={"1": 1e9}),
        _set("table", "same", to={"1": 10**400}),
        _set("table", "load", to=-(10**400)),
        _set("table", "same", to={"0": 0.1}),
        _set("table", "same", to={"one": 0.1}),
        _set("table", "same", to=[0.1]),
        _set("table", "other", to={"1": True}),
        _set("table", "second", to={"1": 0.0}),
        _set("table", "draft", to={"model": {"1": "fast"}}),
        _set("table", "prefill", to="x"),
        _set("table", "acceptance", to={"model": {"depths": [1.5]}}),
        _set("table", "threads", to={"plain": 0}),
        _set("table", "exact_batch", to=0),
        _set("table", "how", to="guessed"),
        _set("table", to=None),
        _set("identity", to={}),
        lambda data: data.pop("format"),
        lambda data: data["table"].pop("same"),
        lambda data: data["table"].pop("second"),
    ],
)
def test_damage_is_noticed(
    tables: Tables, model: Path, damage: Callable[[dict[str, Any]], object]
) -> None:
    tables.save(place(model), TABLE)
    path = tables.path(place(model))
    data = json.loads(path.read_text())
    damage(data)
    path.write_text(json.dumps(data))
    table, warning = tables.load(place(model))
    assert table is None
    assert "damaged" in warning


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"[" * 100_000, b"null"])
def test_what_is_no_table_is_noticed(tables: Tables, model: Path, content: bytes) -> None:
    tables.folder.mkdir()
    tables.path(place(model)).write_bytes(content)
    table, warning = tables.load(place(model))
    assert table is None
    assert "damaged" in warning


def test_what_would_not_be_believed_is_not_kept(tables: Tables, model: Path) -> None:
    """As the first decode of all, during which the machine slept for half a day."""
    slept = replace(TABLE, same={1: 0.0118, 2: 5e4, 5000: 0.3}, draft={"model": {1: 5e4}})
    tables.save(place(model), slept)
    kept = replace(TABLE, same={1: 0.0118}, draft={"model": {}})
    assert tables.load(place(model)) == (kept, "")


def test_a_huge_file_is_not_read(tables: Tables, model: Path) -> None:
    tables.folder.mkdir()
    tables.path(place(model)).write_bytes(b" " * (MOST_BYTES + 1))
    assert tables.load(place(model))[0] is None


@pytest.mark.parametrize("other", [1, FORMAT + 1])
def test_another_format_is_told(tables: Tables, model: Path, other: int) -> None:
    tables.save(place(model), TABLE)
    path = tables.path(place(model))
    data = json.loads(path.read_text())
    assert data["format"] == FORMAT == 2
    path.write_text(json.dumps(data | {"format": other}))
    table, warning = tables.load(place(model))
    assert table is None
    assert "another version" in warning


def test_a_full_table_fits(tables: Tables, model: Path) -> None:
    sizes = dict.fromkeys(range(1, 65), 0.123456789)
    draft = {f"drafter {n}": sizes for n in range(8)}
    acceptance = {f"drafter {n}": {"bins": [0.123456789] * 99} for n in range(24)}
    costs = {"same": sizes, "other": sizes, "second": sizes}
    table = replace(TABLE, **costs, draft=draft, acceptance=acceptance)
    tables.save(place(model), table)
    assert tables.path(place(model)).stat().st_size < MOST_BYTES
    assert tables.load(place(model))[0] is not None


def test_the_oldest_tables_go(tables: Tables, model: Path) -> None:
    for threads in range(MOST_FILES + 3):
        tables.save(place(model, threads=threads), TABLE)
        path = tables.path(place(model, threads=threads))
        os.utime(path, (threads, threads))
    tables.save(place(model, threads=999), TABLE)
    assert len(list(tables.folder.iterdir())) == MOST_FILES
    assert tables.load(place(model, threads=0))[0] is None
    assert tables.load(place(model, threads=MOST_FILES))[0] is not None


def test_a_failed_write_leaves_what_was(
    tables: Tables, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.save(place(model), TABLE)

    def full(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(OSError, match="disk full"):
        tables.save(place(model), replace(TABLE, how="learned"))
    monkeypatch.undo()
    assert tables.load(place(model)) == (TABLE, "")
    assert len(list(tables.folder.iterdir())) == 1
