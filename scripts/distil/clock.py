"""The time since the start, which --minutes counts from: to be imported before torch is."""

import os
import time

STARTED = time.monotonic()


def log(message: str) -> None:
    """Print with the time; under torchrun only the first rank does."""
    if os.environ.get("RANK", "0") == "0":
        print(f"[{time.monotonic() - STARTED:6.0f}] {message}", flush=True)
