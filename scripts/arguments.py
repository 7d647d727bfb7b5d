"""Kinds of arguments that several scripts take."""

import argparse
from pathlib import Path


def from_1(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return number


def distinct(out: Path, *given: Path | None) -> None:
    """Refuse to write over what is read.

    Raises:
        SystemExit: the output is one of the inputs, by whatever name, or a folder.
    """
    files = (file for file in given if file is not None and file.exists())
    if out.exists() and any(map(out.samefile, files)):
        raise SystemExit(f"{out} is read and would be written over. Name or put it elsewhere.")
    if out.is_dir():
        raise SystemExit(f"{out} is a folder. Name a file in it.")
