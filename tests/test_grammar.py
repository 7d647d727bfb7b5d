"""Grammars and JSON schemas over the real pair: valid whatever drafts, and the same text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from specllama import (
    GenerationParams,
    Message,
    ModelOptions,
    SamplingParams,
    SpeculativeDecoder,
    UsageError,
)

pytestmark = pytest.mark.model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "format": "email"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
WORD = {"type": "string", "pattern": "^[a-z]{1,9}$"}
SCHEMAS: dict[str, Any] = {
    "person": PERSON,
    "nested": {
        "type": "object",
        "properties": {
            "where": {"type": "object", "properties": {"city": WORD}, "required": ["city"]}
        },
        "required": ["where"],
    },
    "array": {"type": "array", "items": WORD, "minItems": 2, "maxItems": 4},
    "enum": {"enum": ["red", "green", 7, None]},
    "const": {"type": "object", "properties": {"kind": {"const": "ü"}}, "required": ["kind"]},
    "any of": {"anyOf": [{"type": "boolean"}, {"type": "integer", "maximum": 9, "minimum": 1}]},
    "number": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
    "date": {"type": "string", "format": "date"},
    "tuple": {"type": "array", "prefixItems": [WORD, {"type": "boolean"}], "items": False},
    "reference": {
        "type": "object",
        "properties": {"first": {"$ref": "#/$defs/word"}, "second": {"$ref": "#/$defs/word"}},
        "required": ["first", "second"],
        "$defs": {"word": WORD},
    },
    "all of": {"allOf": [{"properties": {"a": WORD}}, {"required": ["a"], "type": "object"}]},
    "optional": {"type": "object", "properties": {"a": WORD, "b": {"type": "null"}}},
    "nullable": {"type": ["string", "null"], "maxLength": 12},
}  # fmt: skip
ASK = [Message("user", "Describe someone called Ann in JSON.")]


@pytest.fixture(scope="module")
def decoder(target_file: Path, draft_file: Path) -> Iterator[SpeculativeDecoder]:
    options = ModelOptions(exact=True, threads=1, n_ctx=512)
    with SpeculativeDecoder(target_file, draft_file, options=options) as decoder:
        yield decoder


def params(temperature: float = 0.0, **settings: Any) -> GenerationParams:
    defaults: dict[str, Any] = {
        "max_tokens": 150, "seed": 7, "adaptive": False, "draft_max": 4, "drafter": "none",
    }  # fmt: skip
    sampling = SamplingParams(temperature=temperature)
    return GenerationParams(sampling=sampling, **{**defaults, **settings})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", SCHEMAS)
def test_replies_are_valid_and_the_same_with_any_draft(
    decoder: SpeculativeDecoder, name: str, temperature: float
) -> None:
    texts = set()
    drafted = ("model", "suffix")[(list(SCHEMAS).index(name) + (temperature > 0)) % 2]
    for drafter in ("none", drafted):
        asked = params(temperature, json_schema=SCHEMAS[name], drafter=drafter)
        reply = decoder.chat(ASK, asked)
        assert reply.finish_reason == "stop"
        jsonschema.validate(
            json.loads(reply.text), SCHEMAS[name], jsonschema.Draft202012Validator,
            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
        )  # fmt: skip
        texts.add(reply.text)
    assert len(texts) == 1


@pytest.mark.parametrize("verify", ["rejection", "block", "match", "greedy-one", "traversal"])
def test_every_rule(decoder: SpeculativeDecoder, verify: Any) -> None:
    for seed in range(3):
        drafter = "tree" if verify in ("greedy-one", "traversal") else "model"
        asked = params(1.0, json_schema=PERSON, verify=verify, seed=seed, drafter=drafter)
        reply = decoder.chat(ASK, asked)
        jsonschema.validate(json.loads(reply.text), PERSON)


def test_acceptance_does_not_collapse(decoder: SpeculativeDecoder) -> None:
    """Most of what a masked draft says about the structure is what the target says."""
    reply = decoder.chat(ASK, params(json_schema=PERSON, drafter="model"))
    assert reply.spec.acceptance is not None and reply.spec.acceptance > 0.6


def test_any_object(decoder: SpeculativeDecoder) -> None:
    asked = params(json_schema={"type": "object"}, max_tokens=60)
    reply = decoder.chat(ASK, asked)
    assert reply.text.startswith("{")
    if reply.finish_reason == "stop":
        assert isinstance(json.loads(reply.text), dict)


def test_the_end_of_the_budget_is_said(decoder: SpeculativeDecoder) -> None:
    reply = decoder.chat(ASK, params(json_schema=PERSON, max_tokens=4, drafter="model"))
    assert reply.finish_reason == "length"
    assert len(reply.tokens) == 4


@pytest.mark.parametrize("drafter", ["none", "model", "suffix"])
def test_a_grammar(decoder: SpeculativeDecoder, drafter: str) -> None:
    grammar = 'root ::= ("ha" | "ho"){3} [!?]'
    for temperature in (0.0, 1.5):
        asked = params(temperature, grammar=grammar, drafter=drafter)
        reply = decoder.stream("The clown said: ", asked).finish()
        assert re.fullmatch("(ha|ho){3}[!?]", reply.text) and reply.finish_reason == "stop"


def test_text_that_only_looks_like_the_end(decoder: SpeculativeDecoder) -> None:
    """Control tokens have no text; under a grammar they are not written as one."""
    grammar = 'root ::= "<|im_start|>" [a-z]{2}'
    reply = decoder.stream("Write <|im_start|>", params(grammar=grammar)).finish()
    assert re.fullmatch(r"<\|im_start\|>[a-z]{2}", reply.text)


def test_a_grammar_that_cannot_be_read(decoder: SpeculativeDecoder) -> None:
    with pytest.raises(UsageError, match="line 1: a rule begins"):
        decoder.stream("Hi", params(grammar="root = x"))
    with pytest.raises(UsageError, match="cannot be served"):
        decoder.stream("Hi", params(json_schema={"not": {}}))


@pytest.mark.parametrize("sampling", [{"top_k": 0}, {"top_p": 0.3}, {"repeat_penalty": 1.5}])
def test_other_samplings(decoder: SpeculativeDecoder, sampling: dict[str, Any]) -> None:
    settings = SamplingParams(temperature=1.0, **sampling)
    texts = {
        decoder.chat(
            ASK,
            GenerationParams(
                max_tokens=150, sampling=settings, seed=3, json_schema=SCHEMAS["array"],
                drafter=drafter, adaptive=False, draft_max=3,
            ),
        ).text
        for drafter in ("none", "model")
    }  # fmt: skip
    assert len(texts) == 1
    jsonschema.validate(json.loads(texts.pop()), SCHEMAS["array"])
