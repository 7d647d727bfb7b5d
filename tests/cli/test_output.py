"""The sink: what goes where in which mode."""

from __future__ import annotations

import io
import json
import sys

import pytest

from specllama.cli.output import Output, printable, size
from specllama.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> tuple[Terminal, Terminal]:
    """stdout and stderr as terminals; stdin answers "y"."""
    stdout, stderr, stdin = Terminal(), Terminal(), Terminal("y\n")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, stream in {"stdout": stdout, "stderr": stderr, "stdin": stdin}.items():
        monkeypatch.setattr(sys, name, stream)
    return stdout, stderr


def test_data_and_talk_go_to_different_streams(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.line("data")
    out.status("status")
    out.hint("hint")
    out.warn("careful")
    captured = capsys.readouterr()
    assert captured.out == "data\n"
    assert captured.err == "status\nhint\nWarning: careful\n"


def test_json_mode_prints_json_only(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.configure(json=True)
    out.line("text")
    out.write("text")
    out.status("status")
    out.result({"a": "ü"}, lambda: out.line("human"))
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"a": "ü"}
    assert captured.err == ""


def test_no_error_follows_a_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.configure(json=True)
    out.json({"a": 1})
    out.error("The disk is full.")
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"a": 1}
    assert captured.err == "Error: The disk is full.\n"
    out.configure(json=True)
    out.error("Wrong.", code=2)
    assert json.loads(capsys.readouterr().out)["error"]["code"] == 2


def test_quiet_mode_keeps_data_and_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.configure(quiet=True)
    out.status("status")
    out.warn("careful")
    out.table(["NAME", "SIZE"], [("a", "1"), ("b", "2")])
    captured = capsys.readouterr()
    assert captured.out == "a\nb\n"
    assert captured.err == "Warning: careful\n"


def test_a_table_is_aligned_by_what_a_terminal_shows(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(["NAME", "SIZE"], [("模型", "1 GB"), ("x", "12 GB")], right="SIZE")
    assert capsys.readouterr().out == "NAME   SIZE\n模型   1 GB\nx     12 GB\n"


def test_no_colour_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.warn("careful")
    assert "\x1b" not in capsys.readouterr().err
    assert out.styled("x", "bold") == "x"


def test_colour_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    _, stderr = use_terminal(monkeypatch)
    Output().warn("careful")
    assert stderr.getvalue() == "\x1b[33mWarning: careful\x1b[0m\n"


@pytest.mark.parametrize("how", ["variable", "flag", "dumb"])
def test_colour_can_be_refused(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    _, stderr = use_terminal(monkeypatch)
    out = Output()
    if how == "variable":
        monkeypatch.setenv("NO_COLOR", "1")
    elif how == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    else:
        out.configure(no_color=True)
    out.warn("careful")
    assert stderr.getvalue() == "Warning: careful\n"


def test_escape_sequences_do_not_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout, _ = use_terminal(monkeypatch)
    out = Output()
    out.write("a\x1b[2Jb\n")
    out.line("c\x9bd")
    assert stdout.getvalue() == "a�[2Jb\nc�d\n"


def test_piped_text_is_passed_on_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Output().write("a\x1b[2Jb")
    assert capsys.readouterr().out == "a\x1b[2Jb"


def test_a_stream_that_cannot_encode_gets_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", write_through=True))
    Output().line("naïve 🦙")
    assert raw.getvalue() == b"na?ve ?\n"


@pytest.mark.parametrize(("encoding", "as_it_is"), [("cp1252", False), ("utf8", True)])
def test_json_is_utf8_or_escaped(
    monkeypatch: pytest.MonkeyPatch, encoding: str, as_it_is: bool
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding, write_through=True))
    Output().json("é 🦙")
    Output().event("é 🦙")
    Output().event("caf\udce9")
    said = [json.loads(line) for line in raw.getvalue().splitlines()]
    assert said == ["é 🦙", "é 🦙", "caf\udce9"]
    assert ("🦙".encode() in raw.getvalue()) == as_it_is


def test_confirm_asks_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout, stderr = use_terminal(monkeypatch)
    assert Output().confirm("Delete?")
    assert stdout.getvalue() == ""
    assert stderr.getvalue() == "Delete? [y/N] "


def test_confirm_never_waits_on_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(UsageError, match=r"Delete\? Nobody is there to answer\. Add --yes\."):
        Output().confirm("Delete?")
    assert Output().confirm("Delete?", yes=True)


def test_spinner_draws_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().spinner("Loading"):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB"), (42.52e9, "42.5 GB")],
)
def test_size(n_bytes: float, text: str) -> None:
    assert size(n_bytes) == text


def test_printable_keeps_text() -> None:
    assert printable("tab\tline\n🦙") == "tab\tline\n🦙"
    assert printable("\x00\x07\x7f") == "���"
