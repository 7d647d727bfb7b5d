"""What was measured so far: a JSON line for every reply, so that a run can go on later."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Key = tuple[str, ...]


class Runs:
    """Lines of a file, those of one setting.

    Args:
        setting: what has to be equal for an earlier line to count.
    """

    def __init__(self, file: Path, setting: Mapping[str, Any]) -> None:
        self._file = file
        self._setting = dict(setting)
        self._lines: dict[Key, dict[str, Any]] = {}
        for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
            self._take(json.loads(line))

    def _take(self, line: dict[str, Any]) -> None:
        if line["setting"] == self._setting:
            self._lines[tuple(line["key"])] = line

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

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._lines.values())
