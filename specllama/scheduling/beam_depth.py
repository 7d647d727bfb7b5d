"""How many levels of a tree a beam search drafts: for the fewest batches, or for the least time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from specllama.scheduling.costs import Costs

_FIRST = 2
_PRIOR, _PRIOR_WEIGHT, _DECAY = 0.6, 3.0, 0.9
_FIRST_PROBE, _LAST_PROBE = 8, 64


@dataclass(frozen=True, slots=True)
class Batch:
    """What one target batch brought.

    Attributes:
        n_tokens: its size; `seconds` it took.
        levels: of the tree in it; `used` of them held all beams of their step.
        draft_s: seconds that drafting the tree took.
        over: the search ended in it, so that a further level might have been of use.
    """

    n_tokens: int
    seconds: float
    levels: int
    used: int
    draft_s: float
    over: bool


class Depth(Protocol):
    """Chooses the levels of the next tree."""

    def choose(self, n_missing: int, a_level: int, most: int) -> int:
        """Levels, at most `most`, of a tree with `a_level` nodes each beside `n_missing` beams."""

    def observe(self, batch: Batch) -> None:
        """The batch that followed."""


class FewestBatches:
    """One level more than were of use, so that a tree that was used up grows."""

    def __init__(self) -> None:
        self._levels = _FIRST

    def choose(self, n_missing: int, a_level: int, most: int) -> int:
        """See `Depth`."""
        return min(self._levels, most)

    def observe(self, batch: Batch) -> None:
        """See `Depth`."""
        self._levels = batch.used + 2


@dataclass(slots=True)
class _Chance:
    """How often a level held all beams, given that those above did; recent ones count more."""

    hits: float = _PRIOR * _PRIOR_WEIGHT
    trials: float = _PRIOR_WEIGHT

    def observe(self, hit: bool) -> None:
        self.hits = _DECAY * self.hits + hit
        self.trials = _DECAY * self.trials + 1.0


@dataclass(slots=True)
class LeastTime:
    """The most expected steps per expected second, no tree being one of the choices.

    Where no tree pays, a small one is tried now and then.
    """

    costs: Costs
    _chances: list[_Chance] = field(default_factory=list)
    _level_s: float = 0.0
    _idle: int = 0
    _patience: int = _FIRST_PROBE

    def choose(self, n_missing: int, a_level: int, most: int) -> int:
        """See `Depth`."""
        if not self.costs.measured():
            return min(_FIRST, most)
        best, best_rate = 0, 1.0 / self.costs.target_s(n_missing)
        steps, reach = 1.0, 1.0
        for levels in range(1, most + 1):
            reach *= self._chance(levels - 1)
            steps += reach
            seconds = self.costs.target_s(n_missing + levels * a_level) + levels * self._level_s
            if steps / seconds > best_rate:
                best, best_rate = levels, steps / seconds
        return best or min(self._probe(), most)

    def _chance(self, level: int) -> float:
        known = self._chances
        chance = known[min(level, len(known) - 1)] if known else _Chance()
        return chance.hits / chance.trials

    def _probe(self) -> int:
        self._idle += 1
        if self._idle < self._patience:
            return 0
        self._idle, self._patience = 0, min(2 * self._patience, _LAST_PROBE)
        return 1

    def observe(self, batch: Batch) -> None:
        """See `Depth`."""
        self.costs.observe_target(batch.n_tokens, batch.seconds)
        if not batch.levels:
            return
        level_s = batch.draft_s / batch.levels
        self._level_s = 0.7 * self._level_s + 0.3 * level_s if self._level_s else level_s
        tested = batch.used + (batch.used < batch.levels and not batch.over)
        self._chances += [_Chance() for _ in range(tested - len(self._chances))]
        for level in range(tested):
            self._chances[level].observe(level < batch.used)
