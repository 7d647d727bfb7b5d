"""The inputs of earlier chats, for the arrow keys and Ctrl-R: one JSON string a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prompt_toolkit.history import History, InMemoryHistory

from specllama.cli.output import as_json
from specllama.hub.paths import data_dir
from specllama.whole_file import whole_file

MAX_ENTRIES = 1000


def open_history() -> History:
    """The history in the user's data folder; in memory only with $SPECLLAMA_NO_HISTORY."""
    if os.environ.get("SPECLLAMA_NO_HISTORY"):
        return InMemoryHistory()
    return ChatHistory(data_dir() / "history")


class ChatHistory(History):
    """A file only its owner can read, with the latest `MAX_ENTRIES` inputs.

    Where the file cannot be read or written, inputs are known until the chat ends.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._trouble = ""
        self._told = False

    def take_trouble(self) -> str:
        """Why inputs are not kept, the first time it is asked for; else "".

        For a caller to print: load and store run while prompt_toolkit draws.
        """
        if self._told or not self._trouble:
            return ""
        self._told = True
        return self._trouble

    def load_history_strings(self) -> Iterable[str]:
        """Entries, the latest first; trims the file when it has grown too long."""
        lines = self._lines()
        if len(lines) > MAX_ENTRIES:
            lines = lines[-MAX_ENTRIES:]
            with self._surviving():
                self._replace(lines)
        return [text for text in map(_parse, reversed(lines)) if text is not None]

    def store_string(self, string: str) -> None:
        """Append one entry; one that repeats the latest is left out."""
        lines = self._lines()
        if lines and _parse(lines[-1]) == string:
            return
        line = as_json(string)
        with self._surviving():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if len(lines) >= MAX_ENTRIES:
                self._replace([*lines[1 - MAX_ENTRIES :], line])
            else:
                self._write(self._path, [line], os.O_APPEND)

    def _lines(self) -> list[str]:
        with self._surviving():
            try:
                return self._path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
            except FileNotFoundError:
                pass
        return []

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._trouble = f"Inputs are not kept: {self._path}: {error.strerror}."

    def _replace(self, lines: list[str]) -> None:
        """In one step, so that a chat beside this one never reads half a file."""
        with whole_file(self._path) as part:
            self._write(part, lines, os.O_TRUNC)

    @staticmethod
    def _write(path: Path, lines: list[str], mode: int) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | mode, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def _parse(line: str) -> str | None:
    """The entry on a line; None for a line somebody else wrote."""
    try:
        text = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) else None
