"""What something usually takes, of which single times are long now and then."""

from __future__ import annotations

import math
from collections import deque

_RECENT = 5
_IMPLAUSIBLE = 20.0


class Typical:
    """The lower median of the latest times: hiccups of a busy machine do not count, drift does.

    A time that no clock should show (none at all, or twenty times what is usual, as after a sleep)
    is dropped unless the next one confirms it.

    Attributes:
        value: seconds, 0 before anything was observed.
        count: times that were believed.
    """

    __slots__ = ("_doubted", "_recent", "count", "value")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._doubted = False
        self.count = 0
        self.value = 0.0

    def observe(self, seconds: float) -> bool:
        """Add a time; False where it was dropped."""
        if not (math.isfinite(seconds) and seconds > 0.0):
            return False
        if self.count > 1 and not self._doubted and self._is_implausible(seconds):
            self._doubted = True
            return False
        self._doubted = False
        self._recent.append(seconds)
        self.value = sorted(self._recent)[(len(self._recent) - 1) // 2]
        self.count += 1
        return True

    def cap(self, seconds: float) -> None:
        """None of the times was any longer than this, it turned out."""
        self._recent = deque((min(one, seconds) for one in self._recent), _RECENT)
        self.value = min(self.value, seconds)

    @property
    def latest(self) -> float:
        """The latest time that was believed (there is one)."""
        return self._recent[-1]

    def _is_implausible(self, seconds: float) -> bool:
        return not 1 / _IMPLAUSIBLE <= seconds / self.value <= _IMPLAUSIBLE
