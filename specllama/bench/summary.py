"""The runs of each arm, summed up; and the one sentence people came for."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from specllama.bench import metrics
from specllama.bench.metrics import Difference, Ratio, Spent
from specllama.bench.runner import Arm, Run
from specllama.bench.suites import flags
from specllama.results import SpecStats

Text = Literal["same", "differs", "free", "lossy"]
"""Of an arm's text beside the text it is compared with; free: its rule promises its distribution
only; lossy: not even that."""


@dataclass(frozen=True, slots=True)
class Summary:
    """An arm in figures; seconds and tokens per second.

    Attributes:
        tok_s, tok_s_sd: decode rate, mean and standard deviation over the prompts.
        gains: on each prompt, over the arm it is compared with; empty without one.
        speedup, by_kind: their means with 95 % intervals; None and empty without any.
        llmperf: LLMPerf's name -> percentiles over the runs.
        per_token, per_round: percentiles 50 and 95 over runs and over all rounds.
        stall: the longest wait between two tokens of any run.
        spent: decode seconds a token, and where they went.
    """

    arm: Arm
    n_runs: int
    tok_s: float | None
    tok_s_sd: float | None
    gains: tuple[float, ...]
    speedup: Ratio | None
    by_kind: Mapping[str, Ratio]
    spec: SpecStats
    llmperf: Mapping[str, Mapping[str, float]]
    per_token: Mapping[str, float]
    per_round: Mapping[str, float]
    stall: float | None
    spent: Spent
    verify: str
    guarantee: str
    text: Text

    @property
    def overhead_share(self) -> float:
        """Share of the decode time outside llama.cpp."""
        total = sum(self.spent)
        return self.spent.outside / total if total else 0.0

    def gain_of(self, rivals: int) -> Ratio:
        """The speed-up as one of so many that are compared, see `metrics.best_of`."""
        return metrics.bootstrap(self.gains, level=metrics.best_of(rivals))

    @property
    def drafted_nothing(self) -> bool:
        """It was to draft and never did."""
        return self.arm.drafts and self.spec.drafted == 0

    @property
    def label(self) -> str:
        """The arm's name, and that its rule changes what the model says."""
        return f"{self.arm.name} (not exact)" if self.text == "lossy" else self.arm.name

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        ratios = {kind: ratio._asdict() for kind, ratio in self.by_kind.items()}
        return {
            "arm": self.arm.name,
            "model": self.arm.model,
            "against": self.arm.against,
            "flags": flags(self.arm.params),
            "params": params_data(self.arm),
            "runs": self.n_runs,
            "tok_s": self.tok_s,
            "tok_s_sd": self.tok_s_sd,
            "speedup": self.speedup._asdict() if self.speedup else None,
            "speedup_by_kind": ratios,
            "spec": self.spec.to_dict(),
            "llmperf": {name: dict(values) for name, values in self.llmperf.items()},
            "time_per_output_token_s": dict(self.per_token),
            "round_s": dict(self.per_round),
            "longest_stall_s": self.stall,
            "s_per_token": self.spent._asdict(),
            "overhead_share": self.overhead_share,
            "calibration_error": metrics.calibration_error(self.spec.reliability),
            "forecast_error": self.spec.forecast.error,
            "verify": self.verify,
            "guarantee": self.guarantee,
            "text": self.text,
        }


def params_data(arm: Arm) -> dict[str, Any]:
    """An arm's settings as JSON can hold them (it has no infinity: a forbidden token is "-inf")."""
    params = asdict(arm.params)
    biases = params["sampling"]["logit_bias"]
    params["sampling"]["logit_bias"] = {
        str(token): "-inf" if bias == float("-inf") else bias for token, bias in biases.items()
    }
    return params


def summarise(runs: Sequence[Run], arms: Sequence[Arm]) -> tuple[list[Summary], list[Difference]]:
    """The arms that have runs, in order; and every text that differs where it must not."""
    found, promised = metrics.differences(runs, arms)
    broken = {difference.arm for difference in found}
    by_arm = {arm.name: [run for run in runs if run.arm.name == arm.name] for arm in arms}
    summaries = []
    for arm in arms:
        if by_arm[arm.name]:
            text = _text_of(by_arm[arm.name], arm.name in promised, arm.name in broken)
            summaries.append(_summary(arm, by_arm[arm.name], by_arm.get(arm.against, []), text))
    return summaries, found


def _text_of(runs: Sequence[Run], promised: bool, broken: bool) -> Text:
    if runs[0].arm.drafts and not runs[0].generation.lossless:
        return "lossy"
    if broken:
        return "differs"
    return "same" if promised else "free"


