"""A probability law over token ids, kept only where it is above zero."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.sampling.columns import FloatArray as FloatArray
from specllama.sampling.columns import IntArray as IntArray
from specllama.sampling.columns import highest

FEW = 128
"""Laws up to this size are worked on in plain Python: after a decode the caches are cold, and a
dozen array calls cost several times as much as a hundred steps of a loop."""
LEAST = 1e-290
"""Tokens less probable than this are left out of a law: what is divided by them would overflow."""
# Few tokens of a law have so much; the most probable ones are nearly always among them.
_LARGE = 2.0**-10


class Distribution:
    """Token ids with their probabilities; it never changes.

    Rising ids (not falling probabilities) make `prob` a binary search, two laws easy to align and a
    whole vocabulary free of any sort; `top` partitions when someone asks. The same numbers exist as
    arrays and as lists, each made when it is first asked for.

    Args:
        ids: int64 [n], unique, rising.
        probs: float64 [n], summing to 1; all above 0, but for what is left of a law (`without`,
            `residual`), whose zeros stay: leaving them out costs more than everything else.
    """

    __slots__ = ("_ids", "_lists", "_n", "_probs")

    def __init__(self, ids: IntArray, probs: FloatArray) -> None:
        self._ids: IntArray | None = ids
        self._probs: FloatArray | None = probs
        self._lists: tuple[list[int], list[float]] | None = None
        self._n = len(ids)

    @classmethod
    def of_few(cls, ids: list[int], probs: list[float]) -> Distribution:
        """The same from lists, which become its own."""
        law = cls.__new__(cls)
        law._ids = law._probs = None
        law._lists = (ids, probs)
        law._n = len(ids)
        return law

    @property
    def ids(self) -> IntArray:
        """int64 [n], rising."""
        if self._ids is None:
            self._ids = np.array(self.lists[0], np.int64)
        return self._ids

    @property
    def probs(self) -> FloatArray:
        """float64 [n]."""
        if self._probs is None:
            self._probs = np.array(self.lists[1])
        return self._probs

    @property
    def lists(self) -> tuple[list[int], list[float]]:
        """Ids and probabilities as lists, for laws of `FEW`; not to be changed."""
        if self._lists is None:
            self._lists = (self.ids.tolist(), self.probs.tolist())
        return self._lists

    def __len__(self) -> int:
        """Ids in `ids`."""
        return self._n

    def id_at(self, place: int) -> int:
        """The token at a place of `ids`."""
        return self.lists[0][place] if self._n <= FEW else int(self.ids[place])

    def place(self, token: int) -> int:
        """The place of a token in `ids`, or where it would be."""
        if self._n <= FEW:
            return bisect_left(self.lists[0], token)
        return int(self.ids.searchsorted(token))

    @property
    def highest(self) -> float:
        """The largest probability."""
        return max(self.lists[1]) if self._n <= FEW else float(self.probs.max())

    @classmethod
    def from_weights(cls, ids: NDArray[Any], weights: NDArray[Any]) -> Distribution | None:
        """Normalise weights >= 0 over rising ids; None when nothing is left."""
        probs = np.array(weights, np.float64)
        total = probs.sum()
        if not total > 0.0:
            return None
        probs /= total
        ids = np.asarray(ids, np.int64)
        if probs.min() >= LEAST:
            return cls(ids, probs)
        kept = probs >= LEAST
        return cls(ids[kept], probs[kept])

    @classmethod
    def point(cls, token: int) -> Distribution:
        """All mass on one token: what temperature 0 is, and what a deterministic draft is."""
        return cls.of_few([token], [1.0])

    def prob(self, token: int) -> float:
        """Probability of one token, 0 outside the support."""
        if self._n <= FEW:
            ids, probs = self._lists or self.lists
            place = bisect_left(ids, token)
            return probs[place] if place < self._n and ids[place] == token else 0.0
        tokens = self.ids
        place = int(tokens.searchsorted(token))
        return float(self.probs[place]) if place < self._n and tokens[place] == token else 0.0

    def at(self, tokens: IntArray) -> FloatArray:
        """Probabilities of rising ids, float64 [n]; not to be changed."""
        ids = self.ids
        last = len(ids) - 1
        alike = len(tokens) == len(ids) and tokens[0] == ids[0] and tokens[last] == ids[last]
        if tokens is ids or (alike and ids[last] - ids[0] == last):  # the same range of ids
            return self.probs
        place, found = self.places(tokens)
        return np.where(found, self.probs[place], 0.0)

    def places(self, tokens: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """Where tokens stand in `ids`, and whether they do; elsewhere the place is arbitrary."""
        last = len(self.ids) - 1
        if self.ids[last] - self.ids[0] == last:
            # without gaps (an untruncated law) the place of an id needs no search
            place = np.clip(tokens - self.ids[0], 0, last)
        else:
            place = np.minimum(np.searchsorted(self.ids, tokens), last)
        return place, self.ids[place] == tokens

    def top(self, count: int) -> list[int]:
        """The `count` most probable tokens, most probable first, ties by rising id."""
        if self._n <= FEW:
            ids, probs = self.lists
            if count == 1:
                return [ids[probs.index(max(probs))]]
            best = sorted(probs, reverse=True)[:count]
            if len(set(best)) == len(best):
                return [ids[probs.index(prob)] for prob in best]
            falling = sorted(range(len(ids)), key=probs.__getitem__, reverse=True)
            return [ids[place] for place in falling[:count]]
        large = (self.probs >= _LARGE).nonzero()[0]
        chosen = large if count <= len(large) else highest(self.probs, count)
        losses, tokens = (-self.probs[chosen]).tolist(), self.ids[chosen].tolist()
        return [token for _, token in sorted(zip(losses, tokens, strict=True))[:count]]

    def without(self, *tokens: int) -> Distribution | None:
        """The law given that none of these tokens comes; None when one of them was certain to."""
        if self._n <= FEW:
            return self._few_without(tokens)
        rest = self.probs.copy()
        for token in tokens:
            place = self.place(token)
            if place < len(rest) and self.ids[place] == token:
                rest[place] = 0.0
        return normalised(self.ids, rest)[1]

    def _few_without(self, tokens: Sequence[int]) -> Distribution | None:
        ids, probs = self.lists
        rest = probs[:]
        for token in tokens:
            place = bisect_left(ids, token)
            if place < self._n and ids[place] == token:
                rest[place] = 0.0
        return _few_normalised(ids, rest)[1]


Left = tuple[float, Distribution | None]
"""The mass that is left of a law, and the law of that; None where it is 0."""


def residual(target: Distribution, draft: Distribution, scale: float = 1.0) -> Distribution | None:
    """Normalised (scale * p_target - p_draft)+; None when it is empty.

    With scale 1 this is Leviathan et al. 2023's recovered law (algorithm 1); block verification
    (Sun et al. 2024) scales it by the probability of the path so far.
    """
    return remainder(target, draft, scale)[1]


def remainder(target: Distribution, draft: Distribution, scale: float = 1.0) -> Left:
    """The sum of (scale * p_target - p_draft)+, and `residual`."""
    if len(target) <= FEW and len(draft) <= FEW:
        return _few_remainder(target, draft, scale)
    scaled = target.probs if scale == 1.0 else target.probs * scale
    if len(draft) < len(target):
        weights = scaled.copy()
        place, found = target.places(draft.ids)
        weights[place[found]] -= draft.probs[found]
    else:
        weights = scaled - draft.at(target.ids)
    np.maximum(weights, 0.0, out=weights)
    return normalised(target.ids, weights)


def normalised(ids: IntArray, weights: FloatArray) -> Left:
    """The sum of weights >= 0 over rising ids, and their law, zeros included.

    Args:
        weights: float64 [len(ids)]; they become the law's, in place.
    """
    total = float(np.add.reduce(weights))
    if not total > 0.0:
        return 0.0, None
    weights /= total
    return total, Distribution(ids, weights)


def _few_remainder(target: Distribution, draft: Distribution, scale: float) -> Left:
    drawn = dict(zip(*draft.lists, strict=True)).get
    ids, probs = target.lists
    left = [
        rest if (rest := prob * scale - drawn(token, 0.0)) > 0.0 else 0.0
        for token, prob in zip(ids, probs, strict=True)
    ]
    return _few_normalised(ids, left)


def _few_normalised(ids: list[int], weights: list[float]) -> Left:
    total = sum(weights)
    if not total > 0.0:
        return 0.0, None
    return total, Distribution.of_few(ids, [weight / total for weight in weights])
