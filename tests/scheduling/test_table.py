"""Tables on disk: what is believed, what is not, and that nothing is left half written."""

from __future__ import annotations

import hashlib
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


def place(
    model: Path,
    draft: Path | None = None,
    *,
    build: str = "b1",
    machine: str = "cpu",
    threads: int = 2,
) -> Place:
    return Place.of(machine, build, model, draft, {"threads": threads, "exact": False})


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


def test_a_draft_swapped_under_the_same_name_is_noticed(
    tables: Tables, model: Path, tmp_path: Path
) -> None:
    draft = tmp_path / "draft.gguf"
    draft.write_bytes(b"GGUF" + bytes(100))
    tables.save(place(model, draft), TABLE)
    assert tables.load(place(model, draft)) == (TABLE, "")
    draft.write_bytes(b"GGUF" + bytes(200))
    table, warning = tables.load(place(model, draft))
    assert table is None
    assert "with another draft file;" in warning


@pytest.mark.parametrize(
    ("theirs", "what"), [({"machine": "theirs"}, "machine"), ({"threads": 1}, "settings")]
)
def test_a_foreign_file_under_our_name_is_not_believed(
    tables: Tables, model: Path, theirs: dict[str, Any], what: str
) -> None:
    tables.save(place(model, **theirs), TABLE)
    tables.path(place(model, **theirs)).rename(tables.path(place(model)))
    table, warning = tables.load(place(model))
    assert table is None
    assert f"with another {what};" in warning


def _set(*keys: str, to: Any) -> Callable[[dict[str, Any]], object]:
    def change(data: dict[str, Any]) -> object:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = to
        return None

    return change


def rewrite(
    path: Path, change: Callable[[dict[str, Any]], object], *, signed: bool = False
) -> None:
    """Change a kept file, with or without the digest that belongs to it then."""
    data = json.loads(path.read_text())
    change(data)
    if signed:
        content = json.dumps([data["identity"], data["table"]], sort_keys=True)
        data["digest"] = hashlib.sha256(content.encode()).hexdigest()
    path.write_text(json.dumps(data))


REST = {str(n): 1e-6 for n in range(2, 9)}


@pytest.mark.parametrize("signed", [True, False])
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
        _set("table", "second", to={"1": 1.2}),
        _set("table", "other", to={"1": 0.0001}),
        _set("table", "same", to={"1": 5e-324}),
        _set("table", "same", to={"1": 3599, **REST}),
        _set("table", "same", to={"1": 1e-6} | dict.fromkeys(REST, 3599)),
        _set("table", "draft", to={"model": {"1": 0.001, "4": 0.3}}),
        _set("table", "draft", to={"mod\nel": {"1": 0.001}}),
        _set("table", "prefill", to=0),
        _set("table", "prefill", to=1.0),
        _set("table", "threads", to={"plain": 1.5}),
        _set("table", "threads", to={"pl\x1bain": 1}),
        _set("table", "acceptance", to={"m" * 65: {}}),
        _set("table", "exact_batch", to=1.5),
        _set("table", "exact_batch", to=17),
        _set("table", "exact_batch", to=True),
        _set("table", "date", to=20261128),
        _set("table", "date", to=None),
        _set("table", "date", to="yesterday"),
        _set("table", "date", to="2026-11-28\n12:00"),
        _set("table", "date", to="2026-11-28T12:00\x1b[2J"),
        _set("table", "draft", to={"model": {"1": "fast"}}),
        _set("table", "prefill", to="x"),
        _set("table", "acceptance", to={"model": {"depths": [1.5]}}),
        _set("table", "threads", to={"plain": 0}),
        _set("table", "exact_batch", to=0),
        _set("table", "how", to="guessed"),
        _set("table", to=None),
        _set("identity", to=None),
        lambda data: data.pop("format"),
        lambda data: data["table"].pop("same"),
        lambda data: data["table"].pop("second"),
    ],
)
def test_damage_is_noticed(
    tables: Tables, model: Path, damage: Callable[[dict[str, Any]], object], signed: bool
) -> None:
    tables.save(place(model), TABLE)
    rewrite(tables.path(place(model)), damage, signed=signed)
    table, warning = tables.load(place(model))
    assert table is None
    assert "damaged" in warning


@pytest.mark.parametrize(
    "damage",
    [
        _set("table", "same", to={"1": 0.0128, "4": 0.0313}),
        _set("table", "exact_batch", to=8),
        _set("digest", to=""),
        lambda data: data.pop("digest"),
        lambda data: data["identity"].pop("settings"),
    ],
)
def test_a_digit_that_changed_is_noticed(
    tables: Tables, model: Path, damage: Callable[[dict[str, Any]], object]
) -> None:
    tables.save(place(model), TABLE)
    path = tables.path(place(model))
    rewrite(path, lambda data: None)
    assert tables.load(place(model)) == (TABLE, ""), "other spaces are no other table"
    rewrite(path, damage)
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
    slept = replace(
        TABLE,
        same={1: 0.0118, 2: 5e4, 3: 60.0, 5000: 0.3},
        second={1: 600.0},
        draft={"model": {1: 5e4}},
        prefill=9.0,
    )
    tables.save(place(model), slept)
    kept = replace(TABLE, same={1: 0.0118}, second={}, draft={"model": {}}, prefill=None)
    assert tables.load(place(model)) == (kept, "")


def test_a_huge_file_is_not_read(tables: Tables, model: Path) -> None:
    tables.save(place(model), TABLE)
    path = tables.path(place(model))
    path.write_text(path.read_text().ljust(MOST_BYTES))
    assert tables.load(place(model)) == (TABLE, "")
    path.write_text(path.read_text() + " ")
    table, warning = tables.load(place(model))
    assert table is None
    assert "damaged" in warning


def test_what_never_ends_is_not_read(tables: Tables, model: Path) -> None:
    tables.folder.mkdir()
    path = tables.path(place(model))
    path.symlink_to("/dev/zero")
    assert "is no regular file" in tables.load(place(model))[1]
    path.unlink()
    os.mkfifo(path)
    assert "is no regular file" in tables.load(place(model))[1]
    assert tables.beside(place(model, threads=1)) == []
    tables.save(place(model), TABLE)
    assert tables.load(place(model)) == (TABLE, "")


def test_tables_beside_are_those_of_the_pair_with_other_settings(
    tables: Tables, model: Path, tmp_path: Path
) -> None:
    assert tables.beside(place(model)) == []
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    tables.save(place(model), TABLE)
    tables.save(place(model, threads=1), TABLE)
    late = replace(TABLE, date="2026-11-29T09:00")
    tables.save(place(model, threads=8), late)
    for strange in (place(other), place(model, other), place(model, machine="theirs")):
        tables.save(strange, TABLE)
    tables.save(place(model, threads=3), TABLE)
    rewrite(tables.path(place(model, threads=3)), _set("table", "how", to="guessed"))
    assert tables.beside(place(model)) == [({"threads": 8}, late), ({"threads": 1}, TABLE)]


@pytest.mark.parametrize("other", [1, 2, 3, FORMAT + 1])
def test_another_format_is_told(tables: Tables, model: Path, other: int) -> None:
    tables.save(place(model), TABLE)
    path = tables.path(place(model))
    assert json.loads(path.read_text())["format"] == FORMAT == 4
    rewrite(path, _set("format", to=other))
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
