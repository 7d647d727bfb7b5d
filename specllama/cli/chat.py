"""`specllama chat`: talk with a model, at a terminal or line by line through a pipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from specllama.cli import model_flags
from specllama.cli.chat_session import ChatSession, Play
from specllama.cli.commands import is_command, run_command
from specllama.cli.cost_view import Explain, say_why
from specllama.cli.errors import report
from specllama.cli.generate_stats import stats_line
from specllama.cli.generate_stream import (
    Meter,
    Start,
    ctrl_c_afterwards,
    follow,
    write_token,
)
from specllama.cli.keys import unechoed
from specllama.cli.model_flags import ModelFlags, Run, with_model_flags
from specllama.cli.output import out
from specllama.cli.repl_lines import Entry, Pipe
from specllama.errors import ContextFull, UsageError
from specllama.options import GenerationParams
from specllama.results import Generation, StreamEvent

if TYPE_CHECKING:
    from specllama.decoder import SpeculativeDecoder


@with_model_flags
def chat(
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="First message to send.")
    ] = None,
    stats: Annotated[
        bool | None,
        typer.Option("--stats/--no-stats", help="Figures after each reply (on a terminal: yes)."),
    ] = None,
    explain: Explain = False,
    *,
    flags: ModelFlags,
) -> None:
    """Talk with a model.

    At a terminal: /help lists the commands. Through a pipe: each line is a message, replies are
    plain text.
    """
    run = model_flags.resolve(flags)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    with unechoed() if interactive else nullcontext(), Meter() as meter:
        decoder = model_flags.open_decoder(run, meter.update)
    with decoder:
        show_stats = sys.stderr.isatty() if stats is None else stats
        conversation = Chat(
            decoder, run, show_stats=show_stats, explain=explain, interactive=interactive
        )
        code = conversation.run(_source(interactive), prompt)
    raise typer.Exit(code)


class Source(Protocol):
    """Where inputs come from."""

    def read(self, default: str = "") -> Entry | None:
        """The next input, `default` being there to edit; None at the end.

        Raises:
            UsageError: this one is no text; the next may be.
        """


def _source(interactive: bool) -> Source:
    if not interactive:
        return Pipe(sys.stdin.buffer)
    from specllama.cli.repl import Terminal

    return Terminal()


class Chat:
    """One chat from banner to goodbye; the slash commands act on it.

    Attributes:
        session: the conversation.
        drafter, draft_max: what `/draft on` goes back to.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        run: Run,
        *,
        show_stats: bool,
        explain: bool = False,
        interactive: bool,
    ) -> None:
        self.decoder = decoder
        self.session = ChatSession(decoder, run.params, run.system)
        defaults = GenerationParams()
        self.drafter = run.params.drafter if run.params.drafters() else defaults.drafter
        self.draft_max = run.params.draft_max or defaults.draft_max
        self._offline: bool = run.settings["offline"]
        self._translate = run.options.translate
        self._show_stats = show_stats
        self._explain = explain
        self._interactive = interactive
        self._left = False
        self._to_edit = ""
        self._code = 0

    def run(self, source: Source, first: str | None = None) -> int:
        """Read and answer until the end.

        Returns:
            The exit code: 0 at a terminal; through a pipe that of the last failure, if any.
        """
        if self._interactive:
            for line in self.describe():
                out.status(line)
        if first is not None:
            with self._surviving():
                self.take(Entry(first, is_block=True))
        while not self._left:
            default, self._to_edit = self._to_edit, ""
            try:
                entry = source.read(default)
            except UsageError as error:
                self._code = report(error)
                continue
            if entry is None:
                break
            with self._surviving():
                self.take(entry)
        return 0 if self._interactive else self._code

    def take(self, entry: Entry) -> None:
        """Do what one input asks for: a command, or a message to answer."""
        if not entry.is_block and is_command(entry.text):
            run_command(self, entry.text)
        elif entry.text.strip():
            self.reply(partial(self.session.send, message_text(entry)))

    def reply(self, ask: Callable[[Play], Generation]) -> None:
        """Show a reply as it comes, then its figures."""
        shown = _Shown()
        try:
            generation = ask(partial(self._play, shown))
        finally:
            shown.end()
        if generation.finish_reason == "cancelled" and not self._interactive:
            raise KeyboardInterrupt
        if self._show_stats:
            out.stats(stats_line(generation, self.decoder.n_ctx))
        if self._explain:
            say_why(self.decoder.explain(generation.spec, self.session.params))
        if advice := self.session.totals.advice():
            out.hint(advice)
        if self._interactive:
            out.line()

    def leave(self) -> None:
        """End the chat after this input."""
        self._left = True

    def edit(self, text: str) -> None:
        """Let the person write a message in an editor; it comes back at the prompt."""
        if not self._interactive:
            raise UsageError("/edit needs a terminal.")
        from specllama.cli.repl import edited

        self._to_edit = edited(text)

    def change_draft(self, name: str) -> None:
        """Load another draft model and draft with it."""
        from specllama.hub.resolve import NotDownloaded

        try:
            self._load_draft(name)
        except NotDownloaded:
            model_flags.find_pair(
                self.decoder.target_name,
                name,
                offline=self._offline,
                translate=self._translate,
            )
            self._load_draft(name)
        names = self.drafter.split("+")
        self.drafter = self.drafter if {"auto", "model"} & {*names} else "auto"
        self.session.set_drafting(self.drafter, self.session.params.draft_max or self.draft_max)

    def _load_draft(self, name: str) -> None:
        with out.spinner(f"Loading {name}"), ctrl_c_afterwards():
            self.decoder.set_draft(name)

    def describe(self) -> list[str]:
        """Target, draft and context, a line each."""
        draft = self.decoder.draft_name
        way = " (through text, if its vocabulary differs)" if draft and self._translate else ""
        return [
            f"target   {self.decoder.target_name}",
            f"draft    {draft or 'no draft'}{way}",
            f"context  {self.decoder.n_ctx} tokens",
        ]

    def describe_drafting(self) -> str:
        """What drafts at the moment."""
        if not self.session.drafting:
            return "drafting off"
        params = self.session.params
        idle = set() if params.has_text else {"text"}
        names = [
            f"model ({self.decoder.draft_name})" if name == "model" else name
            for name in params.drafters()
            if name in self.decoder.drafters and name not in idle
        ]
        length = params.draft_max
        return f"drafting on: {' + '.join(names) or 'no draft model'}, up to {length} tokens"

    def _play(self, shown: _Shown, start: Start) -> Generation:
        generation = follow(start, shown.token)
        if generation.finish_reason == "cancelled":
            shown.stopped()
        return generation

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """Whatever goes wrong is said, and the chat goes on; keys pressed meanwhile wait.

        A closed stdout ends it, and so does Ctrl-C where nobody sits at a prompt.
        """
        try:
            with unechoed() if self._interactive else nullcontext():
                yield
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            out.status("Interrupted.")
        except ContextFull as error:
            self._code = report(self._what_helps(error))
        except Exception as error:
            self._code = report(error, debug="--debug" in sys.argv)

    def _what_helps(self, error: ContextFull) -> ContextFull:
        """What is said where the context is full; never to take one that the model cannot use."""
        n_ctx, needed = self.decoder.n_ctx, error.needed or 0
        begun = bool(self.session.turns or self.session.attachments)
        ways = ["/clear, /undo" if begun else "Shorten it"]
        larger = 2 * n_ctx
        while larger <= needed:
            larger *= 2
        larger = min(larger, self.decoder.n_ctx_trained or larger)
        if larger > max(n_ctx, needed):
            ways.append(f"or restart with -c {larger}")
        told = error.message if needed and not begun else f"Context full ({n_ctx} tokens)."
        return ContextFull(told, f"{', '.join(ways)}.")


def message_text(entry: Entry) -> str:
    """What is sent to the model: //x on a line of its own stands for /x."""
    text = entry.text
    return text[1:] if not entry.is_block and _ESCAPED.fullmatch(text) else text


_ESCAPED = re.compile(r"//\S.*")


class _Shown:
    """A reply on stdout."""

    def __init__(self) -> None:
        self._open_line = False

    def token(self, event: StreamEvent) -> None:
        if event.text:
            write_token(event.text)
            self._open_line = not event.text.endswith("\n")

    def stopped(self) -> None:
        write_token(" (stopped)" if self._open_line else "(stopped)", "dim")
        self._open_line = True

    def end(self) -> None:
        """Leave the cursor at the start of a line."""
        if self._open_line:
            out.write("\n")
