"""Why the scheduler did what it did, in words for people and as data for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from specllama.results import SpecStats
from specllama.scheduling.account import BUDGET_S, BUDGET_SHARE
from specllama.scheduling.costs import Costs
from specllama.scheduling.scheduler import Scheduler, kind
from specllama.scheduling.table import CostTable, Seconds

_LENGTHS = (1, 2, 3, 4, 6, 8)
_NOTABLE = (2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Prospect:
    """What one drafter was expected to bring.

    Attributes:
        token_share: seconds of a drafted token as a share of a plain one.
        acceptance: of its first token in a round.
        speeds: by tokens drafted a round, times the speed of plain decoding.
        best: the best it can do, stopping where its own confidence says so.
    """

    name: str
    token_share: float
    acceptance: float
    speeds: dict[int, float]
    best: float

    @property
    def pays(self) -> bool:
        """Whether it is expected to be faster than plain decoding."""
        return self.best > 1.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was known, what was expected of it, and what was done.

    Attributes:
        table: at the pace of this generation, whatever was kept.
        lines: the same in sentences.
    """

    table: CostTable
    prospects: list[Prospect] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "text": self.lines,
            "costs": self.table.to_dict(),
            "drafters": [asdict(p) | {"pays": p.pays} for p in self.prospects],
            "budget": {"share": BUDGET_SHARE, "seconds": BUDGET_S},
        }


def explain(
    scheduler: Scheduler,
    stats: SpecStats,
    *,
    costly: Sequence[str],
    free: Sequence[str],
    temperature: float,
    adaptive: bool = True,
) -> Explanation:
    """Explain a generation that has just ended.

    Args:
        costly, free: names of the drafters that were asked for: with a model, and without.
        adaptive: whether the lengths of drafts were the scheduler's choice.
    """
    if not scheduler.costs.measured():
        line = "Too few tokens to learn what decodes cost here, so it decoded plainly."
        return Explanation(scheduler.table(), [], [line])
    table = _at_todays_pace(scheduler)
    prospects = [_prospect(scheduler, name, temperature, table) for name in costly]
    lines = [_batches(scheduler.costs)]
    for prospect in prospects:
        why = _choice(prospect, prospect.name in stats.by_source) if adaptive else _FIXED
        lines.append(_of_drafter(prospect) + why)
    if not costly and not free:
        lines.append("No drafter was asked for, so it decoded plainly.")
    lines += [*_of_free(free, stats), _done(stats), *_forecast(stats)]
    if adaptive and stats.forecast.error is not None:
        lines[-1] += _BUDGET
    return Explanation(table, prospects, lines)


def _at_todays_pace(scheduler: Scheduler) -> CostTable:
    """What is known, at the prices that it was decided by; a calibrated table keeps its level."""
    table, costs = scheduler.table(), scheduler.costs
    pace = costs.pace if table.how == "calibrated" else 1.0

    def paced(kept: Seconds) -> Seconds:
        return {n: seconds * pace for n, seconds in kept.items()}

    return replace(
        table,
        same=dict(costs.steady()),
        other=paced(table.other),
        back=paced(table.back),
        second=paced(table.second),
        draft={
            name: {n: costs.draft_s(name, n) for n in looks} for name, looks in table.draft.items()
        },
    )


def _prospect(scheduler: Scheduler, name: str, temperature: float, table: CostTable) -> Prospect:
    plain, looks = scheduler.plain_s, max(table.draft.get(name) or (1,))
    acceptance = scheduler.acceptance(name, temperature)
    survival, tokens, speeds = 1.0, 1.0, {}
    for length in range(1, max(_LENGTHS) + 1):
        survival *= acceptance.at_depth(length - 1)
        tokens += survival
        seconds = scheduler.steady_s(1 + length) + scheduler.draft_s(name, length)
        speeds[length] = round(tokens * plain / seconds, 3)
    best = scheduler.chain_outlook(name, kind(name, temperature), max(_LENGTHS)).rate * plain
    return Prospect(
        name=name,
        token_share=round(scheduler.draft_s(name, looks) / looks / plain, 3),
        acceptance=round(acceptance.at_depth(0), 3),
        speeds={length: speeds[length] for length in _LENGTHS},
        best=round(max(best, *speeds.values()), 3),
    )


def _batches(costs: Costs) -> str:
    one = costs.target_s(1)
    known = [n for n in _NOTABLE if costs.measured(n)]
    if not known:
        return f"A single token takes {1000 * one:.1f} ms here; no batch was measured yet."
    first, *rest = (f"{n} costs {costs.target_s(n) / one:.2f}" for n in known)
    said = ", ".join([f"A batch of {first} single tokens here", *(f"one of {n}" for n in rest)])
    if costs.switch_s:
        said += f"; going over to another size costs {1000 * costs.switch_s:.1f} ms"
    return f"{said}. (A single token takes {1000 * one:.1f} ms.)"


def _of_drafter(prospect: Prospect) -> str:
    if not prospect.token_share:
        return f"{prospect.name} was not tried yet"
    best = max(prospect.speeds, key=lambda length: prospect.speeds[length])
    said = (
        f"A token drafted by {prospect.name} costs {prospect.token_share:.2f} of a plain one, and "
        f"the first of a round is accepted {prospect.acceptance:.0%} of the time: drafting "
        f"{_tokens(best)} would give {prospect.speeds[best]:.2f} x plain"
    )
    if prospect.pays and prospect.speeds[best] <= 1.0:
        said += f", but {prospect.best:.2f} x if it drafts where it is sure"
    return said


_FIXED = ", but how much it drafts was fixed, whatever it brings."


def _choice(prospect: Prospect, used: bool) -> str:
    """What the scheduler made of it."""
    if not prospect.token_share:
        return ": a first try must not lose more than the budget."
    if prospect.pays and used:
        return ": so it drafted."
    if prospect.pays:
        return ": worth it, but refused drafts could have cost more than the budget so far."
    return ", so it decoded plainly, but for a rare try whether that is still so."


def _of_free(names: Sequence[str], stats: SpecStats) -> list[str]:
    used = [f"{n} ({_share(stats, n)})" for n in names if n in stats.by_source]
    if used:
        return [f"Drafting without a model costs only its verification: {', '.join(used)}."]
    return [f"Nothing to copy was found by {', '.join(names)}."] if names else []


def _share(stats: SpecStats, name: str) -> str:
    source = stats.by_source[name]
    return f"{source.accepted} of {source.drafted} accepted"


def _done(stats: SpecStats) -> str:
    rounds = stats.rounds
    return (
        f"In {rounds} round{'' if rounds == 1 else 's'} {_tokens(stats.drafted)} "
        f"{'was' if stats.drafted == 1 else 'were'} drafted and {stats.accepted} accepted: "
        f"{stats.tokens_per_round:.2f} tokens a round."
    )


def _forecast(stats: SpecStats) -> list[str]:
    forecast, error = stats.forecast, stats.forecast.error
    if error is None:
        return []
    return [
        f"Expected {forecast.tokens / forecast.seconds:.1f} tokens/s, measured "
        f"{forecast.measured_tokens / forecast.measured_s:.1f} ({error:+.0%})."
    ]


_BUDGET = (
    f" A reply may lose {BUDGET_SHARE:.0%} and {1000 * BUDGET_S:.0f} ms to drafting; then it goes "
    "on plainly."
)


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"
