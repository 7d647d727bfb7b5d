"""SpecTr's k-sequential selection (Sun et al. 2023, arXiv 2310.15141).

k independent drafts are tested in turn with the same coin, p_target / (rho p_draft); the division
by rho is what keeps k tries from accepting a token more often than the target would emit it. The
paper's drafts share one law, and rho solves 1 - (1 - beta)^k = rho beta with beta the acceptance of
one draft. Written as "rho drafts are tested on average" it holds for drafts of different laws too.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from specllama.sampling.distribution import Distribution, FloatArray, normalised
from specllama.verification.chains import ratio
from specllama.verification.trees import walk
from specllama.verification.types import CoinChance, Proposal, Rows, Verdict

# A rho above the solution is exact too; this much above it costs next to no acceptance.
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
    """The smallest rho of 1..k that accepts no token too often, or up to _WIDTH more.

    Args:
        laws: what each of the k drafts was drawn from.
    """
    return _Level(p_target, laws).division()


class _Level:
    """The drafts of one level against the target's law."""

    def __init__(self, p_target: Distribution, laws: Sequence[Distribution]) -> None:
        self._p_target = p_target
        self._laws = laws
        # what each law gives the target's tokens, float64 [n]; siblings share their law
        self._drawn: dict[int, FloatArray] = {id(law): law.at(p_target.ids) for law in laws}

    def division(self) -> float:
        """See `division`.

        The drafts tested on average rise with rho, and rho is to be their number: false position
        between 1 and k, with the Illinois halving against an end that stays.
        """
        low, high = 1.0, float(len(self._laws))
        above = sum(self._tested(low)) - low
        below = sum(self._tested(high)) - high if above > 0.0 else above
        if below >= above:
            return low
        last = 0
        while high - low > _WIDTH and below < 0.0:
            rho = low + (high - low) * above / (above - below)
            # a little above: what counts is the upper end
            rho = min(rho + _WIDTH / 2, (rho + high) / 2)
            excess = sum(self._tested(rho)) - rho
            if excess > 0.0:
                low, above = rho, excess
                below, last = (below / 2 if last > 0 else below), 1
            else:
                high, below = rho, excess
                above, last = (above / 2 if last < 0 else above), -1
        return high

    def recovered(self, rho: float) -> Distribution:
        """The law after k refusals: what the accepted drafts leave of the target's law."""
        target = self._p_target.probs
        left = target.copy()
        for law, tested in zip(self._laws, self._tested(rho), strict=True):
            left -= tested * np.minimum(self._drawn[id(law)], target / rho)
        np.maximum(left, 0.0, out=left)
        # equal laws leave nothing, and are refused by rounding only
        return normalised(self._p_target.ids, left)[1] or self._p_target

    def _tested(self, rho: float) -> list[float]:
        """Per draft, the probability that all drafts before it are refused."""
        refused = {}
        for key, drawn in self._drawn.items():
            accepted = drawn * rho
            np.minimum(accepted, self._p_target.probs, out=accepted)
            refused[key] = 1.0 - float(np.add.reduce(accepted)) / rho
        return list(accumulate((refused[id(law)] for law in self._laws[:-1]), mul, initial=1.0))
