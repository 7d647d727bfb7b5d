"""A report as a Weights & Biases run; the `wandb` package is the person's to install.

`WANDB_MODE=offline` keeps it on this machine, as with every use of that package.
"""

from __future__ import annotations

from typing import Any

from specllama.bench.report import Report
from specllama.bench.summary import Summary
from specllama.errors import SpecllamaError, UsageError

PROJECT = "specllama-bench"


def require() -> Any:
    """The package.

    Raises:
        UsageError: it is not installed; says how to get it.
    """
    try:
        import wandb
    except ImportError as error:
        raise UsageError(
            "--wandb needs the wandb package, which is not installed.", "Run: pip install wandb"
        ) from error
    return wandb


def log(report: Report) -> None:
    """One run: facts as its config, arms as its summary, every generation as a row of a table.

    Raises:
        SpecllamaError: the package took none: nobody is logged in, or there is no network.
    """
    wandb = require()
    try:
        _log(wandb, report)
    except wandb.Error as error:
        raise SpecllamaError(
            f"Weights & Biases took no run: {error}", "WANDB_MODE=offline keeps it on this machine."
        ) from error


def _log(wandb: Any, report: Report) -> None:
    config = {**report.facts, "arms": [summary.to_dict() for summary in report.summaries]}
    with wandb.init(project=PROJECT, job_type="bench", config=config) as run:
        columns = list(_row(report, 0)) if report.runs else []
        rows = [list(_row(report, n).values()) for n in range(len(report.runs))]
        run.log({"runs": wandb.Table(columns=columns, data=rows)})
        for summary in report.summaries:
            run.summary.update(_figures(summary))
        run.summary["verdict"] = "; ".join(report.verdicts)


def _row(report: Report, n: int) -> dict[str, Any]:
    data = report.runs[n].to_dict()
    flat = {name: value for name, value in data.items() if not isinstance(value, dict | list)}
    return flat | {"tokens": data["usage"]["completion_tokens"], **data["timings"]}


def _figures(summary: Summary) -> dict[str, Any]:
    ratio = summary.speedup
    figures = {
        "tok_s": summary.tok_s,
        "speedup": ratio.value if ratio else None,
        "speedup_low": ratio.low if ratio else None,
        "speedup_high": ratio.high if ratio else None,
        "acceptance": summary.spec.acceptance,
        "tokens_per_round": summary.spec.tokens_per_round,
        "overhead_share": summary.overhead_share,
    }
    return {f"{summary.arm.name}/{name}": v for name, v in figures.items() if v is not None}
