"""What belongs beside every figure: the machine, its load, the versions and the very files."""

from __future__ import annotations

import hashlib
import os
import platform
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = ("specllama", "llama-cpp-python", "numpy")
_HASH_DIGITS = 12

BUSY = 0.5
"""A one-minute load average above which figures are not worth publishing."""


def machine() -> dict[str, Any]:
    """Date, machine and versions."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "system": platform.platform(),
        "cpu": _cpu(),
        "cores": psutil.cpu_count(logical=False),
        "cpu_threads": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
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


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    """The processor's name; Python knows it only on some systems."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
