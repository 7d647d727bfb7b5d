"""The answers of `specllama generate --batch`: printed, or in a file that later runs go on with."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specllama.cli.batch_lines import Line
from specllama.cli.generate_stats import count
from specllama.cli.model_flags import decode_text
from specllama.cli.output import as_json, out
from specllama.errors import UsageError
from specllama.whole_file import whole_file

Answer = dict[str, Any]

_START = '{"id": '
"""How each answer in a file starts."""


class Answers:
    """Answers in the order of their lines: on stdout as soon as all before them are there, or in
    a file, which an interrupted run leaves with all that is done, and the next one goes on with.

    A file of an earlier run stays as it is until there is something new. What it says to lines that
    are gone moves to a file beside it then (its name and ".old").

    Args:
        file: where answers of an earlier run are, and new ones go; None prints.
        run: what tells this run's model and settings from others.

    Attributes:
        known: how many lines were answered by an earlier run.

    Raises:
        UsageError: the file cannot be written, or is something else than answers.
    """

    def __init__(self, lines: Sequence[Line], file: Path | None, run: str) -> None:
        self._lines = lines
        self._run = run
        self._file = None if file is None else _place(file)
        self._answers: dict[int, Answer] = {}
        self._gone: list[Answer] = []
        self._begun = False
        self._printed = 0
        if self._file is not None and self._file.exists():
            self._recall(_answers_in(self._file))
        self.known = len(self._answers)

    def _recall(self, earlier: Iterable[Answer]) -> None:
        """Match by the line's text: lines may have moved, and equal ones share in their order."""
        found: dict[str, deque[Answer]] = defaultdict(deque)
        for answer in earlier:
            if "error" not in answer:
                found[answer["of"]].append(answer)
        for line in self._lines:
            if not line.error and found[line.digest]:
                self._answers[line.number] = found[line.digest].popleft() | {"id": line.id}
        self._gone = [answer for rest in found.values() for answer in rest]
        others = sum(kept.get("run", self._run) != self._run for kept in self._answers.values())
        if others:
            out.warn(
                f"{count(others, 'answer', 'answers')} in {self._file} came from another model or "
                "other settings, and stay; another -o asks again."
            )

    @property
    def open(self) -> list[Line]:
        """The lines without an answer."""
        return [line for line in self._lines if line.number not in self._answers]

    def add(self, line: Line, answer: Answer) -> None:
        """Keep the answer to a line."""
        of = {"id": line.id, "of": line.digest, "run": self._run}
        self._answers[line.number] = of | answer
        if self._file is None:
            self._print(wait=True)
        elif self._begun:
            _append(self._file, [self._answers[line.number]])
        else:
            self._write(self._file)

    def close(self) -> None:
        """Put what there is into order; nothing is held back any longer."""
        if self._file is None:
            self._print(wait=False)
        elif self._begun or not self.open:
            self._write(self._file)

    def _print(self, *, wait: bool) -> None:
        for line in self._lines[self._printed :]:
            answer = self._answers.get(line.number)
            if answer is None and wait:
                return
            if answer is not None:
                out.event(answer)
            self._printed += 1

    def _write(self, file: Path) -> None:
        """All answers in order, in place of the file: there is a whole one at any time."""
        if self._gone:
            self._set_aside(file.with_name(f"{file.name}.old"))
        ordered = [self._answers[n.number] for n in self._lines if n.number in self._answers]
        data = "".join(map(_text, ordered)).encode()
        with _writing(file):
            if not file.exists() or file.read_bytes() != data:
                _replace(file, data)
        self._begun = True

    def _set_aside(self, old: Path) -> None:
        _append(old, self._gone)
        gone = count(len(self._gone), "earlier answer", "earlier answers")
        out.warn(f"{gone} to other lines: now in {old}.")
        self._gone = []


def _place(file: Path) -> Path:
    """Where `file` is, links followed; changes nothing.

    Raises:
        UsageError: nothing can be written there, or it is no file (a device must not be replaced).
    """
    with _writing(file):
        if file.exists() and not file.is_file():
            raise UsageError(f"{file} is not a regular file.", "Without -o, answers go to stdout.")
        place = Path(os.path.realpath(file))
        if place.exists() and not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        probe = place.with_name(f".{place.name}.part")
        probe.touch()
        probe.unlink()
    return place


def _replace(file: Path, data: bytes) -> None:
    with whole_file(file) as part:
        part.write_bytes(data)
        if file.exists():
            shutil.copymode(file, part)


def _append(file: Path, answers: Iterable[Answer]) -> None:
    with _writing(file), file.open("ab") as stream:
        stream.write("".join(map(_text, answers)).encode())


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"Cannot write {file}: {error.strerror}.") from error


def _text(answer: Answer) -> str:
    return as_json(answer) + "\n"


def _answers_in(file: Path) -> Iterator[Answer]:
    """What an earlier run wrote; a crash may have cut the last line, even within a character.

    Raises:
        UsageError: the file cannot be read, or holds something else, which must not be overwritten.
    """
    try:
        whole, _, last = file.read_bytes().rpartition(b"\n")
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.") from error
    number, found = 0, False
    for number, text in enumerate(decode_text(whole, str(file)).split("\n"), 1):
        if text.strip():
            yield _answer(file, number, text)
            found = True
    rest = last.decode("utf-8", "replace").strip()
    if rest and not _is_cut(rest, after_answers=found):
        yield _answer(file, number + bool(whole), rest)


def _answer(file: Path, number: int, text: str) -> Answer:
    match _parsed(text):
        case {"id": str() | int(), "of": str()} as answer:
            return dict(answer)
    raise UsageError(
        f"{file} is not the output of a batch (line {number}).", "Give another file with -o."
    )


def _is_cut(text: str, *, after_answers: bool) -> bool:
    """Whether a last line is part of an answer: no whole JSON, and nothing that speaks against."""
    starts_like_one = text.startswith(_START) or _START.startswith(text)
    return _parsed(text) is None and (after_answers or starts_like_one)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
