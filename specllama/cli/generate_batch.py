"""`specllama generate --batch FILE`: many prompts, several at a time."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated

import typer

from specllama.cli import model_flags
from specllama.cli.batch_answers import Answer, Answers
from specllama.cli.batch_lines import Line, params_of, prompt_of, read_lines
from specllama.cli.generate_stats import count, cut_off
from specllama.cli.generate_stream import CtrlC, Meter
from specllama.cli.model_flags import Run
from specllama.cli.output import out
from specllama.errors import SpecllamaError, UsageError
from specllama.results import Generation, StreamEvent

if TYPE_CHECKING:
    from specllama.decoder import SpeculativeDecoder
    from specllama.pool import OnEvent, Pool, Ticket

_PANEL = "Batch"
DEFAULT_PARALLEL = 4
_HOW_IT_DRAFTS = {
    "drafter",
    "draft_max",
    "draft_p_min",
    "adaptive",
    "tree",
    "copy_input",
    "predict",
    "logprobs",
}

File = Annotated[
    Path | None,
    typer.Option(
        "--batch",
        metavar="FILE",
        help='Answer every line of a file: {"prompt": "…"} or {"messages": […]}, with an "id" and '
        "settings if you like.",
        rich_help_panel=_PANEL,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Where the answers go; a second run answers only what is missing there.",
        rich_help_panel=_PANEL,
    ),
]
Parallel = Annotated[
    int | None,
    typer.Option(
        "-np",
        "--parallel",
        metavar="N",
        min=1,
        help=f"Answers at the same time ({DEFAULT_PARALLEL}).",
        rich_help_panel=_PANEL,
    ),
]


def answer_all(
    run: Run, file: Path, output: Path | None, parallel: int | None, *, raw: bool
) -> None:
    """Answer the lines of a file, in order.

    Raises:
        UsageError: a file that cannot be read or written.
        typer.Exit: 1 where a line has no answer, 130 after Ctrl-C.
    """
    lines = read_lines(file)
    if output is not None and output.exists() and output.samefile(file):
        raise UsageError(f"{output} is the batch itself.", "Give another file with -o.")
    answers = Answers(lines, output, _digest(run, raw=raw))
    if not answers.open:
        answers.close()
        out.status("All lines are answered already.")
        return
    options = replace(run.options, parallel=parallel or DEFAULT_PARALLEL)
    run = replace(run, options=options, params=replace(run.params, logprobs=False))
    with Meter() as meter:
        decoder = model_flags.open_decoder(run, meter.update)
    from specllama.pool import Pool

    with decoder:
        pool = Pool(decoder, max_queue=options.parallel)
        try:
            batch = Batch(pool, run, answers, decoder, raw=raw)
            batch.work()
        finally:
            pool.close()
            answers.close()
    _conclude(batch, len(lines), answers.known)


def _digest(run: Run, *, raw: bool) -> str:
    """What tells a run from others whose answers may differ: not how it drafts."""
    given = asdict(run.params)
    asked = {name: value for name, value in given.items() if name not in _HOW_IT_DRAFTS}
    said = [run.settings["target"], asked, run.system, run.chat_template, raw]
    return hashlib.sha256(repr(said).encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _conclude(batch: Batch, n_lines: int, n_known: int) -> None:
    told = f"{batch.n_answered} of {count(n_lines, 'line', 'lines')} answered"
    told += f", {n_known} were already" if n_known else ""
    out.status(told + (f"; {batch.n_failed} failed." if batch.n_failed else "."))
    if batch.cancelled:
        raise typer.Exit(130)
    if batch.n_failed:
        raise typer.Exit(1)


class Batch:
    """Keeps the pool busy, and puts what comes out of it where it belongs.

    Attributes:
        n_answered, n_failed: lines so far.
        cancelled: Ctrl-C was pressed; what was under way has no answer.
    """

    def __init__(
        self, pool: Pool, run: Run, answers: Answers, decoder: SpeculativeDecoder, *, raw: bool
    ) -> None:
        self._pool = pool
        self._run = run
        self._answers = answers
        self._model, self._n_ctx = decoder.target_name, decoder.n_ctx
        self._raw = raw
        self._waiting = deque(answers.open)
        self._under_way: dict[int, tuple[Line, Ticket]] = {}
        self._ended: SimpleQueue[int | None] = SimpleQueue()
        self.n_answered = self.n_failed = 0
        self.cancelled = False

    def cancel(self) -> None:
        """Stop soon; safe from a signal handler."""
        self.cancelled = True
        self._ended.put(None)

    def work(self) -> None:
        """Until every line has its answer, or Ctrl-C."""
        most = 2 * self._run.options.parallel
        with CtrlC() as ctrl_c, out.counter() as bar:
            task = bar.add_task("answering", total=len(self._waiting))
            ctrl_c.watch(self)
            while (self._waiting or self._under_way) and not self.cancelled:
                while self._waiting and len(self._under_way) < most:
                    self._submit(self._waiting.popleft())
                bar.update(task, completed=self.n_answered + self.n_failed)
                if self._under_way and (number := self._ended.get()) is not None:
                    self._take(*self._under_way.pop(number))
                bar.update(task, completed=self.n_answered + self.n_failed)
            self._take_ended()

    def _take_ended(self) -> None:
        """After Ctrl-C: what ended before it was seen is done too."""
        while True:
            try:
                number = self._ended.get_nowait()
            except Empty:
                return
            if number is not None:
                self._take(*self._under_way.pop(number))

    def _submit(self, line: Line) -> None:
        try:
            ticket = self._ask(line, self._end_of(line))
        except Exception as error:  # whatever it was, the other lines go on
            self._fail(line, error)
        else:
            self._under_way[line.number] = line, ticket

    def _end_of(self, line: Line) -> OnEvent:
        def on_event(event: StreamEvent | None) -> None:
            if event is None:
                self._ended.put(line.number)

        return on_event

    def _ask(self, line: Line, on_event: OnEvent) -> Ticket:
        prompt, params = prompt_of(line, self._run.system), params_of(line, self._run.params)
        if isinstance(prompt, str) and self._raw:
            return self._pool.submit(prompt, params, on_event=on_event)
        if self._raw:
            raise UsageError("--raw continues texts; this line has messages.")
        from specllama.text.chat import Message

        if isinstance(prompt, str):
            messages = [Message("system", self._run.system)] if self._run.system else []
            messages.append(Message("user", prompt))
        else:
            messages = [Message(role, text) for role, text in prompt]
        return self._pool.submit_chat(messages, params, on_event=on_event)

    def _take(self, line: Line, ticket: Ticket) -> None:
        try:
            generation = ticket.finish()
        except Exception as error:  # whatever it was, the other lines go on
            self._fail(line, error)
        else:
            if generation.finish_reason == "context":
                out.warn(f"Line {line.number}: {cut_off(self._n_ctx)}")
            self._answers.add(line, {"model": self._model} | _answer(generation))
            self.n_answered += 1

    def _fail(self, line: Line, error: Exception) -> None:
        self.n_failed += 1
        message = str(error) if isinstance(error, SpecllamaError) else repr(error)
        out.warn(f"Line {line.number}: {message}")
        self._answers.add(line, {"error": {"message": message}})


def _answer(generation: Generation) -> Answer:
    return {
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "seed": generation.seed,
        "usage": asdict(generation.usage),
        "timings": asdict(generation.timings),
        "spec": generation.spec.to_dict(),
        "verify": generation.verify,
        "lossless": generation.lossless,
    }
