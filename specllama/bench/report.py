"""The report: Markdown for people, JSON, JSON lines and CSV for everything else."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from specllama.bench.facts import BUSY
from specllama.bench.metrics import PERCENTILES, Difference, Ratio, calibration_error
from specllama.bench.runner import Arm, Run
from specllama.bench.summary import Summary, interval, summarise, verdicts
from specllama.results import RELIABILITY_BINS, Forecast
from specllama.scheduling.explain import Explanation
from specllama.scheduling.table import CostTable
from specllama.verification import choose_rule
from specllama.whole_file import whole_file

MAX_DIFFERENCES = 20
"""Differences written out in the Markdown; JSON has all."""

FILES = ("report.md", "report.json", "runs.jsonl", "table.csv")
"""What `Report.save` writes."""

_DO_NOT = "do not publish these figures."
_THREADS = ("threads", "threads_batch", "draft_threads")
_FAR = 3.0
_FAR_ROUNDS = 20
"""Rounds of which a wrong forecast says that something else was at work."""


@dataclass(frozen=True)
class Report:
    """Everything that was measured.

    Attributes:
        facts: about the machine, the files and the settings; plain data.
        notes: a sentence each: arms left out, an interruption.
        broke_off: it was interrupted, or failed, before all runs were done.
        costs: what decodes cost here, as the scheduler knew it at the end.
        explanations: by arm, why it drafted as it did, where that was asked for.
    """

    facts: Mapping[str, Any]
    arms: Sequence[Arm]
    runs: Sequence[Run]
    notes: Sequence[str] = field(default=())
    costs: CostTable | None = None
    explanations: Mapping[str, Explanation] = field(default_factory=dict)
    broke_off: bool = False

    @cached_property
    def _summed_up(self) -> tuple[list[Summary], list[Difference]]:
        return summarise(self.runs, self.arms)

    @property
    def summaries(self) -> list[Summary]:
        """One for every arm that has runs."""
        return self._summed_up[0]

    @property
    def differences(self) -> list[Difference]:
        """Texts that differ though their rule promises the same."""
        return self._summed_up[1]

    @property
    def exact(self) -> bool:
        """Whether batches were to have the bits of single decodes, so that no text may part."""
        return bool(self._settings.get("exact"))

    @property
    def _settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = self.facts.get("settings", {})
        return settings

    @property
    def verdicts(self) -> list[str]:
        """The last line, one for each temperature."""
        return verdicts(self.summaries, self.arms, broke_off=self.broke_off)

    @property
    def remarks(self) -> list[str]:
        """What stands beside the figures."""
        return [*self.warnings, *self.hints]

    @property
    def warnings(self) -> list[str]:
        """The notes, and what the figures themselves call for."""
        lossy = [f"{s.arm.name}: {s.guarantee}" for s in self.summaries if s.text == "lossy"]
        idle = [f"{s.arm.name} drafted nothing." for s in self.summaries if s.drafted_nothing]
        return [*self.notes, *lossy, *idle, *self._busy()]

    @property
    def hints(self) -> list[str]:
        """That `auto` is another rule here than for who gives no seed."""
        if self._settings.get("seed_given", True):
            return []
        drawn = [
            s.arm
            for s in self.summaries
            if s.arm.drafts and s.arm.params.verify == "auto" and s.arm.params.sampling.temperature
        ]
        seeded = choose_rule("auto", seeded=True).name
        return [
            f"All arms get the same seeds, so --verify auto is {seeded} here; without -s it is "
            f"{rule}, which --verify {rule} measures."
            for rule in dict.fromkeys(map(_unseeded_rule, drawn))
        ]

    def _busy(self) -> list[str]:
        """What says that other programs were at work."""
        before, after = (
            self.facts.get(f"load_average_{when}", [0.0])[0] for when in ("before", "after")
        )
        if before > BUSY:
            return [f"The machine was busy before the start: {_DO_NOT}"]
        own = max((self._settings.get(name, 0) for name in _THREADS), default=0) or math.inf
        if after > before + own + BUSY:
            return [f"The machine was busy during the runs: {_DO_NOT}"]
        far = [s.arm.name for s in self.summaries if _is_far(s.spec.forecast)]
        if far:
            told = f"{far[0]} was not nearly as fast as predicted, or several times faster"
            return [f"{told}, as on a machine that is busy at times: {_DO_NOT}"]
        return []

    def to_dict(self, *, with_runs: bool = True) -> dict[str, Any]:
        """Plain data for JSON."""
        data = {
            "verdict": self.verdicts,
            "notes": self.remarks,
            "facts": dict(self.facts),
            "costs": self.costs.to_dict() if self.costs else None,
            "arms": [summary.to_dict() for summary in self.summaries],
            "differences": [asdict(difference) for difference in self.differences],
        }
        if self.explanations:
            data["explain"] = {name: why.to_dict() for name, why in self.explanations.items()}
        return data | ({"runs": [run.to_dict() for run in self.runs]} if with_runs else {})

    def jsonl(self) -> Iterator[dict[str, Any]]:
        """A line for each run, then one with the rest."""
        for run in self.runs:
            yield {"type": "run"} | run.to_dict()
        yield {"type": "report"} | self.to_dict(with_runs=False)

    def csv(self) -> str:
        """A row for each arm and kind ("all" for all kinds), with a header."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        for summary in self.summaries:
            writer.writerows(_rows(summary))
        return text.getvalue()

    def markdown(self) -> str:
        """The whole report."""
        parts = [
            "# specllama bench",
            *self.verdicts,
            *_section("Notes", [f"- {note}" for note in self.remarks]),
            *_section("Speed", _speed(self.summaries)),
            *_section("Speed-up by kind", _by_kind(self.summaries)),
            *_section(_PARTED[self.exact], _different(self.differences)),
            *_section("Latency (LLMPerf's measures)", _latency(self.summaries)),
            *_section("Rounds", _rounds(self.summaries)),
            *_section("Acceptance by depth", _by_depth(self.summaries)),
            *_section("Acceptance by drafter", _by_source(self.summaries)),
            *_section("Where the time went", _spent(self.summaries)),
            *_section("Speed predicted and measured", _forecasts(self.summaries)),
            *_section("Acceptance predicted and observed", _reliability(self.summaries)),
            *_section("What a batch of the target costs", _costs(self.costs)),
            *_section("Machine and settings", _facts(self.facts)),
            *_section("How to read it", [_LEGEND]),
        ]
        return "\n\n".join(parts) + "\n"

    def save(self, folder: Path) -> list[Path]:
        """Write `FILES`; the paths."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in self.jsonl()]
        report = json.dumps(self.to_dict(with_runs=False), indent=2, ensure_ascii=False) + "\n"
        contents = (self.markdown(), report, "".join(lines), self.csv())
        for name, content in zip(FILES, contents, strict=True):
            with whole_file(folder / name) as part:
                part.write_text(content, encoding="utf-8")
        return [folder / name for name in FILES]


def _unseeded_rule(arm: Arm) -> str:
    """What `auto` is where nobody gives a seed."""
    return choose_rule("auto", seeded=False, trees=arm.params.drafts_trees).name


def _is_far(forecast: Forecast) -> bool:
    """Whether enough rounds were several times faster or slower than expected."""
    if forecast.error is None or forecast.rounds < _FAR_ROUNDS:
        return False
    return not 1 / _FAR < 1 + forecast.error < _FAR


_LEGEND = (
    "tok/s: decoding only, from the first round on, by the engine's clock; mean and standard "
    "deviation over prompts. Speed-up: geometric mean over prompts of the ratio on the same "
    "prompt, with its 95 % bootstrap interval; the first lines name the best of several arms with "
    "a wider one, which is right for all of them together (Bonferroni). Rounds whose text is held "
    "back and given out together share the time. Accepted: draft tokens kept of those tested. "
    "Text: same as the arm it is compared with, token for token; free: the rule promises only its "
    "distribution; lossy: not even that. Predicted: what the scheduler's cost table and acceptance "
    "estimates said before each round."
)

_PARTED = {
    True: "Texts that differ where they must not",
    False: "Texts that part where batches round differently (`--exact` avoids it)",
}
_MOST_COLUMNS = 4

_COLUMNS = (
    "arm", "kind", "tok_s", "tok_s_sd", "speedup", "ci_low", "ci_high", "acceptance",
    "tokens_per_round", "ttft_s_p50", "round_s_p50", "round_s_p95", "longest_stall_s",
    "overhead_share", "verify", "text",
)  # fmt: skip


def _rows(summary: Summary) -> Iterator[dict[str, Any]]:
    yield {
        "arm": summary.arm.name,
        "kind": "all",
        "tok_s": _round(summary.tok_s),
        "tok_s_sd": _round(summary.tok_s_sd),
        "acceptance": _round(summary.spec.acceptance),
        "tokens_per_round": _round(summary.spec.tokens_per_round),
        "ttft_s_p50": _round(summary.llmperf.get("ttft_s", {}).get("p50")),
        "round_s_p50": _round(summary.per_round.get("p50")),
        "round_s_p95": _round(summary.per_round.get("p95")),
        "longest_stall_s": _round(summary.stall),
        "overhead_share": _round(summary.overhead_share),
        "verify": summary.verify,
        "text": summary.text if summary.arm.against else "",
    } | _ratio_row(summary.speedup)
    for kind, ratio in summary.by_kind.items():
        yield {"arm": summary.arm.name, "kind": kind} | _ratio_row(ratio)


def _ratio_row(ratio: Ratio | None) -> dict[str, Any]:
    values = ratio or (None, None, None)
    return dict(zip(("speedup", "ci_low", "ci_high"), map(_round, values), strict=True))


def _round(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "\n".join(lines)] if lines else []


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """A Markdown table that is aligned as plain text too; the first `left` columns are texts."""
    if not rows:
        return []
    rows = [[_cell(text) for text in row] for row in [columns, *rows]]
    widths = [max(3, *(len(row[n]) for row in rows)) for n in range(len(columns))]
    lines = [
        "| " + " | ".join(_pad(row[n], widths[n], n < left) for n in range(len(columns))) + " |"
        for row in rows
    ]
    rule = ["-" * width if n < left else "-" * (width - 1) + ":" for n, width in enumerate(widths)]
    return [lines[0], "| " + " | ".join(rule) + " |", *lines[1:]]


def _cell(text: str) -> str:
    """A text that stays in its cell."""
    return " ".join(text.splitlines()).replace("|", "\\|")


def _pad(text: str, width: int, left: bool) -> str:
    return text.ljust(width) if left else text.rjust(width)


def _speed(summaries: Sequence[Summary]) -> list[str]:
    rows = [
        [
            summary.arm.name,
            f"{_number(summary.tok_s, 1)}{_plus_minus(summary.tok_s_sd)}",
            _ratio(summary.speedup),
            _percent(summary.spec.acceptance),
            f"{summary.spec.tokens_per_round:.2f}",
            _number(summary.llmperf.get("ttft_s", {}).get("p50"), 3),
            f"{summary.overhead_share:.1%}",
            summary.verify,
            summary.text if summary.arm.against else "",
        ]
        for summary in summaries
    ]
    columns = ["arm", "tok/s", "speed-up", "accepted", "tokens a round", "first token s",
               "outside llama.cpp", "rule", "text"]  # fmt: skip
    return _table(columns, rows)


def _by_kind(summaries: Sequence[Summary]) -> list[str]:
    """Kinds as rows with intervals; with many arms, arms as rows (the other forms have all)."""
    shown = [summary for summary in summaries if summary.speedup]
    kinds = list(dict.fromkeys(kind for summary in shown for kind in summary.by_kind))
    if len(shown) > _MOST_COLUMNS:
        wide = [
            [summary.arm.name, *(_short(summary.by_kind.get(kind)) for kind in kinds),
             _short(summary.speedup)]
            for summary in shown
        ]  # fmt: skip
        return _table(["arm", *kinds, "geometric mean"], wide)
    rows = [[kind, *(_ratio(summary.by_kind.get(kind)) for summary in shown)] for kind in kinds]
    mean = ["**geometric mean**", *(_ratio(summary.speedup) for summary in shown)]
    return _table(["kind", *(s.arm.name for s in shown)], [*rows, mean] if rows else [])


def _different(differences: Sequence[Difference]) -> list[str]:
    rows = [
        [d.arm, d.prompt, str(d.position + 1), "one ended" if d.gap is None else f"{d.gap:.2g}"]
        for d in differences[:MAX_DIFFERENCES]
    ]
    table = _table(["arm", "prompt", "at token", "gap of the log-probabilities"], rows, left=2)
    more = len(differences) - len(rows)
    return [*table, "", f"and {more} more"] if more else table


def _latency(summaries: Sequence[Summary]) -> list[str]:
    rows = [
        [summary.arm.name, name, *(f"{values[f'p{share}']:.4g}" for share in PERCENTILES)]
        for summary in summaries
        for name, values in summary.llmperf.items()
    ]
    return _table(["arm", "measure", *(f"p{share}" for share in PERCENTILES)], rows, left=2)


def _rounds(summaries: Sequence[Summary]) -> list[str]:
    rows = [
        [
            summary.arm.name,
            _milliseconds(summary.per_token.get("p50")),
            _milliseconds(summary.per_token.get("p95")),
            _milliseconds(summary.per_round.get("p50")),
            _milliseconds(summary.per_round.get("p95")),
            _milliseconds(summary.stall),
            str(summary.spec.rounds),
        ]
        for summary in summaries
    ]
    columns = ["arm", "ms a token p50", "p95", "ms a round p50", "p95", "longest stall ms",
               "rounds"]  # fmt: skip
    return _table(columns, rows)


def _by_depth(summaries: Sequence[Summary]) -> list[str]:
    shown = [summary for summary in summaries if summary.spec.tested]
    depth = max((len(summary.spec.by_depth) for summary in shown), default=0)
    rows = [
        [
            summary.arm.name,
            *(_percent(stats.acceptance) for stats in summary.spec.by_depth),
            *[""] * (depth - len(summary.spec.by_depth)),
        ]
        for summary in shown
    ]
    return _table(["arm", *(str(n) for n in range(1, depth + 1))], rows)


def _by_source(summaries: Sequence[Summary]) -> list[str]:
    """What each drafter did, also what one did for the draft model in stages."""
    rows = []
    for summary in summaries:
        inner = summary.spec.inner.by_source if summary.spec.inner else {}
        named = {**summary.spec.by_source, **{f"draft's {name}": s for name, s in inner.items()}}
        for name, stats in named.items():
            counts = [str(stats.drafted), str(stats.tested), str(stats.accepted)]
            rows.append([summary.arm.name, name, *counts, _percent(stats.acceptance)])
    return _table(["arm", "drafter", "drafted", "tested", "accepted", "share"], rows, left=2)


def _spent(summaries: Sequence[Summary]) -> list[str]:
    """Milliseconds a token."""
    rows = [
        [s.arm.name, *(_milliseconds(seconds) for seconds in s.spent), f"{s.overhead_share:.1%}"]
        for s in summaries
        if sum(s.spent)
    ]
    return _table(["arm", "target ms a token", "draft", "outside", "outside share"], rows)


def _forecasts(summaries: Sequence[Summary]) -> list[str]:
    """Tokens a second the scheduler expected of its rounds, and what they gave."""
    rows = []
    for summary in summaries:
        forecast = summary.spec.forecast
        if forecast.error is not None:
            predicted = forecast.tokens / forecast.seconds
            measured = forecast.measured_tokens / forecast.measured_s
            cells = [f"{predicted:.1f}", f"{measured:.1f}", f"{forecast.error:+.1%}"]
            rows.append([summary.arm.name, str(forecast.rounds), *cells])
    return _table(["arm", "rounds", "predicted tok/s", "measured", "error"], rows)


def _reliability(summaries: Sequence[Summary]) -> list[str]:
    """Observed acceptance by bins of the predicted one, and its mean error."""
    rows = []
    for summary in summaries:
        error = calibration_error(summary.spec.reliability)
        if error is not None:
            observed = (
                f"{entry.accepted / entry.tested:.0%} of {entry.tested}" if entry.tested else ""
                for entry in summary.spec.reliability
            )
            rows.append([summary.arm.name, f"{error:.1%}", *observed])
    bins = [f"{n / RELIABILITY_BINS:.0%}+" for n in range(RELIABILITY_BINS)]
    return _table(["predicted", "error", *bins], rows)


def _costs(costs: CostTable | None) -> list[str]:
    """Milliseconds by tokens of a batch, and beside a single token."""
    if costs is None or 1 not in costs.same:
        return []
    single = costs.same[1]
    rows = [
        [str(n), _milliseconds(seconds), f"{seconds / single:.2f}x"]
        for n, seconds in sorted(costs.same.items())
    ]
    return _table(["tokens", "ms", "beside one"], rows, left=0)


def _facts(facts: Mapping[str, Any]) -> list[str]:
    return [f"- {name.replace('_', ' ')}: {_fact(value)}" for name, value in facts.items()]


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_fact(item)}" for name, item in value.items())
    if isinstance(value, list):
        return "; ".join(_fact(item) for item in value)
    return str(value)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _plus_minus(value: float | None) -> str:
    return "" if value is None else f" ± {value:.1f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.1f}"


def _short(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.value:.2f}x"


def _ratio(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.value:.2f}x{interval(ratio)}"
