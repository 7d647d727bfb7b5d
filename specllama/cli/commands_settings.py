"""Settings as /set and /show know them: those of a generation, by their flags' names."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from specllama.cli import settings
from specllama.errors import UsageError
from specllama.options import GenerationParams, ModelOptions
from specllama.sampling.params import SamplingParams

NAMES = tuple(
    name.replace("_", "-")
    for name, key in settings.KEYS.items()
    if key.owner in (SamplingParams, GenerationParams)
)
NAMES_HELP = f"Names: {', '.join(NAMES)}."


def changed(params: GenerationParams, name: str, text: str) -> GenerationParams:
    """`params` with one setting as `text` says, checked as the flag of that name is.

    Raises:
        UsageError: no such setting, or not a value of it.
    """
    key = _key(name)
    kind = settings.KEYS[key].kind
    given = _words(text) if kind == "texts" else settings.parse(kind, text)
    value = settings.load({key: given})[key]
    field = settings.KEYS[key].field
    if settings.KEYS[key].owner is SamplingParams:
        return replace(params, sampling=replace(params.sampling, **{field: value}))
    return replace(params, **{field: value})


def describe(params: GenerationParams, name: str) -> str:
    """One setting as "name value"."""
    key = _key(name)
    shown = key.replace("_", "-")
    return f"{shown} {_text(_value(params, key))}"


def describe_all(params: GenerationParams) -> Iterator[str]:
    """Every setting, a line each."""
    width = max(map(len, NAMES))
    for name in NAMES:
        yield f"{name:<{width}}  {_text(_value(params, _key(name)))}"


def _key(name: str) -> str:
    wanted = name.lower().lstrip("-").replace("_", "-")
    key = wanted.replace("-", "_")
    if wanted in NAMES:
        return key
    if key in settings.KEYS and settings.KEYS[key].owner is ModelOptions:
        raise UsageError(f"{name} is fixed when the model is loaded.", f"Restart with --{wanted}.")
    close = get_close_matches(wanted, NAMES, n=1)
    suggestion = f"Did you mean {close[0]}? " if close else ""
    raise UsageError(f"Unknown setting {name}.", f"{suggestion}/show lists them.")


def _words(text: str) -> list[str]:
    """`END "two words"` as two texts; `""` as none."""
    try:
        return [word for word in shlex.split(text) if word]
    except ValueError:  # an apostrophe that opens nothing
        return [text]


def _value(params: GenerationParams, key: str) -> Any:
    owner = params.sampling if settings.KEYS[key].owner is SamplingParams else params
    return getattr(owner, settings.KEYS[key].field)


def _text(value: Any) -> str:
    match value:
        case None:
            return "-1"
        case bool():
            return "on" if value else "off"
        case float():
            return f"{value:g}"
        case tuple():
            return " ".join(repr(item) for item in value) or "none"
    return str(value)
