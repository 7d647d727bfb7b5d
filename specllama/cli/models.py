"""`list`, `rm` and `show`: the models on this machine."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli.output import out, size
from specllama.errors import SpecllamaError, UsageError

if TYPE_CHECKING:
    from specllama.hub.cache import CachedModel
    from specllama.hub.gguf import Header


def list_models(
    catalogue: Annotated[
        bool, typer.Option("--catalogue", help="Known pairs instead, here or not.")
    ] = False,
) -> None:
    """List the models on this machine."""
    rows = _known_pairs() if catalogue else [*_built_in(), *_downloaded()]
    out.result(rows, lambda: _print_pairs(rows) if catalogue else _print_models(rows))


def remove(
    names: Annotated[list[str], typer.Argument(help="user/repo:QUANT, or user/repo for all.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a downloaded model."""
    from specllama.hub import cache

    models = list(dict.fromkeys(model for name in names for model in _removable(name)))
    freed = sum(model.size for model in models)
    for model in models:
        out.status(f"{model.name}  {size(model.size)}")
    if not dry_run:
        if not out.confirm(f"Delete {len(models)} model(s), {size(freed)}?", yes=yes):
            raise typer.Exit(1)
        cache.delete(models)
        out.status(f"Freed {size(freed)}.")
    deleted = [model.name for model in models]
    if out.mode == "json":
        out.json({"deleted": deleted, "bytes": freed, "dry_run": dry_run})


def show(
    model: Annotated[str, typer.Argument(help="A GGUF path, a name or user/repo[:QUANT].")],
) -> None:
    """Say what a model file is."""
    from specllama.hub.gguf import read
    from specllama.hub.resolve import locate

    facts = _facts(read(locate(model)))
    out.result(facts, lambda: _print_facts(facts))


def _built_in() -> list[dict[str, Any]]:
    from specllama.hub import builtin

    found = {builtin.TARGET: builtin.find_target(), builtin.DRAFT: builtin.find_draft()}
    return [
        {
            "name": name,
            "path": str(path),
            "bytes": path.stat().st_size,
            "modified": path.stat().st_mtime,
            "source": "built in",
        }
        for name, path in found.items()
        if path is not None
    ]


def _downloaded() -> list[dict[str, Any]]:
    from specllama.hub import cache

    return [
        {
            "name": model.name,
            "path": str(model.paths[0]),
            "bytes": model.size,
            "modified": model.modified,
            "source": "cache",
        }
        for model in cache.models()
    ]


def _print_models(rows: list[dict[str, Any]]) -> None:
    out.table(
        ["NAME", "SIZE", "MODIFIED", "SOURCE"],
        [
            (
                row["name"],
                size(row["bytes"]),
                date.fromtimestamp(row["modified"]).isoformat(),
                row["source"],
            )
            for row in rows
        ],
        right="SIZE",
    )
    if all(row["source"] == "built in" for row in rows):
        out.hint("Nothing downloaded yet. Known pairs: specllama list --catalogue")


def _known_pairs() -> list[dict[str, Any]]:
    from specllama.hub.catalogue import pairs

    return [
        {
            "name": pair.name,
            "target": pair.target.model,
            "target_gb": pair.target.gb,
            "draft": pair.draft.model,
            "draft_gb": pair.draft.gb,
            "here": _is_here(pair.name) and _is_here(pair.draft_name),
            "license": pair.license,
            "note": pair.note,
            "verified": pair.verified,
        }
        for pair in pairs().values()
    ]


def _is_here(name: str) -> bool:
    from specllama.hub.resolve import locate

    try:
        locate(name)
    except SpecllamaError:
        return False
    return True


def _print_pairs(rows: list[dict[str, Any]]) -> None:
    out.table(
        ["NAME", "SIZE", "DRAFT", "HERE", "TARGET"],
        [
            (
                row["name"],
                f"{row['target_gb']:.3g} GB",
                f"{row['draft_gb']:.3g} GB",
                "yes" if row["here"] else "no",
                row["target"],
            )
            for row in rows
        ],
        right="SIZE DRAFT",
    )
    out.hint("Get a pair: specllama download NAME")


def _removable(name: str) -> list[CachedModel]:
    """The cached models that `name` means; a repository without a quantisation means all of it."""
    from specllama.hub import builtin, cache
    from specllama.hub.references import choose, parse

    if name in (builtin.TARGET, builtin.DRAFT):
        raise UsageError(f"{name} came with a package; pip uninstall removes it.")
    reference = parse(name)
    found = [m for m in cache.models() if reference is not None and m.repo == reference.repo]
    if reference is None or not found:
        raise UsageError(f"{name} is not in the cache.", "`specllama list` shows what is.")
    if reference.select is None:
        return found
    wanted = reference.select.lower()
    if named := [model for model in found if model.select.lower() == wanted]:
        return named
    chosen = choose([model.variant for model in found], reference)
    return [model for model in found if model.variant == chosen]


def _facts(header: Header) -> dict[str, Any]:
    vocabulary = header.vocabulary
    return {
        "name": header.name,
        "path": str(header.path),
        "architecture": header.architecture,
        "parameters": header.n_params,
        "quantization": header.quantization,
        "bytes": header.file_size,
        "parts": header.n_parts,
        "context_length": header.n_ctx_train,
        "vocabulary": {
            "size": len(vocabulary),
            "kind": vocabulary.kind,
            "pre_tokenizer": vocabulary.pre,
            "special": {
                name: {"id": id, "text": vocabulary.text(id) if id < len(vocabulary) else ""}
                for name, id in vocabulary.special.items()
            },
            "add_bos": vocabulary.add_bos,
            "add_eos": vocabulary.add_eos,
        },
        "license": header.license,
        "chat_template": header.chat_template,
    }


def _print_facts(facts: dict[str, Any]) -> None:
    vocabulary = facts["vocabulary"]
    special = ", ".join(
        f'{name} {token["id"]} "{token["text"]}"' for name, token in vocabulary["special"].items()
    )
    template = facts["chat_template"]
    parts = f" in {facts['parts']} parts" if facts["parts"] > 1 else ""
    kind = " ".join(text for text in (vocabulary["kind"], vocabulary["pre_tokenizer"]) if text)
    lines = {
        "name": facts["name"],
        "file": facts["path"],
        "architecture": facts["architecture"],
        "parameters": _count(facts["parameters"]),
        "quantization": facts["quantization"],
        "size": size(facts["bytes"]) + parts,
        "context": f"{facts['context_length']} tokens" if facts["context_length"] else "",
        "vocabulary": f"{vocabulary['size']} tokens ({kind})" if vocabulary["size"] else "none",
        "special": special,
        "template": f"{len(template)} characters (--json shows it)" if template else "none",
        "license": facts["license"],
    }
    for name, value in lines.items():
        if value:
            out.line(f"{name:<13} {value}")


def _count(n: int) -> str:
    """134515008 -> "134.5M"."""
    for unit, scale in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= scale:
            return f"{n / scale:.1f}{unit}"
    return str(n)
