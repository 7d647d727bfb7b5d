"""A look at a grammar before llama.cpp reads it.

llama.cpp's reader prints its complaints on stderr, and does not survive everything that it accepts:
left recursion behind rules that may be empty, `{5,2}`, rules that refer to each other in too many
ways or multiply too often. It tries all ways in which a text can be read, and nothing stops it.
Servers get grammars from strangers, so all of that is found here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from specllama.errors import UsageError

_HINT = "The notation is described at github.com/ggml-org/llama.cpp/tree/master/grammars."
_MOST_REPEATED = 2000
_DEEPEST = 200
_MOST_ELEMENTS = 100_000
_MOST_WAYS = 1_000_000
_LONGEST_CHAIN = 2000
# Side by side; 24 take a second for the tokens of a vocabulary, 32 take ten.
_MOST_LEFT_OUT = 16
# Parts with more characters than that are no part of another reading of the same token.
_SHORT = 2

_LEXEME = re.compile(
    r"""
    (?P<space>(?:[ \t\r\n]|\#[^\n]*)+)
  | (?P<rule>[a-zA-Z0-9-]+)[ \t]*::=(?:[ \t\r\n]|\#[^\n]*)*
  | (?P<name>[a-zA-Z0-9-]+)
  | (?P<literal>"(?:\\.|[^"\\])*")
  | (?P<chars>\[(?:\\.|[^\]\\])*\]|\.)
  | (?P<token>!?<[^>\s]*>)
  | \{[ \t]*(?P<least>\d{1,9})[ \t]*(?P<upto>,)?[ \t]*(?P<most>\d{1,9})?[ \t]*\}
  | (?P<or>\|)(?:[ \t\r\n]|\#[^\n]*)*
  | (?P<sign>[*+?()])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[tnr\\"\[\]])|[^\\]')


@dataclass(slots=True)
class _Element:
    """A part of a sequence.

    Attributes:
        chars: characters of a literal; 1 for a class or a token.
        name: of the rule it stands for, "" for none.
        group: the alternatives in brackets, None for none.
        least, most: how often; None for any number.
    """

    chars: int = 0
    name: str = ""
    group: _Expression | None = None
    least: int = 1
    most: int | None = 1

    @property
    def size(self) -> int:
        """Elements that llama.cpp makes of it: copies, and a rule for each that may be left out."""
        own = max(1, self.chars)
        optional = 1 if self.most is None else self.most - self.least
        return own * self.least + (own + 3) * optional


@dataclass(slots=True)
class _Expression:
    """Alternatives, each a sequence."""

    options: list[list[_Element]] = field(default_factory=lambda: [[]])


def check(text: str) -> bool:
    """Raise UsageError for a grammar that llama.cpp cannot read or would not survive.

    Returns:
        Whether it names tokens (`<[7]>`).
    """
    if "\0" in text:
        raise _refused("it holds a NUL character")
    reader = _Reader(text)
    rules = reader.read()
    if "root" not in rules:
        raise _refused("it has no rule called root")
    try:
        _check_size(rules)
        empty = _empty_rules(rules)
        _check_left_recursion(rules, empty)
        _check_readings(rules, empty)
    except RecursionError as error:
        raise _refused("it is nested too deeply") from error
    return reader.names_tokens


def _refused(reason: str) -> UsageError:
    return UsageError(f"The grammar cannot be used: {reason}.", _HINT)


class _Reader:
    """Reads the rules of a grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._open: list[_Expression] = []
        self._ended = True
        self.names_tokens = False

    def read(self) -> dict[str, _Expression]:
        """The rules by name; a later one replaces an earlier one, as in llama.cpp."""
        rules: dict[str, _Expression] = {}
        place = 0
        while place < len(self._text):
            found = _LEXEME.match(self._text, place)
            if found is None:
                raise self._wrong(place, f"cannot read {self._text[place : place + 20]!r}")
            place = found.end()
            if found["space"]:
                self._ended |= "\n" in found[0] and len(self._open) == 1
            elif found["rule"]:
                self._check_closed(found.start())
                self._open, self._ended = [_Expression()], False
                rules[found["rule"]] = self._open[0]
            elif self._ended:
                raise self._wrong(
                    found.start(),
                    "a rule begins with its name and ::=, and goes on in another line only inside "
                    "brackets or after |",
                )
            else:
                self._take(found)
        self._check_closed(place)
        self._check_names(rules)
        return rules

    def _take(self, found: re.Match[str]) -> None:
        sequence = self._open[-1].options[-1]
        if found["literal"]:
            sequence.append(_Element(chars=self._characters(found)))
        elif found["chars"]:
            if found[0] != "." and not self._characters(found):
                raise self._wrong(found.start(), "a class without characters")
            sequence.append(_Element(chars=1))
        elif found["token"]:
            self.names_tokens = True
            sequence.append(_Element(chars=1))
        elif found["name"]:
            sequence.append(_Element(name=found["name"]))
        elif found["or"]:
            self._open[-1].options.append([])
        elif found["sign"] == "(":
            self._open_group(found, sequence)
        elif found["sign"] == ")":
            if len(self._open) == 1:
                raise self._wrong(found.start(), "a bracket is closed that was not opened")
            self._open.pop()
        else:
            self._repeat(found, sequence)

    def _characters(self, found: re.Match[str]) -> int:
        """How many characters a literal or a class names."""
        inner = found[0][1:-1]
        place = int(found[0].startswith("[^"))
        count = 0
        while place < len(inner):
            escape = _ESCAPE.match(inner, place)
            if escape is None:
                raise self._wrong(found.start() + 1 + place, "unknown escape")
            place, count = escape.end(), count + 1
        return count

    def _open_group(self, found: re.Match[str], sequence: list[_Element]) -> None:
        if len(self._open) > _DEEPEST:
            raise self._wrong(found.start(), f"brackets nest more than {_DEEPEST} deep")
        group = _Expression()
        sequence.append(_Element(group=group))
        self._open.append(group)

    def _repeat(self, found: re.Match[str], sequence: list[_Element]) -> None:
        if not sequence or sequence[-1] == _Element():
            raise self._wrong(found.start(), f"nothing stands before {found[0]}")
        counts: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if found["sign"]:
            least, most = counts[found["sign"]]
        else:
            least = int(found["least"])
            most = int(found["most"]) if found["most"] else None if found["upto"] else least
        if max(least, most or 0) > _MOST_REPEATED:
            raise self._wrong(found.start(), f"more than {_MOST_REPEATED} repetitions")
        if most is not None and most < least:
            raise self._wrong(found.start(), f"{found[0]} ends before it begins")
        last = sequence.pop()
        if (last.least, last.most) != (1, 1):
            last = _Element(group=_Expression([[last]]))
        last.least, last.most = least, most
        sequence.append(last)

    def _check_closed(self, place: int) -> None:
        if len(self._open) > 1:
            raise self._wrong(place, "a bracket is not closed")

    def _check_names(self, rules: dict[str, _Expression]) -> None:
        for rule in rules.values():
            for element in _elements(rule):
                if element.name and element.name not in rules:
                    raise _refused(f"there is no rule called {element.name}")

    def _wrong(self, place: int, reason: str) -> UsageError:
        line = self._text.count("\n", 0, place) + 1
        return _refused(f"line {line}: {reason}")


def _elements(expression: _Expression) -> list[_Element]:
    """All elements, those in brackets too."""
    found = [element for option in expression.options for element in option]
    for element in found:
        if element.group is not None:
            found += [inner for option in element.group.options for inner in option]
    return found


def _check_size(rules: dict[str, _Expression]) -> None:
    size = sum(element.size for rule in rules.values() for element in _elements(rule))
    if size > _MOST_ELEMENTS:
        raise _refused(f"with its repetitions it has {size:,} elements, above {_MOST_ELEMENTS:,}")


def _check_left_recursion(rules: dict[str, _Expression], empty: set[str]) -> None:
    """No rule may come to itself before a character is read; nor may there be too many ways from
    rule to rule, all of which llama.cpp walks, deep down in its stack."""
    firsts = {name: _firsts(rule, empty) for name, rule in rules.items()}
    try:
        order = list(TopologicalSorter(firsts).static_order())
    except CycleError as error:
        raise _refused(f"the rule {error.args[1][0]} is left recursive") from error
    ways: dict[str, int] = {}
    chain: dict[str, int] = {}
    for name in order:
        ways[name] = 1 + sum(ways[first] for first in firsts[name])
        chain[name] = 1 + max((chain[first] for first in firsts[name]), default=0)
    if sum(ways.values()) > _MOST_WAYS or max(chain.values()) > _LONGEST_CHAIN:
        raise _refused("its rules refer to each other in too many ways")


def _empty_rules(rules: dict[str, _Expression]) -> set[str]:
    """The rules that can be left out altogether."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    for user, rule in rules.items():
        for element in _elements(rule):
            if element.name:
                users[element.name].append(user)
    empty: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in empty and _may_be_empty(rules[name], empty):
            empty.add(name)
            waiting += users[name]
    return empty


def _may_be_empty(expression: _Expression, empty: set[str]) -> bool:
    return any(all(_is_empty(one, empty) for one in option) for option in expression.options)


def _is_empty(element: _Element, empty: set[str]) -> bool:
    if element.least == 0:
        return True
    if element.group is not None:
        return _may_be_empty(element.group, empty)
    return element.name in empty if element.name else element.chars == 0


def _firsts(expression: _Expression, empty: set[str]) -> list[str]:
    """The rules that may stand first, as often as they are written there."""
    found: list[str] = []
    for option in expression.options:
        for element in option:
            if element.group is not None:
                found += _firsts(element.group, empty)
            elif element.name:
                found.append(element.name)
            if not _is_empty(element, empty):
                break
    return found


def _check_readings(rules: dict[str, _Expression], empty: set[str]) -> None:
    """Short parts that may be left out, one after the other, share a text among them in as many
    ways as there are subsets of them."""
    readings = _Readings(empty)
    for name in _bottom_up(rules):
        readings.add(name, rules[name])
        if readings.parts[name] > _MOST_LEFT_OUT:
            raise _refused(
                f"the rule {name} has more than {_MOST_LEFT_OUT} short parts that may be left out, "
                "one after the other (a repetition of such a part counts as so many)"
            )


def _bottom_up(rules: dict[str, _Expression]) -> list[str]:
    """The rules, each behind those it names, unless they name it themselves."""
    order: list[str] = []
    seen: set[str] = set()
    waiting = [(name, False) for name in rules]
    while waiting:
        name, is_left = waiting.pop()
        if is_left:
            order.append(name)
        elif name not in seen:
            seen.add(name)
            waiting.append((name, True))
            waiting += [(one.name, False) for one in _elements(rules[name]) if one.name]
    return order


class _Readings:
    """Of each rule: its fewest characters if it has any, and how many short parts that may be left
    out follow each other in it at most."""

    def __init__(self, empty: set[str]) -> None:
        self._empty = empty
        self._shortest: dict[str, int] = {}
        self.parts: dict[str, int] = {}

    def add(self, name: str, rule: _Expression) -> None:
        """A rule; those that it names are known, or count as one short part."""
        self._shortest[name] = self._least(rule)
        self.parts[name] = self._most(rule)

    def _least(self, expression: _Expression) -> int:
        """Characters of the shortest text that is not empty."""
        return min((self._least_of(option) for option in expression.options if option), default=0)

    def _least_of(self, option: list[_Element]) -> int:
        lengths = [
            max(1, one.least) * self._inner_least(one)
            for one in option
            if not _is_empty(one, self._empty)
        ]
        return sum(lengths) if lengths else min(map(self._inner_least, option))

    def _inner_least(self, element: _Element) -> int:
        if element.group is not None:
            return self._least(element.group)
        return self._shortest.get(element.name, 1) if element.name else element.chars

    def _most(self, expression: _Expression) -> int:
        most = 0
        for option in expression.options:
            run = 0
            for element in option:
                inside = self._inner_most(element)
                run = (
                    run + self._left_out(element, inside) if _is_empty(element, self._empty) else 0
                )
                most = max(most, run, inside)
        return most

    def _inner_most(self, element: _Element) -> int:
        if element.group is not None:
            return self._most(element.group)
        return self.parts.get(element.name, 1) if element.name else 0

    def _left_out(self, element: _Element, inside: int) -> int:
        """How many parts an element is that may be left out."""
        if self._inner_least(element) > _SHORT:
            return 0
        once = _Element(element.chars, element.name, element.group)
        if not _is_empty(once, self._empty):
            return 1
        return max(1, inside) * (_MOST_REPEATED if element.most is None else max(1, element.most))
