"""Tab in a chat: commands, their arguments, file names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from specllama.cli import commands_settings
from specllama.cli.commands import BY_NAME, COMMANDS
from specllama.hub import aliases, builtin
from specllama.options import DRAFTER_NAMES, VerifyName


class ChatCompleter(Completer):
    """Completes what starts with a slash; a message is never completed."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """Completions of the word before the cursor."""
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, argument = text.partition(" ")
        if not space:
            names = [f"/{word}" for command in COMMANDS for word in command.names]
            yield from _matching(names, name)
            return
        command = BY_NAME.get(name[1:])
        kind = command.names[0] if command else ""
        if kind in ("read", "save", "load"):
            yield from self._paths.get_completions(Document(argument), event)
        elif kind in _WORDS:
            yield from _matching(_WORDS[kind](argument), argument.rpartition(" ")[2])


def _drafts(_argument: str) -> list[str]:
    shipped = [builtin.DRAFT] if builtin.find_draft() else []
    return ["on", "off", *shipped, *sorted(aliases.load())]


def _settings(argument: str) -> list[str]:
    name, space, _ = argument.partition(" ")
    if not space:
        return list(commands_settings.NAMES)
    return {
        "verify": list(get_args(VerifyName)),
        "drafter": ["auto", "none", *DRAFTER_NAMES, "+".join(DRAFTER_NAMES)],
        "adaptive": ["on", "off"],
    }.get(name, [])


_WORDS: dict[str, Callable[[str], list[str]]] = {
    "help": lambda _: [command.names[0] for command in COMMANDS],
    "draft": _drafts,
    "set": _settings,
}


def _matching(words: Iterable[str], typed: str) -> Iterable[Completion]:
    return (Completion(word, -len(typed)) for word in words if word.startswith(typed))
