"""Which size of decodes is kept while drafting, where changing it costs (captured graphs)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from specllama.scheduling.account import USUAL_TOKENS
from specllama.scheduling.prices import RoundPrices

_AGE = 1024
_FRESH_AGE = 64
_WITHIN = 4
_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_NEARLY = 0.97


class KeptSize:
    """The size of drafting rounds' decodes, one for each number of live sequences.

    It is chosen anew before a reply, ever more seldom, since trying all takes milliseconds.

    Args:
        prices: of this round.
    """

    def __init__(self, prices: RoundPrices) -> None:
        self._prices = prices
        self._chosen: dict[int, tuple[int, int]] = {}
        self._patience: dict[int, int] = {}

    @property
    def size(self) -> int:
        """That of plain decoding until one was chosen."""
        return self._chosen.get(self._prices.n_live, (self._prices.plain_size, 0))[0]

    def longest(self, most: int) -> int:
        """The most tokens in a row, `most` or fewer; longer chains would leave the size."""
        if not self._prices.costs.switch_s:
            return most
        return min(most, max(1, self.size // self._prices.n_live - 1))

    def candidates(self) -> Iterator[int]:
        """The size to decode at now; also one beside it where its graph would be captured now.

        A capture is the dearest part of a change, and sizes that take turns need none: drafting
        can go on until the budget bears it.
        """
        prices, kept = self._prices, self.size
        yield kept
        if prices.costs.switch_s and prices.costs.captures(kept):
            smaller = kept - prices.n_live
            yield smaller if smaller > prices.plain_size else kept + prices.n_live

    def settle(self, best_rate: Callable[[], float]) -> None:
        """Choose the size, where it is time to.

        Args:
            best_rate: tokens per second of drafting, at the size being tried.
        """
        n_live, costs = self._prices.n_live, self._prices.costs
        before, age = self._chosen.get(n_live, (0, _AGE))
        self._chosen[n_live] = before, age + 1
        patience = self._patience.get(n_live, _FRESH_AGE)
        if not costs.switch_s or age < patience * (_WITHIN if self._prices.age else 1):
            return
        self._patience[n_live] = min(2 * patience, _AGE)

        def rate(size: int) -> float:
            self._chosen[n_live] = size, 0
            return best_rate()

        rates = {size: rate(size) for size in self._possible()}
        enough = _NEARLY * max(rates.values())
        best = min(size for size in rates if rates[size] >= enough)  # little is lost when it fails
        saved = USUAL_TOKENS * (1.0 / rates[before] - 1.0 / rates[best]) if before else math.inf
        rate(best if saved > costs.toll_s(best, away=True) else before)

    def _possible(self) -> list[int]:
        prices = self._prices
        sizes = [prices.n_live * n for n in _SIZES if prices.n_live * n <= prices.max_batch]
        return sizes or [prices.plain_size]

    def is_worth(self, rate: float, n_tokens: int) -> bool:
        """Whether so many tokens are made sooner at that rate of drafting than without drafts.

        Args:
            rate: tokens per second of each sequence, once the size of its decodes is kept.
        """
        prices = self._prices
        saved = n_tokens * (prices.plain_s - 1.0 / rate)
        toll_s = prices.costs.toll_s
        return saved > toll_s(self.size) - toll_s(prices.plain_size)
