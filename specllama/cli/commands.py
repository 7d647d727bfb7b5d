"""The slash commands of a chat: one table, one function each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.cli import commands_settings
from specllama.cli.generate_prompt import attached
from specllama.cli.generate_stats import count
from specllama.cli.model_flags import read_text
from specllama.cli.output import out
from specllama.errors import UsageError
from specllama.hub.paths import expanded
from specllama.whole_file import whole_file

if TYPE_CHECKING:
    from specllama.cli.chat import Chat


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command.

    Attributes:
        names: the first is shown, all are understood.
        argument: how its argument is written in the help, "" for none.
        meaning: one line.
        run: what it does, given the chat and the argument.
        details: more lines for `/help NAME`.
    """

    names: tuple[str, ...]
    argument: str
    meaning: str
    run: Callable[[Chat, str], None]
    details: str = ""

    @property
    def usage(self) -> str:
        """As it is typed: "/draft on|off|MODEL|N"."""
        return f"/{self.names[0]} {self.argument}".rstrip()


def is_command(text: str) -> bool:
    """Whether a message is for the chat itself: it starts with one slash."""
    return text.startswith("/") and not text.startswith("//")


def run_command(chat: Chat, text: str) -> None:
    """Do what `text`, which starts with a slash, says.

    Raises:
        UsageError: there is no such command, or its argument is wrong.
    """
    name, _, argument = text[1:].partition(" ")
    command = find(name.strip())
    argument = argument.strip()
    if argument and not command.argument:
        raise UsageError(f"/{command.names[0]} takes nothing after it.")
    command.run(chat, argument)


def find(name: str) -> Command:
    """The command of that name, with or without its slash.

    Raises:
        UsageError: there is none; suggests the nearest.
    """
    name = name.removeprefix("/")
    command = BY_NAME.get(name.lower())
    if command is None:
        close = get_close_matches(name.lower(), BY_NAME, n=1)
        suggestion = f"Did you mean /{close[0]}? " if close else ""
        raise UsageError(f"Unknown command /{name}.", f"{suggestion}/help lists them.")
    return command


def _help(_chat: Chat, argument: str) -> None:
    if argument:
        command = find(argument)
        others = ", ".join(f"/{name}" for name in command.names[1:])
        out.line(command.usage + (f"  (also {others})" if others else ""))
        out.line("\n".join(filter(None, [command.meaning, command.details])))
        return
    width = max(len(command.usage) for command in COMMANDS)
    for command in COMMANDS:
        out.line(f"{command.usage:<{width}}  {command.meaning}")
    out.line(KEYS)


KEYS = """
Enter sends, Alt-Enter or Ctrl-J starts a new line, \"\"\" opens and closes a block.
Ctrl-C stops a reply, Ctrl-D leaves, Ctrl-X Ctrl-E opens the editor. //x sends /x."""


def _exit(chat: Chat, _argument: str) -> None:
    chat.leave()


def _clear(chat: Chat, _argument: str) -> None:
    chat.session.clear()
    out.status("Forgotten. The system prompt stays." if chat.session.system else "Forgotten.")


def _regen(chat: Chat, _argument: str) -> None:
    chat.reply(chat.session.regenerate)


def _undo(chat: Chat, _argument: str) -> None:
    first, _, _ = chat.session.undo().partition("\n")
    out.status(f"Taken back: {first[:60]}")


def _system(chat: Chat, argument: str) -> None:
    if not argument:
        out.line(chat.session.system or "No system prompt.")
        return
    chat.session.system = "" if argument == '""' else argument
    out.status("System prompt set." if chat.session.system else "System prompt removed.")


