"""Rules for trees that look right and are not, and one that is only weaker."""

from collections.abc import Sequence

from specllama.sampling.distribution import Distribution, residual
from specllama.verification.chains import ratio
from specllama.verification.match import match
from specllama.verification.spectr import division
from specllama.verification.trees import path_to, successive, walk
from specllama.verification.types import ROOT, CoinChance, Proposal, Rows, Verdict

Laws = Sequence[Distribution]


def one_law_for_all(
    p: Distribution, tokens: Sequence[int], laws: Laws, chance: CoinChance, position: int
) -> int:
    """Distinct siblings tested against the law before any was taken out: not renormalised."""
    for token in tokens:
        if chance.flip(ratio(p, laws[0], token)):
            return token
        p = residual(p, laws[0]) or p
    return chance.pick(p, position)


def nothing_subtracted(
    p: Distribution, tokens: Sequence[int], laws: Laws, chance: CoinChance, position: int
) -> int:
    """Every sibling tested against the whole target; only the last refusal is recovered from."""
    for token, law in zip(tokens, laws, strict=True):
        if chance.flip(ratio(p, law, token)):
            return token
    return chance.pick(residual(p, laws[-1]) or p, position)


def token_residual(
    p: Distribution, tokens: Sequence[int], laws: Laws, chance: CoinChance, position: int
) -> int:
    """k-sequential selection that recovers from (p - q)+, as a single draft would."""
    rho = division(p, laws)
    for token, law in zip(tokens, laws, strict=True):
        if chance.flip(ratio(p, law, token) / rho):
            return token
    return chance.pick(residual(p, laws[0]) or p, position)


def drawn_from_all(
    p: Distribution, tokens: Sequence[int], laws: Laws, chance: CoinChance, position: int
) -> int:
    """The drawn sibling tested against the whole law, not the law outside the greedy ones."""
    if chance.flip(ratio(p, laws[0], tokens[-1])):
        return tokens[-1]
    return chance.pick(residual(p, laws[0]) or p, position)


def greedy_first(
    p: Distribution, tokens: Sequence[int], laws: Laws, chance: CoinChance, position: int
) -> int:
    """The greedy siblings first, each with its probability. Exact, but it accepts less."""
    for token in tokens[:-1]:
        if chance.flip(p.prob(token)):
            return token
        p = p.without(token) or p
    *_, law = successive(laws[0], tokens)
    if chance.flip(ratio(p, law, tokens[-1])):
        return tokens[-1]
    return chance.pick(residual(p, law) or p, position)


def by(select):  # type: ignore[no-untyped-def]
    """The rule that walks with such a selection."""

    def verify(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
        return walk(select, proposal, rows, chance, position)

    return verify


class _OnlyFirst:
    """A proposal that shows no children of a node whose token an earlier sibling carries."""

    def __init__(self, proposal: Proposal) -> None:
        self._proposal = proposal
        self.tokens, self.parents, self.law = proposal.tokens, proposal.parents, proposal.law

    def children(self, node: int) -> list[int]:
        if node != ROOT:
            siblings = self._proposal.children(self.parents[node])
            if any(self.tokens[s] == self.tokens[node] for s in siblings[: siblings.index(node)]):
                return []
        return self._proposal.children(node)


def forgetful(rule):  # type: ignore[no-untyped-def]
    """Of equal siblings only the first goes on. Exact, but it accepts less."""

    def verify(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
        verdict: Verdict = rule(_OnlyFirst(proposal), rows, chance, position)
        return verdict

    return verify


def drawn_again(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
    """Match that throws its mismatch away."""
    verdict = match(proposal, rows, chance, position)
    last = verdict.path[-1] if verdict.path else ROOT
    if not proposal.children(last):
        return verdict
    return Verdict(verdict.path, chance.pick(rows(last), position), verdict.tested)


def unscaled_traversal(
    proposal: Proposal, rows: Rows, chance: CoinChance, position: int
) -> Verdict:
    """Traversal that forgets the probability of the path above a node."""
    return _traversal(proposal, rows, chance, position, scaled=False, updated=True)


def stale_traversal(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
    """Traversal whose path is as probable after its children were refused as before."""
    return _traversal(proposal, rows, chance, position, scaled=True, updated=False)


def _traversal(
    proposal: Proposal,
    rows: Rows,
    chance: CoinChance,
    position: int,
    *,
    scaled: bool,
    updated: bool,
) -> Verdict:
    def judge(node: int, reach: float) -> tuple[int, Distribution] | None:
        p = rows(node)
        children = proposal.children(node)
        law = proposal.law(node)
        tokens = [proposal.tokens[child] for child in children]
        for child, q in zip(children, successive(law, tokens) if law else (), strict=True):
            step = ratio(p, q, proposal.tokens[child]) * (reach if scaled else 1.0)
            end = judge(child, min(1.0, step))
            if end is not None:
                return end
            left = sum(max(reach * float(p.prob(t)) - q.prob(t), 0.0) for t in p.ids.tolist())
            p = residual(p, q, reach) or p
            if updated:
                missing = 1.0 - reach
                reach = left / (left + missing) if left + missing > 0.0 else 1.0
        return (node, p) if chance.flip(reach) else None

    node, emitted = judge(ROOT, 1.0) or (ROOT, rows(ROOT))
    path = path_to(proposal, node)
    refused = bool(proposal.children(node))
    return Verdict(path, chance.pick(emitted, position + len(path)), len(path) + refused)
