"""Kinds of arguments that several scripts take."""

import argparse


def from_1(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return number
