"""What a terminal does with keys while nobody reads them, and what is put back."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress

import pytest

from specllama.cli.keys import echoed, unechoed


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal as stdin; the end that a person types at."""
    person, program = pty.openpty()
    with os.fdopen(program) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield person
    os.close(person)


def typed(terminal: int, keys: bytes) -> bytes:
    """What a program reads of some keys."""
    os.write(terminal, keys)
    return os.read(_stdin(), 100)


def shown(terminal: int) -> bytes:
    """What a person has seen so far."""
    os.set_blocking(terminal, False)
    with suppress(BlockingIOError):
        return os.read(terminal, 100)
    return b""


def _stdin() -> int:
    return sys.stdin.fileno()


def test_enter_stays_enter_and_nothing_shows(terminal: int) -> None:
    with unechoed():
        assert typed(terminal, b"hi\r") == b"hi\r"
    assert shown(terminal) == b""


def test_a_question_in_the_middle_is_answered_as_usual(terminal: int) -> None:
    with unechoed():
        with echoed():
            assert typed(terminal, b"y\r") == b"y\n"
        assert shown(terminal) == b"y\r\n"
        assert typed(terminal, b"x\r") == b"x\r"
    assert typed(terminal, b"z\r") == b"z\n"


def test_an_error_puts_back_what_was(terminal: int) -> None:
    before = termios.tcgetattr(_stdin())
    with pytest.raises(KeyboardInterrupt), unechoed():
        raise KeyboardInterrupt
    assert termios.tcgetattr(_stdin()) == before


def test_a_termination_puts_back_what_was(terminal: int) -> None:
    """As `timeout` sends it, while a question is asked."""
    before = termios.tcgetattr(_stdin())
    killed = """
import os, signal
from specllama.cli.keys import echoed, unechoed
with unechoed(), echoed():
    os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", killed], stdin=_stdin(), check=False)
    assert done.returncode == -signal.SIGTERM
    assert termios.tcgetattr(_stdin()) == before


def test_a_pipe_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "wb"):
        monkeypatch.setattr("sys.stdin", stdin)
        handler = signal.getsignal(signal.SIGTERM)
        with unechoed(), echoed():
            assert signal.getsignal(signal.SIGTERM) is handler
            os.write(writing, b"hi\n")
            assert stdin.readline() == "hi\n"
