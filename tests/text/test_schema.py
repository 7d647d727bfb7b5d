"""JSON schemas as grammars: whatever the grammar allows is valid, and what should pass passes.

Texts are walked and drawn byte by byte through llama.cpp's own grammar sampler, over the vocabulary
of a tiny model that has a token for every byte.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from specllama.errors import UsageError
from specllama.llama.grammar import Grammars, GrammarState
from specllama.llama.model import LlamaVocabulary, Model
from specllama.text.schema import to_gbnf
from tests.llama.tiny import write_mamba

OVERLONG = {b"\xe0": b"\xa0", b"\xf0": b"\x90"}
FORMATS = ("date", "time", "date-time", "uuid", "email", "hostname", "ipv4", "duration", "uri")

NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}

SCHEMAS: dict[str, Any] = {
    "any value": True,
    "any object": {"type": "object"},
    "any array": {"type": "array"},
    "person": {
        "title": "Person",
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "in full"},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "email": {"type": "string", "format": "email"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "only optional": {"properties": {"a": {"type": "null"}, "b": {"type": "boolean"}}},
    "nested": {
        "type": "object",
        "properties": {"a": {"type": "object", "properties": {"b": {"enum": ["x", 1, None]}}}},
        "required": ["a"],
    },
    "extra properties": {
        "type": "object",
        "properties": {"id": {"type": "integer"}, 'i"d': {"type": "integer"}},
        "required": ["kind"],
        "additionalProperties": {"type": "string", "maxLength": 3},
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "string"}, {"type": "boolean"}],
        "items": {"type": "integer"},
        "minItems": 3,
        "maxItems": 5,
    },
    "old tuple": {"type": "array", "items": [{"type": "null"}, {"const": "ü\n\"\\"}]},
    "counted": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "empty array": {"type": "array", "items": {"type": "integer"}, "maxItems": 0},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 4},
    "several types": {"type": ["integer", "null", "string"], "minLength": 1, "minimum": 7},
    "any of": {
        "anyOf": [
            {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
            {"type": "string", "pattern": "^[a-c]{2,3}$"},
        ]
    },
    "tagged": {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {
            "cat": {
                "type": "object",
                "properties": {"kind": {"const": "cat"}, "lives": {"enum": [7, 9]}},
                "required": ["kind", "lives"],
            },
            "dog": {
                "type": "object",
                "properties": {"kind": {"const": "dog"}},
                "required": ["kind"],
            },
        },
    },
    "all of": {
        "allOf": [
            {"$ref": "#/definitions/named"},
            {"properties": {"n": {"type": "integer", "maximum": 5}}, "required": ["n"]},
        ],
        "properties": {"n": {"minimum": 3}},
        "definitions": {
            "named": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 3}},
                "required": ["name"],
            }
        },
    },
    "recursive": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "recursive root": {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
        "required": ["children"],
    },
    "names like ours": {
        "$defs": {"string": {"type": "integer"}, "ws": {"type": "null"}, "a/b": {"const": 0}},
        "type": "object",
        "properties": {
            "value": {"$ref": "#/$defs/string"},
            "object": {"$ref": "#/$defs/ws"},
            "string": {"type": "string", "maxLength": 2},
            "x": {"$ref": "#/$defs/a~1b"},
        },
        "required": ["value", "object", "string", "x"],
    },
    "numbers": {
        "type": "object",
        "properties": {
            "share": {"type": "number", "minimum": 0, "maximum": 1},
            "above": {"type": "number", "exclusiveMinimum": 0},
            "below": {"type": "number", "exclusiveMaximum": 0, "minimum": -12},
            "around": {"type": "number", "exclusiveMinimum": -3, "exclusiveMaximum": 17},
            "any": {"type": "number"},
            "byte": {"type": "integer", "minimum": -128, "exclusiveMaximum": 128},
            "year": {"type": "integer", "minimum": 1987, "maximum": 2031},
            "large": {"type": "integer", "minimum": 10**17},
        },
        "required": ["share", "above", "below", "around", "any", "byte", "year", "large"],
    },
    "formats": {
        "type": "object",
        "properties": {
            name: {"type": "string", "format": name} for name in FORMATS
        },
        "required": [*FORMATS],
    },
    "patterns": {
        "type": "object",
        "properties": {
            "anchored": {"pattern": "^[A-Z]{2}-\\d{1,3}(?:x|\"y\\\\)?$", "type": "string"},
            "branches": {"pattern": "^a$|b|^c", "type": "string"},
            "negated": {"pattern": "^[^\\s\"]{3}[^a-z][\\S]\\W.$", "type": "string"},
            "control": {"pattern": "^[\\t\\n]+\\/$", "type": "string"},
        },
        "required": ["anchored", "branches", "negated", "control"],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary(
    llama_cpp: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaVocabulary]:
    """A token for every byte, and one that ends a text."""
    path: Path = write_mamba(tmp_path_factory.mktemp("tiny") / "bytes.gguf")
    with Model(path, gpu_layers=0, vocab_only=True) as model:
        yield model.vocabulary


def start(vocabulary: LlamaVocabulary, schema: Any) -> GrammarState:
    return Grammars(vocabulary).read(to_gbnf(schema))


def draw(vocabulary: LlamaVocabulary, state: GrammarState, seed: int) -> bytes:
    """A random text; after a while the bytes that bring it to an end are preferred."""
    random = np.random.default_rng(seed)
    said = b""
    while True:
        allowed = [int(token) for token in state.every()]
        assert allowed, f"a dead end behind {said!r}"
        ends = [token for token in allowed if vocabulary.is_eog(token)]
        if ends and (len(ends) == len(allowed) or random.random() < 0.5):
            return said
        pieces = {vocabulary.piece(token): token for token in allowed if token not in ends}
        if said[-1:] in OVERLONG:  # llama.cpp takes these for characters; no vocabulary has them
            pieces = {piece: t for piece, t in pieces.items() if piece >= OVERLONG[said[-1:]]}
        closing = [byte for byte in (b'"', b"}", b"]", b"0") if byte in pieces]
        if len(said) > 60 and closing and random.random() < 0.8:
            piece = closing[0]
        else:
            piece = list(pieces)[random.integers(len(pieces))]
        said += piece
        following = state.after(pieces[piece])
        assert following is not None
        state = following
        assert len(said) < 5000


def follows(vocabulary: LlamaVocabulary, state: GrammarState, text: str) -> bool:
    """Whether a whole text follows the grammar."""
    here: GrammarState | None = state
    for token in vocabulary.tokenize(text, special=False, add_bos=False):
        here = here.after(token)
        if here is None:
            return False
    return any(vocabulary.is_eog(int(token)) for token in here.every())


def validator(schema: Any) -> jsonschema.Draft202012Validator:
    old = isinstance(schema, dict) and isinstance(schema.get("items"), list)
    kind = jsonschema.Draft7Validator if old else jsonschema.Draft202012Validator
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_is_drawn_is_valid(vocabulary: LlamaVocabulary, name: str) -> None:
    schema = SCHEMAS[name]
    state = start(vocabulary, schema)
    checker = validator(schema)
    for seed in range(12):
        text = draw(vocabulary, state, seed).decode()
        checker.validate(json.loads(text))


GOOD = {
    "any value": ["null", '{"a": [1, {"b": -2.5e3}], "c": "\\u00e9\\n\\\\é😀"}', '"x"', "0"],
    "any object": ["{}", '{"a": 1}', '{\n  "a": {\n    "b": []\n  }\n}'],
    "person": [
        '{"name": "Ann", "age": 120}',
        '{"name":"Ann","age":0,"tags":["a","b"]}',
        '{"name": "Ann", "age": 7, "email": "ann.b@example.org"}',
    ],
    "only optional": ["{}", '{"a": null}', '{"b": true}', '{"a": null, "b": false}'],
    "extra properties": ['{"id": 1, "kind": "a"}', '{"kind": "a", "ida": "b", "i": "c"}'],
    "tuple": ['["a", true, 5]', '["a", true, 5, 6, 7]'],
    "counted": ["[true, false]", "[\n  true,\n  false\n]"],
    "empty array": ["[]"],
    "lengths": ['"é😀"', '"\\n\\u0041bc"'],
    "several types": ["7", "null", '"a"'],
    "any of": ['{"a": 1}', '"abc"'],
    "all of": ['{"name": "x", "n": 3}'],
    "recursive": ['{"value": 1, "next": {"value": 2, "next": null}}'],
    "numbers": [
        '{"share": 1.00, "above": 0.001, "below": -11.9, "around": 16.99, "any": 1e5, '
        '"byte": -128, "year": 2031, "large": 100000000000000000}'
    ],
    "patterns": ['{"anchored": "AB-12\\"y\\\\", "branches": "abc", "negated": "ab.A.-x", '
                 '"control": "\\t\\n/"}'],
}  # fmt: skip

BAD = {
    "any value": ["nul", "01", '"a\nb"', '"\\x"', "{,}", "[1,]", '"\\ud800"', "1 2"],
    "any object": ["[]", "{}{}", '{"a"}'],
    "person": ['{"age": 1, "name": "Ann"}', '{"name": "A", "age": 121}', '{"name": "A"}',
               '{"name": "A", "age": 1, "tags": ["a", "b", "c", "d"]}'],
    "extra properties": ['{"kind": "abcd"}', '{"kind": "a", "id": "b"}',
                         '{"kind": "a", "i\\u0064": 1}'],
    "tuple": ['["a", true]', '["a", true, 5, 6, 7, 8]', '["a", 5]'],
    "counted": ["[true]", "[true, true, true, true, true]"],
    "lengths": ['"a"', '"abcde"'],
    "several types": ["6", '""', "true"],
    "any of": ['{"a": 2}', '"abcd"'],
    "all of": ['{"name": "x", "n": 2}', '{"name": "x", "n": 6}', '{"n": 3}'],
    "tagged": ['{"kind": "dog", "lives": 7}', '{"kind": "cat"}'],
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_usual_ways_to_write_it_pass(vocabulary: LlamaVocabulary, name: str) -> None:
    state = start(vocabulary, SCHEMAS[name])
    for text in GOOD[name]:
        validator(SCHEMAS[name]).validate(json.loads(text))
        assert follows(vocabulary, state, text), text


@pytest.mark.parametrize("name", BAD)
def test_other_texts_do_not(vocabulary: LlamaVocabulary, name: str) -> None:
    state = start(vocabulary, SCHEMAS[name])
    for text in BAD[name]:
        assert not follows(vocabulary, state, text), text


REFUSED: list[tuple[Any, str]] = [
    (False, "allows nothing"),
    ({"not": {"type": "string"}}, "'not' is not supported"),
    ({"type": "strin"}, "type cannot be"),
    ({"type": "object", "patternProperties": {}}, "patternProperties"),
    ({"type": "string", "maxlength": 5}, "maxlength"),
    ({"$ref": "https://example.org/schema"}, "does not lead into this document"),
    ({"$ref": "#/$defs/gone"}, "leads nowhere"),
    ({"$ref": "#/a", "a": {"$ref": "#/a"}}, "not supported"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
     "back to itself"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "below minItems"),
    ({"type": "array", "items": False, "minItems": 1}, "more items than"),
    ({"type": "string", "minLength": 2000}, "minLength is above"),
    ({"type": "string", "minLength": -1}, "minLength cannot be -1"),
    ({"type": "string", "format": "iri"}, "the format 'iri'"),
    ({"type": "string", "pattern": "^(?=a)"}, "assert is not supported"),
    ({"type": "string", "pattern": "(a)\\1"}, "groupref is not supported"),
    ({"type": "string", "pattern": "("}, "cannot be read"),
    ({"type": "string", "pattern": "a\\b"}, "at is not supported"),
    ({"type": "string", "pattern": "a", "maxLength": 3}, "together"),
    ({"type": "number", "minimum": 0.5}, "whole number"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "no number"),
    ({"type": "number", "minimum": 5, "exclusiveMaximum": 5}, "no number"),
    ({"type": "integer", "multipleOf": 3}, "multipleOf"),
    ({"type": "integer", "exclusiveMinimum": True}, "exclusiveMinimum cannot be true"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "may overlap"),
    ({"enum": []}, "allows nothing"),
    ({"type": "string", "enum": [1]}, "allows nothing"),
    ({"const": float("nan")}, "allows nothing"),
    ({"type": "object", "minProperties": 1}, "minProperties"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "'a' is required"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no type is left"),
    ({"allOf": [{"properties": {"a": True}, "additionalProperties": False},
                {"properties": {"b": True}}]}, "rules out 'b'"),
    ({"type": "array", "items": {"type": "integer"},
      "allOf": [{"prefixItems": [{"type": "null"}]}]}, "items rules over places"),
    ({"allOf": [{"items": [{"type": "null"}], "additionalItems": {"type": "null"}},
                {"items": [{"type": "null"}, {"type": "null"}]}]}, "items rules over places"),
    ({"oneOf": [{"enum": [2, 1.0]}, {"const": 1}]}, "oneOf"),
    ({"type": "object", "properties": {"a": 5}}, "properties cannot be"),
    ({"anyOf": []}, "anyOf cannot be"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "reason"), REFUSED)
def test_what_cannot_be_served_is_said(schema: Any, reason: str) -> None:
    with pytest.raises(UsageError, match="cannot be served") as caught:
        to_gbnf(schema)
    assert reason in str(caught.value)


def test_the_place_is_said() -> None:
    schema = {"properties": {"a": {"items": {"type": "string", "contentEncoding": "base64"}}}}
    with pytest.raises(UsageError, match=r"#/properties/a/items: the keyword 'contentEncoding'"):
        to_gbnf(schema)


def test_endless_nesting_is_said() -> None:
    schema: Any = {"type": "null"}
    for _ in range(3000):
        schema = {"anyOf": [schema]}
    with pytest.raises(UsageError, match="too deeply"):
        to_gbnf(schema)


def doubling(levels: int, **beside: Any) -> dict[str, Any]:
    """Each definition names the next one twice."""
    definitions: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} | beside for n in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{levels}": {"type": "null"}}}


def crossing(levels: int) -> dict[str, Any]:
    """Two definitions a level, each both of the next level, in another order."""
    definitions: dict[str, Any] = {}
    for n in range(levels):
        two = [{"$ref": f"#/$defs/{name}{n + 1}"} for name in "de"]
        definitions |= {f"d{n}": {"allOf": two}, f"e{n}": {"allOf": two[::-1]}}
    for name, title in (("d", 1), ("e", 2)):
        definitions[f"{name}{levels}"] = {"properties": {"a": {"maxLength": title}}}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


@pytest.mark.parametrize(
    "schema",
    [
        doubling(20),
        crossing(18),
        {"oneOf": [{"const": n} for n in range(3000)]},
        {"oneOf": [{"properties": {"k": {"const": n}}, "type": "object", "required": ["k"]}
                   for n in range(1000)]},
        {"type": "object", "properties": {f"a{n}": {"type": "null"} for n in range(8000)}},
        {"type": "object", "required": [f"a{n}" for n in range(4000)]},
    ],
    ids=["doubling", "crossing", "values", "tagged", "properties", "required"],
)  # fmt: skip
def test_large_ones_take_their_time_but_not_more(schema: Any) -> None:
    begun = time.process_time()
    assert to_gbnf(schema)
    assert time.process_time() - begun < 3


def expanding(levels: int) -> dict[str, Any]:
    """Properties that refer twice to the next level, with something beside the reference."""
    definitions: dict[str, Any] = {}
    for n in range(levels):
        next_one = {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]}
        definitions[f"d{n}"] = {"properties": {"a": next_one, "b": next_one}}
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{levels}": {"type": "null"}}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (expanding(17), "would be too large"),
        ({"allOf": [{"properties": {f"a{n}": True}} for n in range(8000)]}, "be merged"),
        ({"oneOf": [{"type": ["null", "integer"]}] * 101}, "more than 100 branches"),
        ({"enum": ["x" * 1000] * 400}, "more than 400,000 characters"),
    ],
    ids=["expanding", "allOf", "oneOf", "enum"],
)
def test_what_takes_too_long_is_refused(schema: Any, reason: str) -> None:
    begun = time.process_time()
    with pytest.raises(UsageError, match=reason):
        to_gbnf(schema)
    assert time.process_time() - begun < 10
