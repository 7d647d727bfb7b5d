"""What the arms are asked: the project's own prompts of ten kinds, or people's files.

A file is JSON lines: `{"prompt": …}` and, if you like, `id`, `kind` and `source`, a text that the
prompt is about and that follows it. The texts here were written for this project, but for two
quotes (Melville 1851, Dickens 1859).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from specllama.errors import UsageError

KINDS = (
    "chat",
    "code",
    "code-edit",
    "summary",
    "question",
    "extraction",
    "maths",
    "translation",
    "rewrite",
    "list",
)
"""Kinds of the built-in prompts, one file each in `prompts/`."""

OWN_KIND = "own"
"""The kind of a prompt whose file names none."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request; `source` is the text it is about, "" for none."""

    id: str
    kind: str
    prompt: str
    source: str = ""

    @property
    def text(self) -> str:
        """What the model gets to read."""
        return f"{self.prompt}\n\n{self.source}" if self.source else self.prompt


def builtin() -> list[Prompt]:
    """The project's prompts, kind by kind."""
    folder = resources.files("specllama.bench") / "prompts"
    files = [folder / f"{kind}.jsonl" for kind in KINDS]
    return [prompt for file in files for prompt in parse(file.read_bytes(), file.name)]


def read(file: Path) -> list[Prompt]:
    """The prompts of a JSON lines file.

    Raises:
        UsageError: it cannot be read, a line is not a prompt, two share an id, or there is none.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.") from error
    return parse(data, str(file))


def parse(data: bytes, name: str) -> list[Prompt]:
    """`read` for the bytes of a file of that name."""
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text.", "Convert it, e.g. with iconv.") from error
    prompts = [_prompt(line, name, n) for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise UsageError(f"{name} has no prompts.", 'Write one a line, as {"prompt": "Hello"}.')
    ids = [prompt.id for prompt in prompts]
    if double := next((id for id in ids if ids.count(id) > 1), None):
        raise UsageError(f"{name} has two prompts with the id {double!r}.", "Rename one.")
    return prompts


def _prompt(line: str, name: str, number: int) -> Prompt:
    where = f"{name}, line {number}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON.", "Each line holds one JSON object.") from error
    if not isinstance(row, dict):
        raise UsageError(f"{where} is not a JSON object.", 'Write {"prompt": "Hello"}.')
    prompt = Prompt(
        id=_text(row, "id", where, str(number)),
        kind=_text(row, "kind", where, OWN_KIND),
        prompt=_text(row, "prompt", where),
        source=_text(row, "source", where),
    )
    if not prompt.prompt.strip():
        raise UsageError(f'{where} has no "prompt".', 'Write {"prompt": "Hello"}.')
    return prompt


def _text(row: dict[str, Any], key: str, where: str, default: str = "") -> str:
    value = row.get(key, default)
    if not isinstance(value, str):
        raise UsageError(f'{where}: "{key}" is not a text.', "Put it in double quotes.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f'{where}: "{key}" is not valid Unicode.', "Write it as UTF-8.") from error
    return value


def of_kinds(prompts: Iterable[Prompt], kinds: Sequence[str]) -> list[Prompt]:
    """The prompts of these kinds; all of them where no kind is named.

    Raises:
        UsageError: nothing is of one of the kinds.
    """
    prompts = list(prompts)
    known = list(dict.fromkeys(prompt.kind for prompt in prompts))
    if unknown := next((kind for kind in kinds if kind not in known), None):
        raise UsageError(f"No prompt is of the kind {unknown!r}.", f"There are {', '.join(known)}.")
    return [prompt for prompt in prompts if not kinds or prompt.kind in kinds]
