"""Traversal verification, from the leaves to the root (Weng et al. 2025, arXiv 2505.12398).

A node is judged as the end of a path, with the probability of the whole path behind it: first all
paths through its children, in drawn order, then itself. On a chain this is block verification.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specllama.sampling.distribution import Distribution, remainder
from specllama.verification.chains import ratio
from specllama.verification.trees import path_to, successive
from specllama.verification.types import ROOT, CoinChance, Proposal, Rows, Verdict


def traversal(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
    """For distinct siblings in the order they were drawn in; deterministic ones in any order.

    Raises:
        ValueError: a token has no probability under its stated law, or comes twice.
    """
    end = _Traversal(proposal, rows, chance).judge(ROOT, 1.0)
    # the empty path has probability 1: only rounding could refuse it
    node, emitted = end or (ROOT, rows(ROOT))
    path = path_to(proposal, node)
    refused = bool(proposal.children(node))
    return Verdict(path, chance.pick(emitted, position + len(path)), len(path) + refused)


@dataclass(frozen=True, slots=True)
class _Traversal:
    proposal: Proposal
    rows: Rows
    chance: CoinChance

    def judge(self, node: int, reach: float) -> tuple[int, Distribution] | None:
        """Where the path through `node` ends and the law of the token after it; None: refused.

        Args:
            reach: acceptance probability of the path down to `node`, as block verification's p_i.
        """
        if reach == 0.0:
            return None
        children = self.proposal.children(node)
        if not children:
            return (node, self.rows(node)) if self._holds(reach) else None
        p_target = self.rows(node)
        for child, p_draft in zip(children, self._laws(node, children), strict=True):
            step = reach * ratio(p_target, p_draft, self.proposal.tokens[child])
            end = self.judge(child, min(1.0, step))
            if end is not None:
                return end
            left, law = remainder(p_target, p_draft, reach)
            reach = _share(left, reach)
            p_target = law or p_target
        return (node, p_target) if self._holds(reach) else None

    def _holds(self, reach: float) -> bool:
        # what is certain takes no coin: without drafts the rule is one draw
        return reach >= 1.0 or self.chance.flip(reach)

    def _laws(self, node: int, children: Sequence[int]) -> Iterable[Distribution]:
        """The law of each child given those before it."""
        tokens = [self.proposal.tokens[child] for child in children]
        law = self.proposal.law(node)
        return map(Distribution.point, tokens) if law is None else successive(law, tokens)


def _share(left: float, reach: float) -> float:
    """The path's acceptance after a child is refused, given the mass that child left."""
    # `left + 1 - reach` would lose the exact 1 at reach = 1
    missing = 1.0 - reach
    return left / (left + missing) if left + missing > 0.0 else 1.0
