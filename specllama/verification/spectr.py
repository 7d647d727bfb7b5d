"""SpecTr's k-sequential selection (Sun et al. 2023, arXiv 2310.15141).

k independent drafts are tested in turn with the same coin, p_target / (rho p_draft); the division
by rho is what keeps k tries from accepting a token more often than the target would emit it. The
paper's drafts share one law, and rho solves 1 - (1 - beta)^k = rho beta with beta the acceptance of
one draft. Written as "rho drafts are tested on average" it holds for drafts of different laws too.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Protocol

import numpy as np

from specllama.sampling.distribution import FEW, Distribution, FloatArray, normalised
from specllama.verification.chains import ratio
from specllama.verification.trees import walk
from specllama.verification.types import CoinChance, Proposal, Rows, Verdict

# A rho above the solution is exact too; it costs no level more than this of its acceptance.
_WIDTH = 1e-3


def spectr(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
    """For independent drafts; every path that shares the accepted token goes on.

    Raises:
        ValueError: a token has no probability under its stated law.
    """
    return walk(_k_sequential, proposal, rows, chance, position)


def _k_sequential(
    p_target: Distribution,
    tokens: Sequence[int],
    laws: Sequence[Distribution],
    chance: CoinChance,
    position: int,
) -> int:
    level = _Level(p_target, laws)
    rho = level.division()
    for token, law in zip(tokens, laws, strict=True):
        if chance.flip(ratio(p_target, law, token) / rho):
            return token
    return chance.pick(level.recovered(rho), position)


def division(p_target: Distribution, laws: Sequence[Distribution]) -> float:
    """A rho of 1..k that accepts no token too often, nearly the smallest one.

    It accepts at most _WIDTH less than the smallest; where all k are hardly ever refused, a much
    larger one does.

    Args:
        laws: what each of the k drafts was drawn from.
    """
    return _Level(p_target, laws).division()


class _Level:
    """The drafts of one level against the target's law."""

    def __init__(self, p_target: Distribution, laws: Sequence[Distribution]) -> None:
        self._p_target = p_target
        self._laws = laws
        # siblings share their law
        few = all(len(law) <= FEW for law in (p_target, *laws))
        overlap = _FewOverlap if few else _ManyOverlap
        self._overlaps: dict[int, _Overlap] = {
            key: overlap(p_target, law) for key, law in {id(law): law for law in laws}.items()
        }

    def division(self) -> float:
        """See `division`.

        The drafts tested on average rise with rho, and rho is to be their number. Each secant is
        aimed a little above the solution, since only the upper end is safe; a first guess is what
        laws of 3 nats need.
        """
        low, excess = 1.0, self._excess(1.0)
        if excess <= 0.0:
            return low
        high = float(len(self._laws))
        before, rho = low, min(high, low + excess * (high + 0.5) / 2)
        while high - low > _WIDTH:
            last, excess = excess, self._excess(rho)
            slope = (excess - last) / (rho - before)
            if excess > 0.0:
                low = rho
            elif excess >= slope * _WIDTH:
                return rho
            else:
                high = rho
            aim = rho - excess / slope + _WIDTH / 2 if slope < 0.0 else high
            before, rho = rho, (aim if low < aim < high else (low + high) / 2)
        return high

    def _excess(self, rho: float) -> float:
        return sum(self._tested(rho)) - rho

    def recovered(self, rho: float) -> Distribution:
        """The law after k refusals: what the accepted drafts leave of the target's law."""
        left = self._p_target.probs.copy()
        for law, tested in zip(self._laws, self._tested(rho), strict=True):
            left -= tested * self._overlaps[id(law)].per_token(rho)
        np.maximum(left, 0.0, out=left)
        # equal laws leave nothing, and are refused by rounding only
        return normalised(self._p_target.ids, left)[1] or self._p_target

    def _tested(self, rho: float) -> list[float]:
        """Per draft, the probability that all drafts before it are refused."""
        refused = {key: 1.0 - overlap.sum(rho) / rho for key, overlap in self._overlaps.items()}
        return list(accumulate((refused[id(law)] for law in self._laws[:-1]), mul, initial=1.0))


class _Overlap(Protocol):
    """min(rho p_draft, p_target) of every token of the target's law."""

    def sum(self, rho: float) -> float:
        """Of all tokens."""

    def per_token(self, rho: float) -> FloatArray:
        """The same / rho, float64 [n]."""


class _ManyOverlap:
    """With a pass over the laws for each rho."""

    def __init__(self, p_target: Distribution, p_draft: Distribution) -> None:
        self._target, self._drawn = p_target.probs, p_draft.at(p_target.ids)
        self._least = np.empty_like(self._target)

    def sum(self, rho: float) -> float:
        np.multiply(self._drawn, rho, out=self._least)
        np.minimum(self._least, self._target, out=self._least)
        return float(np.add.reduce(self._least))

    def per_token(self, rho: float) -> FloatArray:
        np.divide(self._target, rho, out=self._least)
        return np.minimum(self._drawn, self._least, out=self._least)


class _FewOverlap:
    """With running sums over the tokens by p_target / p_draft: the first ones have p_target."""

    def __init__(self, p_target: Distribution, p_draft: Distribution) -> None:
        ids, self._target = p_target.lists
        known = dict(zip(*p_draft.lists, strict=True))
        self._drawn = [known.get(token, 0.0) for token in ids]
        pairs = [(p / q, p, q) for p, q in zip(self._target, self._drawn, strict=True) if q > 0.0]
        pairs.sort()
        self._ratios = [ratio for ratio, _, _ in pairs]
        self._below = list(accumulate((p for _, p, _ in pairs), initial=0.0))
        self._above = list(accumulate((q for _, _, q in reversed(pairs)), initial=0.0))

    def sum(self, rho: float) -> float:
        place = bisect_right(self._ratios, rho)
        return self._below[place] + rho * self._above[len(self._ratios) - place]

    def per_token(self, rho: float) -> FloatArray:
        return np.minimum(self._drawn, np.array(self._target) / rho)
