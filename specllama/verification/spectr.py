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

from specllama.sampling.distribution import Distribution, FloatArray
from specllama.verification.chains import ratio
from specllama.verification.trees import walk
from specllama.verification.types import CoinChance, Proposal, Rows, Verdict

# A rho above the solution is exact too; this much above it costs as little acceptance.
_WIDTH = 1e-4


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
    rho = division(p_target, laws)
    for token, law in zip(tokens, laws, strict=True):
        if chance.flip(ratio(p_target, law, token) / rho):
            return token
    return chance.pick(_recovered(p_target, laws, rho), position)


def division(p_target: Distribution, laws: Sequence[Distribution]) -> float:
    """The smallest rho of 1..k that accepts no token too often, by bisection from above.

    Args:
        laws: what each of the k drafts was drawn from.
    """
    drawn = _drawn(p_target, laws)
    low, high = 1.0, float(len(laws))
    while high - low > _WIDTH:
        rho = (low + high) / 2.0
        if sum(_tested(p_target, laws, drawn, rho)) > rho:
            low = rho
        else:
            high = rho
    return high


def _recovered(p_target: Distribution, laws: Sequence[Distribution], rho: float) -> Distribution:
    """The law after k refusals: what the accepted drafts leave of the target's law."""
    drawn = _drawn(p_target, laws)
    left = p_target.probs.copy()
    for law, tested in zip(laws, _tested(p_target, laws, drawn, rho), strict=True):
        left -= tested * np.minimum(drawn[id(law)], p_target.probs / rho)
    np.maximum(left, 0.0, out=left)
    # equal laws leave nothing, and are refused by rounding only
    return Distribution.from_weights(p_target.ids, left) or p_target


def _drawn(p_target: Distribution, laws: Sequence[Distribution]) -> dict[int, FloatArray]:
    """What each law gives the target's tokens, float64 [n]; siblings share their law."""
    return {id(law): law.at(p_target.ids) for law in laws}


def _tested(
    p_target: Distribution,
    laws: Sequence[Distribution],
    drawn: dict[int, FloatArray],
    rho: float,
) -> list[float]:
    """Per draft, the probability that all drafts before it are refused."""
    most = p_target.probs / rho
    refused = {key: 1.0 - float(np.minimum(probs, most).sum()) for key, probs in drawn.items()}
    return list(accumulate((refused[id(law)] for law in laws[:-1]), mul, initial=1.0))
