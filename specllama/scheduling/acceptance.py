"""How often draft tokens are accepted, by drafter: by depth, and by the draft's own confidence."""

from __future__ import annotations

from collections.abc import Sequence

_DECAY = 0.97
_PRIOR_WEIGHT = 4.0
_PRIOR = 0.7
_BINS = 10
_WEIGHT = 0.1
_USUAL_NODES = 6
_USUAL_ACCEPTED = 1.5


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

    def observe(
        self, n_nodes: int, accepted: int, tested: int, confidences: Sequence[float]
    ) -> None:
        """One verified proposal: `tested` depths, the first `accepted` of them accepted."""
        self.usual_nodes += _WEIGHT * (n_nodes - self.usual_nodes)
        self.usual_accepted += _WEIGHT * (accepted - self.usual_accepted)
        for depth in range(tested):
            if depth == len(self._depths):
                self._depths.append(_Rate(self.at_depth(depth)))
            self._depths[depth].observe(depth < accepted)
            if depth < len(confidences):
                self._bins[_bin(confidences[depth])].observe(depth < accepted)


def _bin(confidence: float) -> int:
    return min(_BINS - 1, int(confidence * _BINS))
