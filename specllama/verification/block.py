"""Block verification (Sun et al. 2024, "Block Verification Accelerates Speculative Decoding").

The chain is judged as a whole: among all rules for one drawn chain none accepts more tokens in
expectation. Symbols: tau is the number of accepted tokens and reach[i] the paper's p_i, the
acceptance probability of the first i tokens as a path.
"""

from specllama.sampling.distribution import Distribution, remainder, residual
from specllama.verification.chains import draft_law, ratio, require_chain
from specllama.verification.types import CoinChance, Proposal, Rows, Verdict


def block(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
    """Accept the longest prefix whose own coin succeeds; then draw from its residual law.

    The paper flips a coin for every prefix and keeps the longest success. Flipping from the
    longest prefix down and stopping at the first success is the same, with fewer residuals.

    Raises:
        ValueError: the proposal branches, or a token has no probability under its stated law.
    """
    require_chain(proposal)
    n_draft = len(proposal)
    laws, reach = _reach(proposal, rows)
    tau = len(reach) - 1
    while tau > 0 and not chance.flip(_success(proposal, laws, reach, tau)):
        tau -= 1
    if tau == n_draft:
        emitted = rows(n_draft - 1)
    else:
        left = residual(laws[tau], draft_law(proposal, tau), reach[tau])
        # nothing is left where the path keeps all its mass and both laws are equal
        emitted = left or laws[tau]
    return Verdict(tuple(range(tau)), chance.pick(emitted, position + tau), min(tau + 1, n_draft))


def _reach(proposal: Proposal, rows: Rows) -> tuple[list[Distribution], list[float]]:
    """The target's laws at the drafted positions, and min(1, reach * p/q) along the chain.

    Stops where no mass is left: nothing behind an impossible token can be accepted.
    """
    laws: list[Distribution] = []
    reach = [1.0]
    for node, token in enumerate(proposal.tokens):
        laws.append(rows(node - 1))
        step = reach[-1] * ratio(laws[-1], draft_law(proposal, node), token)
        if step == 0.0:
            break
        reach.append(min(1.0, step))
    return laws, reach


def _success(proposal: Proposal, laws: list[Distribution], reach: list[float], tau: int) -> float:
    """Probability of the coin of the prefix of `tau` tokens (the paper's h)."""
    if tau == len(proposal):
        return reach[tau]
    left, _ = remainder(laws[tau], draft_law(proposal, tau), reach[tau])
    # `left + 1 - reach` would lose the exact 1 at reach = 1
    missing = 1.0 - reach[tau]
    return left / (left + missing) if left + missing > 0.0 else 1.0
