"""From an exception to what people see and to the exit code: the one table.

SpecllamaError            its message and hint                          its exit_code
usage (Typer)             Typer's sentence and where the help is        2
KeyboardInterrupt         nothing                                       130
BrokenPipeError           nothing: whoever read has had enough          1
end of input at a question  "Nothing was answered."                     1
OSError                   the file and the system's reason              1
MemoryError               out of memory                                 1
anything else             one line, and how to get the traceback        1
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import NamedTuple

import typer

from specllama.cli.output import out
from specllama.errors import SpecllamaError


class Failure(NamedTuple):
    """What to print and with which code to leave; an empty message prints nothing."""

    message: str
    hint: str
    code: int


def describe(error: BaseException) -> Failure:
    """The row of the table for `error`."""
    match error:
        case SpecllamaError():
            return Failure(error.message, error.hint, error.exit_code)
        case typer.TyperException():
            return Failure(
                _sentence(error.format_message()), _where_help_is(error), error.exit_code
            )
        case KeyboardInterrupt():
            return Failure("", "", 130)
        case BrokenPipeError():
            return Failure("", "", 1)
        case EOFError() | typer.Abort():
            return Failure("Nothing was answered.", "", 1)
        case OSError(strerror=str(reason)):
            subject = f"{error.filename}: " if error.filename else ""
            return Failure(f"{subject}{reason}.", "", 1)
        case MemoryError():
            return Failure("Not enough memory.", "Try a smaller context (-c 4096) or quant.", 1)
    text = f"{type(error).__name__}: {error}".strip().rstrip(":")
    return Failure(text, "This is a bug; run with --debug for the traceback.", 1)


def report(error: BaseException, *, debug: bool = False) -> int:
    """Print `error` as the table says (its traceback too with `debug`); returns the exit code."""
    failure = describe(error)
    if debug:
        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):
        _detach_stdout()
    elif failure.message:
        out.error(*failure)
    return failure.code


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "?", "!")) else text + "."


def _where_help_is(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "specllama"
    return f"Run: {command} --help"


def _detach_stdout() -> None:
    """Point stdout at the null device, so that the interpreter's last flush stays silent."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
