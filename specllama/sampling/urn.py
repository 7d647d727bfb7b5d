"""The places of a law to draw from, one after the other, with or without putting them back."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

import numpy as np

from specllama.sampling.distribution import FEW, Distribution, FloatArray, IntArray

_BLOCK = 512


class Urn(Protocol):
    """Places with the weights they are drawn by."""

    @property
    def has_any(self) -> bool:
        """Whether there is anything left to draw."""

    def draw(self, uniform: float) -> int:
        """The place where the running sum passes `uniform` of the total; it stays."""

    def take_out(self, place: int) -> None:
        """Let a place not come again."""


def urn(law: Distribution) -> Urn:
    """All places of a law."""
    return _Few(law.lists[1]) if len(law) <= FEW else _Many(law.probs)


class _Few:
    """Running sums in a list.

    Args:
        weights: not changed.
    """

    __slots__ = ("_sums", "_weights")

    def __init__(self, weights: list[float]) -> None:
        self._weights = weights
        self._sums = list(accumulate(weights))

    @property
    def has_any(self) -> bool:
        return self._sums[-1] > 0.0

    def draw(self, uniform: float) -> int:
        place = bisect_right(self._sums, uniform * self._sums[-1])
        if place < len(self._sums):
            return place
        # rounding only
        return max(place for place, weight in enumerate(self._weights) if weight > 0.0)

    def take_out(self, place: int) -> None:
        self._weights = self._weights[:]
        self._weights[place] = 0.0
        self._sums = list(accumulate(self._weights))


class _Many:
    """Weights in blocks whose sums are known: a draw reads two short rows.

    Args:
        weights: float64 [n]; not changed.
    """

    __slots__ = ("_changed", "_sums", "_weights")

    def __init__(self, weights: FloatArray) -> None:
        self._weights = weights
        self._sums = np.add.reduceat(weights, _block_starts(len(weights)))
        self._changed: dict[int, FloatArray] = {}

    @property
    def has_any(self) -> bool:
        return bool(self._sums.any())

    def draw(self, uniform: float) -> int:
        reached = self._sums.cumsum()
        aim = uniform * float(reached[-1])
        block = _passed(reached, aim, self._sums)
        inside = self._block(block)
        aim -= float(reached[block] - self._sums[block])
        return block * _BLOCK + _passed(inside.cumsum(), max(aim, 0.0), inside)

    def take_out(self, place: int) -> None:
        block, inside = divmod(place, _BLOCK)
        self._changed[block] = self._block(block).copy()
        self._changed[block][inside] = 0.0
        # added up again: a difference would be nothing but rounding where one place had it all
        self._sums[block] = np.add.reduce(self._changed[block])

    def _block(self, block: int) -> FloatArray:
        if block in self._changed:
            return self._changed[block]
        return self._weights[block * _BLOCK : (block + 1) * _BLOCK]


def _passed(reached: FloatArray, aim: float, weights: FloatArray) -> int:
    """The first place where a running sum is above `aim`; by rounding, the last that has weight."""
    place = int(reached.searchsorted(aim, "right"))
    return place if place < len(reached) else int(weights.nonzero()[0][-1])


@lru_cache(maxsize=8)
def _block_starts(count: int) -> IntArray:
    return np.arange(0, count, _BLOCK)
