"""The lines of `specllama generate --batch`: requests in, answers out, one JSON object each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from specllama.cli.model_flags import read_text
from specllama.cli.output import out
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

Answer = dict[str, Any]


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

    @property
    def key(self) -> tuple[str | int, str]:
        """What an answer is found by in a later run."""
        return self.id, self.digest


def read_lines(file: Path) -> list[Line]:
    """All lines that are not blank.

    Raises:
        UsageError: the file cannot be read, is not UTF-8, or has no line.
    """
    texts = enumerate(read_text(file).split("\n"), 1)
    lines = [_line(number, text) for number, text in texts if text.strip()]
    if not lines:
        raise UsageError(f"{file} has no lines.", 'Write {"prompt": "…"} on each.')
    seen: set[str | int] = set()
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
    if not isinstance(request, dict):
        return Line(number, number, digest, {}, error="This is not a JSON object.")
    own = request.pop("id", None)
    if own is not None and (isinstance(own, bool) or not isinstance(own, str | int)):
        return Line(number, number, digest, {}, error="id must be a text or a whole number.")
    if own is None:
        return Line(number, number, digest, request)
    return Line(number, own, digest, request, named=True)


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
        return float(value)
    if type(value) is not kind:
        raise UsageError(f"{name} must be {_KINDS[kind]}.")
    return value


class Answers:
    """Answers in the order of their lines: on stdout as soon as all before them are there, or in
    a file, which an interrupted run leaves with all that is done, and the next one goes on with.

    Args:
        file: where answers of an earlier run are, and new ones go; None prints.

    Attributes:
        known: how many lines were answered by an earlier run.
    """

    def __init__(self, lines: Sequence[Line], file: Path | None) -> None:
        self._lines = lines
        self._file = file
        self._answers: dict[int, Answer] = {}
        self._printed = 0
        if file is not None:
            self._recall(file)
        self.known = len(self._answers)

    def _recall(self, file: Path) -> None:
        found = {_key(answer): answer for answer in _answers_in(file)} if file.exists() else {}
        for line in self._lines:
            if line.key in found and "error" not in found[line.key]:
                self._answers[line.number] = found[line.key]
        self._write(file)  # also finds out now whether it can be written

    @property
    def open(self) -> list[Line]:
        """The lines without an answer."""
        return [line for line in self._lines if line.number not in self._answers]

    def add(self, line: Line, answer: Answer) -> None:
        """Keep the answer to a line."""
        self._answers[line.number] = {"id": line.id, "of": line.digest} | answer
        if self._file is None:
            self._print(wait=True)
            return
        with _writing(self._file), self._file.open("a", encoding="utf-8") as stream:
            stream.write(_text(self._answers[line.number]))

    def close(self) -> None:
        """Put what there is into order; nothing is held back any longer."""
        if self._file is None:
            self._print(wait=False)
        else:
            self._write(self._file)

    def _print(self, *, wait: bool) -> None:
        for line in self._lines[self._printed :]:
            answer = self._answers.get(line.number)
            if answer is None and wait:
                return
            if answer is not None:
                out.event(answer)
            self._printed += 1

    def _write(self, file: Path) -> None:
        """All answers in order, in place of the file: there is a whole one at any time."""
        ordered = [self._answers[n.number] for n in self._lines if n.number in self._answers]
        part = file.with_name(f".{file.name}.part")
        with _writing(file):
            part.write_text("".join(map(_text, ordered)), encoding="utf-8")
            part.replace(file)


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"Cannot write {file}: {error.strerror}.") from error


def _text(answer: Answer) -> str:
    return json.dumps(answer, ensure_ascii=False) + "\n"


def _key(answer: Answer) -> tuple[Any, Any]:
    return answer.get("id"), answer.get("of")


def _answers_in(file: Path) -> Iterator[Answer]:
    """The whole lines of an earlier run's file; a crash may have cut the last one.

    Raises:
        UsageError: the file holds something else, which must not be overwritten.
    """
    texts = read_text(file).split("\n")
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and {"id", "of"} <= answer.keys():
            yield answer
        elif number < len(texts):
            raise UsageError(
                f"{file} is not the output of a batch (line {number}).",
                "Give another file with -o.",
            )
