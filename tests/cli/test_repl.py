"""The terminal of a chat: keys through prompt_toolkit's pipe input, and once through a real one."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pyte
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from specllama.cli.repl import Terminal, edited
from specllama.cli.repl_completion import ChatCompleter
from specllama.cli.repl_history import MAX_ENTRIES, ChatHistory, open_history
from specllama.errors import UsageError
from specllama.hub import aliases

ENTER, ALT_ENTER, CTRL_J = "\r", "\x1b\r", "\n"
CTRL_C, CTRL_D = "\x03", "\x04"
UP = "\x1b[A"


class Clock:
    """Seconds that a test moves on."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe:
        yield pipe


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal(keys: PipeInput, clock: Clock) -> Terminal:
    return Terminal(history=InMemoryHistory(), input=keys, output=DummyOutput(), clock=clock)


Read = Callable[..., str | None]


@pytest.fixture
def read(keys: PipeInput, terminal: Terminal) -> Read:
    """What one reading gives for these keys, as text; None when the person leaves."""

    def press(text: str, default: str = "") -> str | None:
        keys.send_text(text)
        entry = terminal.read(default)
        return None if entry is None else entry.text

    return press


# Lines and blocks


def test_enter_sends(read: Read) -> None:
    assert read(f"hello{ENTER}") == "hello"


@pytest.mark.parametrize("key", [ALT_ENTER, CTRL_J])
def test_alt_enter_and_ctrl_j_break_the_line(read: Read, key: str) -> None:
    assert read(f"one{key}two{ENTER}") == "one\ntwo"


def test_a_block_goes_on_until_it_is_closed(keys: PipeInput, terminal: Terminal) -> None:
    keys.send_text(f'"""/one{ENTER}{ENTER}two{ENTER}"""{ENTER}')
    assert terminal.read() == ("/one\n\ntwo", True)


def test_a_paste_of_several_lines_is_one_message(read: Read) -> None:
    assert read(f"\x1b[200~one\ntwo\r\nthree\x1b[201~{ENTER}") == "one\ntwo\nthree"


def test_a_default_can_be_edited(read: Read) -> None:
    assert read(f"!{ENTER}", default="from the editor") == "from the editor!"


# Ctrl-C, Ctrl-D


def test_ctrl_c_clears_the_line(read: Read) -> None:
    assert read(f"wrong{CTRL_C}right{ENTER}") == "right"


def test_ctrl_c_on_an_empty_line_says_how_to_leave(
    read: Read, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read(f"{CTRL_C}hi{ENTER}") == "hi"
    assert capsys.readouterr().err == "Ctrl-D or /exit to leave\n"


def test_a_second_ctrl_c_leaves_if_it_comes_soon(read: Read, clock: Clock) -> None:
    assert read(f"{CTRL_C}{CTRL_C}") is None


def test_a_second_ctrl_c_that_comes_late_is_a_first_one(read: Read, clock: Clock) -> None:
    assert read(f"{CTRL_C}a{ENTER}") == "a"
    clock.now += 2.5
    assert read(f"{CTRL_C}b{ENTER}") == "b"


def test_ctrl_d_leaves(read: Read) -> None:
    assert read(CTRL_D) is None


# History


def test_the_arrow_brings_the_last_message_back(read: Read) -> None:
    assert read(f"first{ENTER}") == "first"
    assert read(f"{UP}{ENTER}") == "first"


def test_history_outlives_the_chat_and_is_private(own_home: Path) -> None:
    open_history().store_string("two\nlines ü")
    open_history().store_string("later")
    assert list(open_history().load_history_strings()) == ["later", "two\nlines ü"]
    assert stat.S_IMODE((own_home / "history").stat().st_mode) == 0o600


def test_history_keeps_the_latest_thousand(tmp_path: Path) -> None:
    history = ChatHistory(tmp_path / "history")
    (tmp_path / "history").write_text("".join(f'"{n}"\n' for n in range(1500)))
    assert len(list(history.load_history_strings())) == MAX_ENTRIES
    history.store_string("new")
    lines = (tmp_path / "history").read_text().splitlines()
    assert (len(lines), lines[0], lines[-1]) == (MAX_ENTRIES, '"501"', '"new"')
    assert stat.S_IMODE((tmp_path / "history").stat().st_mode) == 0o600


def test_history_leaves_repetitions_and_foreign_lines_out(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("not json\n5\n")
    history = ChatHistory(tmp_path / "history")
    history.store_string("same")
    history.store_string("same")
    assert list(history.load_history_strings()) == ["same"]


def test_history_can_be_switched_off(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLAMA_NO_HISTORY", "1")
    open_history().append_string("secret")
    assert not (own_home / "history").exists()


@pytest.mark.parametrize("broken", ["history is a folder", "home is a file"])
def test_a_history_that_cannot_be_kept_is_said_once(
    keys: PipeInput, tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    path = tmp_path / "other" / "history"
    if broken == "home is a file":
        path.parent.touch()
    else:
        path.mkdir(parents=True)
    terminal = Terminal(history=ChatHistory(path), input=keys, output=DummyOutput())
    for sent, text in ((f"first{ENTER}", "first"), (f"{UP}!{ENTER}", "first!")):
        keys.send_text(sent)
        assert terminal.read() == (text, False)
    err = capsys.readouterr().err
    assert err.count("Inputs are not kept") == err.count("Warning") == 1
    assert str(path) in err


def test_a_full_disk_loses_no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that has grown too long is read, whether or not it can be trimmed."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    history = ChatHistory(tmp_path / "history")
    (tmp_path / "history").write_text("".join(f'"{n}"\n' for n in range(1500)))
    monkeypatch.setattr(ChatHistory, "_write", full)
    assert len(list(history.load_history_strings())) == MAX_ENTRIES
    history.store_string("new")
    assert "No space left on device" in history.take_trouble()
    assert len((tmp_path / "history").read_text().splitlines()) == 1500


def test_history_keeps_bytes_that_are_no_text(tmp_path: Path) -> None:
    ChatHistory(tmp_path / "history").store_string("caf\udce9 ü")
    assert list(ChatHistory(tmp_path / "history").load_history_strings()) == ["caf\udce9 ü"]


# Completion and editor


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("/he", ["/help"]),
        ("/s", ["/system", "/set", "/show", "/stats", "/save"]),
        ("/set top", ["top-k", "top-p"]),
        ("/set verify c", ["coupled"]),
        ("/draft o", ["on", "off"]),
        ("/draft q", ["qwen"]),
        ("/help se", ["set"]),
        ("/read no", ["tes.txt"]),
        ("hello /he", []),
        ("/unknown x", []),
    ],
)
def test_tab_completes_commands_arguments_and_files(typed: str, words: list[str]) -> None:
    Path("notes.txt").write_text("x")
    aliases.save("qwen", aliases.Alias("a.gguf"))
    found = ChatCompleter().get_completions(Document(typed), CompleteEvent())
    assert [completion.text for completion in found] == words


def test_the_editor_changes_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "my editor"
    editor.write_text('#!/bin/sh\necho added >> "$2"\n')
    editor.chmod(0o700)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"'{editor}' --wait")
    assert edited("begun\n") == "begun\nadded"


def test_an_editor_that_fails_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "no-such-editor")
    with pytest.raises(UsageError, match="The editor 'no-such-editor' failed"):
        edited("")


