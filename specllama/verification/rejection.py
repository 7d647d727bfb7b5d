"""Token-level rejection sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023)."""

from specllama.sampling.distribution import Distribution, residual
from specllama.verification.chains import draft_law, ratio, require_chain
from specllama.verification.types import CoinChance, Proposal, Rows, Verdict


def rejection(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
    """Accept each token with min(1, p_target / p_draft); recover the first refused one.

    Raises:
        ValueError: the proposal branches, or a token has no probability under its stated law.
    """
    require_chain(proposal)
    for node, token in enumerate(proposal.tokens):
        p_target, p_draft = rows(node - 1), draft_law(proposal, node)
        if not chance.flip(ratio(p_target, p_draft, token)):
            recovered = chance.pick(_recovered(p_target, p_draft), position + node)
            return Verdict(tuple(range(node)), recovered, node + 1)
    n_draft = len(proposal)
    bonus = chance.pick(rows(n_draft - 1), position + n_draft)
    return Verdict(tuple(range(n_draft)), bonus, n_draft)


def _recovered(p_target: Distribution, p_draft: Distribution) -> Distribution:
    """The law of the token after a refusal: normalised (p_target - p_draft)+.

    Equal laws leave nothing, and are refused by rounding only; the target's law is right then.
    """
    return residual(p_target, p_draft) or p_target
