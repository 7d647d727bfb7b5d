"""What drafting promises before anything is drafted: expected tokens and seconds of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from operator import mul

from specllama.scheduling.acceptance import Acceptance

_STEPS = 3
_MOST_NODES = 32


@dataclass(frozen=True, slots=True)
class Outlook:
    """A way to spend rounds, in the mean.

    Attributes:
        tokens, seconds: of a round.
        drafted: tokens drafted in it.
    """

    tokens: float
    seconds: float
    drafted: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def chain(acceptance: Acceptance, batch: Sequence[float], draft: Sequence[float]) -> Outlook:
    """A chain that looks at the draft's first confidence and then chooses its length.

    The rule maximises tokens - rate x seconds; the rate that it earns itself is found by
    Dinkelbach's iteration (W. Dinkelbach, "On nonlinear fractional programming", 1967), from plain
    decoding upwards.

    Args:
        batch: seconds of verifying 0, 1, ... drafted tokens.
        draft: seconds of looking at 0, 1, ... positions.
    """
    limit = len(batch) - 1
    plain = Outlook(1.0, batch[0])
    if limit < 1:
        return plain
    survivals = accumulate((acceptance.at_depth(depth) for depth in range(1, limit)), mul)
    after_first = [1.0, *(1.0 + extra for extra in accumulate(survivals))]
    looks = acceptance.looks() or [(1.0, acceptance.at_depth(0))]
    best = plain
    for _ in range(_STEPS):
        found = _asking(looks, after_first, batch, draft, best.rate)
        if found.rate <= best.rate:
            return best if best is not plain else found
        best = found
    return best


def _asking(
    looks: Sequence[tuple[float, float]],
    after_first: Sequence[float],
    batch: Sequence[float],
    draft: Sequence[float],
    rate: float,
) -> Outlook:
    """Rounds that ask for a first look and draft on where that is worth it at a rate."""
    tokens = seconds = drafted = 0.0
    for share, first in looks:
        gain, given, taken, length = -rate * (batch[0] + draft[1]), 0.0, batch[0] + draft[1], 0
        for n, following in enumerate(after_first, start=1):
            value = first * following - rate * (batch[n] + draft[n])
            if value > gain:
                gain, given, taken, length = value, first * following, batch[n] + draft[n], n
        tokens += share * (1.0 + given)
        seconds += share * taken
        drafted += share * length
    return Outlook(tokens, seconds, drafted)


def tree(
    acceptance: Acceptance, batch: Sequence[float], levels: Sequence[float], width: int
) -> Outlook:
    """The best tree of so many nodes at most, if a child of a rank is accepted as often as ever.

    A node counts with the product of its path's ranks; the most valuable nodes that may be added
    make the best tree of each size.

    Args:
        batch: seconds of verifying 0, 1, ... nodes.
        levels: seconds of drafting 0, 1, ... levels.
        width: the most children of a node.
    """
    ranks = acceptance.by_rank()[:width]
    heap = [(-rate, 1) for rate in ranks]
    heap.sort()
    best, tokens, depth = Outlook(1.0, batch[0]), 1.0, 0
    for size in range(1, min(len(batch) - 1, _MOST_NODES) + 1):
        if not heap:
            break
        value, level = heappop(heap)
        tokens -= value
        depth = max(depth, level)
        if level + 1 < len(levels):
            for rate in ranks:
                heappush(heap, (value * rate, level + 1))
        found = Outlook(tokens, batch[size] + levels[depth], size)
        if found.rate > best.rate or size == 1:
            best = found
    return best
