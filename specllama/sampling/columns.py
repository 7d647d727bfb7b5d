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
        tail = (self._values[self._n_table :] <= bound).nonzero()[0]
        return np.concatenate((rows * len(self._minima) + near[which], tail + self._n_table))

    def lowest(self, count: int) -> IntArray:
        """Positions, rising, of all values not above the `count`-th smallest (at least 1)."""
        if count >= len(self._values):
            return np.arange(len(self._values))
        if count > len(self._minima) // 4:
            return (self._values <= _kth(self._values, count)).nonzero()[0]
        # the count-th smallest of the minima cannot be below the count-th smallest value
        near = self.not_above(_kth(self._minima, count))
        candidates = self._values[near]
        found: IntArray = near[candidates <= _kth(candidates, count)]
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
    bound = _kth_highest(maxima, count)
    near = (maxima >= bound).nonzero()[0]
    rows, which = (table[:, near] >= bound).nonzero()
    found = np.concatenate(
        (rows * columns + near[which], (tail >= bound).nonzero()[0] + _ROWS * columns)
    )
    candidates = values[found]
    enough: IntArray = found[candidates >= _kth_highest(candidates, count)]
    return enough


def _kth_highest(values: FloatArray, count: int) -> float:
    edge = len(values) - count
    return float(values.max() if count == 1 else np.partition(values, edge)[edge])


def _kth(values: FloatArray, count: int) -> float:
    return float(values.min() if count == 1 else np.partition(values, count - 1)[count - 1])
