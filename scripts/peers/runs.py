"""What was measured so far: a JSON line for every reply, so that a run can go on later."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specllama.errors import UsageError

Key = tuple[str, ...]


class Runs:
    """Lines of a file, those of one setting.

    Args:
        setting: what has to be equal for an earlier line to count.

    Raises:
        UsageError: the file holds something else, which lines must not be added to.
    """

    def __init__(self, file: Path, setting: Mapping[str, Any]) -> None:
        self._file = file
        self._setting = dict(setting)
        self._lines: dict[Key, dict[str, Any]] = {}
        self._others: list[dict[str, Any]] = []
        for line in _read(file):
            self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        if line["setting"] == self._setting:
            self._lines[tuple(line["key"])] = line
        else:
            self._others.append(line)

    def has(self, *key: str) -> bool:
        """Whether it was measured."""
        return key in self._lines

    def add(self, *key: str, **data: Any) -> None:
        """Note it."""
        line = {"key": list(key), "setting": self._setting, **data}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._take(line)

    def of(self, part: str, arm: str) -> Iterator[dict[str, Any]]:
        """The lines of an arm in a part ("speed" or "law")."""
        return (line for key, line in self._lines.items() if key[:2] == (part, arm))

    def others(self, part: str) -> str:
        """A sentence on the part's lines of other settings; "" where there are none."""
        others = [line["setting"] for line in self._others if line["key"][0] == part]
        if not others:
            return ""
        names = dict.fromkeys([*self._setting, *(name for one in others for name in one)])
        mine = self._setting
        unlike = [name for name in names if any(one.get(name) != mine.get(name) for one in others)]
        return (
            f"{len(others)} earlier {part} replies in {self._file} do not count here: "
            f"they differ in {', '.join(unlike)}."
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._lines.values())


def _read(file: Path) -> list[dict[str, Any]]:
    """The lines of a file, none where it is not there yet."""
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{file} cannot be read as lines of JSON.", "Name another file with --runs."
        ) from error
    lines = enumerate(text.split("\n"), 1)
    return [_line(line, f"{file}, line {number}") for number, line in lines if line]


def _line(text: str, where: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
        return line | {"key": list(line["key"]), "setting": dict(line["setting"])}
    except (ValueError, TypeError, LookupError) as error:
        raise UsageError(
            f"{where} is no reply that this script noted.",
            "Delete the line if a run broke off there, or name another file.",
        ) from error
