"""The `specllama` command.

Commands are loaded when they are called: `COMMANDS` names their module and their one-line help, so
that `specllama --help` imports none of them. A command is a plain function with Typer annotations
(or a `typer.Typer` for a group); cli/common.py adds the options that every command has.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from specllama.cli.common import MARKUP, Debug, common, help_if_alone
from specllama.cli.errors import report
from specllama.cli.output import out

COMMANDS = {
    "chat": ("specllama.cli.chat:chat", "Talk with a model."),
    "generate": ("specllama.cli.generate:generate", "Answer one prompt, or a file of them."),
    "serve": ("specllama.cli.serve:serve", "Serve a model over HTTP: OpenAI's API, a chat page."),
    "download": ("specllama.cli.download:download", "Fetch a model from Hugging Face."),
    "list": ("specllama.cli.models:list_models", "List the models on this machine."),
    "rm": ("specllama.cli.models:remove", "Delete a downloaded model."),
    "show": ("specllama.cli.models:show", "Say what a model file is."),
    "check": ("specllama.cli.check:check", "Can this draft serve this target?"),
    "prune": ("specllama.cli.prune:prune", "Make a draft by leaving layers of a model out."),
    "alias": ("specllama.cli.alias:app", "Names for a model or a pair."),
    "config": ("specllama.cli.config:app", "Where settings come from."),
    "ngram": ("specllama.cli.ngram:app", "N-gram models that draft: trained once, no draft model."),
    "store": ("specllama.cli.store:app", "Past answers that drafts are taken from."),
    "calibrate": ("specllama.cli.calibrate:calibrate", "Measure what decodes cost here, once."),
    "bench": ("specllama.cli.bench:bench", "Measure what drafting gains on this machine."),
    "doctor": ("specllama.cli.doctor:doctor", "Facts about this installation, for bug reports."),
}
"""name -> (module:attribute, help). The order is the order of the help."""

HIDDEN = {"ls": "list"}
"""Other names of commands, not shown in the help."""

WITHOUT_JSON = {"chat"}
"""Commands that have no data to give as JSON."""


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run one command line; returns the exit code. Errors are printed, never raised."""
    flags = list(args)[: args.index("--")] if "--" in args else args
    out.configure(json="--json" in flags or "--jsonl" in flags, no_color="--no-color" in flags)
    try:
        code = app(args=list(args), prog_name="specllama", standalone_mode=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        return report(error, debug="--debug" in flags)
    return code if isinstance(code, int) else 0


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


if __name__ == "__main__":
    main()
