"""The `specllama` command: where it starts, and which commands there are.

Commands are loaded when they are called: `COMMANDS` names their module and their one-line help, so
that `specllama --help` imports none of them. A command is a plain function with Typer annotations
(or a `typer.Typer` for a group); cli/common.py adds the options that every command has.

Nothing is imported here before `main` runs: a Ctrl-C while Typer loads must leave quietly too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

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
    try:
        _open_streams()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before `run` could take it
        code = 130
    sys.exit(code)


def _open_streams() -> None:
    """Stand-ins for streams that the caller has closed (`<&-`, `>&-`).

    In this order each takes its own number, which a model file would get otherwise.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def run(args: Sequence[str]) -> int:
    """Run one command line; returns the exit code. Errors are printed, never raised."""
    from specllama.cli.app import app
    from specllama.cli.errors import report
    from specllama.cli.output import out

    flags = list(args)[: args.index("--")] if "--" in args else args
    out.configure(json="--json" in flags or "--jsonl" in flags, no_color="--no-color" in flags)
    try:
        code = app(args=list(args), prog_name="specllama", standalone_mode=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        code = report(error, debug="--debug" in flags)
        out.finish()
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
