"""What the rules for chains share."""

from specllama.sampling.distribution import Distribution
from specllama.verification.types import Proposal


def require_chain(proposal: Proposal) -> None:
    """Raise ValueError unless every node's parent is the node before it."""
    if proposal.parents != tuple(range(-1, len(proposal) - 1)):
        raise ValueError("This verification rule needs a chain, not a tree.")


def draft_law(proposal: Proposal, node: int) -> Distribution:
    """The law the token of `node` was drawn from; a point where it was chosen deterministically."""
    return proposal.law(node - 1) or Distribution.point(proposal.tokens[node])


def ratio(p_target: Distribution, p_draft: Distribution, token: int) -> float:
    """p_target / p_draft of a drafted token.

    Raises:
        ValueError: the draft's law excludes the token, so it was not drawn from it.
    """
    drawn = p_draft.prob(token)
    if drawn <= 0.0:
        raise ValueError(f"Draft token {token} has no probability under the law it came with.")
    return p_target.prob(token) / drawn
