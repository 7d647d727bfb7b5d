"""Greedy drafts and one drawn draft (Hu et al. 2025, arXiv 2502.18779).

All siblings but the last are the draft's most probable tokens, the last is drawn from the others.
With S the former and q' the draft's law outside S, a level is accepted with p(S) + sum over the
other tokens of min(p, q'), the most any rule can reach with such drafts.
"""

from collections.abc import Sequence

from specllama.sampling.distribution import Distribution, residual
from specllama.verification.chains import ratio
from specllama.verification.trees import walk
from specllama.verification.types import CoinChance, Proposal, Rows, Verdict


def greedy_one(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
    """Test the drawn sibling; where it is refused, a recovered token may be a greedy one.

    Raises:
        ValueError: the drawn token has no probability outside the greedy ones.
    """
    return walk(_drawn_first, proposal, rows, chance, position)


def _drawn_first(
    p_target: Distribution,
    tokens: Sequence[int],
    laws: Sequence[Distribution],
    chance: CoinChance,
    position: int,
) -> int:
    p_draft = laws[0].without(*tokens[:-1])
    if p_draft is None:
        raise ValueError(f"Draft token {tokens[-1]} was drawn after its law had run out.")
    if chance.flip(ratio(p_target, p_draft, tokens[-1])):
        return tokens[-1]
    # equal laws leave nothing, and are refused by rounding only
    return chance.pick(residual(p_target, p_draft) or p_target, position)
