"""`specllama generate --beams W`: beam search instead of a stream."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli import model_flags
from specllama.cli.generate_stats import cut_off
from specllama.cli.generate_stream import CtrlC, Meter
from specllama.cli.model_flags import ModelFlags, Run
from specllama.cli.output import out
from specllama.errors import UsageError
from specllama.options import BeamParams
from specllama.results import BeamResult, BeamStats

if TYPE_CHECKING:
    from specllama.decoder import SpeculativeDecoder

_PANEL = "Beam search"
_SHARED = {
    "target", "draft", "chat_template", "offline", "ctx_size", "batch_size", "max_tokens",
    "system", "system_file", "drafter", "draft_max", "adaptive", "gpu_layers", "draft_gpu_layers",
    "main_gpu", "tensor_split", "device", "draft_device", "threads",
    "threads_batch", "draft_threads", "flash_attn", "cache_type_k", "cache_type_v",
}  # fmt: skip
"""Options of `generate` that mean something to beam search; it has no chance and no sampling."""

Width = Annotated[
    int | None,
    typer.Option(
        "--beams",
        metavar="W",
        help="Search for the most probable answers with W beams; --json prints all of them.",
        rich_help_panel=_PANEL,
    ),
]
NBest = Annotated[
    int | None,
    typer.Option("--n-best", metavar="N", help="Answers to return (W).", rich_help_panel=_PANEL),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        metavar="X",
        help="Rank by logprob / tokens ** X; above 0 favours longer answers (1).",
        rich_help_panel=_PANEL,
    ),
]
EarlyStopping = Annotated[
    bool,
    typer.Option(
        "--early-stopping", help="Stop as soon as W answers have ended.", rich_help_panel=_PANEL
    ),
]


@dataclass(frozen=True, slots=True)
class BeamFlags:
    """What was typed of them."""

    width: int | None
    n_best: int | None
    length_penalty: float | None
    early_stopping: bool

    def check(self, flags: ModelFlags, **others: bool) -> None:
        """Refuse options that do not go together.

        Args:
            others: options of `generate` itself that beams do not go with, and whether they are on.

        Raises:
            UsageError: says which.
        """
        if self.width is None:
            for name in ("n_best", "length_penalty", "early_stopping"):
                # 0 is a length penalty too
                if getattr(self, name) is not None and getattr(self, name) is not False:
                    raise UsageError(f"{_option(name)} needs --beams.")
            return
        typed = [*flags.given(), *(name for name, is_on in others.items() if is_on)]
        for name in typed:
            if name not in _SHARED:
                raise UsageError(
                    f"{_option(name)} and --beams cannot be used together.",
                    "Beam search returns the most probable answers; it draws nothing.",
                )

    def params(self, run: Run) -> BeamParams | None:
        """How the search goes, None where no search was asked for."""
        if self.width is None:
            return None
        return BeamParams(
            width=self.width,
            n_best=self.n_best,
            max_tokens=run.params.max_tokens,
            length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
            early_stopping=self.early_stopping,
            drafter=_drafter(run),
            draft_max=run.params.draft_max,
            adaptive=run.params.adaptive,
        )


def _drafter(run: Run) -> str:
    """The drafter asked for; one from a config file may be for sampling only, then "auto"."""
    name = run.params.drafter
    try:
        BeamParams(drafter=name)
    except UsageError:
        return name if run.drafter_is_required else "auto"
    return name


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def search(run: Run, params: BeamParams, text: str, *, raw: bool, stats: bool) -> None:
    """Search and print: the best answer, or all of them as JSON."""
    with Meter() as meter:
        decoder = model_flags.open_decoder(run, meter.update)
    with decoder:
        result = _search(decoder, run, params, text, raw=raw)
        if out.mode == "json":
            out.json(as_data(result, decoder, params))
        else:
            out.line(result.hypotheses[0].text)
        if any(found.finish_reason == "context" for found in result.hypotheses):
            out.warn(cut_off(decoder.n_ctx))
    if stats or sys.stderr.isatty():
        out.stats(_stats_line(result.stats))


def _search(
    decoder: SpeculativeDecoder, run: Run, params: BeamParams, text: str, *, raw: bool
) -> BeamResult:
    from specllama.text.chat import Message

    with CtrlC() as ctrl_c, Meter() as meter:

        def on_prompt(done: int, total: int) -> None:
            ctrl_c.check()
            meter.update("reading the prompt", done / total)

        def on_step(steps: int) -> None:
            ctrl_c.check()
            if params.max_tokens is not None:
                meter.update("searching", steps / params.max_tokens)

        if raw:
            return decoder.beam_search(text, params, on_prompt=on_prompt, on_step=on_step)
        messages = [Message("system", run.system)] if run.system else []
        messages.append(Message("user", text))
        return decoder.beam_search_chat(messages, params, on_prompt=on_prompt, on_step=on_step)


def as_data(result: BeamResult, decoder: SpeculativeDecoder, params: BeamParams) -> dict[str, Any]:
    """What was found, as plain data."""
    return asdict(result) | {
        "model": decoder.target_name,
        "draft": decoder.draft_name,
        "settings": asdict(params),
        "warnings": decoder.warnings,
    }


def _stats_line(stats: BeamStats) -> str:
    share = stats.batches / stats.steps if stats.steps else 1.0
    return f"{stats.steps} steps in {stats.batches} target batches ({share:.2f} a step)"
