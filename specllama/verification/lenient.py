"""Rejection sampling with lenience (Leviathan et al. 2023, appendix). It is lossy."""

from specllama.sampling.distribution import residual
from specllama.verification.chains import draft_law, ratio, require_chain
from specllama.verification.types import CoinChance, Proposal, Rows, Verdict, Verify


def lenient(lenience: float) -> Verify[CoinChance]:
    """Rejection that accepts with min(1, p_target / (lenience p_draft)).

    No token is emitted with more than its target probability / lenience; 1 is exact.

    Raises:
        ValueError: lenience is not in (0, 1].
    """
    if not 0.0 < lenience <= 1.0:
        raise ValueError(f"lenience must be above 0 and at most 1, not {lenience}.")

    def verify(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
        require_chain(proposal)
        for node, token in enumerate(proposal.tokens):
            p_target, p_draft = rows(node - 1), draft_law(proposal, node)
            if not chance.flip(ratio(p_target, p_draft, token) / lenience):
                recovered = chance.pick(residual(p_target, p_draft) or p_target, position + node)
                return Verdict(tuple(range(node)), recovered, node + 1)
        n_draft = len(proposal)
        bonus = chance.pick(rows(n_draft - 1), position + n_draft)
        return Verdict(tuple(range(n_draft)), bonus, n_draft)

    return verify
