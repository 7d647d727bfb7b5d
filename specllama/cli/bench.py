"""`specllama bench`: does drafting pay here, with what settings, and is the text the same?"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from specllama.cli import bench_work, model_flags
from specllama.cli.common import check_writable
from specllama.cli.cost_view import Explain, say_why
from specllama.cli.generate_stats import count
from specllama.cli.generate_stream import ctrl_c_afterwards
from specllama.cli.model_flags import ModelFlags, Run, with_model_flags
from specllama.cli.output import out
from specllama.errors import UsageError

if TYPE_CHECKING:
    from specllama.bench.prompts import Prompt
    from specllama.bench.report import Report
    from specllama.bench.suites import Sweep

Format = Literal["md", "json", "jsonl", "csv"]
T = TypeVar("T")

_SWEPT = ("drafter", "tree", "draft_max", "temp", "verify")


def _with_swept_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The shared flags, but for those that `bench` declares itself because it takes lists."""
    inner = with_model_flags(command)
    own = inspect.signature(inner)

    @wraps(inner)
    def wrapper(**typed: Any) -> None:
        inner(**typed, **dict.fromkeys(_SWEPT))

    kept = [parameter for name, parameter in own.parameters.items() if name not in _SWEPT]
    wrapper.__signature__ = own.replace(parameters=kept)  # type: ignore[attr-defined]
    return wrapper


@dataclass(frozen=True, slots=True)
class Outputs:
    """What becomes of the report."""

    format: Format
    folder: Path | None
    plot: Path | None
    wandb: bool

    def check(self) -> None:
        """Refuse what cannot be served before anything is measured.

        Raises:
            UsageError: a package or a folder is missing, or a file cannot be written.
        """
        from specllama.bench import plots, report, wandb

        if self.folder is not None:
            _make_folder(self.folder)
            for name in (*report.FILES, *plots.FILES):
                _check_file(self.folder / name)
        if self.plot is not None:
            plots.require(self.plot)
            if not self.plot.absolute().parent.is_dir():
                raise UsageError(
                    f"There is no folder {self.plot.absolute().parent}.", "Make it first."
                )
            if self.plot.is_dir():
                raise UsageError(f"{self.plot} is a folder.", "--out takes one; --plot is a file.")
            _check_file(self.plot)
        if self.wandb:
            wandb.require()


