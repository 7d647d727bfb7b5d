"""A probability law over token ids, kept only where it is above zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.sampling.columns import FloatArray as FloatArray
from specllama.sampling.columns import IntArray as IntArray
from specllama.sampling.columns import highest

CERTAIN = np.ones(1)
CERTAIN.setflags(write=False)
"""The probabilities of a law that is a point."""


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Token ids with their probabilities.

    Attributes:
        ids: int64 [n], unique, rising.
        probs: float64 [n], summing to 1; all above 0, but for what is left of a law (`without`,
            `residual`), whose zeros stay: leaving them out costs more than everything else.

    Rising ids (not falling probabilities) make `prob` a binary search, two laws easy to align and a
    whole vocabulary free of any sort; `top` partitions when someone asks.
    """

    ids: IntArray
    probs: FloatArray

    @classmethod
    def from_weights(cls, ids: NDArray[Any], weights: NDArray[Any]) -> Distribution | None:
        """Normalise weights >= 0 over rising ids; None when nothing is left."""
        probs = np.array(weights, np.float64)
        total = probs.sum()
        if not total > 0.0:
            return None
        probs /= total
        ids = np.asarray(ids, np.int64)
        if probs.min() > 0.0:
            return cls(ids, probs)
        kept = probs > 0.0
        return cls(ids[kept], probs[kept])

    @classmethod
    def point(cls, token: int) -> Distribution:
        """All mass on one token: what temperature 0 is, and what a deterministic draft is."""
        return cls(np.array([token], np.int64), CERTAIN)

    def prob(self, token: int) -> float:
        """Probability of one token, 0 outside the support."""
        place = int(self.ids.searchsorted(token))
        found = place < len(self.ids) and self.ids[place] == token
        return float(self.probs[place]) if found else 0.0

    def at(self, tokens: IntArray) -> FloatArray:
        """Probabilities of many tokens, float64 of the same shape."""
        if tokens is self.ids:
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
        chosen = highest(self.probs, count)
        order = np.lexsort((self.ids[chosen], -self.probs[chosen]))[:count]
        return [int(token) for token in self.ids[chosen[order]]]

    def without(self, *tokens: int) -> Distribution | None:
        """The law given that none of these tokens comes; None when one of them was certain to."""
        rest = self.probs.copy()
        for token in tokens:
            place = int(self.ids.searchsorted(token))
            if place < len(rest) and self.ids[place] == token:
                rest[place] = 0.0
        return normalised(self.ids, rest)


def residual(target: Distribution, draft: Distribution, scale: float = 1.0) -> Distribution | None:
    """Normalised (scale * p_target - p_draft)+; None when it is empty.

    With scale 1 this is Leviathan et al. 2023's recovered law (algorithm 1); block verification
    (Sun et al. 2024) scales it by the probability of the path so far.
    """
    return normalised(target.ids, residual_weights(target, draft, scale))


def normalised(ids: IntArray, weights: FloatArray) -> Distribution | None:
    """The law of weights >= 0 over rising ids, zeros included; None when nothing is left.

    Args:
        weights: float64 [len(ids)]; they become the law's, in place.
    """
    total = np.add.reduce(weights)
    if not total > 0.0:
        return None
    weights /= total
    return Distribution(ids, weights)


def residual_weights(target: Distribution, draft: Distribution, scale: float = 1.0) -> FloatArray:
    """(scale * p_target - p_draft)+ over the target's ids, float64 [len(target.ids)]."""
    weights = target.probs * scale
    if draft.ids is target.ids:
        weights -= draft.probs
    elif len(draft.ids) < len(target.ids):
        place, found = target.places(draft.ids)
        weights[place[found]] -= draft.probs[found]
    else:
        weights -= draft.at(target.ids)
    np.maximum(weights, 0.0, out=weights)
    return weights
