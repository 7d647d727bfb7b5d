"""JSON schemas (draft 2020-12, and older spellings of the same) as grammars.

Whatever follows the grammar is valid under the schema, but not the other way round: properties come
in the schema's order, ones that it does not name only where it says how (`additionalProperties`),
whitespace is at most a line break and an indentation. What cannot be said in a grammar is an error,
never left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from specllama.errors import UsageError
from specllama.text import schema_text as text
from specllama.text.gbnf import alternatives, literal, repeated
from specllama.text.schema_merge import (
    OF_TYPE,
    TYPES,
    Unservable,
    all_disjoint,
    checked,
    merged,
    written,
)
from specllama.text.schema_numbers import Bound, integers, numbers

Schema = Mapping[str, Any] | bool

_PRIMITIVES = {
    "ws": r'"" | " " | "\n" [ \t]{0,20}',
    "char": text.CHAR,
    "string": '"\\"" char* "\\""',
    "number": numbers(None, None),
    "integer": integers(None, None),
    "boolean": '"true" | "false"',
    "null": '"null"',
    "array": '"[" ws (value ("," ws value)* ws)? "]"',
    "object": '"{" ws (string ":" ws value ("," ws string ":" ws value)* ws)? "}"',
    "value": "object | array | string | number | boolean | null",
}
_USES = {
    "string": ("char",),
    "array": ("ws", "value"),
    "object": ("ws", "string", "value"),
    "value": ("object", "array", "string", "number", "boolean", "null"),
}
_MOST_REPEATED = 1000
# Schemas come from strangers; a small one may stand for more than anybody can wait for.
_LONGEST_SCHEMA = 400_000
_LARGEST_GRAMMAR = 5_000_000
_RULE_COST = 100
_MOST_MERGED = 2000
_MOST_TAKEN = 50_000
_LONGEST_NAME = 60


def to_gbnf(schema: Schema) -> str:
    """The grammar of a schema, in llama.cpp's notation, from its rule `root`.

    Raises:
        UsageError: it asks for what a grammar cannot say, names what is not there, or contradicts
            itself.
    """
    try:
        return _Converter(schema).grammar()
    except Unservable as error:
        raise UsageError(f"This JSON schema cannot be served: {error}.") from error
    except RecursionError as error:
        raise UsageError("This JSON schema is nested too deeply.") from error


class _Converter:
    """Collects the rules of one grammar. Every part of the schema becomes a rule."""

    def __init__(self, schema: Schema) -> None:
        self._document = schema
        self._rules: dict[str, str] = {}
        self._references: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._flats: dict[str, dict[str, Any]] = {}
        self._size = 0
        self._n_merged = 0

    def grammar(self) -> str:
        """All rules, the root first."""
        if len(written(self._document)) > _LONGEST_SCHEMA:
            raise Unservable("#", f"it has more than {_LONGEST_SCHEMA:,} characters")
        root = self._rule(self._document, "#", "root")
        if root != "root":
            self._rules["root"] = root
        return "\n".join(f"{name} ::= {rule}" for name, rule in self._rules.items())

    # names

    def _primitive(self, name: str) -> str:
        if name not in self._rules:
            self._rules[name] = _PRIMITIVES[name]
            for used in _USES.get(name, ()):
                self._primitive(used)
        return name

    def _new_name(self, wish: str) -> str:
        """A name that no rule has; it is taken at once."""
        wish = re.sub(r"[^a-zA-Z0-9]+", "-", wish).strip("-")[:_LONGEST_NAME] or "x"
        name, number = wish, self._numbers.get(wish, 2)
        while name in self._rules or (name in _PRIMITIVES):
            name, number = f"{wish}-{number}", number + 1
        self._numbers[wish] = number
        self._rules[name] = ""
        return name

    def _fill(self, name: str, rule: str) -> str:
        """Give a name its rule."""
        self._size += len(rule) + _RULE_COST
        if self._size > _LARGEST_GRAMMAR:
            raise Unservable("#", "its grammar would be too large")
        self._rules[name] = rule
        return name

    # schemas

    def _rule(self, schema: Schema, where: str, wish: str) -> str:
        """The name of the rule for a schema.

        Args:
            where: its place, for messages.
            wish: what the rule might be called.
        """
        schema = checked(schema, where)
        if isinstance(schema, Mapping) and schema.keys() == {"$ref"}:
            return self._referred(schema["$ref"], where)
        flat = self._flat(schema, where, ())
        if not flat:
            return self._primitive("value")
        name = self._new_name(wish)
        return self._fill(name, self._alternatives(flat, where, name))

    def _referred(self, reference: Any, where: str) -> str:
        """The rule for what a reference names; there is one, however often it is named."""
        if reference not in self._references:
            target = self._find(reference, where)
            self._flat_reference(reference, where, ())  # finds references in a circle
            wish = str(reference).rpartition("/")[2]
            name = self._references[reference] = self._new_name(wish)
            self._fill(name, self._rule(target, reference, wish))
        return self._references[reference]

    def _find(self, reference: Any, where: str) -> Schema:
        """What a reference within the document names."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise Unservable(where, f"the reference {reference!r} does not lead into this document")
        found: Any = self._document
        for part in reference.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif isinstance(found, list) and _is_place(key, found):
                found = found[int(key)]
            else:
                raise Unservable(where, f"the reference {reference!r} leads nowhere")
        return checked(found, reference)

    def _flat(self, schema: Schema, where: str, through: Sequence[str]) -> dict[str, Any]:
        """A schema without `$ref` and `allOf`: what they say is merged into the rest.

        Args:
            through: references that led here.
        """
        schema = checked(schema, where)
        if isinstance(schema, bool):
            if not schema:
                raise Unservable(where, "it allows nothing")
            return {}
        own = dict(schema)
        reference, parts = own.pop("$ref", None), own.pop("allOf", ())
        flat: dict[str, Any] = {}
        if reference is not None:
            flat = self._flat_reference(reference, where, through)
        for n, part in enumerate(parts):
            flat = self._merged(flat, self._flat(part, f"{where}/allOf/{n}", through), where)
        return self._merged(flat, own, where)

    def _flat_reference(self, reference: str, where: str, through: Sequence[str]) -> dict[str, Any]:
        """What a reference names, flat; worked out once, however often it is named."""
        if reference in through:
            raise Unservable(where, f"the reference {reference!r} leads back to itself")
        if reference not in self._flats:
            target = self._find(reference, where)
            self._flats[reference] = self._flat(target, reference, (*through, reference))
        return self._flats[reference]

    def _merged(self, first: dict[str, Any], second: dict[str, Any], where: str) -> dict[str, Any]:
        self._n_merged += bool(first and second)
        if self._n_merged > _MOST_MERGED:
            raise Unservable(where, f"more than {_MOST_MERGED} schemas would have to be merged")
        return merged(first, second, where)

    def _alternatives(self, flat: dict[str, Any], where: str, name: str) -> str:
        """The expression of a flat schema."""
        for key in ("oneOf", "anyOf"):
            if key in flat:
                rest = {other: value for other, value in flat.items() if other != key}
                return self._any_of(flat[key], rest, f"{where}/{key}", name, key == "oneOf")
        if "const" in flat or "enum" in flat:
            return _constants(flat, where)
        types = [flat["type"]] if isinstance(flat.get("type"), str) else flat.get("type")
        if types is None:
            types = [kind for kind in OF_TYPE if OF_TYPE[kind] & flat.keys()]
        return alternatives(self._of_type(kind, flat, where, name) for kind in types)

    def _any_of(
        self, branches: Any, rest: dict[str, Any], where: str, name: str, exclusive: bool
    ) -> str:
        """Every branch together with what stands beside it."""
        flats = []
        for n, branch in enumerate(branches):
            flats.append(self._flat(branch, f"{where}/{n}", ()))
        if exclusive and not all_disjoint(flats, where):
            raise Unservable(where, "its branches may overlap (anyOf can be served)")
        if not rest:
            places = enumerate(branches)
            return alternatives(self._rule(b, f"{where}/{n}", f"{name}-{n}") for n, b in places)
        wholes = [self._merged(flat, rest, where) for flat in flats]
        return alternatives(
            self._rule(whole, f"{where}/{n}", f"{name}-{n}") for n, whole in enumerate(wholes)
        )

    def _of_type(self, kind: str, flat: dict[str, Any], where: str, name: str) -> str:
        if not OF_TYPE[kind] & flat.keys():
            return self._primitive(kind)
        match kind:
            case "object":
                return self._object(flat, where, name)
            case "array":
                return self._array(flat, where, name)
            case "string":
                return self._string(flat, where)
            case "integer":
                return _integer(flat, where)
        return _number(flat, where)

    # objects

    def _object(self, flat: dict[str, Any], where: str, name: str) -> str:
        properties = dict(flat.get("properties", {}))
        required = dict.fromkeys(flat.get("required", ()))
        # without properties of its own an object is free; beside properties others are left out
        extra: Schema = flat.get("additionalProperties", not properties)
        for key in required:
            if key not in properties:
                if extra is False and "additionalProperties" in flat:
                    raise Unservable(where, f"{key!r} is required and not allowed")
                properties[key] = flat.get("additionalProperties", True)
        for key, smallest in (("minProperties", len(required)), ("maxProperties", None)):
            if key in flat and not (smallest is not None and flat[key] <= smallest):
                raise Unservable(where, f"{key} is not supported")
        pairs = [
            (self._pair(key, value, where, name), key in required)
            for key, value in properties.items()
        ]
        members = self._members(pairs, extra, list(properties), where, name)
        return f'"{{" {self._primitive("ws")} {members} "}}"'

    def _pair(self, key: str, schema: Schema, where: str, name: str) -> str:
        place = f"{where}/properties/{key[:_LONGEST_NAME]}"
        value = self._rule(schema, place, f"{name}-{key}")
        quoted = literal(json.dumps(key, ensure_ascii=False) + ":")
        return f"{quoted} {self._primitive('ws')} {value}"

    def _members(
        self,
        pairs: Sequence[tuple[str, bool]],
        extra: Schema,
        taken: Sequence[str],
        where: str,
        name: str,
    ) -> str:
        """The members of an object, from the last: with and without a member before them."""
        after, first = "ws", ""
        if extra is not False:
            more = self._extra(extra, taken, where, name)
            after = self._added(f"{name}-more", f'("," ws {more})* ws')
            first = f"({more} {after})?"
        for pair, is_required in reversed(pairs):
            member = f'"," ws {pair}'
            begun = self._added(f"{name}-from", f"{pair} {after}")
            first = begun if is_required else alternatives([begun, first])
            first = self._added(f"{name}-first", first)
            member = member if is_required else f"({member})?"
            after = self._added(f"{name}-after", f"{member} {after}")
        return first

    def _added(self, wish: str, rule: str) -> str:
        return self._fill(self._new_name(wish), rule)

    def _extra(self, schema: Schema, taken: Sequence[str], where: str, name: str) -> str:
        """A member under any other key than those of the properties."""
        value = self._rule(schema, f"{where}/additionalProperties", f"{name}-extra")
        key = self._primitive("string")
        if sum(map(len, taken)) > _MOST_TAKEN:
            raise Unservable(where, "too many property names for additionalProperties beside them")
        if taken:
            key = self._added(f"{name}-key", text.quoted(text.other_than(taken)))
        return self._added(f"{name}-pair", f'{key} ":" {self._primitive("ws")} {value}')

    # arrays

    def _array(self, flat: dict[str, Any], where: str, name: str) -> str:
        if flat.get("uniqueItems"):
            raise Unservable(where, "uniqueItems is not supported")
        first, rest = _item_schemas(flat)
        least = _count(flat, "minItems", where) or 0
        most = _count(flat, "maxItems", where)
        if most is not None and most < least:
            raise Unservable(where, "maxItems is below minItems")
        first = first if most is None else first[:most]
        names = [
            self._rule(item, f"{where}/prefixItems/{n}", f"{name}-{n}")
            for n, item in enumerate(first)
        ]
        least, most = max(0, least - len(names)), None if most is None else most - len(names)
        if rest is False:
            if least:
                raise Unservable(where, "minItems asks for more items than there may be")
            most = 0
        item = "" if most == 0 else self._rule(rest, f"{where}/items", f"{name}-item")
        return _items(names, item, least, most, self._primitive("ws"))

    # strings

    def _string(self, flat: dict[str, Any], where: str) -> str:
        asked = OF_TYPE["string"] & flat.keys()
        if asked <= {"minLength", "maxLength"}:
            least = _count(flat, "minLength", where) or 0
            most = _count(flat, "maxLength", where)
            if most is not None and most < least:
                raise Unservable(where, "maxLength is below minLength")
            return text.quoted(repeated(self._primitive("char"), least, most))
        if len(asked) > 1:
            raise Unservable(where, f"{' and '.join(sorted(asked))} cannot be served together")
        if "format" in flat and flat["format"] not in text.FORMATS:
            known = ", ".join(text.FORMATS)
            raise Unservable(where, f"the format {flat['format']!r} is not one of {known}")
        try:
            if "format" in flat:
                return text.quoted(text.matching(text.FORMATS[flat["format"]], whole=True))
            return text.quoted(text.matching(flat["pattern"]))
        except text.UnsupportedPattern as error:
            raise Unservable(where, f"the pattern {flat['pattern']!r}: {error}") from error


