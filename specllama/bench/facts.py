"""What belongs beside every figure: the machine, its load, the versions and the very files."""

from __future__ import annotations

import hashlib
import os
import platform
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from specllama.machine import cpu_name, package_version

_PACKAGES = ("specllama", "llama-cpp-python", "numpy")
_HASH_DIGITS = 12

BUSY = 0.5
"""A one-minute load average above which figures are not worth publishing."""


def machine() -> dict[str, Any]:
    """Date, machine and versions."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "cpu_threads": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        **{name: package_version(name) for name in _PACKAGES},
    }


def load_average() -> list[float]:
    """Over 1, 5 and 15 minutes."""
    return [round(load, 2) for load in psutil.getloadavg()]


def model_file(name: str, path: Path) -> dict[str, Any]:
    """A model's name, size and the first digits of its SHA-256 (of a split model, part one's)."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "name": name,
        "file": path.name,
        "bytes": os.path.getsize(path),
        "sha256": digest[:_HASH_DIGITS],
    }
