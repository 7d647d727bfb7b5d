"""The largest of a row of logits, without sorting a vocabulary: block maxima come first."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from specllama.errors import EngineError
from specllama.sampling.distribution import IntArray

Row = NDArray[np.float32]

_BLOCK = 64


def largest(values: NDArray[np.floating], count: int) -> IntArray:
    """Positions of the `count` largest values, rising; ties at the edge by lowest position."""
    found = at_least_largest(values, count)
    surplus = len(found) - count
    if surplus <= 0:
        return found
    reached = values[found]
    edge = np.flatnonzero(reached == reached.min())
    return np.delete(found, edge[len(edge) - surplus :])


def at_least_largest(values: NDArray[np.floating], count: int) -> IntArray:
    """Positions, rising, of every value not below the `count`-th largest (1 <= count), and NaN."""
    if count >= len(values):
        return all_ids(len(values))
    columns = len(values) // _BLOCK
    if count > columns // 4:
        return _not_below(values, _kth_largest(values, count))
    # the count-th largest of the block maxima cannot exceed the count-th largest value
    maxima, _ = block_maxima(values)
    found = _not_below(values, _kth_largest(maxima, count))
    candidates = values[found]
    enough: IntArray = found[_not_below(candidates, _kth_largest(candidates, count))]
    return enough


def about_largest(row: Row, count: int) -> IntArray:
    """Positions, rising, of the `count` largest values and of a few more that are cheap to find.

    Two passes over the row in as few calls as possible: see `few.LawOfFew`.

    Raises:
        EngineError: the largest value is not finite.
    """
    columns = len(row) // _BLOCK
    if count > columns // 4:
        check_finite(float(row.max()))
        return largest(row, count)
    maxima, tail = block_maxima(row)
    maxima.partition((columns - count, columns - 1))
    top = np.maximum(maxima[-1], tail.max()) if len(tail) else maxima[-1]
    check_finite(float(top))
    # the count-th largest of the maxima cannot exceed the count-th largest value
    found: IntArray = (row >= maxima[columns - count]).nonzero()[0]
    return found


def block_maxima(
    values: NDArray[np.floating],
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """The maximum of each block, a new array, and the values behind the last whole block.

    Blocks are columns of a table, since a maximum over rows is one vector instruction a row.
    """
    columns = len(values) // _BLOCK
    cells = columns * _BLOCK
    return np.maximum.reduce(values[:cells].reshape(_BLOCK, columns), axis=0), values[cells:]


def _not_below(values: NDArray[np.floating], bound: np.floating) -> IntArray:
    # not `>=`: NaN has to stay, for the caller to see that the row is broken
    return np.flatnonzero(~(values < bound))


def _kth_largest(values: NDArray[np.floating], count: int) -> np.floating:
    edge = len(values) - count
    kth: np.floating = np.partition(values, edge)[edge]
    return kth


@lru_cache(maxsize=8)
def all_ids(count: int) -> IntArray:
    """0, 1, ... count - 1; not to be changed."""
    ids = np.arange(count, dtype=np.int64)
    ids.setflags(write=False)
    return ids


def check_finite(top: float) -> None:
    """Raise EngineError where the largest logit of a row is NaN or infinite."""
    if not math.isfinite(top):
        raise EngineError(
            f"No token can be chosen: the largest logit is {top}.",
            "The model file is damaged, or the device computes it wrongly.",
        )
