"""`specllama generate`: one prompt in, one answer out, made for pipes."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from specllama.cli import generate_batch, generate_beams, model_flags
from specllama.cli.cost_view import Explain, say_why
from specllama.cli.generate_prompt import whole_prompt
from specllama.cli.generate_stats import cut_off, stats_line
from specllama.cli.generate_stream import Meter, Start, follow, write_token
from specllama.cli.model_flags import ModelFlags, Run, with_model_flags
from specllama.cli.output import out
from specllama.errors import UsageError
from specllama.results import Generation, StreamEvent

if TYPE_CHECKING:
    from specllama.decoder import SpeculativeDecoder

DRAFT_STYLE = "green"


@with_model_flags
def generate(
    context: typer.Context,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; - reads it from stdin.", show_default=False)
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", metavar="FILE", help="Text to put before (repeatable)."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text: no chat template.")
    ] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON event a line.")] = False,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="With --json(l): each token's log-probability.")
    ] = False,
    show_draft: Annotated[
        bool, typer.Option("--show-draft", help="Colour the tokens that were drafted.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Figures on stderr, terminal or not.")
    ] = False,
    explain: Explain = False,
    beams: generate_beams.Width = None,
    n_best: generate_beams.NBest = None,
    length_penalty: generate_beams.LengthPenalty = None,
    early_stopping: generate_beams.EarlyStopping = False,
    batch: generate_batch.File = None,
    output: generate_batch.Output = None,
    parallel: generate_batch.Parallel = None,
    *,
    flags: ModelFlags,
) -> None:
    """Answer one prompt, or a file of them.

    The prompt is what comes on stdin, then each -f FILE with its name, then PROMPT.
    """
    if batch is not None:
        beside = {"PROMPT": prompt, "--file": files, "--jsonl": jsonl, "--logprobs": logprobs,
                  "--show-draft": show_draft, "--stats": stats, "--explain": explain,
                  "--beams": beams, "--n-best": n_best, "--length-penalty": length_penalty,
                  "--early-stopping": early_stopping}  # fmt: skip
        _nothing_beside("--batch", beside)
        run = _resolved(flags, raw=raw)
        return generate_batch.answer_all(run, batch, output, parallel, raw=raw)
    if output is not None or parallel is not None:
        raise UsageError("--output and --parallel need --batch.")
    text = whole_prompt(prompt, files or ())
    if text is None:
        out.line(context.get_help())
        raise typer.Exit(2)
    run = _resolved(flags, raw=raw)
    beam = generate_beams.BeamFlags(beams, n_best, length_penalty, early_stopping)
    beam.check(flags, jsonl=jsonl, logprobs=logprobs, show_draft=show_draft, explain=explain)
    if (search := beam.params(run)) is not None:
        return generate_beams.search(run, search, text, raw=raw, stats=stats)
    if logprobs and not (jsonl or out.mode == "json"):
        raise UsageError("--logprobs needs --json or --jsonl.")
    run = replace(run, params=replace(run.params, logprobs=logprobs))
    with Meter() as meter:
        decoder = model_flags.open_decoder(run, meter.update)
    with decoder:
        view = _view(decoder, run, jsonl=jsonl, show_draft=show_draft, explain=explain)
        generation = follow(_start(decoder, run, text, raw=raw), view.token)
        view.end(generation)
        if explain:
            say_why(decoder.explain(generation.spec, run.params))
    if stats or sys.stderr.isatty():
        out.stats(stats_line(generation))
    if generation.finish_reason == "context":
        out.warn(cut_off(decoder.n_ctx))
    if generation.finish_reason == "cancelled":
        raise typer.Exit(130)


def _nothing_beside(option: str, others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value is not None and value is not False and value != []:  # 0 was typed
            raise UsageError(f"{name} and {option} cannot be used together.")


def _resolved(flags: ModelFlags, *, raw: bool) -> Run:
    """What was asked for. --raw needs no system prompt: one from a config file is left out."""
    run = model_flags.resolve(flags)
    typed = flags.system is not None or flags.system_file is not None
    if raw and run.system and typed:
        raise UsageError("--raw has no system prompt.", "Leave out --system or --raw.")
    return replace(run, system="") if raw else run


def _start(decoder: SpeculativeDecoder, run: Run, text: str, *, raw: bool) -> Start:
    if raw:
        return lambda on_prompt: decoder.stream(text, run.params, on_prompt=on_prompt)
    from specllama.text.chat import Message

    messages = [Message("system", run.system)] if run.system else []
    messages.append(Message("user", text))
    return lambda on_prompt: decoder.stream_chat(messages, run.params, on_prompt=on_prompt)


class View(Protocol):
    """How a generation is shown: each token, then the end."""

    def token(self, event: StreamEvent) -> None: ...

    def end(self, generation: Generation) -> None: ...


def _view(
    decoder: SpeculativeDecoder, run: Run, *, jsonl: bool, show_draft: bool, explain: bool
) -> View:
    if jsonl:
        return JsonLines(decoder, run, explain)
    if out.mode == "json":
        return Json(decoder, run, explain)
    return Text(show_draft)


class Text:
    """The text itself as it comes, a newline at its end."""

    def __init__(self, show_draft: bool) -> None:
        self._draft_style = DRAFT_STYLE if show_draft else ""
        if show_draft and out.colors(sys.stdout):
            out.status(f"{out.styled('green', DRAFT_STYLE)}: drafted and accepted")

    def token(self, event: StreamEvent) -> None:
        write_token(event.text, self._draft_style if event.from_draft else "")

    def end(self, generation: Generation) -> None:
        if not generation.text.endswith("\n"):
            out.line()


class Json:
    """One JSON object at the end."""

    def __init__(self, decoder: SpeculativeDecoder, run: Run, explain: bool) -> None:
        self._decoder = decoder
        self._run = run
        self._explain = explain

    def token(self, event: StreamEvent) -> None:
        pass

    def end(self, generation: Generation) -> None:
        out.json(self.data(generation))

    def data(self, generation: Generation) -> dict[str, Any]:
        """What is said at the end."""
        data = as_data(generation, self._decoder, self._run)
        if self._explain:
            data["explain"] = self._decoder.explain(generation.spec, self._run.params).to_dict()
        return data


class JsonLines(Json):
    """One JSON event a line: the tokens, then what `Json` prints."""

    def token(self, event: StreamEvent) -> None:
        fields = asdict(event)
        del fields["top"]
        if event.logprob is None:
            del fields["logprob"]
        out.event({"type": "token"} | fields)

    def end(self, generation: Generation) -> None:
        out.event({"type": "done"} | self.data(generation))


def as_data(generation: Generation, decoder: SpeculativeDecoder, run: Run) -> dict[str, Any]:
    """A generation with everything needed to understand and to repeat it, as plain data."""
    asked = {"logprobs": generation.logprobs} if run.params.logprobs else {}
    return {
        "text": generation.text,
        "tokens": generation.tokens,
        **asked,
        "finish_reason": generation.finish_reason,
        "usage": asdict(generation.usage),
        "timings": asdict(generation.timings),
        "spec": generation.spec.to_dict(),
        "model": decoder.target_name,
        "draft": decoder.draft_name,
        "seed": generation.seed,
        "verify": generation.verify,
        "guarantee": generation.guarantee,
        "lossless": generation.lossless,
        "settings": _settings(decoder, run),
        "warnings": decoder.warnings,
    }


def _settings(decoder: SpeculativeDecoder, run: Run) -> dict[str, Any]:
    """The settings in force. JSON has no infinity: a forbidden token's bias is the text "-inf"."""
    sampling = asdict(run.params.sampling)
    biases = {
        str(token): bias if math.isfinite(bias) else "-inf"
        for token, bias in run.params.sampling.logit_bias.items()
    }
    generation = asdict(run.params) | {"sampling": sampling | {"logit_bias": biases}}
    return asdict(run.options) | generation | {"n_ctx": decoder.n_ctx}
