"""The one place that prints.

Data goes to stdout, everything said about the run goes to stderr. Three modes: *human* (text,
tables, colour and spinners where a terminal listens), *json* (stdout holds JSON and nothing else)
and *quiet* (data only; a table becomes its first column). Commands use the shared `out`.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TextIO

from specllama.cli.keys import echoed
from specllama.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Mode = Literal["human", "json", "quiet"]


class Output:
    """The sink. Streams are looked up at each call, so that redirection is always honoured."""

    def __init__(self) -> None:
        self.mode: Mode = "human"
        self._color: bool | None = None
        self._answered = False

    def configure(self, *, json: bool = False, quiet: bool = False, no_color: bool = False) -> None:
        """Set the mode for this run; json wins over quiet. `no_color` is also $NO_COLOR."""
        self.mode = "json" if json else "quiet" if quiet else "human"
        self._color = False if no_color else None
        self._answered = False

    # What is on the other end

    @property
    def interactive(self) -> bool:
        """Whether a person can be asked: human mode, stdin and stderr both terminals."""
        return self.mode == "human" and sys.stdin.isatty() and sys.stderr.isatty()

    def colors(self, stream: TextIO) -> bool:
        """Whether to colour what goes to `stream` (stdout or stderr)."""
        if self._color is not None or os.environ.get("NO_COLOR"):
            return False
        return stream.isatty() and os.environ.get("TERM") != "dumb"

    # Data: stdout

    def write(self, text: str) -> None:
        """Streamed text without a newline, shown at once. No-op in json mode."""
        if self.mode != "json":
            _put(sys.stdout, printable(text) if sys.stdout.isatty() else text)
            sys.stdout.flush()

    def line(self, text: str = "") -> None:
        """One line of data. No-op in json mode."""
        if self.mode != "json":
            _put(sys.stdout, printable(text) + "\n")

    def styled(self, text: str, style: str, stream: TextIO | None = None) -> str:
        """`text` in a rich style ("bold", "green", "dim") where `stream` shows colour."""
        stream = stream or sys.stdout
        if not self.colors(stream):
            return text
        from rich.style import Style

        return Style.parse(style).render(text)

    def json(self, data: Any) -> None:
        """One JSON document on stdout, whatever the mode; no error follows it there."""
        self._answered = True
        sys.stdout.write(as_json(data, sys.stdout.encoding, indent=2) + "\n")

    def event(self, data: Any) -> None:
        """One JSON object on a line of its own (--jsonl), shown at once, whatever the mode."""
        sys.stdout.write(as_json(data, sys.stdout.encoding) + "\n")
        sys.stdout.flush()

    def result(self, data: Any, human: Callable[[], None]) -> None:
        """`data` as JSON in json mode, else what `human` prints."""
        if self.mode == "json":
            self.json(data)
        else:
            human()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], right: str = "") -> None:
        """Aligned columns, never cut to the terminal width; quiet prints the first column only.

        `right` names the columns to align right, separated by blanks.
        """
        rows = list(rows)
        if self.mode == "quiet":
            for row in rows:
                self.line(row[0])
            return
        header, *body = _align([columns, *rows], [name in right.split() for name in columns])
        if self.mode == "human":
            _put(sys.stdout, self.styled(header, "bold") + "\n")
        for text in body:
            self.line(text)

    # About the run: stderr

    def status(self, text: str) -> None:
        """A line about what happens. Human mode only."""
        if self.mode == "human":
            self._say(text)

    def stats(self, text: str) -> None:
        """A dim line of figures. Human mode only."""
        if self.mode == "human":
            self._say(text, "dim")

    def hint(self, text: str) -> None:
        """What could be done next. Human mode only."""
        if self.mode == "human":
            self._say(text, "cyan")

    def warn(self, text: str) -> None:
        """Something the person should know although the command goes on. In every mode."""
        self._say(f"Warning: {text}", "yellow")

    def error(self, message: str, hint: str = "", code: int = 1) -> None:
        """A failure: stderr, and in json mode also `{"error": …}` on stdout, on one line.

        Behind a document it is on stderr only: whoever reads JSON reads one document.
        """
        self._say(f"Error: {message}", "red")
        if hint:
            self._say(hint)
        if self.mode == "json" and not self._answered:
            with suppress(OSError):  # stdout may be what failed
                self.event({"error": {"message": f"{message} {hint}".rstrip(), "code": code}})

    def finish(self) -> None:
        """Drop what stdout does not take at the end; Python's own last try would print more."""
        try:
            sys.stdout.flush()
        except OSError:
            with suppress(OSError):  # not a file at all
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    @contextmanager
    def spinner(self, text: str) -> Iterator[None]:
        """A spinner on a terminal, nothing elsewhere."""
        if self.mode != "human" or not sys.stderr.isatty():
            yield
            return
        with self._console().status(printable(text)):
            yield

    def progress(self) -> Progress:
        """A bar with bytes, speed and time left; it draws only in human mode on a terminal."""
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        return Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console(),
            disable=self.mode != "human" or not sys.stderr.isatty(),
        )

    def counter(self) -> Progress:
        """A bar of things done, with the time left; as `progress`, and it leaves no trace."""
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        return Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console(),
            transient=True,
            disable=self.mode != "human" or not sys.stderr.isatty(),
        )

    # Questions

    def confirm(self, question: str, *, yes: bool = False, hint: str = "") -> bool:
        """Ask yes or no (no by default); `yes` answers for the person.

        Raises:
            UsageError: nobody can be asked. Never waits on a pipe.
        """
        if yes:
            return True
        if not self.interactive:
            raise UsageError(f"{question} Nobody is there to answer.", hint or "Add --yes.")
        return self.ask(f"{question} [y/N] ").strip().lower() in ("y", "yes")

    def ask(self, prompt: str) -> str:
        """One line typed by the person; the prompt goes to stderr. Only when `interactive`."""
        with echoed():
            _put(sys.stderr, printable(prompt))
            sys.stderr.flush()
            answer = sys.stdin.readline()
        if not answer:
            raise EOFError
        return answer.rstrip("\n")

    def _say(self, text: str, style: str = "") -> None:
        text = printable(text)
        _put(sys.stderr, (self.styled(text, style, sys.stderr) if style else text) + "\n")
        sys.stderr.flush()

    def _console(self) -> Console:
        from rich.console import Console

        return Console(stderr=True, no_color=self._color is False, highlight=False)


