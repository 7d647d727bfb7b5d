"""Drawn trees for the enumeration: their children are drawn when a rule first looks at them.

A rule that walks down one branch never looks at the others, and what nobody looks at cannot change
the outcome: its draws sum to 1. Drawing on demand therefore gives the same law as drawing the
whole tree first, with far fewer traces (`test_trees.py` compares the two).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from specllama.sampling.distribution import Distribution
from specllama.sampling.noise import GreedyPlusOne, IndependentDrafts
from specllama.verification.types import ROOT, CoinChance, Proposal, Verdict, Verify

from .enumeration import Law, Model, Tokens, Trace, law_of
from .models import pair

Ranks = tuple[int, ...]
Widths = Callable[[Ranks], int]
"""How many children a node gets; a node is named by the ranks on its path, () is the root."""
Order = Callable[[list[int]], list[int]]


class IndependentTrace(Trace):
    """Draws siblings as the production chance does, from enumerated picks."""

    children = IndependentDrafts.children  # type: ignore[assignment]


class GreedyPlusOneTrace(Trace):
    """The same for greedy drafts and one drawn draft."""

    children = GreedyPlusOne.children  # type: ignore[assignment]


def regular(*widths: int) -> Widths:
    """The same number of children for all nodes of a level."""
    return lambda ranks: widths[len(ranks)] if len(ranks) < len(widths) else 0


def irregular(widths: Mapping[Ranks, int]) -> Widths:
    """Named nodes have children, the others none."""
    return lambda ranks: widths.get(ranks, 0)


@dataclass(frozen=True)
class Drawing:
    """How a tree is drawn.

    Attributes:
        deterministic: which nodes get the most probable tokens as children, without a law.
        order: what becomes of the drawn siblings; anything but the identity is a mutation.
    """

    widths: Widths
    deterministic: Callable[[Ranks], bool] = lambda ranks: False
    order: Order = lambda tokens: tokens


class Growing:
    """A `Proposal` that draws on demand."""

    def __init__(self, drawing: Drawing, model: Model, chance: CoinChance, context: Tokens) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._drawing, self._model, self._chance = drawing, model, chance
        self._context = context
        self._ranks: dict[int, Ranks] = {ROOT: ()}
        self._children: dict[int, list[int]] = {}

    def children(self, node: int) -> list[int]:
        if node not in self._children:
            self._children[node] = self._draw(node)
        return self._children[node]

    def child(self, node: int, token: int) -> int | None:
        return next((c for c in self.children(node) if self.tokens[c] == token), None)

    def law(self, node: int) -> Distribution | None:
        drawn = self._drawing.widths(self._ranks[node]) > 0
        drawn &= not self._drawing.deterministic(self._ranks[node])
        return self._model(self._context + self.path(node)) if drawn else None

    def path(self, node: int) -> Tokens:
        if node == ROOT:
            return ()
        return (*self.path(self.parents[node]), self.tokens[node])

    def _draw(self, node: int) -> list[int]:
        ranks = self._ranks[node]
        count = self._drawing.widths(ranks)
        if count == 0:
            return []
        path = self._context + self.path(node)
        law = self._model(path)
        if self._drawing.deterministic(ranks):
            tokens = law.top(count)
        else:
            tokens = self._drawing.order(self._chance.children(law, len(path), count))
        first = len(self.tokens)
        self.tokens += tokens
        self.parents += [node] * len(tokens)
        self._ranks |= {first + rank: (*ranks, rank) for rank in range(len(tokens))}
        return list(range(first, first + len(tokens)))

    def drawn(self) -> Proposal:
        """The whole tree, drawn level by level before any rule sees it."""
        node = ROOT
        while node < len(self.tokens):
            self.children(node)
            node += 1
        laws = tuple(self.law(node) for node in range(ROOT, len(self.tokens)))
        return Proposal(tuple(self.tokens), tuple(self.parents), laws)


@dataclass(frozen=True)
class Way:
    """A rule with the kind of chance that draws its trees."""

    verify: Verify[Trace]
    trace: type[Trace] = Trace


def verdict_of(
    way: Way, proposal: Growing | Proposal, target: Model, chance: Trace
) -> tuple[Tokens, Verdict]:
    """What a round emits; the accepted path has to be one of the tree."""

    def rows(node: int) -> Distribution:
        return target(tuple(proposal.path(node)))

    verdict = way.verify(proposal, rows, chance, 0)  # type: ignore[arg-type]
    assert [proposal.parents[node] for node in verdict.path] == [ROOT, *verdict.path][:-1]
    last = proposal.path(verdict.path[-1] if verdict.path else ROOT)
    ends = [n for n in range(ROOT, len(proposal.tokens)) if proposal.path(n) == last]
    refused = any(proposal.children(node) for node in ends)
    assert verdict.tested == len(verdict.path) + refused
    return (*(proposal.tokens[node] for node in verdict.path), verdict.token), verdict


def law_of_round(way: Way, drawing: Drawing, target: Model, draft: Model) -> Law:
    """The exact law of what one round emits."""

    def run(chance: Trace) -> Tokens:
        return verdict_of(way, Growing(drawing, draft, chance, ()), target, chance)[0]

    return law_of(run, way.trace)


def mean_length(law: Law) -> float:
    """Tokens a round emits on average."""
    return sum(len(tokens) * probability for tokens, probability in law.items())


@cache
def models(kind: str, seed: int) -> tuple[Model, Model]:
    """`models.pair`, kept: its laws are the same each time, and so are the identities."""
    return pair(kind, seed)


def ranked(order: Sequence[int]) -> Callable[[list[int]], list[int]]:
    """Siblings in another order than they were drawn in."""
    return lambda tokens: [tokens[place] for place in order if place < len(tokens)]
