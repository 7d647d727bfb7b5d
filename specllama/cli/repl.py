"""Reading inputs at a terminal: keys, blocks, history, completion, the editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application.current import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth, Output

from specllama.cli.keys import echoed
from specllama.cli.model_flags import decode_text
from specllama.cli.output import out
from specllama.cli.repl_completion import ChatCompleter
from specllama.cli.repl_history import ChatHistory, open_history
from specllama.cli.repl_lines import Entry, entry, is_open
from specllama.errors import UsageError

PROMPT, CONTINUATION = ">>> ", "... "
LEAVE_WITHIN_S = 2.0
"""A second Ctrl-C on an empty line within that time leaves."""


class Terminal:
    """Inputs typed by a person; `input` and `output` are the terminal's own unless given."""

    def __init__(
        self,
        *,
        history: History | None = None,
        input: Input | None = None,
        output: Output | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._ctrl_c_at = float("-inf")
        self._history = history or open_history()
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUATION,
            placeholder=_placeholder,
            key_bindings=_keys(),
            history=self._history,
            completer=ChatCompleter(),
            complete_while_typing=False,
            enable_open_in_editor=True,
            enable_suspend=True,
            tempfile_suffix=".md",
            color_depth=None if out.colors(sys.stdout) else ColorDepth.DEPTH_1_BIT,
            input=input,
            output=output,
        )

    def read(self, default: str = "") -> Entry | None:
        """The next input, with `default` to edit; None when the person leaves."""
        while True:
            try:
                text = self._session.prompt(default=default)
                self._warn_of_history()
                return entry(text)
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._clock() - self._ctrl_c_at < LEAVE_WITHIN_S:
                    return None
                self._ctrl_c_at = self._clock()
                out.status("Ctrl-D or /exit to leave")
                default = ""

    def _warn_of_history(self) -> None:
        if isinstance(self._history, ChatHistory) and (why := self._history.take_trouble()):
            out.warn(why)


def _placeholder() -> FormattedText:
    """What an empty line shows while it waits: not once it is left, nor what a search has found."""
    app = get_app()
    text = "" if app.is_done or app.layout.is_searching else "Send a message (/help for help)"
    return FormattedText([("fg:ansibrightblack", text)])


def _keys() -> KeyBindings:
    """Enter sends (inside an open block: breaks the line); Alt-Enter and Ctrl-J break it."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @Condition
    def has_text() -> bool:
        return bool(get_app().current_buffer.text)

    @keys.add("c-c", filter=has_text)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.reset()

    return keys


def edited(text: str) -> str:
    """`text` after the person has changed it in $VISUAL or $EDITOR.

    Raises:
        UsageError: there is no editor, or it failed.
    """
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="specllama-") as folder:
        file = Path(folder) / "message.md"
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
        try:
            with echoed():
                subprocess.run([*shlex.split(command), str(file)], check=True)
            data = file.read_bytes()
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise UsageError(f"The editor {command!r} failed.", "Set EDITOR to another.") from error
        return _text_of(data).rstrip("\n")


def _text_of(data: bytes) -> str:
    """What an editor saved; the person sees it at the prompt, so a guess is better than none."""
    try:
        return decode_text(data, "The text")
    except UsageError:
        out.warn("The editor did not save UTF-8 text; it was read as Latin-1.")
        return decode_text(data.decode("latin-1").encode(), "The text")
