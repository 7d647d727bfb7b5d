"""What every command has: the options that configure `out`, and how help is drawn."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from specllama.cli.output import out
from specllama.errors import UsageError

MARKUP: Literal["rich"] | None = "rich" if sys.stdout.isatty() else None
"""Help in panels on a terminal, plain text elsewhere (and half the start-up time)."""

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Data only.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colour (also NO_COLOR=1).")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


def common(command: Callable[..., Any], *, json: bool = True) -> Callable[..., Any]:
    """`command` with -q, --no-color, --debug and, where `json` is set, --json.

    The options configure `out` before the command runs and are not passed on to it: a command asks
    `out.mode`. (A --jsonl of its own also puts `out` into json mode, see `run` in main.py.)
    """
    options: dict[str, Any] = {"quiet": Quiet, "no_color": NoColor, "debug": Debug}
    if json:
        options["json"] = Json
    own = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in options.items()
    ]
    parameters = [*own.parameters.values(), *added]

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        given = {name: values.pop(name) for name in options}
        is_json = out.mode == "json" or given.get("json", False)
        out.configure(json=is_json, quiet=given["quiet"], no_color=given["no_color"])
        return command(**values)

    wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def group(help: str, **commands: Callable[..., Any]) -> typer.Typer:
    """A command of commands; each gets the common options."""
    app = typer.Typer(help=help, rich_markup_mode=MARKUP, add_completion=False)
    app.callback(invoke_without_command=True)(help_if_alone)
    for name, command in commands.items():
        app.command(name)(common(command))
    return app


def check_writable(file: Path) -> None:
    """Try to make a file beside `file`, before work is done for it.

    Raises:
        UsageError: it cannot be; says why.
    """
    probe = file.with_name(f".{file.name}.part")
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"Cannot write {file}: {error.strerror}.", "Choose another place."
        ) from error


def help_if_alone(context: typer.Context) -> None:
    """Print a group's help and leave with 2 if no command of it was called."""
    if context.invoked_subcommand is None:
        out.line(context.get_help())
        raise typer.Exit(2)
