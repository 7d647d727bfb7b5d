"""Decisions inside one proposal: whether a chain goes on, which nodes of a tree are worth it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specllama.scheduling.acceptance import Acceptance
from specllama.verification.types import ROOT, Proposal

_LOOK_AHEAD = 8


class Prices(Protocol):
    """Seconds of a round for one sequence, as if all live ones did the same."""

    def batch_s(self, n_tokens: int) -> float:
        """Verifying, `n_tokens` of each sequence."""

    def draft_s(self, name: str, n_looks: int) -> float:
        """Drafting, so many positions in a row."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a proposal is expected to give.

    Attributes:
        tokens: emitted, the target's own included.
        chances: per depth, the probability that its token is accepted once it is tested.
    """

    tokens: float = 1.0
    chances: Sequence[float] = ()


class Policy:
    """Always the full length (`--no-adaptive`), but for `p_min`.

    Args:
        acceptance: of the drafter.
        p_min: end the chain where the draft's top probability is below this.
        ready: the first so many tokens cost nothing, having been drafted ahead.

    Attributes:
        confidences: of the drafted tokens, None where the drafter did not say.
        first_look: the confidence of the first token, drafted or not.
        looks: positions looked at.
    """

    def __init__(self, acceptance: Acceptance, p_min: float, ready: int = 0) -> None:
        self.acceptance = acceptance
        self.ready = ready
        self.confidences: list[float | None] = []
        self.first_look: float | None = None
        self.looks = 0
        self._p_min = p_min
        self._chances: list[float] = []

    def go_on(self, drafted: int, confidence: float | None) -> bool:
        """See `drafting.protocol.Want.go_on`."""
        if confidence is None:
            return self._may_look(drafted)
        self.looks = drafted + 1
        if drafted == 0:
            self.first_look = confidence
        chance = self.acceptance.at_confidence(confidence, drafted)
        if confidence < self._p_min or not self._may_draw(drafted, chance):
            return False
        self.confidences += [None] * (drafted - len(self.confidences))
        self.confidences.append(confidence)
        self._chances += map(self.acceptance.at_depth, range(len(self._chances), drafted))
        self._chances.append(chance)
        return True

    def _may_look(self, drafted: int) -> bool:
        return True

    def _may_draw(self, drafted: int, chance: float) -> bool:
        return True

    def trim(self, proposal: Proposal) -> Proposal:
        """The nodes that are worth verifying."""
        return proposal

    def expect(self, proposal: Proposal) -> Expectation:
        """What a proposal of this drafter is expected to give."""
        depth = max(proposal.depths(), default=0)
        if depth == len(proposal):
            chances = [
                self._chances[n] if n < len(self._chances) else self.acceptance.at_depth(n)
                for n in range(depth)
            ]
            survival, tokens = 1.0, 1.0
            for chance in chances:
                survival *= chance
                tokens += survival
            return Expectation(tokens, chances)
        return Expectation(1.0 + sum(node_chances(self.acceptance, proposal)))

    def gain(self, proposal: Proposal, expected: Expectation) -> float:
        """Tokens beyond what the time could earn otherwise: whatever it is, it was asked for."""
        return math.inf


class Stopping(Policy):
    """Drafts on while that is expected to pay for itself.

    With A the probability that all drafted so far is accepted, one to `_LOOK_AHEAD` further tokens
    must be worth more than their time at the rate it could earn otherwise; costs are not monotone,
    so that a next token may pay only together with those behind it.

    Args:
        name: of the drafter.
        rate: tokens per second that the time could earn otherwise.
        most: the most tokens in a row that the sequence can afford.
        least: draft so many whatever they promise (to learn).
    """

    def __init__(
        self,
        prices: Prices,
        name: str,
        acceptance: Acceptance,
        *,
        rate: float,
        p_min: float,
        most: int,
        ready: int = 0,
        least: int = 0,
    ) -> None:
        super().__init__(acceptance, p_min, ready)
        self._prices = prices
        self._name = name
        self._rate = rate
        self._most = most
        self._least = least
        self._survival = 1.0

    def _may_look(self, drafted: int) -> bool:
        return drafted < self._least or self._pays(drafted, self.acceptance.at_depth(drafted))

    def _may_draw(self, drafted: int, chance: float) -> bool:
        may = drafted < self._least or self._pays(drafted, chance)
        self._survival *= chance
        return may

    def _pays(self, drafted: int, chance: float) -> bool:
        """Whether some longer chain is worth more than this one."""
        now = self._taken_s(drafted)
        survival, gain = self._survival, 0.0
        for length in range(drafted + 1, min(self._most, drafted + _LOOK_AHEAD) + 1):
            survival *= chance
            gain += survival
            if gain > self._rate * (self._taken_s(length) - now):
                return True
            chance = self.acceptance.at_depth(length)
        return False

    def _taken_s(self, length: int) -> float:
        """Seconds of a round with so many tokens drafted, and what was looked at by now."""
        prices, n_looks = self._prices, max(length, self.looks) - self.ready
        return prices.batch_s(1 + length) + prices.draft_s(self._name, max(0, n_looks))

    def trim(self, proposal: Proposal) -> Proposal:
        """Of a tree whose law no rule reads: the most valuable nodes, as many as pay."""
        if len(proposal) < 2 or proposal.is_drawn:
            return proposal
        if max(proposal.depths()) == len(proposal):
            return proposal
        chances = node_chances(self.acceptance, proposal)
        order = sorted(range(len(chances)), key=lambda node: (-chances[node], node))
        best, kept, tokens = self._worth(0, 1.0), 0, 1.0
        for size, node in enumerate(order, start=1):
            tokens += chances[node]
            if (worth := self._worth(size, tokens)) > best:
                best, kept = worth, size
        return proposal.only(sorted(order[:kept]))

    def _worth(self, n_nodes: int, tokens: float) -> float:
        return tokens - self._rate * self._prices.batch_s(1 + n_nodes)

    def gain(self, proposal: Proposal, expected: Expectation) -> float:
        """Tokens beyond what the time could earn otherwise; its drafting is paid for already."""
        return self._worth(len(proposal), expected.tokens)


def node_chances(acceptance: Acceptance, proposal: Proposal) -> list[float]:
    """Per node, the probability that it is accepted; never above its parent's.

    From the draft's own probability of its path where it said that, else from the ranks on it.
    """
    ranks = acceptance.by_rank()
    born: dict[int, int] = {}
    found: dict[int, float] = {ROOT: 1.0}
    for node, parent in enumerate(proposal.parents):
        rank = born[parent] = born.get(parent, -1) + 1
        if proposal.values:
            found[node] = min(found[parent], acceptance.at_value(proposal.values[node]))
        else:
            found[node] = found[parent] * ranks[min(rank, len(ranks) - 1)]
    return [found[node] for node in range(len(proposal))]
