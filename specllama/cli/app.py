"""The Typer application: a stub of each command, replaced by the command when it is called."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from specllama.cli.common import MARKUP, Debug, common, help_if_alone
from specllama.cli.main import COMMANDS, HIDDEN, WITHOUT_JSON
from specllama.cli.output import out


class LazyGroup(TyperGroup):
    """Replaces a command's stub by the command when it is called or completed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load `args[0]` if it is one of ours, then do as Typer does."""
        name = HIDDEN.get(args[0], args[0])
        if name in COMMANDS:
            self.commands[args[0]] = _load(name)
        return super().resolve_command(ctx, args)


def _load(name: str) -> Any:
    module, attribute = COMMANDS[name][0].split(":")
    command = getattr(importlib.import_module(module), attribute)
    if isinstance(command, typer.Typer):
        return typer.main.get_command(command)
    group = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
    group.command(name)(common(command, json=name not in WITHOUT_JSON))
    return typer.main.get_command(group)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        out.line(f"specllama {version('specllama')}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`specllama COMMAND --help` explains a command.",
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="The version.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Faster answers from local GGUF models: a draft guesses, the target model decides."""
    help_if_alone(context)


def _stub() -> None:
    """Stands for a command until it is called."""


for _name, (_, _help) in COMMANDS.items():
    app.command(_name, help=_help)(_stub)
