"""What a terminal does with keys while nobody reads them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unechoed() -> Iterator[None]:
    """Keys pressed meanwhile do not show between the words of a reply; they come at the prompt.

    Ctrl-C stays a signal, and Enter stays Enter (a terminal's own line editing makes it Ctrl-J).
    """
    with _edited_lines(on=False):
        yield


@contextmanager
def echoed() -> Iterator[None]:
    """As a terminal usually is, in the middle of the other: for an editor, or a question."""
    with _edited_lines(on=True):
        yield


@contextmanager
def _edited_lines(*, on: bool) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    import termios

    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (termios.error, OSError):  # no terminal
        yield
        return
    now = [*before]
    for place, flags in ((0, termios.ICRNL), (3, termios.ECHO | termios.ICANON)):
        now[place] = now[place] | flags if on else now[place] & ~flags

    def put_back(signal_: int, _frame: object) -> None:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
        signal.signal(signal_, handler)
        signal.raise_signal(signal_)

    handler = signal.signal(signal.SIGTERM, put_back)  # else `timeout` would leave a mute terminal
    termios.tcsetattr(terminal, termios.TCSADRAIN, now)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, handler)
