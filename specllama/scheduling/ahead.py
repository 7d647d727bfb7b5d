"""How much is drafted while the target is at work, and how much of it proves useful."""

from __future__ import annotations

from collections import defaultdict

from specllama.scheduling.prices import RoundPrices
from specllama.scheduling.typical import Typical

_SHADOW = 0.9
_LESS, _MORE = 0.9, 1.005
_BESIDE = 2.0
_READY_WEIGHT = 0.05
_RETRY = 64


class Ahead:
    """Looks of drafters beside the target's decodes.

    Args:
        prices: what the target's decodes take, and a drafter's looks by themselves.
    """

    def __init__(self, prices: RoundPrices) -> None:
        self._prices = prices
        self._look: dict[str, Typical] = defaultdict(Typical)
        self._idle: dict[str, int] = defaultdict(int)
        self._ready: dict[str, float] = {}
        self._shadow = _SHADOW

    def fitting(self, name: str, n_tokens: int, n_lives: int) -> int:
        """How many positions a drafter can look at while the target decodes so many tokens.

        Where none seems to fit, one is tried now and then: it may have been a hiccup.
        """
        costs = self._prices.costs
        each = self._look[name].value or _BESIDE * costs.draft_s(name, 1, n_lives)
        if not each or not costs.steady() or self._idle[name] >= _RETRY:
            return 1
        return int(self._shadow * costs.target_s(n_tokens) / each)

    def overran(self) -> None:
        """It took longer than the decode: look at less for a while."""
        self._shadow *= _LESS

    def observe(self, name: str, n_looks: int, seconds: float) -> None:
        """What it took to look at so many positions beside one decode."""
        self._shadow = min(_SHADOW, self._shadow * _MORE)
        if n_looks:
            self._look[name].observe(seconds / n_looks)
            self._idle[name] = 0
        else:
            self._idle[name] += 1

    def observe_ready(self, name: str, n_ready: int, n_looks: int) -> None:
        """How many of a proposal's looks had been taken ahead."""
        if n_looks:
            share = self.ready_share(name)
            self._ready[name] = share + _READY_WEIGHT * (n_ready / n_looks - share)

    def ready_share(self, name: str) -> float:
        """The part of a drafter's looks that is usually taken ahead."""
        return self._ready.get(name, 0.0)
