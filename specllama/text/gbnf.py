"""Pieces of grammars in llama.cpp's notation (GBNF)."""

from __future__ import annotations

from collections.abc import Iterable

EMPTY = '""'
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def literal(text: str) -> str:
    """A text as such."""
    return f'"{"".join(_escaped(char) for char in text)}"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return char if char.isprintable() else f"\\U{ord(char):08X}"


def sequence(parts: Iterable[str]) -> str:
    """One after the other; empty parts are left out."""
    return " ".join(part for part in parts if part) or EMPTY


def alternatives(options: Iterable[str]) -> str:
    """One of several; brackets are the caller's."""
    return " | ".join(option or EMPTY for option in options)


def repeated(item: str, least: int, most: int | None) -> str:
    """An item, `least` to `most` times (None: any number)."""
    counts = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
    if (least, most) in counts:
        return item + counts[least, most]
    if most == 0:
        return EMPTY
    if least == most:
        return f"{item}{{{least}}}"
    return f"{item}{{{least},{'' if most is None else most}}}"
