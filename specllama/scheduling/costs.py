"""What decodes cost on this machine, learned while running."""

from __future__ import annotations

from typing import TypeVar

_Key = TypeVar("_Key", int, str)
_WEIGHT = 0.15
_OUTLIER = 4.0
_OPTIMISTIC_SLOPE = 0.1


class Costs:
    """Seconds of a target decode by number of tokens, and of one drafted token by drafter.

    A measured table with linear interpolation: costs are not monotone on real machines, so nothing
    is fitted. Sizes never seen are taken to be cheap, so that they get tried.
    """

    def __init__(self) -> None:
        self._target: dict[int, float] = {}
        self._draft: dict[str, float] = {}

    def observe_target(self, n_tokens: int, seconds: float) -> None:
        """One target decode of `n_tokens`."""
        _average(self._target, n_tokens, seconds)

    def observe_draft(self, name: str, n_drafted: int, seconds: float) -> None:
        """One proposal of `n_drafted` tokens (a decode more or less is the drafter's affair)."""
        _average(self._draft, name, seconds / max(1, n_drafted))

    @property
    def known(self) -> bool:
        """Whether a plain decode was ever measured."""
        return 1 in self._target

    def target_s(self, n_tokens: int) -> float:
        """Expected seconds of a target decode of `n_tokens` (`known` must hold)."""
        seen = self._target
        if n_tokens in seen:
            return seen[n_tokens]
        below = max(n for n in seen if n < n_tokens)
        above = min((n for n in seen if n > n_tokens), default=None)
        if above is None:
            return seen[below] + (n_tokens - below) * _OPTIMISTIC_SLOPE * seen[1]
        share = (n_tokens - below) / (above - below)
        return seen[below] + share * (seen[above] - seen[below])

    def draft_s(self, name: str) -> float:
        """Expected seconds of one drafted token; 0 until measured."""
        return self._draft.get(name, 0.0)


def _average(table: dict[_Key, float], key: _Key, seconds: float) -> None:
    """Exponential mean; a single hiccup (a busy machine) counts as no more than an outlier."""
    old = table.get(key)
    if old is None:
        table[key] = seconds
    else:
        table[key] = old + _WEIGHT * (min(seconds, _OUTLIER * old) - old)