def _set(chat: Chat, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not name:
        _show(chat, "")
    elif not value.strip():
        out.line(commands_settings.describe(chat.session.params, name))
    else:
        params = commands_settings.changed(chat.session.params, name, value.strip())
        chat.session.params = params
        out.status(commands_settings.describe(params, name))


def _show(chat: Chat, _argument: str) -> None:
    for line in (*chat.describe(), *commands_settings.describe_all(chat.session.params)):
        out.line(line)


def _draft(chat: Chat, argument: str) -> None:
    if argument == "on":
        chat.session.set_drafting(chat.drafter, chat.session.params.draft_max or chat.draft_max)
    elif argument in ("off", "none"):
        chat.session.set_drafting("none")
    elif argument.isdecimal():
        chat.session.set_drafting(chat.drafter if int(argument) else "none", int(argument) or None)
    elif argument:
        chat.change_draft(argument)
    out.line(chat.describe_drafting())


def _stats(chat: Chat, _argument: str) -> None:
    for line in chat.session.totals.report():
        out.line(line)


def _context(chat: Chat, _argument: str) -> None:
    session, total = chat.session, chat.decoder.n_ctx
    used = session.context_used() + session.attached()
    out.line(f"{used} of {total} tokens ({used / total:.0%}), {_turns(chat)}")


def _read(chat: Chat, argument: str) -> None:
    tokens = chat.session.attach(attached(_file(argument, "/read FILE")))
    out.status(f"{argument} ({tokens} tokens) goes with your next message.")


def _save(chat: Chat, argument: str) -> None:
    file = _file(argument, "/save FILE")
    if file.exists() and not _is_conversation(file):
        raise UsageError(f"{file} exists and is no saved conversation.", "Choose another name.")
    text = json.dumps(chat.session.dump(), indent=2, ensure_ascii=False)
    try:
        with whole_file(file) as part:
            part.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {file}: {error.strerror}.") from error
    out.status(f"Saved {_turns(chat)} in {file}.")


def _load(chat: Chat, argument: str) -> None:
    file = _file(argument, "/load FILE")
    try:
        chat.session.restore(json.loads(read_text(file)))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not JSON: {error}.") from error
    except UsageError as error:
        raise UsageError(f"Cannot load {file}: {error.message}") from error
    out.status(f"Loaded {_turns(chat)} from {file}.")


def _edit(chat: Chat, argument: str) -> None:
    chat.edit(argument)


def _turns(chat: Chat) -> str:
    return count(len(chat.session.turns), "turn", "turns")


def _file(argument: str, usage: str) -> Path:
    if not argument:
        raise UsageError("Which file?", f"Write it as {usage}.")
    return expanded(argument)


def _is_conversation(file: Path) -> bool:
    from specllama.cli.chat_session import parse_messages

    try:
        parse_messages(json.loads(read_text(file)))
    except (UsageError, ValueError, RecursionError):
        return False
    return True


COMMANDS = (
    Command(("help", "?"), "[COMMAND]", "this list, or more on one command", _help),
    Command(("exit", "bye", "quit"), "", "leave", _exit),
    Command(("clear",), "", "forget the conversation, keep the system prompt", _clear),
    Command(("regen",), "", "answer the last message anew", _regen),
    Command(("undo",), "", "take back the last message and its reply", _undo),
    Command(
        ("system",),
        "[TEXT]",
        "show or set the system prompt",
        _system,
        '/system "" removes it. It counts from the next reply on.',
    ),
    Command(
        ("set",),
        "NAME VALUE",
        "change a setting of sampling or drafting",
        _set,
        commands_settings.NAMES_HELP,
    ),
    Command(("show",), "", "models and settings", _show),
    Command(
        ("draft",),
        "on|off|MODEL|N",
        "switch drafting, its model or its longest draft",
        _draft,
        "Replies follow the same distribution with every choice; only their speed changes.",
    ),
    Command(("stats",), "", "speeds and acceptance in this session", _stats),
    Command(("context",), "", "tokens used", _context),
    Command(("read",), "FILE", "send a text file with the next message", _read),
    Command(("save",), "FILE", "write the conversation as JSON messages", _save),
    Command(("load",), "FILE", "go on with a saved conversation", _load),
    Command(("edit",), "[TEXT]", "write a message in $EDITOR", _edit),
)

BY_NAME = {name: command for command in COMMANDS for name in command.names}