def test_an_editor_that_cannot_be_read_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "'")
    with pytest.raises(UsageError, match='The editor "\'" failed'):
        edited("")


def test_an_editor_that_saves_latin_1_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "caf\\351\\n" >> "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    assert edited("un th\udce9 et ") == "un thé et café"
    assert "Latin-1" in capsys.readouterr().err


# A real terminal


class Screen:
    """A chat in a pseudo-terminal, as a person sees it."""

    def __init__(self, home: Path) -> None:
        self._screen = pyte.HistoryScreen(100, 40)
        self._stream = pyte.Stream(self._screen)
        environment = {**os.environ, "SPECLLAMA_HOME": str(home), "TERM": "xterm-256color"}
        fakes = Path(__file__).with_name("fakes.py")
        self.child = pexpect.spawn(
            sys.executable,
            [str(fakes), "chat"],
            env=environment,  # type: ignore[arg-type]
            encoding="utf-8",
            dimensions=(40, 100),
            timeout=20,
        )
        self.child.logfile_read = self  # type: ignore[assignment]

    def write(self, text: str) -> None:
        # Answer the terminal's "where is the cursor?", as a real one does.
        for _ in range(text.count("\x1b[6n")):
            self.child.send(f"\x1b[{self._screen.cursor.y + 1};{self._screen.cursor.x + 1}R")
        self._stream.feed(text)

    def flush(self) -> None:
        pass

    @property
    def lines(self) -> list[str]:
        """All that was shown: on a busy machine prompts make room below them and scroll."""
        columns = range(self._screen.columns)
        gone = ["".join(row[x].data for x in columns) for row in self._screen.history.top]
        return [line.rstrip() for line in (*gone, *self._screen.display)]


def test_a_chat_in_a_real_terminal(own_home: Path) -> None:
    screen = Screen(own_home)
    child = screen.child
    child.expect_exact(">>> ")
    assert screen.lines[:3] == [
        "target   fake-135m",
        "draft    fake-draft",
        "context  8192 tokens",
    ]
    child.send(f"hello{ENTER}")
    child.expect_exact("word7")
    child.send("x")
    child.sendintr()
    child.expect_exact("(stopped)")
    child.expect_exact("tok/s")
    child.expect_exact(">>> ")
    child.send(f"again{ENTER}")
    child.expect_exact("ahead2")
    child.send(f"xx\x7f\x7f/context{ENTER}")  # waits for the prompt, and does not show before
    child.expect_exact("ahead19")
    child.expect_exact("2 turns")
    child.expect_exact(">>> ")
    child.sendintr()
    child.expect_exact("Ctrl-D or /exit to leave")
    child.expect_exact(">>> ")
    child.send(CTRL_D)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    reply = next(line for line in screen.lines if line.startswith("word0 word1"))
    assert "^C" not in "".join(screen.lines)
    assert "x" not in reply
    assert "ahead0 ahead1 ahead2 ahead3 ahead4" in "".join(screen.lines)
    assert (own_home / "history").read_text().splitlines() == ['"hello"', '"again"', '"/context"']