def _make_folder(folder: Path) -> None:
    """Make it, where it is not there yet.

    Raises:
        UsageError: it cannot be made, or a file has its name.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is no folder.", "--out takes one; --plot is a file.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"Cannot make the folder {folder}: {error.strerror}.", "Choose another place."
        ) from error


def _check_file(file: Path) -> None:
    """See that a file can be written, or written over.

    Raises:
        UsageError: it cannot.
    """
    if file.exists() and not (file.is_file() and os.access(file, os.W_OK)):
        raise UsageError(f"{file} is there, and cannot be written over.", "Choose another place.")
    check_writable(file)


# fmt: off
Prompts = Annotated[Path | None, typer.Option(
    "--prompts", metavar="FILE", help='Own prompts, one {"prompt": …} a line.')]
Kinds = Annotated[str | None, typer.Option(
    "--kinds", metavar="A,B,…", help="Only prompts of these kinds.")]
Repetitions = Annotated[int, typer.Option(
    "-r", "--repetitions", metavar="N", min=1, help="Runs of each arm on a prompt.")]
SuiteName = Annotated[str | None, typer.Option(
    "--suite", metavar="NAME", help="A fixed set of arms: seeds, the field's named baselines.")]
Drafters = Annotated[str | None, typer.Option(
    "--drafter", metavar="A,B,…", help="Drafters to compare; A+B is one arm with both.")]
Trees = Annotated[list[str] | None, typer.Option(
    "--tree", metavar="SHAPE",
    help="Shape of trees, to compare: value, planned or as 2,2,1. Repeat.")]
DraftMaxes = Annotated[str | None, typer.Option(
    "--draft-max", "--num-draft-tokens", metavar="N,N,…",
    help="Most tokens to draft in a round, to compare.")]
Temps = Annotated[str | None, typer.Option(
    "--temp", "--temperature", metavar="T,T,…", help="Temperatures, each with its own plain arm.")]
Verifies = Annotated[str | None, typer.Option(
    "--verify", metavar="A,B,…", help="Rules that check drafts, to compare.")]
OutputFormat = Annotated[Format, typer.Option("-o", "--output", help="What goes to stdout.")]
Folder = Annotated[Path | None, typer.Option(
    "--out", metavar="DIR", help="Also write the report, all runs and the plots there.")]
Plot = Annotated[Path | None, typer.Option(
    "--plot", metavar="FILE", help="Also draw all charts into a PNG or SVG file.")]
Wandb = Annotated[bool, typer.Option(
    "--wandb", help="Also log to Weights & Biases (needs its package).")]
Strict = Annotated[bool, typer.Option(
    "--strict", help="Leave with 1 if a text differs where it must not.")]
# fmt: on


@_with_swept_flags
def bench(
    prompts: Prompts = None,
    kinds: Kinds = None,
    repetitions: Repetitions = 2,
    suite: SuiteName = None,
    drafters: Drafters = None,
    trees: Trees = None,
    draft_maxes: DraftMaxes = None,
    temps: Temps = None,
    verifies: Verifies = None,
    output: OutputFormat = "md",
    folder: Folder = None,
    plot: Plot = None,
    wandb: Wandb = False,
    strict: Strict = False,
    explain: Explain = False,
    *,
    flags: ModelFlags,
) -> None:
    """Measure what drafting gains on this machine.

    Plain decoding and drafting take turns on each prompt. The last line says which settings to use.
    """
    from specllama.bench import prompts as files
    from specllama.bench.suites import Sweep

    if out.mode == "json" and output not in ("md", "json"):
        raise UsageError(f"--json and -o {output} cannot be used together.")
    outputs = Outputs("json" if out.mode == "json" else output, folder, plot, wandb)
    chosen = files.of_kinds(
        files.read(prompts) if prompts else files.builtin(), _list("--kinds", kinds)
    )
    run = model_flags.resolve(flags)
    if run.options.store:
        out.warn("The store stays off: an answer in it would help the next run of its prompt.")
        run = replace(run, options=replace(run.options, store=False))
    sweep = Sweep(
        run.params,
        temps=_numbers("--temp", temps, float),
        verifies=_list("--verify", verifies),
        drafters=_list("--drafter", drafters),
        trees=trees or (),
        draft_maxes=_numbers("--draft-max", draft_maxes, int),
    )
    sweep.suite(suite, has_draft=True) if suite else sweep.arms()
    outputs.check()
    bench_work.max_tokens(run)  # before anything is loaded
    with ExitStack() as stack:
        work, found = _prepare(run, sweep, suite, chosen, repetitions, stack)
        with ctrl_c_afterwards():  # what was measured is not lost to a second one
            work.do()
            report = _report(work, found, explain)
            stack.close()
            _give_out(report, outputs)
    if outputs.wandb and report.runs:
        _log(report)
    if work.failure is not None:
        raise work.failure
    if work.interrupted:
        raise typer.Exit(130)
    if strict and report.differences:
        raise typer.Exit(1)


def _prepare(
    run: Run,
    sweep: Sweep,
    suite: str | None,
    prompts: Sequence[Prompt],
    repetitions: int,
    stack: ExitStack,
) -> tuple[bench_work.Work, dict[str, Any]]:
    """Load; the work to do, and facts about machine, models and settings."""
    from specllama.bench import facts

    before = facts.load_average()  # loading and hashing large files is load, too
    decoders = bench_work.open_both(run, stack, with_draft=suite is not None)
    target = decoders["target"]
    has_draft = target.draft_name is not None
    arms, notes = sweep.suite(suite, has_draft=has_draft) if suite else (sweep.arms(), [])
    found = bench_work.surroundings(run, target) | {
        "settings": bench_work.settings_of(run, target, repetitions),
        "load_average_before": before,
    }
    if suite and run.options.ngram is None:
        found["settings"]["ngram"] = bench_work.give_ngrams(target, stack)
    return bench_work.Work(run, decoders, arms, prompts, repetitions, notes), found


def _report(work: bench_work.Work, found: dict[str, Any], explain: bool) -> Report:
    """What came of the work."""
    from specllama.bench import facts
    from specllama.bench.report import Report

    found["load_average_after"] = facts.load_average()
    return Report(
        found,
        work.arms,
        work.runs,
        work.notes,
        work.target.costs,
        bench_work.explanations(work.target, work.runs) if explain else {},
        work.broke_off,
    )


def _give_out(report: Report, outputs: Outputs) -> None:
    """Print and write; with no run there is nothing to give out."""
    for note in report.warnings:
        out.warn(note)
    if not report.runs:
        return
    for note in report.hints:
        out.hint(note)
    for first in report.differences[:1]:
        where = f"first {first.arm} on {first.prompt} at token {first.position + 1}"
        number = count(len(report.differences), "text differs", "texts differ")
        if report.exact:
            out.warn(f"{number} where that must not be, {where}.")
        else:
            out.warn(f"{number} from plain decoding's, {where}: batches round (--exact avoids it).")
    try:  # neither a full disk nor a reader that has had enough may take the report with it
        _print(report, outputs.format)
    finally:
        if outputs.folder is not None:
            _say_files(report.save(outputs.folder))
    for name, why in report.explanations.items():
        out.status(f"{name}:")
        say_why(why)
    if outputs.folder is not None:
        _say_files(_plots_of(report, outputs.folder))
    if outputs.plot is not None:
        from specllama.bench import plots

        plots.overview(report, outputs.plot)
        _say_files([outputs.plot])


def _log(report: Report) -> None:
    from specllama.bench import wandb

    wandb.log(report)


def _plots_of(report: Report, folder: Path) -> list[Path]:
    """The charts in a folder, none of an earlier run; a warning where matplotlib is missing."""
    from specllama.bench import plots

    plots.remove_all(folder)
    try:
        plots.require()
    except UsageError as error:
        out.warn(f"No plots in {folder}: {error}")
        return []
    return plots.save_all(report, folder)


def _print(report: Report, format: Format) -> None:
    if format == "json":
        out.json(report.to_dict())
    elif format == "jsonl":
        for line in report.jsonl():
            out.event(line)
    elif format == "csv":
        out.write(report.csv())
    else:
        out.line(report.markdown())
        for verdict in report.verdicts:
            out.line(verdict)


def _say_files(files: Iterable[Path]) -> None:
    for file in files:
        out.status(f"wrote {file}")


def _list(flag: str, text: str | None) -> list[str]:
    """`a,b` as its parts; empty where nobody gave the flag."""
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"{flag} {text} names nothing.", "Give names with commas between them.")
    return parts


def _numbers(flag: str, text: str | None, kind: Callable[[str], T]) -> list[T]:
    try:
        return [kind(part) for part in _list(flag, text)]
    except ValueError as error:
        raise UsageError(
            f"{flag} {text} is not a list of numbers.",
            f"Write it as {flag} {'2,4,8' if kind is int else '0,0.8'}.",
        ) from error
