"""The lines of `specllama generate --batch`: requests, one JSON object each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from specllama.cli.model_flags import checked_text, read_text
from specllama.errors import UsageError
from specllama.options import GenerationParams

_SAMPLING = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "typical_p": float,
    "repeat_penalty": float,
    "repeat_last_n": int,
    "frequency_penalty": float,
    "presence_penalty": float,
}
_GENERATION = {
    "max_tokens": int,
    "seed": int,
    "stop": list,
    "drafter": str,
    "draft_max": int,
    "verify": str,
    "predict": str,
    "grammar": str,
    "json_schema": dict,
}
_KINDS = {float: "a number", int: "a whole number", str: "a text", list: "a list of texts",
          dict: "an object"}  # fmt: skip
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the batch.

    Attributes:
        number: from 1.
        id: what it calls itself (then it is `named`), else its number.
        digest: of its text; an answer kept from an earlier run belongs to the same text.
        request: what it says; empty where it is not understood.
        error: why it is not understood.
    """

    number: int
    id: str | int
    digest: str
    request: Mapping[str, Any]
    named: bool = False
    error: str = ""


def read_lines(file: Path) -> list[Line]:
    """All lines that are not blank.

    Raises:
        UsageError: the file cannot be read, is not UTF-8, or has no line.
    """
    texts = enumerate(read_text(file).split("\n"), 1)
    lines = [_line(number, text) for number, text in texts if text.strip()]
    if not lines:
        raise UsageError(f"{file} has no lines.", 'Write {"prompt": "…"} on each.')
    seen: set[str | int] = {line.id for line in lines if not line.named}
    for index, line in enumerate(lines):
        if line.named and line.id in seen:
            lines[index] = replace(line, error=f"The id {line.id!r} is used twice.")
        seen |= {line.id} if line.named else set()
    return lines


def _line(number: int, text: str) -> Line:
    digest = hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).hexdigest()[:16]
    try:
        request = json.loads(text)
    except ValueError as error:
        return Line(number, number, digest, {}, error=f"This is not JSON: {error}.")
    except RecursionError:
        return Line(number, number, digest, {}, error="This is nested too deeply.")
    if not isinstance(request, dict):
        return Line(number, number, digest, {}, error="This is not a JSON object.")
    own = request.pop("id", None)
    if own is None:
        return Line(number, number, digest, request)
    if wrong := _wrong_with_id(own):
        return Line(number, number, digest, {}, error=wrong)
    return Line(number, own, digest, request, named=True)


def _wrong_with_id(own: Any) -> str:
    if isinstance(own, bool) or not isinstance(own, str | int):
        return "id must be a text or a whole number."
    try:
        checked_text(str(own))
    except UsageError as error:
        return f"id: {error}"
    return ""


def prompt_of(line: Line, system: str) -> str | list[tuple[Role, str]]:
    """A text to continue, or (role, content) of a conversation.

    Args:
        system: put in front of a conversation that has no system prompt of its own.

    Raises:
        UsageError: what is wrong with the line.
    """
    if line.error:
        raise UsageError(line.error)
    prompt, messages = line.request.get("prompt"), line.request.get("messages")
    if (prompt is None) == (messages is None):
        raise UsageError("Give either prompt or messages.")
    if prompt is not None:
        return str(_typed("prompt", prompt, str))
    turns = [_message(message) for message in _typed("messages", messages, list)]
    if system and not any(role == "system" for role, _ in turns):
        turns.insert(0, ("system", system))
    return turns


def _message(message: Any) -> tuple[Role, str]:
    if not isinstance(message, dict) or set(message) != {"role", "content"}:
        raise UsageError("A message is an object of role and content.")
    roles = get_args(Role)
    if message["role"] not in roles:
        raise UsageError(f"Unknown role {message['role']!r}. Choose from: {', '.join(roles)}.")
    return message["role"], _typed("content", message["content"], str)


def params_of(line: Line, defaults: GenerationParams) -> GenerationParams:
    """The line's own settings over those of the command.

    Raises:
        UsageError: a name that is not known, or a value that cannot be.
    """
    given = {k: v for k, v in line.request.items() if k not in ("prompt", "messages")}
    unknown = sorted(given.keys() - _SAMPLING.keys() - _GENERATION.keys())
    if unknown:
        raise UsageError(f"Unknown setting {unknown[0]!r}.")
    sampling = {k: _typed(k, v, _SAMPLING[k]) for k, v in given.items() if k in _SAMPLING}
    others = {k: _typed(k, v, _GENERATION[k]) for k, v in given.items() if k in _GENERATION}
    if "stop" in others:
        others["stop"] = tuple(_typed("stop", text, str) for text in others["stop"])
    if {"grammar", "json_schema"} & others.keys():
        others = {"grammar": None, "json_schema": None} | others
    return replace(defaults, sampling=replace(defaults.sampling, **sampling), **others)


def _typed(name: str, value: Any, kind: type) -> Any:
    if kind is float and type(value) is int:
        return _float(name, value)
    if type(value) is not kind:
        raise UsageError(f"{name} must be {_KINDS[kind]}.")
    return checked_text(value) if isinstance(value, str) else value


def _float(name: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise UsageError(f"{name} is too large a number.") from error
