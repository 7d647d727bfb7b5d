"""`store show`, `store clear` and `store path`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from specllama.drafting.answers import Answers, files
from specllama.drafting.store import open_store
from tests.hub.ggufs import write_gguf

from .conftest import Result

Cli = Callable[..., Result]


@pytest.fixture
def stores(tmp_path: Path) -> list[Answers]:
    """Two models; the first has two answers of 10 and 20 tokens, the second one of 10."""
    stores = [open_store(write_gguf(tmp_path / f"{name}.gguf")) for name in "ab"]
    stores[0].remember(range(10))
    stores[0].remember(range(20))
    stores[1].remember(range(10))
    return stores


def test_an_empty_store(cli: Cli) -> None:
    result = cli("store", "show")
    assert (result.code, result.out) == (0, "")
    assert "--store" in result.err
    assert json.loads(cli("store", "show", "--json").out) == []
    assert "nothing to forget" in cli("store", "clear", "--yes").err


def test_show(cli: Cli, stores: list[Answers]) -> None:
    lines = cli("store", "show").out.splitlines()
    assert lines[0].split() == ["NAME", "ANSWERS", "TOKENS", "SIZE", "LAST"]
    name = stores[0].folder.name
    assert lines[1].split() == [name, "2", "30", "188", "B", date.today().isoformat()]
    assert lines[2].split()[:3] == [stores[1].folder.name, "1", "10"]

    data = json.loads(cli("store", "show", "--json").out)
    assert data[0]["path"] == str(stores[0].folder)
    assert (data[0]["answers"], data[0]["tokens"], data[0]["bytes"]) == (2, 30, 188)


def test_show_of_a_damaged_store(cli: Cli, stores: list[Answers]) -> None:
    (journal,) = files(stores[0].folder)
    journal.write_bytes(journal.read_bytes()[:-1])
    result = cli("store", "show")
    assert result.code == 0
    assert f"Warning: {journal} was damaged" in result.err
    assert result.out.splitlines()[1].split()[1] == "1"


def test_clear_asks(cli: Cli, stores: list[Answers]) -> None:
    result = cli("store", "clear")
    assert result.code == 2
    assert "Forget the answers of 2 model(s)" in result.err
    assert files(stores[0].folder)


def test_clear_one(cli: Cli, stores: list[Answers]) -> None:
    data = json.loads(cli("store", "clear", stores[0].folder.name, "--yes", "--json").out)
    assert data == {"cleared": [stores[0].folder.name], "bytes": 188}
    assert cli("store", "show", "-q").out == f"{stores[1].folder.name}\n"


def test_clear_all_also_what_is_damaged(cli: Cli, stores: list[Answers]) -> None:
    (journal,) = files(stores[0].folder)
    journal.write_bytes(b"x" * 100)
    assert cli("store", "clear", "-y").code == 0
    assert cli("store", "show", "-q").out == ""


def test_clear_of_an_unknown_name(cli: Cli, stores: list[Answers]) -> None:
    assert cli("store", "clear", "x", "-y") == Result(
        2, "", "Error: The store has nothing called x.\nSee: specllama store show\n"
    )
    assert files(stores[0].folder)


def test_path(cli: Cli, own_home: Path) -> None:
    assert cli("store", "path").out == f"{own_home / 'answers'}\n"
    assert json.loads(cli("store", "path", "--json").out) == {"path": str(own_home / "answers")}


def test_clear_of_one_named_twice(cli: Cli, stores: list[Answers]) -> None:
    name = stores[0].folder.name
    data = json.loads(cli("store", "clear", name, name, "--yes", "--json").out)
    assert data == {"cleared": [name], "bytes": 188}
