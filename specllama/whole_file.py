"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, which then takes its place in one step.

    A reader sees the old file or the whole new one. Where writing breaks off, the old one stays and
    nothing is left beside it. Each thread of each process writes to a file of its own.

    Raises:
        OSError: it cannot be written, or not put in its place.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        yield part
        part.replace(path)
    finally:
        with suppress(OSError):  # in its place, or never there
            part.unlink()
