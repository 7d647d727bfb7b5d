"""Traversal verification, from the leaves to the root (Weng et al. 2025, arXiv 2505.12398).

A node is judged as the end of a path, with the probability of the whole path behind it: first all
paths through its children, in drawn order, then itself. On a chain this is block verification.
"""

from collections.abc import Iterable, Iterator, Sequence
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
    node, emitted = _Traversal(proposal, rows, chance).end()
    path = path_to(proposal, node)
    refused = bool(proposal.children(node))
    return Verdict(path, chance.pick(emitted, position + len(path)), len(path) + refused)


@dataclass(slots=True)
class _Open:
    """A node whose children are being judged, with what the refused ones have left.

    Attributes:
        reach: acceptance probability of the path down to it, as block verification's p_i.
        p_target: the law of the token after it.
        drafts: the children still to come, each with its law given those before it.
        p_draft: that of the child being judged.
    """

    node: int
    reach: float
    p_target: Distribution
    drafts: Iterator[tuple[int, Distribution]]
    p_draft: Distribution

    def next_child(self) -> int | None:
        """The child to judge now; None behind the last."""
        child, self.p_draft = next(self.drafts, (None, self.p_draft))
        return child

    def refuse(self) -> None:
        """Take what the child being judged could have had out of path and law."""
        left, law = remainder(self.p_target, self.p_draft, self.reach)
        self.reach = _share(left, self.reach)
        self.p_target = law or self.p_target


@dataclass(frozen=True, slots=True)
class _Traversal:
    proposal: Proposal
    rows: Rows
    chance: CoinChance

    def end(self) -> tuple[int, Distribution]:
        """Where the path ends, and the law of the token after it."""
        line = [self._open(ROOT, 1.0)]  # no recursion: a copied text's chain may be very long
        while True:
            here = line[-1]
            child = here.next_child()
            if child is None:
                if self._holds(here.reach):  # the empty path does
                    return here.node, here.p_target
                line.pop()
                line[-1].refuse()
                continue
            step = here.reach * ratio(here.p_target, here.p_draft, self.proposal.tokens[child])
            if step > 0.0 and self.proposal.children(child):
                line.append(self._open(child, min(1.0, step)))
            elif step > 0.0 and self._holds(step):
                return child, self.rows(child)
            else:
                here.refuse()

    def _open(self, node: int, reach: float) -> _Open:
        p_target, children = self.rows(node), self.proposal.children(node)
        drafts = zip(children, self._laws(node, children), strict=True)
        return _Open(node, reach, p_target, drafts, p_target)

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
