"""One input of a chat: what counts as a message, and reading it from a pipe."""

from __future__ import annotations

from typing import BinaryIO, NamedTuple

from specllama.cli.model_flags import decode_text

QUOTES = '"""'


class Entry(NamedTuple):
    """What was entered; a block (between triple quotes) is a message whatever it starts with."""

    text: str
    is_block: bool = False


def is_open(text: str) -> bool:
    """Whether a block was opened in `text` and not closed."""
    text = text.strip()
    return text.startswith(QUOTES) and not (len(text) >= 2 * len(QUOTES) and text.endswith(QUOTES))


def entry(text: str) -> Entry:
    """A complete input; the quotes around a block are no part of it."""
    block = text.strip()
    if not block.startswith(QUOTES):
        return Entry(text)
    return Entry(block.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n"), is_block=True)


def _shown(line: bytes) -> str:
    return line.decode("utf-8-sig", "replace").strip()


class Pipe:
    """Inputs from something that is no terminal: each line is one, or each block."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def read(self, default: str = "") -> Entry | None:
        """The next input, None at the end. Nobody is there to edit `default`.

        Raises:
            UsageError: it is not UTF-8; the next one can be read.
        """
        lines = [self._stream.readline()]
        if is_open(_shown(lines[0])):
            while line := self._stream.readline():
                lines.append(line)
                if _shown(line).endswith(QUOTES):
                    break
        data = b"".join(lines)
        return entry(decode_text(data, "The input").rstrip("\n")) if data else None
