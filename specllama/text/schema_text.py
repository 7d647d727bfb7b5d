"""JSON strings as grammar expressions: lengths, patterns, formats, and keys that are not taken.

Patterns are read by Python's own regular expression parser. What comes out is at times narrower
than the pattern (\\d is 0 to 9, as in ECMA 262), never wider.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from specllama.text.gbnf import alternatives, literal, repeated, sequence

Ranges = list[tuple[int, int]]
"""Code points, as inclusive ranges."""

_ENDS = ((sre.AT, sre.AT_END), (sre.AT, sre.AT_END_STRING))
_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_ESCAPED = [*range(0x20), 0x22, 0x5C, 0x7F]
_ASCII: Ranges = [(0x20, 0x7E)]
_DIGITS: Ranges = [(0x30, 0x39)]
_WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE: Ranges = [(0x09, 0x0D), (0x20, 0x20)]
_ANY: Ranges = [(0x20, 0x2027), (0x202A, _LAST)]

_DATE = (
    "[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_HOST = "[a-z0-9]{1,30}(?:-[a-z0-9]{1,30})?"
_DOMAIN = rf"{_HOST}(?:\.{_HOST}){{0,3}}\.[a-z]{{2,10}}"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": "P(?:[0-9]{1,4}[YMWD]|T[0-9]{1,6}[HMS])",
    "uuid": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "email": rf"[a-zA-Z0-9]{{1,30}}(?:[._+-][a-zA-Z0-9]{{1,30}})?@{_DOMAIN}",
    "hostname": _DOMAIN,
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "uri": rf"https?://{_DOMAIN}(?:/[a-zA-Z0-9._~-]{{1,60}}){{0,8}}/?",
}
"""Formats as patterns of whole strings: common forms, each string of them valid."""


def _without(ranges: Ranges, removed: Ranges) -> Ranges:
    """The code points of `ranges` that are not in `removed`."""
    for low, high in removed:
        kept: Ranges = []
        for first, last in ranges:
            kept += [(first, min(last, low - 1)), (max(first, high + 1), last)]
        ranges = [(first, last) for first, last in kept if first <= last]
    return ranges


def _class(ranges: Ranges) -> str:
    """One character that JSON writes as such. Never as what it is *not*: of the first bytes of a
    character llama.cpp could then not tell whether they may become an allowed one."""
    return f"[{''.join(map(_range, ranges))}]"


def _range(ends: tuple[int, int]) -> str:
    low, high = ends
    return f"\\U{low:08X}" if low == high else f"\\U{low:08X}-\\U{high:08X}"


_PLAIN = _without([(0x20, _LAST)], [_SURROGATES, *((code, code) for code in _ESCAPED)])
CHAR = (
    rf'{_class(_PLAIN)} | "\\" (["\\/bfnrt] | "u" ([0-9a-cefA-CEF] [0-9a-fA-F]{{3}} | '
    r"[dD] [0-7] [0-9a-fA-F]{2}))"
)
"""One character of a JSON string, as such or escaped; no half of a surrogate pair."""


class UnsupportedPattern(Exception):
    """What a pattern has that cannot be said in a grammar; `str(error)` completes a sentence."""


def quoted(content: str) -> str:
    """A JSON string of some content."""
    return f'"\\"" ({content}) "\\""'


def matching(pattern: str, *, whole: bool = False) -> str:
    """The content of strings in which a pattern is found (`whole`: which are all of it).

    Raises:
        UnsupportedPattern: look-arounds, back references, flags, or no regular expression at all.
    """
    try:
        parsed = list(_parser.parse(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise UnsupportedPattern(f"it cannot be read ({error})") from error
    branches = [parsed]
    if len(parsed) == 1 and parsed[0][0] is sre.BRANCH:
        branches = [list(branch) for branch in parsed[0][1][1]]
    return alternatives(_anchored(branch, whole) for branch in branches)


def _anchored(items: list[tuple[Any, Any]], whole: bool) -> str:
    """A branch with whatever may stand before and behind it."""
    start = bool(items) and items[0] in [
        (sre.AT, sre.AT_BEGINNING),
        (sre.AT, sre.AT_BEGINNING_STRING),
    ]
    items = items[start:]
    end = bool(items) and items[-1] in _ENDS
    items = items[: len(items) - end]
    around = f"({CHAR})*"
    return sequence(
        ["" if whole or start else around, _sequence(items), "" if whole or end else around]
    )


def _sequence(items: Iterable[tuple[Any, Any]]) -> str:
    return sequence(_item(kind, value) for kind, value in items)


def _item(kind: Any, value: Any) -> str:
    """One element of a parsed pattern."""
    if kind is sre.LITERAL:
        return _characters([(value, value)])
    if kind is sre.NOT_LITERAL:
        return _characters(_without(_ANY, [(value, value)]))
    if kind is sre.ANY:
        return _characters(_ANY)
    if kind is sre.IN:
        return _characters(_members(value))
    if kind is sre.BRANCH:
        return f"({alternatives(_sequence(branch) for branch in value[1])})"
    if kind is sre.SUBPATTERN and not value[1] and not value[2]:
        return f"({_sequence(value[3])})"
    if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        least, most, body = value
        return repeated(f"({_sequence(body)})", least, None if most is sre.MAXREPEAT else most)
    raise UnsupportedPattern(f"{str(kind).lower().replace('_', ' ')} is not supported")


def _members(items: Sequence[tuple[Any, Any]]) -> Ranges:
    """The characters of a class. With \\s and the like, what they exclude stays within ASCII,
    because beyond it the standards differ about them."""
    negated = items[0][0] is sre.NEGATE
    ranges: Ranges = []
    universe = _ANY
    for kind, value in items[negated:]:
        if kind is sre.LITERAL:
            ranges.append((value, value))
        elif kind is sre.RANGE:
            ranges.append(value)
        else:
            ranges += _category(value)
            universe = _ASCII
    return _without(universe, ranges) if negated else ranges


def _category(name: Any) -> Ranges:
    known = {
        sre.CATEGORY_DIGIT: _DIGITS,
        sre.CATEGORY_NOT_DIGIT: _without(_ASCII, _DIGITS),
        sre.CATEGORY_WORD: _WORD,
        sre.CATEGORY_NOT_WORD: _without(_ASCII, _WORD),
        sre.CATEGORY_SPACE: _SPACE,
        sre.CATEGORY_NOT_SPACE: _without(_ASCII, _SPACE),
    }
    if name not in known:
        raise UnsupportedPattern(f"{name} is not supported")
    return known[name]


def _characters(ranges: Ranges) -> str:
    """One character out of some, as JSON writes it."""
    plain = _without(ranges, [_SURROGATES, *((code, code) for code in _ESCAPED)])
    options = [_class(plain)] if plain else []
    options += [
        literal(json.dumps(chr(code))[1:-1])
        for code in _ESCAPED
        if any(low <= code <= high for low, high in ranges)
    ]
    if not options:
        raise UnsupportedPattern("it holds a class without characters")
    return options[0] if len(options) == 1 else f"({alternatives(options)})"


def other_than(taken: Sequence[str]) -> str:
    """The content of strings that are none of some others; nothing in it is escaped."""
    written = [json.dumps(text, ensure_ascii=False)[1:-1] for text in taken]
    return _other_than(written)


def _other_than(taken: Sequence[str]) -> str:
    """What may follow so that no string of `taken` (what is left of each) is completed."""
    firsts = sorted({text[0] for text in taken if text})
    options = [] if "" in taken else [""]
    others = _without(_PLAIN, [(ord(first), ord(first)) for first in firsts])
    options.append(f"{_class(others)} {_class(_PLAIN)}*")
    for first in firsts:
        rest = [text[1:] for text in taken if text[:1] == first]
        if first != "\\":
            options.append(f"{literal(first)} ({_other_than(rest)})")
    return alternatives(options)
