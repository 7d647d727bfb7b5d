"""`alias`: short names for a model, or for a pair with its draft length."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from specllama.cli.common import group
from specllama.cli.output import out
from specllama.errors import SpecllamaError
from specllama.hub import aliases
from specllama.hub.paths import expanded


def set_alias(
    name: Annotated[str, typer.Argument(help="The new name.")],
    target: Annotated[str, typer.Argument(help="GGUF path, user/repo[:QUANT] or known name.")],
    draft: Annotated[
        str | None,
        typer.Option(
            "-md", "--draft", "--model-draft", "--draft-model", metavar="MODEL", help="Its draft."
        ),
    ] = None,
    draft_max: Annotated[
        int | None, typer.Option("--draft-max", min=0, help="The most tokens drafted in a round.")
    ] = None,
) -> None:
    """Give a model or a pair a name (an existing one is replaced)."""
    alias = aliases.Alias(_portable(target), _portable(draft) if draft else None, draft_max)
    aliases.save(name, alias)
    for model in filter(None, (alias.target, alias.draft)):
        _warn_if_missing(model)
    out.status(f"{name} = {_text(alias)}")
    if out.mode == "json":
        out.json({"name": name} | asdict(alias))


def list_aliases() -> None:
    """List the names."""
    known = aliases.load()
    rows = [{"name": name} | asdict(alias) for name, alias in known.items()]
    out.result(rows, lambda: _print(known))


def _print(known: dict[str, aliases.Alias]) -> None:
    if known:
        out.table(["NAME", "MODEL"], [(name, _text(known[name])) for name in sorted(known)])
    else:
        out.hint("None yet: specllama alias set NAME TARGET --draft DRAFT")


def remove_alias(name: Annotated[str, typer.Argument(help="The name to forget.")]) -> None:
    """Forget a name; the model's files stay."""
    aliases.remove(name)
    out.status(f"Forgot {name}.")
    if out.mode == "json":
        out.json({"removed": name})


def alias_path() -> None:
    """Print the file that holds the names."""
    path = str(aliases.path())
    out.result({"path": path}, lambda: out.line(path))


def _portable(model: str) -> str:
    """A file's absolute path, so that the name works in every folder; other names as they are."""
    path = expanded(model)
    return str(path.absolute()) if path.is_file() else model


def _warn_if_missing(model: str) -> None:
    from specllama.hub.resolve import OFF, locate

    if model == OFF:
        return
    try:
        locate(model)
    except SpecllamaError as error:
        out.warn(str(error))


def _text(alias: aliases.Alias) -> str:
    draft = f" + {alias.draft}" if alias.draft else ""
    length = f" (draft-max {alias.draft_max})" if alias.draft_max is not None else ""
    return f"{alias.target}{draft}{length}"


app = group(
    "Names for a model or a pair.",
    set=set_alias,
    list=list_aliases,
    rm=remove_alias,
    path=alias_path,
)
