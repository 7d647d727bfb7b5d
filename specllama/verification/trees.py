"""What the rules for trees share.

Most of them decide level by level: given the target's law and the drafted siblings they emit one
token whose law is the target's (a transport from the drafts to the target, Sun et al. 2023). Where
that token was drafted, whatever lies below it was drawn independently of the decision, and the walk
goes on there.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from specllama.sampling.distribution import Distribution
from specllama.verification.types import ROOT, CoinChance, Proposal, Rows, Verdict


class Select(Protocol):
    """The decision of one level.

    `tokens` are drafted siblings in drawn order, at least one, and `laws[i]` is the law that the
    siblings of `tokens[i]` were drawn from. The result is distributed as `p_target`.
    """

    def __call__(
        self,
        p_target: Distribution,
        tokens: Sequence[int],
        laws: Sequence[Distribution],
        chance: CoinChance,
        position: int,
        /,
    ) -> int: ...


def walk(
    select: Select, proposal: Proposal, rows: Rows, chance: CoinChance, position: int
) -> Verdict:
    """Verify from the root to a leaf, one selected token a level.

    Siblings drawn with replacement may carry one token several times: all of them go on together.
    """
    nodes, depth = [ROOT], 0
    while True:
        drafts = [child for node in nodes for child in proposal.children(node)]
        token = _emitted(select, proposal, drafts, rows(nodes[0]), chance, position + depth)
        below = [child for child in drafts if proposal.tokens[child] == token]
        if not below:
            return Verdict(path_to(proposal, nodes[0]), token, depth + bool(drafts))
        nodes, depth = below, depth + 1


def _emitted(
    select: Select,
    proposal: Proposal,
    drafts: Sequence[int],
    p_target: Distribution,
    chance: CoinChance,
    position: int,
) -> int:
    """The token of one level: the target's own draw unless all drafts were drawn from a law."""
    laws: list[Distribution] = []
    for child in drafts:
        law = proposal.law(proposal.parents[child])
        if law is None:
            return chance.pick(p_target, position)
        laws.append(law)
    if not laws:
        return chance.pick(p_target, position)
    return select(p_target, [proposal.tokens[c] for c in drafts], laws, chance, position)


def path_to(proposal: Proposal, node: int) -> tuple[int, ...]:
    """The nodes from the first level down to `node`; empty for ROOT."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = proposal.parents[node]
    return tuple(reversed(path))


def successive(law: Distribution, tokens: Sequence[int]) -> Iterator[Distribution]:
    """The law of each of `tokens` given those before it, drawn from `law` without replacement.

    Raises:
        ValueError: more tokens than the law has.
    """
    rest: Distribution | None = law
    for place, token in enumerate(tokens):
        if rest is not None and place > 0:
            rest = rest.without(tokens[place - 1])
        if rest is None:
            raise ValueError(f"Draft token {token} was drawn after its law had run out.")
        yield rest
