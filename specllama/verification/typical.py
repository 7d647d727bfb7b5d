"""Typical acceptance (Cai et al. 2024, "Medusa", arXiv 2401.10774). It is lossy.

A draft is kept where the target finds it probable enough, not as often as the target would emit
it, so that texts become more probable and less varied than the target's own.
"""

import math

import numpy as np

from specllama.sampling.distribution import Distribution
from specllama.verification.trees import path_to
from specllama.verification.types import ROOT, Chance, Proposal, Rows, Verdict

# The values of Medusa's published code.
_EPSILON, _DELTA = 0.3, 0.09


def typical(proposal: Proposal, rows: Rows, chance: Chance, position: int) -> Verdict:
    """Accept the longest path of typical tokens, of equals the first; then draw from the target."""
    depths = {ROOT: 0}
    open_nodes = [ROOT]
    for node in open_nodes:
        children = _typical_children(proposal, rows, node)
        open_nodes += children
        depths |= dict.fromkeys(children, depths[node] + 1)
    last = max(depths, key=depths.__getitem__)
    token = chance.pick(rows(last), position + depths[last])
    refused = bool(proposal.children(last))
    return Verdict(path_to(proposal, last), token, depths[last] + refused)


def _typical_children(proposal: Proposal, rows: Rows, node: int) -> list[int]:
    """The children with p > min(epsilon, delta e^-H), H the entropy of the target's law in nats."""
    children = proposal.children(node)
    if not children:
        return []
    p_target = rows(node)
    least = min(_EPSILON, _DELTA * math.exp(-_entropy(p_target)))
    return [child for child in children if p_target.prob(proposal.tokens[child]) > least]


def _entropy(law: Distribution) -> float:
    return -float(law.probs @ np.log(law.probs))