def _summary(arm: Arm, runs: list[Run], base: list[Run], text: Text) -> Summary:
    rates = list(metrics.rates(runs).values())
    gains = metrics.speedups(runs, base)
    kinds: dict[str, list[float]] = {}
    for prompt in {run.prompt.id: run.prompt for run in runs}.values():
        if prompt.id in gains:
            kinds.setdefault(prompt.kind, []).append(gains[prompt.id])
    requests = [measures for run in runs if (measures := metrics.llmperf(run))]
    return Summary(
        arm=arm,
        n_runs=len(runs),
        tok_s=statistics.fmean(rates) if rates else None,
        tok_s_sd=statistics.stdev(rates) if len(rates) > 1 else None,
        gains=tuple(gains.values()),
        speedup=metrics.bootstrap(list(gains.values())) if gains else None,
        by_kind={kind: metrics.bootstrap(values) for kind, values in kinds.items()},
        spec=metrics.total_spec(runs),
        llmperf={
            name: metrics.percentiles([request[name] for request in requests])
            for name in (requests[0] if requests else ())
        },
        per_token=_middle_and_tail([metrics.time_per_token(run) for run in runs]),
        per_round=_middle_and_tail([s for run in runs for s in metrics.round_seconds(run)]),
        stall=max((s for run in runs if (s := metrics.longest_stall(run))), default=None),
        spent=metrics.seconds_per_token(runs),
        verify=runs[0].generation.verify,
        guarantee=runs[0].generation.guarantee,
        text=text,
    )


def _middle_and_tail(values: Sequence[float | None]) -> dict[str, float]:
    return metrics.percentiles([value for value in values if value is not None], (50, 95))


def verdicts(
    summaries: Sequence[Summary], arms: Sequence[Arm], *, broke_off: bool = False
) -> list[str]:
    """One line for every arm that others are compared with: what to use, or that nothing pays.

    Without a comparison, one line that says why there is none.

    Args:
        arms: those that were to run.
        broke_off: the measurement ended before its time.
    """
    rivals: dict[str, list[Summary]] = {}
    for summary in summaries:
        if summary.arm.drafts and summary.arm.against:
            rivals.setdefault(summary.arm.against, []).append(summary)
    if summaries and not rivals:
        return [f"nothing was compared: {_why_none(arms)}"]
    return [_verdict(base, compared, broke_off) for base, compared in rivals.items()]


def _why_none(arms: Sequence[Arm]) -> str:
    """Why no arm that drafts was measured."""
    if any(arm.drafts and arm.against for arm in arms):
        return "no arm that drafts had its turn"
    others = [arm for arm in arms if arm.against and arm.model == "target"]
    if not others:
        return "no arm that drafts can run with these models and settings"
    names = ", ".join(dict.fromkeys(flags(arm.params) or arm.name for arm in others))
    return f"no arm may draft ({names})"


def _verdict(base: str, measured: Sequence[Summary], broke_off: bool) -> str:
    where = f"temperature {measured[0].arm.params.sampling.temperature:g}"
    compared = [summary for summary in measured if summary.speedup]
    if not compared:
        return f"nothing to compare: the replies are too short for a rate ({where})"
    rivals = [summary for summary in compared if summary.spec.accepted]
    if not rivals:
        few = broke_off or max(len(summary.gains) for summary in compared) < metrics.MIN_PROMPTS
        start = "too few prompts to tell" if few else "drafting does not pay here"
        drafted = any(summary.spec.drafted for summary in compared)
        told = "no draft was accepted" if drafted else "no arm drafted anything"
        return f"{start}: {told} ({where})"
    gains = {summary.arm.name: summary.gain_of(len(rivals)) for summary in rivals}
    best = max(rivals, key=lambda summary: _rank(gains[summary.arm.name]))
    ratio, name = gains[best.arm.name], best.label
    figure = f"{ratio.value:.2f}x{interval(ratio, len(rivals))}, against {base} at {where}"
    if ratio.low is None or ratio.high is None:
        return f"too few prompts to tell: {name} is the fastest with {figure}"
    if ratio.high < 1.0:
        return f"drafting does not pay here: {name} is the fastest with {figure}"
    if ratio.low <= 1.0:
        return f"drafting makes no certain difference here: {name} is the fastest with {figure}"
    return f"best: {name} ({flags(best.arm.params) or 'default settings'}): {figure}"


def _rank(ratio: Ratio) -> tuple[bool, float]:
    """An arm that is faster for certain goes before one that only seems faster still."""
    return (ratio.low or 0.0) > 1.0, ratio.value


def interval(ratio: Ratio, rivals: int = 1) -> str:
    """`, CI 1.25-1.40`, and of how many it is the best; "" for a ratio without one."""
    if ratio.low is None or ratio.high is None:
        return ""
    best = f", best of {rivals}" if rivals > 1 else ""
    return f" (CI {ratio.low:.2f}-{ratio.high:.2f}{best})"
