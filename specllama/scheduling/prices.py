"""What a round of all live sequences costs, looked up: the prices that choices are made at."""

from __future__ import annotations

from collections.abc import Callable

from specllama.scheduling.costs import Costs

_CHEAPER = 0.95


class RoundPrices:
    """Seconds of rounds in which all live sequences do the same, until the costs change.

    Args:
        max_batch: the most tokens of a target decode; a round of more takes several.

    Attributes:
        costs: what is known of the machine.
        n_live: how many sequences share this round's batches.
    """

    def __init__(self, max_batch: int) -> None:
        self.costs = Costs()
        self.n_live = 1
        self._max_batch = max_batch
        self._size = 0
        self._batch_s: dict[int, float] = {}
        self._worst_s: dict[int, float] = {}
        self._draft_s: dict[tuple[str, int], float] = {}
        self._worst_draft_s: dict[tuple[str, int], float] = {}
        self._sizes: dict[int, int] = {}
        self._priced = self._plain_of = (0, 0)
        self._plain_s = 0.0

    def _price(self, n_live: int) -> None:
        """Prices of rounds of so many sequences, at today's costs."""
        self.n_live = n_live
        if self._priced != (n_live, self.costs.version):
            self._priced = (n_live, self.costs.version)
            self._forget_prices()

    @property
    def _plain_size(self) -> int:
        return min(self.n_live, self._max_batch)

    @property
    def knows_plain(self) -> bool:
        """Whether a plain round of so many sequences was measured, and not too long ago."""
        size = self._plain_size
        return self.costs.known(size) and not self.costs.stale(size)

    def batch_s(self, n_tokens: int) -> float:
        """Seconds of a round's target decodes if each sequence brings so many tokens."""
        if n_tokens not in self._batch_s:
            self._batch_s[n_tokens] = self._in_batches(self.n_live * n_tokens, self._decode_s)
        return self._batch_s[n_tokens]

    def worst_s(self, n_tokens: int) -> float:
        """The same with dear guesses for sizes that were never measured."""
        if n_tokens not in self._worst_s:
            self._worst_s[n_tokens] = self._in_batches(
                self.n_live * n_tokens, lambda n: self.costs.worst_s(self.padded(n))
            )
        return self._worst_s[n_tokens]

    def _in_batches(self, n_tokens: int, decode_s: Callable[[int], float]) -> float:
        full, rest = divmod(n_tokens, self._max_batch)
        seconds = decode_s(rest) if rest else 0.0
        return seconds + (full * decode_s(self._max_batch) if full else 0.0)

    def _decode_s(self, n_tokens: int) -> float:
        """A decode, padded to the size that is kept where that is cheaper."""
        return self.costs.target_s(self.padded(n_tokens), after=self._kept_size)

    @property
    def _kept_size(self) -> int:
        """The size of decodes that is kept from round to round, where changing it costs."""
        return self._size or self._plain_size

    def padded(self, n_tokens: int) -> int:
        """The size to decode so many tokens at: a larger one where that is clearly cheaper.

        It is where a size is kept for the sake of captured graphs, and where kernels for more
        tokens are faster than those for fewer.
        """
        if n_tokens not in self._sizes:
            self._sizes[n_tokens] = self._cheapest(n_tokens, self._kept_size)
        return self._sizes[n_tokens]

    def fixed_size(self, n_tokens: int) -> int:
        """The size to decode so many tokens at where every round brings as many."""
        return self._cheapest(n_tokens, n_tokens)

    def _cheapest(self, n_tokens: int, kept: int) -> int:
        costs = self.costs
        if not (costs.switch_s or costs.measured(n_tokens)):
            return n_tokens
        # the size that is kept may never have been measured twice in a row
        known = costs.steady() | {kept: costs.target_s(kept, kept)}
        larger = [
            (seconds + (costs.switch_s if n != kept else 0.0), n)
            for n, seconds in known.items()
            if n_tokens < n <= self._max_batch
        ]
        if not larger:
            return n_tokens
        seconds, best = min(larger)
        return best if seconds < _CHEAPER * costs.target_s(n_tokens, kept) else n_tokens

    def draft_s(self, name: str, n_looks: int) -> float:
        """Seconds of so many positions in a row, for each sequence."""
        key = name, n_looks
        if key not in self._draft_s:
            self._draft_s[key] = self.costs.draft_s(name, n_looks, self.n_live)
        return self._draft_s[key]

    def drafting_s(self, name: str, n_looks: int, n_lives: int) -> float | None:
        """What such drafting is expected to take, None where it was never measured."""
        return self.costs.draft_s(name, n_looks, n_lives) or (None if n_looks else 0.0)

    @property
    def plain_s(self) -> float:
        """Seconds of a round of plain decoding, as it would be if nobody ever drafted."""
        now = self.n_live, self.costs.version
        if self._plain_of != now:
            self._plain_of = now
            self._plain_s = self._in_batches(self.n_live, self.costs.target_s)
        return self._plain_s

    def plain_rate(self) -> float:
        """Tokens per second of each sequence without drafts."""
        return 1.0 / self.plain_s

    def _dear_draft_s(self, name: str, n_looks: int) -> float:
        """`draft_s`, with a dear guess for drafters that were never measured."""
        key = name, n_looks
        if key not in self._worst_draft_s:
            self._worst_draft_s[key] = self.costs.draft_s(name, n_looks, self.n_live, worst=True)
        return self._worst_draft_s[key]

    def _forget_prices(self) -> None:
        self._plain_of = (0, 0)
        self._batch_s.clear()
        self._worst_s.clear()
        self._draft_s.clear()
        self._worst_draft_s.clear()
        self._sizes.clear()
