"""Where a prompt comes from: stdin, files, the argument."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from specllama.cli.model_flags import checked_text, decode_text, read_text
from specllama.errors import UsageError


def whole_prompt(argument: str | None, files: Sequence[Path]) -> str | None:
    """stdin, then each file with its name, then the argument, blank lines between.

    stdin is read where it is not a terminal, or where the argument is "-". None: a terminal and
    nothing given.

    Raises:
        UsageError: everything is empty, a file cannot be read, or something is not UTF-8.
    """
    from_stdin = argument == "-" or not sys.stdin.isatty()
    if argument is None and not files and not from_stdin:
        return None
    parts = [_stdin()] if from_stdin else []
    parts += [attached(file) for file in files]
    parts += [argument] if argument not in (None, "-") else []
    text = "\n\n".join(part for part in parts if part)
    if not text.strip():
        raise UsageError("The prompt is empty.", "Give it as an argument, with -f, or on stdin.")
    return checked_text(text)


def attached(file: Path) -> str:
    """The text of a file, wrapped with its name ("?" for what is no text in that).

    Raises:
        UsageError: it cannot be read, or it is not UTF-8.
    """
    name = str(file).encode("utf-8", "replace").decode()
    return f'<file name="{name}">\n{read_text(file).rstrip()}\n</file>'


def _stdin() -> str:
    return decode_text(sys.stdin.buffer.read(), "Standard input").rstrip("\n")