def _is_place(key: str, found: Sequence[Any]) -> bool:
    return bool(re.fullmatch("[0-9]{1,9}", key)) and int(key) < len(found)


def _constants(flat: dict[str, Any], where: str) -> str:
    """The values of `const` or `enum` that have one of the types asked for."""
    values = [flat["const"]] if "const" in flat else flat["enum"]
    types = flat.get("type", list(TYPES))
    types = [types] if isinstance(types, str) else types
    fitting = [value for value in values if any(TYPES[kind](value) for kind in types)]
    other = flat.keys() - {"const", "enum", "type"}
    if other:
        raise Unservable(where, f"{min(other)} beside fixed values is not supported")
    if not fitting:
        raise Unservable(where, "it allows nothing")
    return alternatives(literal(json.dumps(v, ensure_ascii=False)) for v in fitting)


def _item_schemas(flat: dict[str, Any]) -> tuple[list[Schema], Schema]:
    """The schemas of the first items, and the one of all others."""
    items = flat.get("items")
    if isinstance(items, list):  # up to draft 2019-09
        return items, flat.get("additionalItems", False)
    first = list(flat.get("prefixItems", ()))
    least = flat.get("minItems", 0)
    return first, items if items is not None else not first or least > len(first)


def _items(first: Sequence[str], item: str, least: int, most: int | None, ws: str) -> str:
    """An array: its first items, then others, `least` to `most` (None: any number) of them."""
    optional = False
    if not first and item:
        first, optional = [item], least == 0
        least, most = max(0, least - 1), None if most is None else most - 1
    if not first:
        return f'"[" {ws} "]"'
    separated = f' "," {ws} '.join(first)
    more = repeated(f'("," {ws} {item})', least, most) if item and most != 0 else ""
    inner = " ".join(part for part in (separated, more, ws) if part)
    return f'"[" {ws} {f"({inner})?" if optional else inner} "]"'


