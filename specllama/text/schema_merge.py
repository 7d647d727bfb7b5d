"""The keywords of JSON schemas that are served, and two schemas as one.

Schemas here are flat: without `$ref`, `allOf` and annotations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

Flat = dict[str, Any]


class Unservable(Exception):
    """What cannot be served and where it stands; `str(error)` completes a sentence."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"at {where}: {what}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_integer(value: Any) -> bool:
    return _is_number(value) and value == int(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping | bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_schemas(value: Any) -> bool:
    return _is_list(value) and bool(value) and all(map(_is_schema, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_type(value: Any) -> bool:
    names = value if _is_list(value) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": _is_list,
    "string": _is_text,
    "integer": _is_integer,
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
"""The types, with what makes a value one of them."""

OF_TYPE = {
    "object": {
        "properties", "required", "additionalProperties", "minProperties", "maxProperties",
    },
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": set[str](),
    "null": set[str](),
}  # fmt: skip
"""The keywords that say something about values of a type."""

ANNOTATIONS = {
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default",
    "example", "examples", "deprecated", "readOnly", "writeOnly", "discriminator",
}  # fmt: skip
"""Keywords that say nothing about which values are valid; so do those that begin with x-."""

_SHAPES: Mapping[str, Callable[[Any], bool]] = {
    "$ref": _is_text,
    "type": _is_type,
    "const": lambda value: True,
    "enum": _is_list,
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _is_schemas),
    "prefixItems": _is_schemas,
    "items": lambda value: _is_schema(value) or _is_schemas(value),
    **dict.fromkeys(("additionalProperties", "additionalItems"), _is_schema),
    "properties": lambda v: isinstance(v, Mapping) and all(map(_is_schema, v.values())),
    "required": lambda value: _is_list(value) and all(map(_is_text, value)),
    **dict.fromkeys(("pattern", "format"), _is_text),
    "uniqueItems": lambda value: isinstance(value, bool),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_count),
    **dict.fromkeys(("minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    "multipleOf": lambda value: _is_number(value) and value > 0,
}

_MOST_COMPARED = 100

_LARGER = ("minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum")
_SMALLER = ("maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum")


def checked(schema: Any, where: str) -> Mapping[str, Any] | bool:
    """A schema whose own keywords are known and hold what they should, without annotations."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping):
        raise Unservable(where, "it should be a schema")
    kept = {}
    for key, value in schema.items():
        if key in ANNOTATIONS or str(key).startswith("x-"):
            continue
        if key not in _SHAPES:
            raise Unservable(where, f"the keyword {key!r} is not supported")
        if not _SHAPES[key](value):
            raise Unservable(where, f"{key} cannot be {written(value)[:40]}")
        kept[key] = value
    return kept


def merged(first: Flat, second: Flat, where: str) -> Flat:
    """What is valid under both."""
    first, second = _with_enum(first), _with_enum(second)
    _check_closed(first, second, where)
    _check_places(first, second, where)
    whole = first | second
    for key in first.keys() & second.keys():
        whole[key] = _both(key, first[key], second[key], where)
    return whole


def _with_enum(flat: Flat) -> Flat:
    """`const` as the enumeration of one value."""
    if "const" not in flat:
        return flat
    rest = {key: value for key, value in flat.items() if key != "const"}
    return (
        merged(rest, {"enum": [flat["const"]]}, "")
        if "enum" in rest
        else rest | {"enum": [flat["const"]]}
    )


def _check_closed(first: Flat, second: Flat, where: str) -> None:
    """`additionalProperties` of one schema would have to rule over the properties of the other."""
    for one, other in ((first, second), (second, first)):
        if one.get("additionalProperties", True) is not True:
            foreign = other.get("properties", {}).keys() - one.get("properties", {}).keys()
            if foreign:
                raise Unservable(
                    where, f"additionalProperties rules out {min(foreign)!r} of a schema beside it"
                )


def _check_places(first: Flat, second: Flat, where: str) -> None:
    """The items of one schema would have to rule over places that the other has schemas for."""
    for one, other in ((first, second), (second, first)):
        n_places, rest = _places(one)
        if rest not in (True, {}) and _places(other)[0] > n_places:
            raise Unservable(where, "items rules over places that a schema beside it tells apart")


def _places(flat: Flat) -> tuple[int, Any]:
    """How many places of an array have schemas of their own, and the schema of all others."""
    items = flat.get("items", True)
    if _is_list(items):  # up to draft 2019-09
        return len(items), flat.get("additionalItems", True)
    return len(flat.get("prefixItems", ())), items


def _both(key: str, one: Any, other: Any, where: str) -> Any:
    """What a keyword has to be for both of its values to hold."""
    if one is other or written(one) == written(other):
        return one
    if key in _LARGER:
        return max(one, other)
    if key in _SMALLER:
        return min(one, other)
    match key:
        case "type":
            return _both_types(one, other, where)
        case "required":
            return list(dict.fromkeys([*one, *other]))
        case "enum":
            known = {written(value) for value in other}
            return [value for value in one if written(value) in known]
        case "uniqueItems":
            return True
        case "properties":
            return {
                name: _all_of(one[name], other[name])
                if name in one and name in other
                else one.get(name, other.get(name))
                for name in [*one, *(name for name in other if name not in one)]
            }
        case "items" | "additionalProperties" if _is_schema(one) and _is_schema(other):
            return _all_of(one, other)
    raise Unservable(where, f"two different {key} cannot be served together")


def _all_of(one: Any, other: Any) -> Flat:
    """Two schemas at once. Parts are not nested and none is there twice, so that it stays smaller
    than the document, however often its parts are named."""
    parts: list[Any] = []
    for schema in (one, other):
        only: Any = schema.get("allOf") if isinstance(schema, Mapping) and len(schema) == 1 else ()
        for part in only if _is_schemas(only) else [schema]:
            if not any(part is known for known in parts):
                parts.append(part)
    return {"allOf": parts}


def _both_types(one: Any, other: Any, where: str) -> list[str]:
    first, second = _types(one), _types(other)
    both = first & second
    for names, others in ((first, second), (second, first)):
        if "number" in names and "integer" in others:
            both |= {"integer"}
    if not both:
        raise Unservable(where, "no type is left")
    return [name for name in TYPES if name in both]


def _types(value: Any) -> set[str]:
    return set(value) if _is_list(value) else {value}


def all_disjoint(flats: Sequence[Flat], where: str) -> bool:
    """Whether it is plain that no value is valid under two of them.

    Raises:
        Unservable: they are too many to be compared one by one.
    """
    branches = [_Branch.of(flat) for flat in flats]
    if _told_apart([branch.values for branch in branches]):
        return True
    common = set[str].intersection(*(set(branch.tags) for branch in branches))
    if any(_told_apart([branch.tags[name] for branch in branches]) for name in common):
        return True
    if len(branches) > _MOST_COMPARED:
        raise Unservable(
            where,
            f"more than {_MOST_COMPARED} branches without one property to tell them apart "
            "(anyOf can be served)",
        )
    return all(one.is_apart(other) for one, other in combinations(branches, 2))


@dataclass(frozen=True, slots=True)
class _Branch:
    """What tells a schema from others.

    Attributes:
        values: the values it allows, where it lists them.
        kinds: the types of values that may be valid.
        tags: the values of properties that every value has, where it allows objects only.
    """

    values: set[str] | None
    kinds: set[str]
    tags: Mapping[str, set[str]]

    @classmethod
    def of(cls, flat: Flat) -> _Branch:
        kinds = _kinds(flat)
        return cls(_fixed(flat), kinds, _tags(flat) if kinds == {"object"} else {})

    def is_apart(self, other: _Branch) -> bool:
        """Whether it is plain that no value is valid under both: other types, other fixed values,
        or objects that are told apart by a required property with other fixed values."""
        if self.values is not None and other.values is not None:
            return not self.values & other.values
        if not self.kinds & other.kinds:
            return True
        common = self.tags.keys() & other.tags.keys()
        return any(self.tags[name].isdisjoint(other.tags[name]) for name in common)


def _told_apart(sets: Sequence[set[str] | None]) -> bool:
    """Whether no two sets share a value; None is a set that nobody knows."""
    known = [values for values in sets if values is not None]
    total = sum(map(len, known))
    return len(known) == len(sets) and total == len(set[str]().union(*known))


def _tags(flat: Flat) -> dict[str, set[str]]:
    """The required properties of fixed values."""
    properties = flat.get("properties", {})
    tags = {}
    for name in flat.get("required", ()):
        schema = properties.get(name)
        values = _fixed(schema) if isinstance(schema, Mapping) else None
        if values is not None:
            tags[name] = values
    return tags


def _fixed(schema: Mapping[str, Any]) -> set[str] | None:
    """The values that a schema allows, written out, where it lists them."""
    if "const" in schema:
        return {written(schema["const"])}
    return {written(value) for value in schema["enum"]} if "enum" in schema else None


def _kinds(flat: Flat) -> set[str]:
    """The types of values that may be valid; whole numbers count as numbers."""
    if "type" in flat:
        names = _types(flat["type"])
    elif "const" in flat or "enum" in flat:
        values = flat.get("enum", [flat.get("const")])
        names = {name for name, fits in TYPES.items() if any(map(fits, values))}
    else:
        names = set(TYPES)
    return {"number" if name == "integer" else name for name in names}


def written(value: Any) -> str:
    """A value as JSON text; equal ones give equal text, also 1 and 1.0."""
    try:
        return json.dumps(_plain(value), sort_keys=True, allow_nan=False, default=dict)
    except (TypeError, ValueError):
        return repr(value)


def _plain(value: Any) -> Any:
    """The same with whole numbers as integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if _is_list(value) else value
