from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.cli.prune import parse_layers
from specllama.hub.gguf import read
from tests.hub.ggufs import write_gguf

from .conftest import Result

Cli = Callable[..., Result]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A header of six layers in the working folder; llama.cpp would not load it."""
    return write_gguf(tmp_path / "work" / "tiny.gguf", extra={"llama.block_count": 6})


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("0-2", {0, 1, 2}),
        ("5", {5}),
        ("0,2-3, 5", {0, 2, 3, 5}),
        ("1-1,1", {1}),
    ],
)
def test_lists_of_layers(text: str, layers: set[int]) -> None:
    assert parse_layers(text, 6) == layers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Which layers?"),
        (["--keep-layers", "0-2", "--drop", "2"], "Which layers?"),
        (["--keep-layers", "0-5"], "keeps all 6 layers"),
        (["--keep-layers", "0-6"], "There is no layer 6. The model has layers 0 to 5."),
        (["--keep-layers", "3-1"], "'3-1' is no list of layers. Write it like 0-5,28,29."),
        (["--keep-layers", ""], "is no list of layers"),
        (["--keep-layers", "0,x"], "is no list of layers"),
        (["--keep-layers", "-1"], "is no list of layers"),
        (["--drop", "6"], "The model has 6 layers. Drop at most 5."),
        (["--drop", "0"], "Invalid value for '--drop'"),
        (["--drop", "2", "--quant", "Q4_7"], "There is no quantisation 'Q4_7'."),
        (["--drop", "2", "-o", "no/draft.gguf"], "There is no folder no. Make it first."),
        (["--drop", "2", "-o", "."], ". is a folder."),
        (["--drop", "2", "-o", "x" * 250], "x: File name too long."),
        (["--drop", "2", "-o", "tiny.gguf", "--force"], "tiny.gguf is the model itself."),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_written(
    cli: Cli, tiny: Path, options: list[str], message: str
) -> None:
    before = tiny.read_bytes()
    output = [] if "-o" in options else ["-o", "draft.gguf"]
    result = cli("prune", "tiny.gguf", *output, *options)
    assert result.code == 2
    assert message in " ".join(result.err.split())
    assert result.out == ""
    assert tiny.read_bytes() == before
    assert [file.name for file in tiny.parent.iterdir()] == ["tiny.gguf"]


def test_an_existing_file_is_kept(cli: Cli, tiny: Path) -> None:
    other = tiny.with_name("draft.gguf")
    other.write_text("mine")
    assert cli("prune", "tiny.gguf", "--drop", "2", "-o", "draft.gguf") == Result(
        2, "", "Error: draft.gguf exists.\nAdd --force to replace it.\n"
    )
    assert other.read_text() == "mine"


def test_no_model_of_that_name(cli: Cli) -> None:
    result = cli("prune", "nothing.gguf", "--drop", "2", "-o", "draft.gguf")
    assert result.code == 1
    assert "Model file not found: nothing.gguf." in result.err


@pytest.mark.model
def test_the_first_and_last_layers_stay(cli: Cli, target_file: Path) -> None:
    Path("draft.gguf").write_text("replace me")
    result = cli("prune", str(target_file), "--drop", "26", "-o", "draft.gguf", "--force")
    assert (result.code, result.out) == (0, "draft.gguf\n")
    assert "Keeping 4 of 30 layers" in result.err
    assert "seldom a good draft" in result.err
    assert "-md draft.gguf --stats" in result.err
    assert read(Path("draft.gguf")).get("block_count") == 4


@pytest.mark.model
def test_json(cli: Cli, target_file: Path) -> None:
    result = cli(
        "prune", str(target_file), "--keep-layers", "0,28-29", "-o", "draft.gguf", "--json"
    )
    data = json.loads(result.out)
    assert data["layers"] == [0, 28, 29]
    assert data["bytes"] == Path("draft.gguf").stat().st_size
    assert data["quantization"] == "Q4_1"
    assert result.err == ""


def test_a_device_is_never_replaced(cli: Cli, tiny: Path) -> None:
    device = tiny.with_name("device")
    os.mkfifo(device)
    result = cli("prune", "tiny.gguf", "--drop", "2", "-o", "device", "--force")
    assert result.code == 2
    assert result.err.startswith("Error: device is not a regular file.")
    assert device.is_fifo()
