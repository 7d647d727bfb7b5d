"""The small or large ones of many numbers, without sorting and almost without a second reading."""

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_ROWS = 64


class Columns:
    """Numbers as a table of columns whose minima are known: few columns hold small ones.

    A minimum over rows is one vector instruction a row, so it costs a single pass.

    Args:
        values: float64 [n], not NaN; kept, not copied.
    """

    __slots__ = ("_minima", "_n_table", "_values")

    def __init__(self, values: FloatArray) -> None:
        self._values = values
        columns = len(values) // _ROWS
        self._n_table = _ROWS * columns
        self._minima = np.minimum.reduce(self._table(), axis=0)

    def _table(self) -> FloatArray:
        return self._values[: self._n_table].reshape(_ROWS, -1 if self._n_table else 0)

    def not_above(self, bound: float) -> IntArray:
        """Positions, rising, of the values not above a bound."""
        near = (self._minima <= bound).nonzero()[0]
        rows, which = (self._table()[:, near] <= bound).nonzero()
        found: IntArray = rows * len(self._minima) + near[which]
        if self._n_table == len(self._values):
            return found
        tail = (self._values[self._n_table :] <= bound).nonzero()[0]
        return np.concatenate((found, tail + self._n_table))

    def some_low(self, count: int) -> IntArray:
        """Positions of `count` small values, or of all if there are not so many.

        The smallest of different columns: not always the smallest of all.
        """
        if count > len(self._minima):
            count = min(count, len(self._values))
            return self._values.argpartition(count - 1)[:count]
        if count == 1:
            columns = self._minima.argmin(keepdims=True)
        else:
            columns = self._minima.argpartition(count - 1)[:count]
        found: IntArray = self._table()[:, columns].argmin(axis=0) * len(self._minima) + columns
        return found


def highest(values: FloatArray, count: int) -> IntArray:
    """Positions, rising, of all values not below the `count`-th largest (at least 1)."""
    columns = len(values) // _ROWS
    if count >= len(values):
        return np.arange(len(values))
    if count > columns // 4:
        return (values >= _kth_highest(values, count)).nonzero()[0]
    table, tail = values[: _ROWS * columns].reshape(_ROWS, columns), values[_ROWS * columns :]
    maxima = np.maximum.reduce(table, axis=0)
    near = (maxima >= _kth_highest(maxima, count)).nonzero()[0]
    candidates = table[:, near].ravel()
    n_inside = len(candidates)
    if len(tail):
        candidates = np.concatenate((candidates, tail))
    enough = (candidates >= _kth_highest(candidates, count)).nonzero()[0]
    inside = enough[: enough.searchsorted(n_inside)]
    found: IntArray = inside // len(near) * columns + near[inside % len(near)]
    if len(inside) == len(enough):
        return found
    return np.concatenate((found, enough[len(inside) :] + (_ROWS * columns - n_inside)))


def _kth_highest(values: FloatArray, count: int) -> float:
    edge = len(values) - count
    return float(values.max() if count == 1 else np.partition(values, edge)[edge])
