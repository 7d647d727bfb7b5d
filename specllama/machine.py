"""Facts about this machine and installation that several places tell."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

GraphsKept = Literal["none", "latest", "sized"]
"""Which captured graphs a device keeps: none, that of the latest decode, one for each size (and
block of cells)."""
LARGEST_KEPT = 31
"""Decodes of more tokens have no graph of their own: from 32 on, ggml itself looks at the first
node (weights of experts on the CPU)."""
MOST_KEPT = 24
"""So many graphs are kept, since each takes memory of the card: some 4 MiB with a model of 8B."""


def package_version(package: str) -> str:
    """The installed version of a package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    """The processor's name; Python knows it only on some systems."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
