"""Short names for a model, or for a pair with its draft length, kept in `aliases.json`."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from specllama.errors import UsageError
from specllama.hub.paths import data_dir

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
        return {name: Alias(**entry) for name, entry in entries.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{file} does not hold aliases: {error}.", "Correct or delete it."
        ) from error


def save(name: str, alias: Alias) -> None:
    """Add or replace one alias.

    Raises:
        UsageError: the name could be mistaken for a file, a repository or an option.
    """
    if not _NAME.fullmatch(name) or name.lower().endswith(".gguf"):
        raise UsageError(
            f"{name!r} cannot be an alias.",
            "Use letters, digits, '.', '_' and '-', not ending in .gguf.",
        )
    _write(load() | {name: alias})


def remove(name: str) -> None:
    """Forget one alias.

    Raises:
        UsageError: there is none of that name.
    """
    aliases = load()
    if name not in aliases:
        known = f"There are: {', '.join(sorted(aliases))}." if aliases else "There are none."
        raise UsageError(f"No alias {name!r}.", known)
    del aliases[name]
    _write(aliases)


def _write(aliases: dict[str, Alias]) -> None:
    """Replace the file in one step, so that a reader never sees half of it."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    entries = {name: asdict(aliases[name]) for name in sorted(aliases)}
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    draft.replace(file)
