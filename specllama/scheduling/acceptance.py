"""How often draft tokens are accepted, by drafter: by depth, by the draft's confidence, by rank.

Every estimate is a frequency that forgets: recent trials count more, and where there are few the
estimate leans on a broader one (a confidence at a depth on that confidence at any depth, that on
what it usually was in this and in earlier sessions, that on the confidence itself).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_DECAY = 0.98
_PRIOR_WEIGHT, _GUESS_WEIGHT = 20.0, 12.0
_WANING = 0.94
_LEAST_WEIGHT = 2.0
_OPEN_LOOKS = 4.0
_PRIOR = 0.7
_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_MIDDLES = tuple((low + high) / 2 for low, high in zip((0.0, *_EDGES), (*_EDGES, 1.0), strict=True))
_GROUPS = 3
_RANK_PRIORS = (0.6, 0.15, 0.06, 0.03)
_FADED = 0.1
_DOUBTED = 0.5
_REPLY_SHARE = 0.15
_WEIGHT = 0.1
_USUAL_NODES = 6
_USUAL_ACCEPTED = 1.5


@dataclass(frozen=True, slots=True)
class Step:
    """One tested depth: the rank of the accepted child (None: all refused), and how many it had."""

    rank: int | None
    n_children: int


class _Rate:
    """A frequency that forgets, leaning on a prior: what it usually is, or a broader rate.

    The trials of one reply are alike, so that a reply changes the usual only a little. Its first
    ones say little of it: the prior weighs `_PRIOR_WEIGHT` trials, and wanes as they come.

    Args:
        weight: of the prior now, less where it is a guess that nobody measured.
    """

    __slots__ = ("_hits", "_prior", "trials", "weight")

    def __init__(self, prior: float | _Rate, weight: float = _GUESS_WEIGHT) -> None:
        self._prior = prior
        self.weight = weight
        self._hits = 0.0
        self.trials = 0.0

    @property
    def usual(self) -> float:
        """Over many replies."""
        if isinstance(self._prior, _Rate):
            return self.value
        part = _REPLY_SHARE / (self.trials + self.weight)
        return self._prior + part * (self._hits - self.trials * self._prior)

    @property
    def value(self) -> float:
        prior = self._prior.value if isinstance(self._prior, _Rate) else self._prior
        value = (self._hits + prior * self.weight) / (self.trials + self.weight)
        # what `doubt` keeps outlives the prior that it was weighed against
        return value if 0.0 <= value <= 1.0 else float(value > 0.0)

    def observe(self, hit: bool) -> None:
        self._hits = self._hits * _DECAY + hit
        self.trials = self.trials * _DECAY + 1.0
        self.weight = max(_LEAST_WEIGHT, self.weight * _WANING)

    def fade(self) -> None:
        """Trust the latest trials less, and the usual more."""
        if not isinstance(self._prior, _Rate):
            self._prior = self.usual
        self.trials *= _FADED
        self._hits *= _FADED
        self.weight = _PRIOR_WEIGHT

    def doubt(self) -> None:
        """Keep the estimate and trust it less."""
        value = self.value
        self.trials *= _DOUBTED
        if isinstance(self._prior, _Rate):
            self._hits *= _DOUBTED
        else:
            self._hits = value * (self.trials + self.weight) - self._prior * self.weight


class Acceptance:
    """Estimates for one drafter.

    Args:
        known: what an earlier session knew (`known`): the priors of this one.

    Attributes:
        usual_nodes, usual_accepted: means of its latest proposals, whatever their shape.
    """

    def __init__(self, known: Mapping[str, Sequence[float]] | None = None) -> None:
        known = known or {}
        depths = known.get("depths")
        self._depths = [_Rate(d, _PRIOR_WEIGHT) for d in depths] if depths else [_Rate(_PRIOR)]
        self._bins = _rates(known, "bins", _MIDDLES)
        self._cells = [[_Rate(bin_, bin_.weight) for bin_ in self._bins] for _ in range(_GROUPS)]
        self._values = _rates(known, "values", _MIDDLES)
        self._ranks = _rates(known, "ranks", _RANK_PRIORS)
        self._looks = [share * 20.0 for share in _kept(known, "looks", (0.0,) * len(_MIDDLES))]
        self.usual_nodes = float(_USUAL_NODES)
        self.usual_accepted = _USUAL_ACCEPTED

    def known(self) -> dict[str, list[float]]:
        """The estimates as plain data, for the next session; shares between 0 and 1."""
        seen = sum(self._looks) or 1.0
        return {
            "depths": [rate.usual for rate in self._depths],
            "bins": [rate.usual for rate in self._bins],
            "values": [rate.usual for rate in self._values],
            "ranks": [rate.usual for rate in self._ranks],
            "looks": [look / seen for look in self._looks],
        }

    @property
    def trials(self) -> float:
        """How much is known of first tokens: trials, the latest counting most."""
        return self._depths[0].trials

    def at_depth(self, depth: int) -> float:
        """Probability that the token at `depth` (from 0) is accepted when it is tested."""
        return self._depths[min(depth, len(self._depths) - 1)].value

    def at_confidence(self, confidence: float, depth: int = 0) -> float:
        """Same, given the draft's top probability at that position."""
        return self._cells[min(depth, _GROUPS - 1)][_bin(confidence)].value

    def at_value(self, value: float) -> float:
        """Probability that a node is accepted whose path the draft gives this probability."""
        return self._values[_bin(value)].value

    def by_rank(self) -> list[float]:
        """Probability that the child of a rank (best first) is the accepted one."""
        return [rate.value for rate in self._ranks]

    def looks(self) -> list[tuple[float, float]]:
        """What a draft's first look is like: (share of the rounds, acceptance of that token).

        Empty before the first look; the shares add up to 1. What few looks leave open is a token
        like any other.
        """
        seen = sum(self._looks)
        if seen <= 0.0:
            return []
        first, total = self._cells[0], seen + _OPEN_LOOKS
        shares = [(n / total, r.value) for n, r in zip(self._looks, first, strict=True) if n > 0.0]
        return [*shares, (_OPEN_LOOKS / total, self.at_depth(0))]

    def look(self, confidence: float) -> None:
        """The draft's top probability for the first token of a round, tested or not."""
        self._looks = [look * _DECAY for look in self._looks]
        self._looks[_bin(confidence)] += 1.0

    def observe(
        self, steps: Sequence[Step], confidences: Sequence[float | None], *, n_nodes: int
    ) -> None:
        """One verified proposal: what happened at each tested depth."""
        accepted = sum(step.rank is not None for step in steps)
        self.usual_nodes += _WEIGHT * (n_nodes - self.usual_nodes)
        self.usual_accepted += _WEIGHT * (accepted - self.usual_accepted)
        for depth, step in enumerate(steps):
            self._observe(depth, step, confidences[depth] if depth < len(confidences) else None)

    def overhear(self, step: Step, confidence: float | None) -> None:
        """What became of a first token that was guessed and not verified: it was said, or not."""
        self._observe(0, step, confidence)

    def _observe(self, depth: int, step: Step, confidence: float | None) -> None:
        if depth == len(self._depths):
            self._depths.append(_Rate(self._depths[-1]))
        hit = step.rank is not None
        self._depths[depth].observe(hit)
        if confidence is not None:
            self._bins[_bin(confidence)].observe(hit)
            self._cells[min(depth, _GROUPS - 1)][_bin(confidence)].observe(hit)
        for rank, rate in enumerate(self._ranks[: step.n_children]):
            rate.observe(rank == step.rank)

    def observe_values(self, values: Sequence[float], accepted: Sequence[int]) -> None:
        """One verified tree: the draft's probability of each node's path, and which were kept."""
        kept = set(accepted)
        for node, value in enumerate(values):
            self._values[_bin(value)].observe(node in kept)

    def fade(self) -> None:
        """Expect what is usual rather than what was seen of late: another text begins."""
        for rate in self._all_rates():
            rate.fade()
        self._looks = [look * _FADED for look in self._looks]

    def doubt(self) -> None:
        """Trust the past less, so that what was refused long ago gets another try."""
        for rate in self._all_rates():
            rate.doubt()

    def _all_rates(self) -> list[_Rate]:
        tables = (self._depths, self._bins, *self._cells, self._values, self._ranks)
        return [rate for rates in tables for rate in rates]


def _bin(confidence: float) -> int:
    return bisect_right(_EDGES, confidence)


def _kept(
    known: Mapping[str, Sequence[float]], name: str, otherwise: Sequence[float]
) -> Sequence[float]:
    """Kept priors, if there are as many as there are bins today."""
    kept = known.get(name, ())
    return kept if len(kept) == len(otherwise) else otherwise


def _rates(
    known: Mapping[str, Sequence[float]], name: str, guesses: Sequence[float]
) -> list[_Rate]:
    """A rate for each of these, from what is kept of them or from guesses."""
    priors = _kept(known, name, guesses)
    weight = _GUESS_WEIGHT if priors is guesses else _PRIOR_WEIGHT
    return [_Rate(prior, weight) for prior in priors]
