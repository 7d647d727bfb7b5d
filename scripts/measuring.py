"""What the measuring scripts share: facts that belong beside every figure, and the last line."""

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specllama.errors import SpecllamaError
from specllama.machine import cpu_name

PROMPTS = (
    "The history of the lighthouse begins in antiquity, when fires were lit on hilltops to guide"
    " ships into port. Over the centuries",
    "Question: How does a bicycle stay upright while it is moving?\nAnswer: A bicycle stays upright"
    " because",
    "def count_words(text):\n    counts = {}\n    for word in text.split():\n",
)


def facts() -> dict[str, Any]:
    """Date, machine, load and versions."""
    return {
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "specllama": version("specllama"),
        "llama_cpp_python": version("llama-cpp-python"),
    }


def print_facts(found: dict[str, Any]) -> None:
    """The facts as lines for people, with a warning where the machine is busy."""
    print("\n".join(f"{name}: {value}" for name, value in found.items()))
    if found["load_average"][0] > 0.5:
        print("NOTE: the machine is busy; these figures are not to be published.")
    print(flush=True)


def median(values: Iterable[float]) -> float:
    """The median, rounded to what such measurements are worth."""
    return float(f"{statistics.median(values):.4g}")


def print_json(data: dict[str, Any]) -> None:
    """The last line of stdout: everything, compact."""
    print(json.dumps(data, separators=(",", ":")))


def put_between(page: Path, begin: str, end: str, lines: Sequence[str]) -> None:
    """Put lines between two markers of a page.

    Raises:
        SpecllamaError: the page lacks the markers.
    """
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise SpecllamaError(f"{page} lacks the markers.", f"Put {begin} and {end} into it.")
    page.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}", encoding="utf-8")