out = Output()
"""The sink every command prints to; `configure` is called once per run."""


def as_json(data: Any, encoding: str | None = None, *, indent: int | None = None) -> str:
    """`data` as JSON; with escapes where a stream of that encoding could not hold it as UTF-8."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    if codecs.lookup(encoding or "utf-8").name == "utf-8" and _is_utf8(text):
        return text
    return json.dumps(data, indent=indent)


def _is_utf8(text: str) -> bool:
    """Not so with half a surrogate pair, as in file names that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """`text` without control characters: file names and metadata must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _is_control(c) else "�" for c in text)


def size(n_bytes: float) -> str:
    """Bytes for people, in decimal units as file managers and Hugging Face show: "98.4 MB"."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 999.95 or (unit == "B" and n_bytes < 1000):
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"


def _is_control(char: str) -> bool:
    return ord(char) < 32 or 127 <= ord(char) < 160


def _put(stream: TextIO, text: str) -> None:
    """Write; a stream that cannot encode a character gets "?" for it."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "replace").decode(encoding))


def _align(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    from rich.cells import cell_len

    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(right))]
    lines = []
    for row in rows:
        cells = []
        for cell, width, to_right in zip(row, widths, right, strict=True):
            gap = " " * (width - cell_len(cell))
            cells.append(gap + cell if to_right else cell + gap)
        lines.append("  ".join(cells).rstrip())
    return lines
