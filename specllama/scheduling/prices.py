"""What a round of all live sequences costs, looked up: the prices that choices are made at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from specllama.machine import GraphsKept
from specllama.scheduling.costs import Costs

_CHEAPER = 0.95


@dataclass(slots=True)
class _Prices:
    """Seconds and sizes by number of tokens, as seen from one place."""

    kept: int
    before: int
    batch_s: dict[int, float] = field(default_factory=dict)
    among_s: dict[tuple[int, int], float] = field(default_factory=dict)
    worst_s: dict[int, float] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)


class Among:
    """Prices of a round in which so many of the live sequences draft."""

    def __init__(self, prices: RoundPrices, n_drafting: int) -> None:
        self.batch_s = partial(prices.among_s, n_drafting)
        self.draft_s = prices.draft_s


class RoundPrices:
    """Seconds of rounds in which all live sequences do the same, until the costs change.

    Where changing the size of decodes costs, one size is *kept*: a decode of another size is
    charged for going there and for coming back.

    Args:
        max_batch: the most tokens of a target decode; a round of more takes several.
        kept_graphs: see `Costs`.

    Attributes:
        costs: what is known of the machine.
        n_live: how many sequences share this round's batches.
        age: rounds since a prompt was read.
    """

    def __init__(self, max_batch: int, *, kept_graphs: GraphsKept) -> None:
        self._kept_graphs = kept_graphs
        self.costs = Costs(kept_graphs=kept_graphs)
        self.n_live = 1
        self.max_batch = max_batch
        self._seen_from: dict[tuple[int, int], _Prices] = {}
        self._here = _Prices(1, 1)
        self._draft_s: dict[tuple[str, int], float] = {}
        self._worst_draft_s: dict[tuple[str, int], float] = {}
        self._priced = self._drafts_priced = self._plain_of = (0, 0)
        self._plain_s = 0.0
        self.age = 0
        self._dues_s = 0.0, 0.0
        self._there_and_back_s: dict[int, float] = {}

    def _price(self, n_live: int) -> None:
        """Prices of rounds of so many sequences, at today's costs; plain ones are the usual."""
        self.n_live = n_live
        if self._priced != (n_live, self.costs.version):
            self._priced = (n_live, self.costs.version)
            self._forget_prices()
        if self._drafts_priced != (drafts := (n_live, self.costs.draft_version)):
            self._drafts_priced = drafts
            self._draft_s.clear()
            self._worst_draft_s.clear()
        self.age += 1
        if self.costs.behind_prompt:
            self.age = 0
            self._dues_s = self.costs.dues_s(self.plain_size)
        self._there_and_back_s.clear()
        self._keep(self.plain_size)

    def _keep(self, size: int) -> None:
        """Which size of decodes is kept from now on."""
        before = self.costs.size if self.costs.switch_s else size  # else it makes no difference
        self._here = self._from(size, before or size)

    def _from(self, kept: int, before: int) -> _Prices:
        place = kept, before
        if place not in self._seen_from:
            self._seen_from[place] = _Prices(kept, before)
        return self._seen_from[place]

    @contextmanager
    def _settled(self, size: int) -> Iterator[None]:
        """Prices of a size that has been kept for long."""
        here, self._here = self._here, self._from(size, size)
        try:
            yield
        finally:
            self._here = here

    @property
    def plain_size(self) -> int:
        """The size of decodes where nobody drafts."""
        return min(self.n_live, self.max_batch)

    @property
    def knows_plain(self) -> bool:
        """Whether a plain round of so many sequences was measured, and not too long ago.

        Where changing the size costs, drafting is not given up just to measure it again.
        """
        size = self.plain_size
        busy = self.costs.switch_s > 0.0 and self.costs.size not in (0, size)
        return self.costs.measured(size) and (busy or not self.costs.stale(size))

    def batch_s(self, n_tokens: int) -> float:
        """Seconds of a round's target decodes if each sequence brings so many tokens."""
        prices = self._here.batch_s
        if n_tokens not in prices:
            prices[n_tokens] = self._in_batches(self.n_live * n_tokens, self._charged_s)
        return prices[n_tokens]

    def among_s(self, n_drafting: int, n_tokens: int) -> float:
        """The same if `n_drafting` sequences bring so many, and the others one token.

        The others wait for nothing: what the round takes longer counts for them as well, shared by
        those that draft.
        """
        if n_drafting == self.n_live:
            return self.batch_s(n_tokens)
        key = n_drafting, n_tokens
        if key not in self._here.among_s:
            whole = self._in_batches(self._n_among(*key), self._charged_s)
            self._here.among_s[key] = self._shared(whole, self.batch_s(1), n_drafting)
        return self._here.among_s[key]

    def _n_among(self, n_drafting: int, n_tokens: int) -> int:
        return self.n_live + n_drafting * (n_tokens - 1)

    def _shared(self, seconds: float, plain_s: float, n_drafting: int) -> float:
        """Such a round, as if those that draft had to make up for all."""
        return plain_s + self.n_live / n_drafting * (seconds - plain_s)

    def steady_s(self, n_tokens: int) -> float:
        """The same where every round is of that size."""
        return self._in_batches(self.n_live * n_tokens, self.costs.target_s)

    def worst_among_s(self, n_drafting: int, n_tokens: int) -> float:
        """`among_s` with dear guesses for unseen sizes, and the way back to plain decoding."""
        whole = self._worst_s(self._n_among(n_drafting, n_tokens))
        if n_drafting == self.n_live:
            return whole
        return self._shared(whole, self.plain_s, n_drafting)

    def _worst_s(self, n_tokens: int) -> float:
        """Seconds of a round of so many tokens in all."""
        if n_tokens not in self._here.worst_s:
            self._here.worst_s[n_tokens] = self._in_batches(
                n_tokens, lambda n: self.costs.worst_s(self.padded(n))
            )
        size = self.padded(n_tokens)
        if size not in self._there_and_back_s:
            self._there_and_back_s[size] = self._changing_s(size)
        return self._here.worst_s[n_tokens] + self._there_and_back_s[size]

    def _changing_s(self, size: int) -> float:
        """What a decode of that size pays now, and the way back, beyond what plain ones pay."""
        costs, plain = self.costs, self.plain_size
        if not costs.switch_s:
            return 0.0
        back = costs.toll_s(plain, away=True) if size != plain else 0.0
        return max(0.0, costs.change_s(size) + back - sum(self._dues_s[self.age :]))

    @property
    def _due_s(self) -> float:
        """What plain decoding from this prompt on would pay in this round for its size."""
        return sum(self._dues_s[self.age : self.age + 1])

    def _in_batches(self, n_tokens: int, decode_s: Callable[[int], float]) -> float:
        full, rest = divmod(n_tokens, self.max_batch)
        seconds = decode_s(rest) if rest else 0.0
        return seconds + (full * decode_s(self.max_batch) if full else 0.0)

    def _charged_s(self, n_tokens: int) -> float:
        size = self.padded(n_tokens)
        return self.costs.hoped_s(size) + self._changes_s(size)

    def _at_size_s(self, size: int) -> float:
        return self.costs.target_s(size) + self._changes_s(size)

    def _changes_s(self, size: int) -> float:
        """What the changes of size cost that a decode brings beyond those already due."""
        costs, kept, before = self.costs, self._here.kept, self._here.before
        there = costs.move_s(size, before, kept)
        return there + ((size != kept) - (before != kept)) * costs.switch_s

    def padded(self, n_tokens: int) -> int:
        """The size to decode so many tokens at: a larger one where that is clearly cheaper.

        It is where a size is kept for the sake of captured graphs, and where kernels for more
        tokens are faster than those for fewer.
        """
        sizes = self._here.sizes
        if n_tokens not in sizes:
            sizes[n_tokens] = self._cheapest(n_tokens)
        return sizes[n_tokens]

    def fixed_size(self, n_tokens: int) -> int:
        """The size to decode so many tokens at where every round brings as many."""
        with self._settled(n_tokens):
            return self.padded(n_tokens)

    def _cheapest(self, n_tokens: int) -> int:
        costs = self.costs
        if not (costs.switch_s or costs.measured(n_tokens)):
            return n_tokens
        # the size that is kept may never have been measured twice in a row
        sizes = costs.steady().keys() | {self._here.kept}
        larger = [n for n in sizes if n_tokens < n <= self.max_batch]
        if not larger:
            return n_tokens
        best = min(larger, key=lambda n: (self._at_size_s(n), n))
        enough = _CHEAPER * self._at_size_s(n_tokens)
        return best if self._at_size_s(best) < enough else n_tokens

    def draft_s(self, name: str, n_looks: int) -> float:
        """Seconds of so many positions in a row, for each sequence."""
        key = name, n_looks
        if key not in self._draft_s:
            self._draft_s[key] = self.costs.draft_s(name, n_looks, self.n_live)
        return self._draft_s[key]

    def drafting_s(self, name: str, n_looks: int, n_lives: int, n_unread: int = 0) -> float | None:
        """What such drafting is expected to take, None where it was never measured.

        Args:
            n_unread: what the drafter has to read before.
        """
        known = self.costs.draft_s(name, n_looks, n_lives)
        if n_looks and not known:
            return None
        return known + self.costs.catching_up_s(n_unread)

    @property
    def plain_s(self) -> float:
        """Seconds of a round of plain decoding, as it would be if nobody ever drafted."""
        now = self.n_live, self.costs.version
        if self._plain_of != now:
            self._plain_of = now
            self._plain_s = self.steady_s(1)
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
        self._seen_from.clear()
        self._there_and_back_s.clear()
        self._draft_s.clear()
        self._worst_draft_s.clear()
