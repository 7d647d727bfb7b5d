"""A clock that tests move."""

from __future__ import annotations

from dataclasses import dataclass

TICK = 2.0**-16  # a power of two, so that differences are exact


@dataclass
class Clock:
    """Stands in for the `time` module."""

    now: float = 0.0
    tick: float = TICK

    def perf_counter(self) -> float:
        self.now += self.tick
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
