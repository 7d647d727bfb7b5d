"""How often draft tokens are accepted, by drafter: by depth, and by the draft's own confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_DECAY = 0.97
_PRIOR_WEIGHT = 4.0
_PRIOR = 0.7
_BINS = 10
_RANK_PRIORS = (0.6, 0.15, 0.06, 0.03)
_WEIGHT = 0.1
_USUAL_NODES = 6
_USUAL_ACCEPTED = 1.5


@dataclass(frozen=True, slots=True)
class Step:
    """One tested depth: the rank of the accepted child (None: all refused), and how many it had."""

    rank: int | None
    n_children: int


class _Rate:
    """A decayed frequency with a prior."""

    __slots__ = ("_hits", "_trials")

    def __init__(self, prior: float) -> None:
        self._hits = prior * _PRIOR_WEIGHT
        self._trials = _PRIOR_WEIGHT

    @property
    def value(self) -> float:
        return self._hits / self._trials

    def observe(self, hit: bool) -> None:
        self._hits = self._hits * _DECAY + hit
        self._trials = self._trials * _DECAY + 1.0


class Acceptance:
    """Estimates for one drafter.

    Attributes:
        usual_nodes, usual_accepted: means of its latest proposals, whatever their shape.
    """

    def __init__(self) -> None:
        self._depths: list[_Rate] = []
        self._bins = [_Rate((n + 0.5) / _BINS) for n in range(_BINS)]
        self._ranks = [_Rate(prior) for prior in _RANK_PRIORS]
        self.usual_nodes = float(_USUAL_NODES)
        self.usual_accepted = _USUAL_ACCEPTED

    def at_depth(self, depth: int) -> float:
        """Probability that the token at `depth` (from 0) is accepted when it is tested."""
        if depth < len(self._depths):
            return self._depths[depth].value
        return self._depths[-1].value if self._depths else _PRIOR

    def at_confidence(self, confidence: float) -> float:
        """Same, given the draft's top probability at that position."""
        return self._bins[_bin(confidence)].value

    def by_rank(self) -> list[float]:
        """Probability that the child of a rank (best first) is the accepted one."""
        return [rate.value for rate in self._ranks]

    def observe(self, steps: Sequence[Step], confidences: Sequence[float], *, n_nodes: int) -> None:
        """One verified proposal: what happened at each tested depth."""
        accepted = sum(step.rank is not None for step in steps)
        self.usual_nodes += _WEIGHT * (n_nodes - self.usual_nodes)
        self.usual_accepted += _WEIGHT * (accepted - self.usual_accepted)
        for depth, step in enumerate(steps):
            if depth == len(self._depths):
                self._depths.append(_Rate(self.at_depth(depth)))
            hit = step.rank is not None
            self._depths[depth].observe(hit)
            if depth < len(confidences):
                self._bins[_bin(confidences[depth])].observe(hit)
            for rank, rate in enumerate(self._ranks[: step.n_children]):
                rate.observe(rank == step.rank)


def _bin(confidence: float) -> int:
    return min(_BINS - 1, int(confidence * _BINS))
