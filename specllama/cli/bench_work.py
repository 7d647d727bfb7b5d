"""The work of `specllama bench`: models opened, arms run behind a bar, Ctrl-C kept in hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from specllama.cli import model_flags
from specllama.cli.generate_stream import CtrlC, Meter, termination_is_ctrl_c
from specllama.cli.model_flags import Run
from specllama.cli.output import out
from specllama.errors import SpecllamaError, UsageError
from specllama.options import GenerationParams
from specllama.sampling.params import SamplingParams

if TYPE_CHECKING:
    from rich.progress import Progress

    from specllama.bench.prompts import Prompt
    from specllama.bench.runner import Arm, Role, Session
    from specllama.bench.runner import Run as BenchRun
    from specllama.decoder import SpeculativeDecoder
    from specllama.scheduling.explain import Explanation

MAX_TOKENS = 128
"""Tokens a run where nobody says: enough for intervals of a few per cent over 40 prompts."""

MIN_TOKENS = 2


class Work:
    """The measuring, with a bar on stderr; Ctrl-C or a failure ends it and keeps what there is."""

    def __init__(
        self,
        run: Run,
        decoders: dict[Role, SpeculativeDecoder],
        arms: Sequence[Arm],
        prompts: Sequence[Prompt],
        repetitions: int,
        notes: Sequence[str] = (),
    ) -> None:
        self.target = decoders["target"]
        self.arms = list(arms)
        self.runs: list[BenchRun] = []
        self.notes = list(notes)
        self.interrupted = False
        self.failure: SpecllamaError | None = None
        self._run, self._decoders = run, decoders
        self._prompts, self._repetitions = prompts, repetitions

    @property
    def broke_off(self) -> bool:
        """Whether it ended before its time."""
        return self.interrupted or self.failure is not None

    def do(self) -> None:
        """Warm up and measure.

        Raises:
            SpecllamaError: nothing could be measured.
        """
        try:
            with termination_is_ctrl_c(), CtrlC() as ctrl_c, _bar() as bar:
                self._measure(self._session(ctrl_c, bar), bar)
        except KeyboardInterrupt:  # a second one may come while the bar goes
            self.interrupted = True
            self.notes.append(f"Interrupted after {len(self.runs)} of {self._total} runs.")
        except SpecllamaError as error:
            if not self.runs:
                raise
            self.failure = error
            self.notes.append(f"Failed after {len(self.runs)} of {self._total} runs: {error}")

    def _measure(self, session: Session, bar: Progress) -> None:
        from specllama.bench.runner import measure

        self._prompts = session.prompts
        self.arms, left_out = session.warm_up(self.arms)
        self.notes += left_out
        bar.reset(bar.task_ids[0], total=self._total)
        for run in measure(session, self.arms, self._repetitions):
            self.runs.append(run)

    @property
    def _total(self) -> int:
        return len(self._prompts) * self._repetitions * len(self.arms)

    def _session(self, ctrl_c: CtrlC, bar: Progress) -> Session:
        from specllama.bench.runner import Hooks, Session

        task = bar.add_task("warm-up", total=len(self.arms))

        def done(arm: Arm, prompt: Prompt) -> None:
            bar.update(task, advance=1, description=f"{prompt.id}: {arm.name}")

        hooks = Hooks(ctrl_c.watch, lambda _done, _total: ctrl_c.check(), done)
        params = self._run.params
        session = Session(
            self._decoders,
            self._prompts,
            max_tokens=max_tokens(self._run),
            seed=params.seed or 0,
            system=self._run.system,
            hooks=hooks,
        )
        return replace(session, prompts=self._fitting(session))

    def _fitting(self, session: Session) -> list[Prompt]:
        too_long = session.too_long()
        fitting = [prompt for prompt in session.prompts if prompt not in too_long]
        if not fitting:
            raise UsageError(
                "No prompt fits into the context together with its reply.",
                "Give a larger context (-c) or fewer tokens (-n).",
            )
        self.notes += [f"Prompt {prompt.id} is left out: too long." for prompt in too_long]
        return fitting


def open_both(run: Run, stack: ExitStack, *, with_draft: bool) -> dict[Role, SpeculativeDecoder]:
    """The pair's decoder; for a suite also one in which the draft model speaks."""
    with Meter() as meter:
        target = stack.enter_context(model_flags.open_decoder(run, meter.update))
        decoders: dict[Role, SpeculativeDecoder] = {"target": target}
        if with_draft and target.draft_name is not None:
            decoders["draft"] = stack.enter_context(draft_alone(target.draft_name, run))
    return decoders


