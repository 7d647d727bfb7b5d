"""Recursive rejection sampling over the children of a node.

With replacement: multi-step speculative sampling of SpecInfer (Miao et al. 2023, arXiv 2305.09781).
Without: EAGLE (Li et al. 2024, arXiv 2401.15077) and Sequoia (Chen et al. 2024, arXiv
2402.12374), where a refused token leaves the draft's law as well.
"""

from collections.abc import Iterable, Sequence

from specllama.sampling.distribution import Distribution, residual
from specllama.verification.chains import ratio
from specllama.verification.trees import successive, walk
from specllama.verification.types import CoinChance, Proposal, Rows, Verdict


def with_replacement(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
    """For siblings that are independent draws; one token may come more than once.

    Raises:
        ValueError: a token has no probability under its stated law.
    """
    return walk(_independent, proposal, rows, chance, position)


def without_replacement(
    proposal: Proposal, rows: Rows, chance: CoinChance, position: int
) -> Verdict:
    """For distinct siblings in the order they were drawn in.

    Raises:
        ValueError: a token has no probability under its stated law, or comes twice.
    """
    return walk(_distinct, proposal, rows, chance, position)


def _independent(
    p_target: Distribution,
    tokens: Sequence[int],
    laws: Sequence[Distribution],
    chance: CoinChance,
    position: int,
) -> int:
    return _accepted(p_target, zip(tokens, laws, strict=True), chance, position)


def _distinct(
    p_target: Distribution,
    tokens: Sequence[int],
    laws: Sequence[Distribution],
    chance: CoinChance,
    position: int,
) -> int:
    drafts = zip(tokens, successive(laws[0], tokens), strict=True)
    return _accepted(p_target, drafts, chance, position)


def _accepted(
    p_target: Distribution,
    drafts: Iterable[tuple[int, Distribution]],
    chance: CoinChance,
    position: int,
) -> int:
    """Test drafts in turn, each against what the refusals before it left of the target's law."""
    for token, p_draft in drafts:
        if chance.flip(ratio(p_target, p_draft, token)):
            return token
        # equal laws leave nothing, and are refused by rounding only
        p_target = residual(p_target, p_draft) or p_target
    return chance.pick(p_target, position)
