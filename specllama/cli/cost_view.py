"""A cost table for people: columns and a small plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specllama.cli.output import out

if TYPE_CHECKING:
    from specllama.scheduling.explain import Explanation
    from specllama.scheduling.table import CostTable, Seconds

Explain = Annotated[
    bool, typer.Option("--explain", help="Say on stderr why it drafted as it did, and the costs.")
]

_BAR = 24
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def say_why(explanation: Explanation) -> None:
    """An explanation on stderr: what was known, as a table and a small plot, then the sentences."""
    for line in table_lines(explanation.table):
        out.stats(line)
    for line in explanation.lines:
        out.status(line)


def table_lines(table: CostTable) -> list[str]:
    """What is known, a line each: batches with bars, drafting, reading, threads, exact range."""
    lines = [*_batches(table), *_drafting(table)]
    if table.prefill:
        lines.append(f"reading a prompt: {1 / table.prefill:.0f} tokens/s")
    for what, count in table.threads.items():
        lines.append(f"fastest {what} decoding: {count} thread{'s' if count > 1 else ''}")
    if table.exact_batch is not None:
        lines.append(_exact(table.exact_batch))
    return lines


def origin(table: CostTable) -> str:
    """Where a table comes from."""
    load = "" if table.load is None else f", load average {table.load:.1f}"
    return f"{table.how} {table.date.replace('T', ' ')}{load}".rstrip()


def _batches(table: CostTable) -> list[str]:
    same, changes = table.same or table.other, table.back or table.other
    if 1 not in same:
        return []
    most = max(same.values())
    lines = ["tokens      ms  x single" + ("  changed" if changes else "")]
    for n, seconds in sorted(same.items()):
        changed = f"  {1000 * changes[n]:7.2f}" if n in changes else ""
        lines.append(
            f"{n:>6} {1000 * seconds:7.2f} {seconds / same[1]:9.2f}{changed}  {bar(seconds / most)}"
        )
    return lines


def _drafting(table: CostTable) -> list[str]:
    single = (table.same or table.other).get(1)
    return [
        f"drafting with {name}: {_rows(costs)} ms"
        + (f" (a token is {_each(costs) / single:.2f} of a plain one)" if single else "")
        for name, costs in table.draft.items()
        if costs
    ]


def _rows(costs: Seconds) -> str:
    return ", ".join(f"{n}: {1000 * seconds:.2f}" for n, seconds in sorted(costs.items()))


def _each(costs: Seconds) -> float:
    most = max(costs)
    return costs[most] / most


def _exact(most: int) -> str:
    if most < 2:
        return "bit-exact with --exact: single tokens only, no batch"
    return f"bit-exact with --exact: batches of up to {most} tokens"


def bar(share: float, width: int = _BAR) -> str:
    """A horizontal bar of a share from 0 to 1, in eighths of a character."""
    whole, rest = divmod(round(share * width * 8), 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
