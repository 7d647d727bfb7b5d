"""`store`: the past answers that drafts are taken from."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from specllama.cli.common import group
from specllama.cli.output import out, size
from specllama.errors import UsageError


def show() -> None:
    """List what is kept, model by model."""
    rows = [_row(folder) for folder in _folders()]
    out.result(rows, lambda: _print(rows))


def clear(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names as `store show` has them; all if left out.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget past answers."""
    from specllama.drafting import answers

    folders = _chosen(names or [])
    n_bytes = sum(_n_bytes(folder) for folder in folders)
    if folders and not out.confirm(
        f"Forget the answers of {len(folders)} model(s), {size(n_bytes)}?", yes=yes
    ):
        raise typer.Exit(1)
    for folder in folders:
        answers.clear(folder)
    out.status(f"Freed {size(n_bytes)}." if folders else "There was nothing to forget.")
    if out.mode == "json":
        out.json({"cleared": [folder.name for folder in folders], "bytes": n_bytes})


def path() -> None:
    """Print the folder that holds the answers."""
    from specllama.drafting.store import root

    folder = str(root())
    out.result({"path": folder}, lambda: out.line(folder))


def _folders() -> list[Path]:
    """The folders with answers in them."""
    from specllama.drafting.answers import files
    from specllama.drafting.store import root

    if not root().is_dir():
        return []
    return [path for path in sorted(root().iterdir()) if path.is_dir() and files(path)]


def _chosen(names: list[str]) -> list[Path]:
    folders = {folder.name: folder for folder in _folders()}
    for name in names:
        if name not in folders:
            raise UsageError(f"The store has nothing called {name}.", "See: specllama store show")
    return [folders[name] for name in dict.fromkeys(names or folders)]


def _n_bytes(folder: Path) -> int:
    from specllama.drafting.answers import files

    return sum(path.stat().st_size for path in files(folder))


def _row(folder: Path) -> dict[str, Any]:
    """What one folder holds; what is wrong with it is told."""
    from specllama.drafting.answers import files, look_into

    found = look_into(folder)
    for warning in found.warnings:
        out.warn(warning)
    kept = [text for segment in found.segments for text in segment.index.documents()]
    kept += found.journal
    return {
        "name": folder.name,
        "path": str(folder),
        "answers": len(kept),
        "tokens": sum(map(len, kept)),
        "bytes": _n_bytes(folder),
        "modified": max(path.stat().st_mtime for path in files(folder)),
    }


def _print(rows: list[dict[str, Any]]) -> None:
    if not rows:
        out.hint("No answers are kept. --store keeps them from then on.")
        return
    out.table(
        ["NAME", "ANSWERS", "TOKENS", "SIZE", "LAST"],
        [
            (
                row["name"],
                str(row["answers"]),
                str(row["tokens"]),
                size(row["bytes"]),
                datetime.fromtimestamp(row["modified"]).strftime("%Y-%m-%d"),
            )
            for row in rows
        ],
        right="ANSWERS TOKENS SIZE",
    )


app = group("Past answers that drafts are taken from.", show=show, clear=clear, path=path)
