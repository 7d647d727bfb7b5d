"""`specllama calibrate`: measure once what decodes cost here, so that drafting starts informed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import typer

from specllama.cli import model_flags
from specllama.cli.cost_view import origin, table_lines
from specllama.cli.generate_stream import Meter, ctrl_c_afterwards, termination_is_ctrl_c
from specllama.cli.model_flags import ModelFlags, with_model_flags
from specllama.cli.output import out

if TYPE_CHECKING:
    from types import FrameType
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
    warnings = _warn_if_busy()  # loading models is load, too
    with Meter() as meter:
        decoder = model_flags.open_decoder(run, meter.update)
    with ctrl_c_afterwards(), decoder:
        decoder.warnings += warnings
        calibration = decoder.calibration(_prompts())
        interrupted = _measure(calibration)
        _tell(decoder, calibration, calibration.finish())
    if interrupted:
        raise typer.Exit(130)
    if calibration.trouble:
        raise typer.Exit(1)


def _warn_if_busy() -> list[str]:
    """What there is to say about a machine that does other things."""
    from specllama.bench.facts import BUSY, load_average

    load = load_average()[0]
    if load <= BUSY:
        return []
    warning = (
        f"The machine is busy (load average {load:.1f}), so costs may be measured too dear. "
        "Calibrate again when nothing else runs."
    )
    out.warn(warning)
    return [warning]


def _prompts() -> list[str]:
    """Two of the built-in prompts, of kinds that differ."""
    from specllama.bench import prompts

    found = prompts.builtin()
    return [next(prompt.text for prompt in found if prompt.kind == kind) for kind in _KINDS]


def _measure(calibration: Calibration) -> bool:
    """Run to the end behind a bar; True where Ctrl-C ended it."""
    try:
        with _bar() as bar, termination_is_ctrl_c(), _first_ctrl_c():
            task = bar.add_task("", total=1.0)
            for share, label in calibration.run():
                bar.update(task, completed=share, description=label)
    except KeyboardInterrupt:
        return True
    return False


@contextmanager
def _first_ctrl_c() -> Iterator[None]:
    """The first Ctrl-C interrupts; what happens with the next is up to who handled it before."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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


def _tell(decoder: SpeculativeDecoder, calibration: Calibration, table: CostTable) -> None:
    if calibration.trouble:
        decoder.warnings.append(calibration.trouble)
        out.warn(calibration.trouble)
    if not table.same:
        out.warn("Interrupted before anything was measured.")
        return
    data = _as_data(decoder, calibration, table)
    out.result(data, lambda: _print(data, calibration, table))


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
