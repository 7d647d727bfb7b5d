"""The extreme ones of many numbers, without sorting and almost without a second reading.

The numbers are a table of `ROWS` rows and some numbers behind it. The extremes of all columns cost
one vector instruction a row and a few columns, and few columns hold numbers that matter.
"""

from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
_Number = TypeVar("_Number", bound=np.number)

_ROWS = 32


def maxima(values: NDArray[_Number]) -> NDArray[_Number]:
    """The largest number of each column."""
    found: NDArray[_Number] = np.maximum.reduce(_table(values), axis=0)
    return found


def minima(values: NDArray[_Number]) -> NDArray[_Number]:
    """The smallest number of each column."""
    found: NDArray[_Number] = np.minimum.reduce(_table(values), axis=0)
    return found


def places(columns: IntArray, count: int) -> IntArray:
    """Where the numbers of some columns are, and those behind the table.

    Args:
        columns: rising.
        count: of all numbers.

    Returns:
        Rising.
    """
    starts, behind = _starts(count)
    found = (starts + columns).ravel()
    return np.concatenate((found, behind)) if len(behind) else found


def highest(values: FloatArray, count: int) -> IntArray:
    """Positions, rising, of all values not below the `count`-th largest (at least 1)."""
    if count >= len(values):
        return np.arange(len(values))
    if count > len(values) // _ROWS // 4:
        return (values >= _kth_highest(values, count)).nonzero()[0]
    of_columns = maxima(values)
    near = places((of_columns >= _kth_highest(of_columns, count)).nonzero()[0], len(values))
    candidates = values[near]
    found: IntArray = near[candidates >= _kth_highest(candidates, count)]
    return found


def _kth_highest(values: FloatArray, count: int) -> float:
    edge = len(values) - count
    return float(values.max() if count == 1 else np.partition(values, edge)[edge])


def _table(values: NDArray[_Number]) -> NDArray[_Number]:
    columns = len(values) // _ROWS
    return values[: _ROWS * columns].reshape(_ROWS, columns)


@lru_cache(maxsize=16)
def _starts(count: int) -> tuple[IntArray, IntArray]:
    """The first place of each row, [_ROWS, 1], and the places behind the table."""
    columns = count // _ROWS
    return columns * np.arange(_ROWS)[:, None], np.arange(_ROWS * columns, count)
