"""`check`: can this draft serve this target, and how much memory do both take?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli.output import out, size
from specllama.errors import UsageError

if TYPE_CHECKING:
    from specllama.hub.memory import Memory
    from specllama.hub.pair import PairReport


def check(
    target: Annotated[
        str | None,
        typer.Option("-m", "--target", "--model", metavar="MODEL", help="The target."),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            "-md", "--draft", "--model-draft", "--draft-model", metavar="MODEL", help="The draft."
        ),
    ] = None,
    ctx_size: Annotated[
        int | None, typer.Option("-c", "--ctx-size", min=0, help="Context for the estimate.")
    ] = None,
) -> None:
    """Can this draft serve this target?

    Reads the files' headers and loads nothing. The exit code is the answer: 0 yes, 1 no.
    """
    from specllama.cli import settings
    from specllama.hub import builtin
    from specllama.hub.pair import compare
    from specllama.hub.resolve import own_draft, resolve

    merged = settings.load({"target": target, "draft": draft, "ctx_size": ctx_size})
    target_name = merged["target"] or builtin.TARGET
    draft_name = merged["draft"] or own_draft(target_name)
    if draft_name in (None, "none"):
        raise UsageError(f"No draft given for {target_name}.", "Name one: -md MODEL")
    models = resolve(target_name, "target"), resolve(draft_name, "draft")
    report = compare(models[0].header.vocabulary, models[1].header.vocabulary)
    memory = _memory([model.header for model in models], merged)
    answer = _answer(report, memory) | {"target": target_name, "draft": draft_name}
    out.result(answer, lambda: _print(answer, report, memory))
    if not report.compatible:
        raise typer.Exit(1)


def _memory(headers: list[Any], merged: Any) -> list[Memory]:
    """Of target and draft at the same context; the target decides where no length is set."""
    from specllama.hub.memory import estimate

    options = merged.model_options()
    n_ctx = options.context_of(headers[0].n_ctx_train)
    return [estimate(header, n_ctx, options) for header in headers]


def _answer(report: PairReport, memory: list[Memory]) -> dict[str, Any]:
    import psutil

    return {
        "compatible": report.compatible,
        "translatable": report.translatable,
        "target_vocabulary": report.target_size,
        "draft_vocabulary": report.draft_size,
        "differing_ids": len(report.differing_ids),
        "first_difference": asdict(report.first_difference) if report.first_difference else None,
        "reasons": list(report.reasons),
        "notes": list(report.notes),
        "memory": {
            name: asdict(part) | {"total": part.total}
            for name, part in zip(("target", "draft"), memory, strict=True)
        },
        "memory_available": psutil.virtual_memory().available,
    }


def _print(answer: dict[str, Any], report: PairReport, memory: list[Memory]) -> None:
    if report.compatible:
        out.line(f"Yes: {answer['draft']} can serve {answer['target']}.")
    else:
        out.line(f"No: {answer['draft']} cannot serve {answer['target']}.")
    for text in (*report.reasons, *report.notes):
        out.line(f"  {text}")
    if out.mode == "quiet":
        return
    if report.translatable and not report.compatible:
        out.line("  With --translate its guesses go through text, and it can.")
    out.line()
    out.table(
        ["MEMORY", "WEIGHTS", "CONTEXT", "COMPUTE", "TOTAL"],
        [
            (name, *(size(n) for n in (part.weights, part.kv_cache, part.compute, part.total)))
            for name, part in zip(("target", "draft"), memory, strict=True)
        ],
        right="WEIGHTS CONTEXT COMPUTE TOTAL",
    )
    total = sum(part.total for part in memory)
    out.line(f"{size(total)} together (an estimate); {size(answer['memory_available'])} free here")
