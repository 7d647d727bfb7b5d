"""The places of a law to draw from, one after the other, with or without putting them back."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
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
    return _Few(law.lists[1]) if len(law) <= FEW else _Many(law)


class _Few:
    """Running sums in a list.

    Args:
        weights: not changed.
    """

    __slots__ = ("_weights", "sums")

    def __init__(self, weights: list[float]) -> None:
        self._weights = weights
        self.sums = list(accumulate(weights))

    @property
    def has_any(self) -> bool:
        return self.total > 0.0

    @property
    def total(self) -> float:
        return self.sums[-1] if self.sums else 0.0

    def draw(self, uniform: float) -> int:
        return self.at(uniform * self.sums[-1])

    def at(self, aim: float) -> int:
        """The place whose running sum is the first above `aim`; by rounding, the last one."""
        place = bisect_right(self.sums, aim)
        if place < len(self.sums):
            return place
        return max(place for place, weight in enumerate(self._weights) if weight > 0.0)

    def take_out(self, place: int) -> None:
        self._weights = self._weights[:]
        self._weights[place] = 0.0
        self.sums = list(accumulate(self._weights))


class _Many:
    """The large weights first, since most draws are of them; the others when one falls there."""

    __slots__ = ("_large", "_law", "_places", "_rest", "_rest_sum")

    def __init__(self, law: Distribution) -> None:
        self._law = law
        self._places: list[int] = law.large.tolist()
        self._large = _Few(law.probs[law.large].tolist())
        self._rest_sum = max(0.0, 1.0 - self._large.total)
        self._rest: _Blocks | None = None

    @property
    def has_any(self) -> bool:
        return self._large.has_any or self._others().has_any

    def draw(self, uniform: float) -> int:
        large = self._large.total
        aim = uniform * (large + self._rest_sum)
        if aim < large:
            return self._places[self._large.at(aim)]
        others = self._others()
        if others.has_any:
            return others.draw((aim - large) / self._rest_sum)
        return self._places[self._large.at(math.inf)]  # rounding only

    def take_out(self, place: int) -> None:
        index = bisect_left(self._places, place)
        if index < len(self._places) and self._places[index] == place:
            self._large.take_out(index)
            return
        others = self._others()
        others.take_out(place)
        self._rest_sum = others.total

    def _others(self) -> _Blocks:
        if self._rest is None:
            weights = self._law.probs.copy()
            weights[self._places] = 0.0
            self._rest = _Blocks(weights)
            self._rest_sum = self._rest.total
        return self._rest


class _Blocks:
    """Weights in blocks whose sums are known: a draw reads two short rows.

    Args:
        weights: float64 [n]; they become its own.
    """

    __slots__ = ("_sums", "_weights")

    def __init__(self, weights: FloatArray) -> None:
        self._weights = weights
        self._sums = np.add.reduceat(weights, _block_starts(len(weights)))

    @property
    def has_any(self) -> bool:
        return bool(self._sums.any())

    @property
    def total(self) -> float:
        return float(np.add.reduce(self._sums))

    def draw(self, uniform: float) -> int:
        reached = self._sums.cumsum()
        aim = uniform * float(reached[-1])
        block = _passed(reached, aim, self._sums)
        inside = self._block(block)
        aim -= float(reached[block] - self._sums[block])
        return block * _BLOCK + _passed(inside.cumsum(), max(aim, 0.0), inside)

    def take_out(self, place: int) -> None:
        self._weights[place] = 0.0
        block = place // _BLOCK
        # added up again: a difference would be nothing but rounding where one place had it all
        self._sums[block] = np.add.reduce(self._block(block))

    def _block(self, block: int) -> FloatArray:
        return self._weights[block * _BLOCK : (block + 1) * _BLOCK]


def _passed(reached: FloatArray, aim: float, weights: FloatArray) -> int:
    """The first place where a running sum is above `aim`; by rounding, the last that has weight."""
    place = int(reached.searchsorted(aim, "right"))
    return place if place < len(reached) else int(weights.nonzero()[0][-1])


@lru_cache(maxsize=8)
def _block_starts(count: int) -> IntArray:
    return np.arange(0, count, _BLOCK)