def _count(flat: dict[str, Any], key: str, where: str) -> int | None:
    value = flat.get(key)
    if value is not None and value > _MOST_REPEATED:
        raise Unservable(where, f"{key} is above {_MOST_REPEATED}, the most a grammar can count")
    return value


def _integer(flat: dict[str, Any], where: str) -> str:
    _check_multiple(flat, where, {1})
    lows = [math.ceil(flat["minimum"])] if "minimum" in flat else []
    highs = [math.floor(flat["maximum"])] if "maximum" in flat else []
    if "exclusiveMinimum" in flat:
        lows.append(math.floor(flat["exclusiveMinimum"]) + 1)
    if "exclusiveMaximum" in flat:
        highs.append(math.ceil(flat["exclusiveMaximum"]) - 1)
    try:
        return integers(max(lows, default=None), min(highs, default=None))
    except ValueError as error:
        raise Unservable(where, str(error)) from error


def _number(flat: dict[str, Any], where: str) -> str:
    _check_multiple(flat, where, set())
    try:
        return numbers(
            _bound(flat, ("minimum", "exclusiveMinimum"), max, where),
            _bound(flat, ("maximum", "exclusiveMaximum"), min, where),
        )
    except ValueError as error:
        raise Unservable(where, str(error)) from error


def _bound(flat: dict[str, Any], keys: tuple[str, str], strictest: Any, where: str) -> Bound | None:
    """The stricter of a bound and the one that excludes itself."""
    given = {key: flat[key] for key in keys if key in flat}
    for key, value in given.items():
        if value != int(value):
            raise Unservable(where, f"{key} of numbers has to be a whole number")
    if not given:
        return None
    at = strictest(given.values())
    return Bound(int(at), included=given.get(keys[1]) != at)


def _check_multiple(flat: dict[str, Any], where: str, served: set[int]) -> None:
    if "multipleOf" in flat and flat["multipleOf"] not in served:
        raise Unservable(where, "multipleOf is not supported")
