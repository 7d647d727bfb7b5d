"""Short names for a model, or for a pair with its draft length, kept in `aliases.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specllama.errors import SpecllamaError, UsageError
from specllama.hub.paths import data_dir
from specllama.whole_file import whole_file

_LOCK_S = 10.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Alias:
    """What a name stands for; `target` and `draft` are anything `resolve` takes."""

    target: str
    draft: str | None = None
    draft_max: int | None = None


def path() -> Path:
    """The file of aliases; it need not exist."""
    return data_dir() / "aliases.json"


def load() -> dict[str, Alias]:
    """All aliases by name.

    Raises:
        UsageError: the file was edited into something else; names the file.
    """
    file = path()
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(entries, dict):
            raise TypeError("it is no JSON object")
        return {name: _checked(name, entry) for name, entry in entries.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{file} does not hold aliases: {error}.", "Correct or delete it."
        ) from error


def save(name: str, alias: Alias) -> None:
    """Add or replace one alias.

    Raises:
        UsageError: the name could be mistaken for a file, a repository or an option; or no model.
        SpecllamaError: another process does not let go of the file.
    """
    if not _NAME.fullmatch(name) or name.lower().endswith(".gguf"):
        raise UsageError(
            f"{name!r} cannot be an alias.",
            "Use letters, digits, '.', '_' and '-', not ending in .gguf.",
        )
    if not alias.target:
        raise UsageError(f"{name!r} would stand for no model.", "Name its target.")
    with _locked():
        _write(load() | {name: alias})


def remove(name: str) -> None:
    """Forget one alias.

    Raises:
        UsageError: there is none of that name.
        SpecllamaError: another process does not let go of the file.
    """
    with _locked():
        aliases = load()
        if name not in aliases:
            known = f"There are: {', '.join(sorted(aliases))}." if aliases else "There are none."
            raise UsageError(f"No alias {name!r}.", known)
        del aliases[name]
        _write(aliases)


def _checked(name: str, entry: dict[str, Any]) -> Alias:
    alias = Alias(**entry)
    if not isinstance(alias.target, str):
        raise TypeError(f"the target of {name!r} is no text")
    if not isinstance(alias.draft, str | None):
        raise TypeError(f"the draft of {name!r} is no text")
    if not isinstance(alias.draft_max, int | None) or isinstance(alias.draft_max, bool):
        raise TypeError(f"draft_max of {name!r} is no whole number")
    return alias


@contextmanager
def _locked() -> Iterator[None]:
    """Nobody else changes the file meanwhile: what is written is what was read, and one change."""
    from filelock import FileLock, Timeout

    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{file}.lock", timeout=_LOCK_S)
    try:
        lock.acquire()
    except Timeout as error:
        raise SpecllamaError(f"Another process is changing {file}.", "Try it again.") from error
    try:
        yield
    finally:
        lock.release()


def _write(aliases: dict[str, Alias]) -> None:
    entries = {name: asdict(aliases[name]) for name in sorted(aliases)}
    with whole_file(path()) as part:
        part.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
