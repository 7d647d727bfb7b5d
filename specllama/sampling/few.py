"""The law where top-k is small, and the most probable token: what most drafts and tokens come from.

Both are wanted right behind a decode, when the row lies in no near cache and each call of NumPy
costs many times what it does in a loop. So `_few.c` answers in one call. Where it was not compiled
(no C compiler at installation), Python makes the same law to the last bit.
"""

import math

import numpy as np

from specllama.sampling.distribution import LEAST, Distribution, IntArray
from specllama.sampling.params import SamplingParams
from specllama.sampling.rows import Row, about_largest, block_maxima, check_finite

try:
    from specllama.sampling import _few
except ImportError:
    _few = None  # type: ignore[assignment]

COLDEST = 1e-30
"""The least temperature above 0 that float32 can divide by: greedy but for exact ties."""


def is_compiled() -> bool:
    """Whether the compiled part is there; nothing but speed depends on it."""
    return _few is not None


def best(row: Row) -> tuple[int, float]:
    """The most probable token (of equals the lowest), and about its probability at temperature 1.

    Of each block only the largest logit is counted: others weigh something beside it seldom.

    Raises:
        EngineError: the row holds NaN or infinity.
    """
    found = None if _few is None else _few.best(row)
    if found is not None:
        return found
    token = int(row.argmax())
    top = row[token]
    check_finite(float(top))
    maxima, tail = block_maxima(row)
    mass = float(np.add.reduce(np.exp(maxima - top)))
    if len(tail):
        mass += float(np.add.reduce(np.exp(tail - top)))
    return token, 1.0 / max(mass, 1.0)


class LawOfFew:
    """Top-k, top-p, min-p and temperature, in this order.

    Args:
        params: with a temperature above 0 and a top-k from 1 to `FEW`; no typical-p.
    """

    __slots__ = ("_log_min_p", "_temperature", "_top_k", "_top_p")

    def __init__(self, params: SamplingParams) -> None:
        self._top_k = params.top_k
        self._top_p = params.top_p
        self._log_min_p = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
        self._temperature = max(params.temperature, COLDEST)

    def of(self, ids: IntArray | None, values: Row) -> Distribution:
        """The law over some tokens, more than top-k leaves.

        Args:
            ids: rising; None: all.
            values: their logits, float32.

        Raises:
            EngineError: the largest is not finite.
        """
        if ids is None and _few is not None:
            args = (self._top_k, self._top_p, self._log_min_p, self._temperature)
            if (found := _few.law(values, *args)) is not None:
                return Distribution.of_few(*found)
        places = about_largest(values, self._top_k)
        kept = places if ids is None else ids[places]
        return self._of_listed(kept.tolist(), values[places].tolist())

    def _of_listed(self, ids: list[int], values: list[float]) -> Distribution:
        """The same over lists that hold all that top-k leaves."""
        falling = sorted(range(len(values)), key=values.__getitem__, reverse=True)
        del falling[self._top_k :]
        top = values[falling[0]]
        kept = sorted(falling[: self._count([values[place] for place in falling])])
        weights = [math.exp((values[place] - top) / self._temperature) for place in kept]
        total = _sum(weights)
        pairs = [(ids[place], w / total) for place, w in zip(kept, weights, strict=True)]
        pairs = [pair for pair in pairs if pair[1] >= LEAST]
        return Distribution.of_few([token for token, _ in pairs], [prob for _, prob in pairs])

    def _count(self, falling: list[float]) -> int:
        """How many of the falling logits min-p and top-p leave."""
        top = falling[0]
        least = float(np.float32(top) + np.float32(self._log_min_p))
        likely = sum(value >= least for value in falling)
        if self._top_p >= 1.0 or likely == 1:
            return likely
        weights = [math.exp(value - top) for value in falling]
        return min(likely, count_to(weights, self._top_p * _sum(weights)))


def _sum(weights: list[float]) -> float:
    """From left to right as in C; Python 3.12's own sum rounds less."""
    total = 0.0
    for weight in weights:
        total += weight
    return total


def count_to(weights: list[float], mass: float) -> int:
    """How many of the first weights it takes to sum to at least `mass`."""
    reached = 0.0
    for count, weight in enumerate(weights, 1):
        reached += weight
        if reached >= mass:
            return count
    return len(weights)
