"""One stream from its start to its result: progress of the prompt, events, Ctrl-C."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, Self

from specllama.cli.output import out, printable
from specllama.results import Generation, StreamEvent

if TYPE_CHECKING:
    from rich.progress import Progress

    from specllama.stream import Stream

Start = Callable[[Callable[[int, int], None]], "Stream"]
"""Starts a stream, given what to call with (done, total) prompt tokens."""


def follow(start: Start, show: Callable[[StreamEvent], None]) -> Generation:
    """Run a stream to its end, showing each event.

    Ctrl-C stops it between rounds (finish_reason "cancelled").

    Raises:
        KeyboardInterrupt: Ctrl-C while the prompt is read, or a second one.
    """
    with CtrlC() as ctrl_c, Meter() as meter:

        def on_prompt(done: int, total: int) -> None:
            ctrl_c.check()
            meter.update("reading the prompt", done / total)

        stream = start(on_prompt)
        ctrl_c.watch(stream)
        try:
            for event in stream:
                meter.close()
                show(event)
        finally:
            stream.close()
        return stream.result


def write_token(text: str, style: str = "") -> None:
    """Streamed text on stdout, in a style where stdout shows colour."""
    if style and out.colors(sys.stdout):
        sys.stdout.write(out.styled(printable(text), style))
        sys.stdout.flush()
    else:
        out.write(text)


class Cancellable(Protocol):
    """What can be told to stop, from a signal handler too."""

    def cancel(self) -> None: ...


class CtrlC:
    """While entered, the first Ctrl-C cancels what is watched instead of interrupting Python.

    An exception out of the middle of a decode would leave the caches in an unknown state.
    """

    def __init__(self) -> None:
        self._watched: Cancellable | None = None
        self._pressed = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def watch(self, watched: Cancellable) -> None:
        """Cancel it on Ctrl-C, at once if it was pressed already."""
        self._watched = watched
        if self._pressed:
            watched.cancel()

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back."""
        if self._pressed:
            raise KeyboardInterrupt

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self.check()
        self._pressed = True
        if self._watched is not None:
            self._watched.cancel()


@contextmanager
def termination_is_ctrl_c() -> Iterator[None]:
    """SIGTERM (a time limit, a shutdown) does what Ctrl-C does: what was measured is kept."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ctrl_c_afterwards() -> Iterator[None]:
    """Ctrl-C waits for the end of the block.

    While a model loads, Python runs in callbacks from C, where an exception would be swallowed.
    """
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


class Meter:
    """A bar on stderr for work that turns out to take long; it leaves no trace.

    It draws only in human mode on a terminal, and only when `patience` seconds have passed.
    """

    def __init__(self, patience: float = 0.5) -> None:
        self._patience = patience
        self._started = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, label: str, share: float) -> None:
        """Say that `share` (0 to 1) of the work called `label` is done."""
        if time.monotonic() - self._started < self._patience:
            return
        if self._bar is None:
            self._bar = _transient_bar()
            self._bar.add_task(label, total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=label, completed=share)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._started = float("inf")


def _transient_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        console=Console(stderr=True, no_color=not out.colors(sys.stderr)),
        transient=True,
        disable=out.mode != "human" or not sys.stderr.isatty(),
    )
