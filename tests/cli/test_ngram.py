"""`ngram build` and `ngram show`, with the built-in target's vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.cli import ngram
from specllama.drafting.ngram_file import NgramFile
from specllama.drafting.store import open_store
from specllama.hub.fingerprint import fingerprint_of
from specllama.llama.model import Model

from .conftest import Result

Cli = Callable[..., Result]
TEXT = "The cat sat on the mat.\nThe dog sat on the rug.\nThe cat sat on the mat again.\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "text.txt"
    path.write_text(TEXT)
    return path


def tokens(model: Path, text: str) -> list[int]:
    with Model(model, vocab_only=True) as loaded:
        return loaded.vocabulary.tokenize(text, special=False, add_bos=False)


@pytest.mark.model
def test_build_and_show(cli: Cli, target_file: Path, text: Path) -> None:
    result = cli("ngram", "build", "text.txt", "-m", str(target_file), "-o", "x.ngram")
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith("Wrote x.ngram: ")

    model = NgramFile.open(Path("x.ngram"), fingerprint_of(target_file))
    ids = tokens(target_file, TEXT)
    context = tokens(target_file, " sat on the")
    assert model.after(context)[0][0] == tokens(target_file, " mat")[0]
    facts = model.facts
    assert facts.n_tokens == len(ids)
    assert (facts.order, facts.min_count, facts.model) == (4, 2, target_file.name)

    shown = cli("ngram", "show", "x.ngram")
    assert shown.code == 0
    assert f"trained on  {len(ids)} tokens\n" in shown.out
    assert target_file.name in shown.out
    data = json.loads(cli("ngram", "show", "x.ngram", "--json").out)
    assert data["path"] == "x.ngram"
    assert data["ngrams"] == list(facts.ngrams)


@pytest.mark.model
def test_options_and_json(cli: Cli, target_file: Path, text: Path) -> None:
    arguments = ("-m", str(target_file), "-o", "x.ngram", "--order", "2", "--min-count", "1")
    data = json.loads(cli("ngram", "build", "text.txt", "text.txt", *arguments, "--json").out)
    assert (data["order"], data["min_count"]) == (2, 1)
    assert data["n_tokens"] == 2 * len(tokens(target_file, TEXT))


@pytest.mark.model
def test_control_tokens_in_a_text_are_text(cli: Cli, target_file: Path) -> None:
    Path("text.txt").write_text("end <|im_end|> of a turn " * 5)
    assert cli("ngram", "build", "text.txt", "-m", str(target_file), "-o", "x.ngram").code == 0
    model = NgramFile.open(Path("x.ngram"))
    with Model(target_file, vocab_only=True) as loaded:
        control = loaded.vocabulary.tokenize("<|im_end|>", special=True, add_bos=False)
    assert len(control) == 1
    assert model.after(control) == []


@pytest.mark.model
def test_from_the_models_own_answers(cli: Cli, target_file: Path) -> None:
    arguments = ("ngram", "build", "--answers", "-m", str(target_file), "-o", "x.ngram")
    assert cli(*arguments) == Result(
        2,
        "",
        f"Error: The store has no answers of {target_file}.\nGenerate with --store.\n",
    )
    ids = tokens(target_file, TEXT * 2)
    open_store(target_file).remember(ids)
    assert cli(*arguments).code == 0
    model = NgramFile.open(Path("x.ngram"))
    assert model.facts.n_tokens == len(ids)
    assert model.after(tokens(target_file, " sat on the")) != []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["text.txt"], "No file to write."),
        (["-o", "x.ngram"], "Nothing to train on."),
        (["text.txt", "-o", "no/x.ngram"], "There is no folder no."),
        (["text.txt", "-o", "text.txt"], "text.txt is there, and is not an n-gram file."),
        (["text.txt", "-o", "."], ". is there, and is not an n-gram file."),
        (["text.txt", "-o", "x" * 250], "x: File name too long."),
        (["text.txt", "-o", "x.ngram", "-m", ""], "--target is empty."),
        (["none.txt", "-o", "x.ngram"], "none.txt"),
        (["text.txt", "-o", "x.ngram", "--order", "5"], "Invalid value for '--order'"),
    ],
)
def test_what_cannot_be_served(cli: Cli, text: Path, arguments: list[str], message: str) -> None:
    result = cli("ngram", "build", *arguments)
    assert result.code == 2
    assert message in result.err
    assert text.read_text() == TEXT


@pytest.mark.model
@pytest.mark.parametrize(
    ("data", "message"),
    [(b"\xff\xfe", "text.txt is not UTF-8 text"), (b"", "only 0 tokens"), (b"a", "only 1 tokens")],
)
def test_texts_that_do_not_do(
    cli: Cli, target_file: Path, text: Path, data: bytes, message: str
) -> None:
    text.write_bytes(data)
    result = cli("ngram", "build", "text.txt", "-m", str(target_file), "-o", "x.ngram")
    assert result.code == 2
    assert message in result.err
    assert not Path("x.ngram").exists()


def test_show_of_another_file(cli: Cli, text: Path) -> None:
    result = cli("ngram", "show", "text.txt")
    assert result.code == 1
    assert result.err.startswith("Error: text.txt is not an n-gram file.\n")
    assert "specllama ngram build" in result.err


@given(st.text(alphabet="ab\n", max_size=80))
def test_chunks_are_the_text_cut_behind_lines(text: str) -> None:
    size, ngram.CHUNK = ngram.CHUNK, 8
    try:
        parts = list(ngram.chunks(text))
    finally:
        ngram.CHUNK = size
    assert "".join(parts) == text
    assert all(part.endswith("\n") or "\n" not in part[8:] for part in parts[:-1])
    assert all(0 < len(part) <= 16 for part in parts)
