"""`specllama calibrate`: measure once what decodes cost here, so that drafting starts informed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import typer

from specllama.cli import model_flags
from specllama.cli.cost_view import origin, table_lines
from specllama.cli.generate_stream import Meter
from specllama.cli.model_flags import ModelFlags, with_model_flags
from specllama.cli.output import out

if TYPE_CHECKING:
    from typing import Any

    from rich.progress import Progress

    from specllama.calibration import Calibration
    from specllama.decoder import SpeculativeDecoder
    from specllama.scheduling.table import CostTable

_KINDS = ("chat", "code")


@partial(with_model_flags, only=model_flags.LOADING)
def calibrate(*, flags: ModelFlags) -> None:
    """Measure what decodes cost here, once.

    Takes some seconds; best when nothing else runs. Ctrl-C keeps what was measured by then.
    """
    run = model_flags.resolve(flags)
    # nobody asked for these answers
    run = replace(run, options=replace(run.options, store=False))
    with Meter() as meter:
        decoder = model_flags.open_decoder(run, meter.update)
    with decoder:
        calibration = decoder.calibration(_prompts())
        interrupted = _measure(calibration)
        table = calibration.finish()
        if calibration.trouble:
            decoder.warnings.append(calibration.trouble)
            out.warn(calibration.trouble)
        data = _as_data(decoder, calibration, table)
    if not table.same:
        out.warn("Interrupted before anything was measured.")
    else:
        out.result(data, lambda: _print(data, calibration, table))
    if interrupted:
        raise typer.Exit(130)
    if calibration.trouble:
        raise typer.Exit(1)


def _prompts() -> list[str]:
    """Two of the built-in prompts, of kinds that differ."""
    from specllama.bench import prompts

    found = prompts.builtin()
    return [next(prompt.text for prompt in found if prompt.kind == kind) for kind in _KINDS]


def _measure(calibration: Calibration) -> bool:
    """Run to the end behind a bar; True where Ctrl-C ended it."""
    with _bar() as bar:
        task = bar.add_task("", total=1.0)
        try:
            for share, label in calibration.run():
                bar.update(task, completed=share, description=label)
        except KeyboardInterrupt:
            return True
    return False


@contextmanager
def _bar() -> Iterator[Progress]:
    """Share done and the time left; only on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description:<16}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True, no_color=not out.colors(sys.stderr)),
        transient=True,
        disable=out.mode != "human" or not sys.stderr.isatty(),
    ) as bar:
        yield bar


def _as_data(
    decoder: SpeculativeDecoder, calibration: Calibration, table: CostTable
) -> dict[str, Any]:
    threads = calibration.threads
    return {
        "model": decoder.target_name,
        "draft": decoder.draft_name,
        "table": table.to_dict(),
        "threads_tried": {"plain": threads.plain, "batched": threads.batched},
        "warnings": decoder.warnings,
    }


def _print(data: dict[str, Any], calibration: Calibration, table: CostTable) -> None:
    pair = " with ".join(filter(None, (data["model"], data["draft"])))
    out.line(out.styled(f"{pair}: {origin(table)}", "bold"))
    for line in table_lines(table):
        out.line(line)
    _advise(calibration)


def _advise(calibration: Calibration) -> None:
    """Thread counts to use, where others than the current ones were clearly faster."""
    for line in calibration.advice():
        out.hint(line)