def give_ngrams(decoder: SpeculativeDecoder, stack: ExitStack) -> str:
    """Let n-grams of the target's answers to other questions be drafted from; what they are."""
    from specllama.bench.own_ngrams import QUESTIONS, train_on_answers
    from specllama.hub import resolve

    file = Path(stack.enter_context(TemporaryDirectory(prefix="specllama-"))) / "own.ngram"
    with _bar() as bar:
        task = bar.add_task("answers for n-grams", total=len(QUESTIONS))
        n_tokens = train_on_answers(
            decoder,
            resolve.locate(decoder.target_name, "target"),
            file,
            answered=lambda: bar.advance(task),
        )
    decoder.set_ngrams(file)
    return f"{len(QUESTIONS)} answers to other questions, {n_tokens} tokens"


def draft_alone(name: str, run: Run) -> SpeculativeDecoder:
    """The draft model as a target of its own, with the same settings."""
    from specllama.decoder import SpeculativeDecoder

    return SpeculativeDecoder(name, options=run.options, chat_template=run.chat_template)


def surroundings(run: Run, decoder: SpeculativeDecoder) -> dict[str, Any]:
    """The machine, the versions, and the model files with their hashes."""
    from specllama.bench import facts
    from specllama.hub import resolve
    from specllama.llama.library import describe

    offline = run.settings["offline"]
    target = resolve.locate(decoder.target_name, "target", offline=offline)
    found = facts.machine() | {"llama_cpp": describe()}
    found["target"] = facts.model_file(decoder.target_name, target)
    if decoder.draft_name is not None:
        draft = resolve.locate(decoder.draft_name, "draft", offline=offline)
        found["draft"] = facts.model_file(decoder.draft_name, draft)
    return found


def explanations(decoder: SpeculativeDecoder, runs: Sequence[BenchRun]) -> dict[str, Explanation]:
    """Why each arm of the target that drafts did so as it did."""
    from specllama.results import SpecStats

    stats: dict[str, SpecStats] = {}
    params: dict[str, GenerationParams] = {}
    for run in runs:
        if run.arm.drafts and run.arm.model == "target":
            params[run.arm.name] = run.arm.params
            stats.setdefault(run.arm.name, SpecStats()).add(run.generation.spec)
    return {name: decoder.explain(stats[name], params[name]) for name in stats}


def settings_of(run: Run, decoder: SpeculativeDecoder, repetitions: int) -> dict[str, Any]:
    """The settings all arms share."""
    from specllama.llama.context import threads_of

    options = {name: value for name, value in asdict(run.options).items() if value is not None}
    return options | {
        "n_ctx": decoder.n_ctx,
        "tensor_split": list(run.options.tensor_split),
        **threads_of(run.options),
        "max_tokens": -1 if max_tokens(run) is None else max_tokens(run),
        **_sampling(run.params.sampling),
        "seed": run.params.seed or 0,
        "seed_given": run.params.seed is not None,
        "repetitions": repetitions,
    }


def _sampling(params: SamplingParams) -> dict[str, Any]:
    """The sampling chain's usual settings, and what else is not the default (arms have more)."""
    default = SamplingParams()
    names = [item.name for item in fields(params) if item.name not in ("temperature", "logit_bias")]
    return {
        name: getattr(params, name)
        for name in names
        if name in ("top_k", "top_p", "min_p") or getattr(params, name) != getattr(default, name)
    }


def max_tokens(run: Run) -> int | None:
    """Tokens a run, None where somebody wants all until the end (-n -1).

    Raises:
        UsageError: too few to measure a rate.
    """
    wanted = run.params.max_tokens
    if wanted is None:
        return MAX_TOKENS if run.settings.entries["max_tokens"].source == "default" else None
    if wanted < MIN_TOKENS:
        raise UsageError(f"A rate takes at least {MIN_TOKENS} tokens a run.", "Give a larger -n.")
    return wanted


@contextmanager
def _bar() -> Iterator[Progress]:
    """Runs done, of all, and the time left; only on a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    console = Console(stderr=True, no_color=not out.colors(sys.stderr))
    hidden = out.mode != "human" or not sys.stderr.isatty()
    # names take what bar and figures leave, and are cut to it
    rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns = (
        BarColumn(min(40, console.width // 4)), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False, table_column=rest),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=hidden, expand=True) as bar:
        yield bar
