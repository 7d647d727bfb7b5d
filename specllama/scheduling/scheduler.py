"""How much to draft, and with what: drafting is an investment that is measured.

A proposal of k tokens is worth its expected tokens per expected second, and 0 tokens (plain
decoding) is always a candidate. A chain is continued while the next token is expected to pay for
itself at the current rate (an optimal-stopping rule for renewal rewards). Losses are bounded: a
sequence that has lost more than its budget against plain decoding decodes plainly, with rare
probes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from specllama.drafting.shapes import FixedShape, PlannedShape, Shape, plan
from specllama.scheduling.acceptance import Acceptance
from specllama.scheduling.costs import Costs
from specllama.verification.types import Proposal

BUDGET_SHARE = 0.02
BUDGET_S = 0.02
_FIRST_PROBE = 16
_HICCUP = 2.0
_LAST_PROBE = 256
PROBE_TOKENS = 2
_FIRST_TREE = (2, 2, 1)
_PLAN_AGE = 16
_PLAN_NODES = 24
_PLAN_DEPTH = 8


class Scheduler:
    """What one engine has learned about costs and acceptance."""

    def __init__(self) -> None:
        self.costs = Costs()
        self._acceptance: dict[str, Acceptance] = {}
        self._plans: dict[str, tuple[int, Shape | None]] = {}

    def acceptance(self, name: str) -> Acceptance:
        """The estimates of a drafter."""
        return self._acceptance.setdefault(name, Acceptance())

    def observe_draft(self, name: str, proposals: Sequence[Proposal], seconds: float) -> None:
        """What a drafter took for its proposals."""
        drafted = sum(len(proposal) for proposal in proposals)
        levels = max((max(p.depths(), default=0) for p in proposals), default=0)
        self.costs.observe_draft(name, drafted, seconds)
        self.costs.observe_level(name, levels, seconds)

    def planned_shape(self, name: str, nodes: int, depth: int) -> Shape:
        """The tree that pays best by the measurements so far; planned anew now and then."""
        if not self.costs.known:
            return FixedShape(_FIRST_TREE)
        age, shape = self._plans.get(name, (0, None))
        if shape is None or age >= _PLAN_AGE:
            topology = plan(
                self.acceptance(name).by_rank(),
                min(nodes, _PLAN_NODES),
                min(depth, _PLAN_DEPTH),
                self.costs.target_s,
                self.costs.level_s(name),
            )
            age, shape = 0, PlannedShape(topology or ((),))
        self._plans[name] = (age + 1, shape)
        return shape

    def round_s(self, name: str, n_tokens: int, n_drafted: int) -> float:
        """Seconds that a round usually takes: a batch of `n_tokens`, and drafting before it.

        Infinity where no such batch was measured: a guess excuses nothing.
        """
        if not self.costs.measured(n_tokens):
            return math.inf
        return self.costs.target_s(n_tokens) + n_drafted * self.costs.draft_s(name)

    def plain_rate(self) -> float:
        """Tokens per second without drafts."""
        return 1.0 / self.costs.target_s(1)

    def best_length(self, name: str, limit: int) -> tuple[int, float]:
        """The chain length up to `limit` with the most tokens per second, and that rate."""
        best, best_rate = 0, self.plain_rate()
        tokens, survival = 1.0, 1.0
        acceptance, draft_s = self.acceptance(name), self.costs.draft_s(name)
        for length in range(1, limit + 1):
            survival *= acceptance.at_depth(length - 1)
            tokens += survival
            rate = tokens / (self.costs.target_s(1 + length) + length * draft_s)
            if rate > best_rate:
                best, best_rate = length, rate
        return best, best_rate

    def tree_rate(self, name: str, nodes: int) -> float:
        """Tokens per second with the trees a drafter usually makes, of at most `nodes` nodes."""
        acceptance = self.acceptance(name)
        usual = min(nodes, acceptance.usual_nodes)
        seconds = self.costs.target_s(1 + round(usual)) + usual * self.costs.draft_s(name)
        return (1.0 + acceptance.usual_accepted) / seconds


class Account:
    """One sequence's gains and losses against plain decoding."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._elapsed = 0.0
        self._plain = 0.0
        self._idle_rounds = 0
        self._next_probe = _FIRST_PROBE

    @property
    def within_budget(self) -> bool:
        """Whether the time lost so far is less than what may be lost."""
        return self._elapsed - self._plain <= BUDGET_SHARE * self._plain + BUDGET_S

    @property
    def may_draft(self) -> bool:
        """Whether this round may draft at all."""
        costs = self._scheduler.costs
        return costs.known and not costs.stale and self.within_budget

    def probe_due(self) -> bool:
        """Whether a drafter that does not pay gets another try: ever more seldom."""
        self._idle_rounds += 1
        if self._idle_rounds < self._next_probe:
            return False
        self._idle_rounds, self._next_probe = 0, min(2 * self._next_probe, _LAST_PROBE)
        return True

    def paid(self) -> None:
        """Drafting pays again: probe soon when it stops to."""
        self._idle_rounds, self._next_probe = 0, _FIRST_PROBE

    def settle(self, seconds: float, usual: float, n_emitted: int) -> None:
        """Book one round of this sequence.

        Args:
            seconds: what it took.
            usual: what such a round usually takes; a hiccup of the machine, which would have hit
                plain decoding as well, counts as no more than twice that.
            n_emitted: tokens it gave.
        """
        if self._scheduler.costs.known:
            self._elapsed += min(seconds, _HICCUP * usual)
            self._plain += n_emitted * self._scheduler.costs.target_s(1)


class Stopping:
    """Decides, token by token, whether a chain goes on; remembers the confidences it saw.

    Args:
        planned: the length that is worth its time on average, whatever the first confidences are.
        rate: tokens per second that the time could earn otherwise.
        p_min: end the chain where the draft's top probability is below this.
    """

    def __init__(
        self, scheduler: Scheduler, name: str, planned: int, rate: float, p_min: float
    ) -> None:
        self._planned = planned
        self._costs = scheduler.costs
        self._acceptance = scheduler.acceptance(name)
        self._draft_s = scheduler.costs.draft_s(name)
        self._rate = rate
        self._p_min = p_min
        self._survival = 1.0
        self._tokens = 1.0
        self.confidences: list[float] = []

    def go_on(self, drafted: int, confidence: float | None) -> bool:
        """See `drafting.protocol.Want.go_on`."""
        longer = self._costs.target_s(drafted + 2) - self._costs.target_s(drafted + 1)
        if confidence is None:
            gain = self._survival * self._acceptance.at_depth(drafted)
            return drafted < self._planned or gain > self._rate * (longer + self._draft_s)
        gain = self._survival * self._acceptance.at_confidence(confidence)
        if confidence < self._p_min or gain <= self._rate * longer:
            return False
        self._survival = gain
        self._tokens += gain
        self.confidences.append(confidence)
        return True

    def rate(self, nodes: int) -> float:
        """Tokens per second to expect of what was drafted, its drafting paid for already."""
        return self._tokens / self._costs.target_s(1 + nodes)


class FixedLength:
    """Always the full length (`--no-adaptive`, probes, trees), but for `p_min`.

    Args:
        most: end the chain after so many tokens.
    """

    def __init__(self, p_min: float, most: float = math.inf) -> None:
        self._p_min = p_min
        self._most = most
        self.confidences: list[float] = []

    def go_on(self, drafted: int, confidence: float | None) -> bool:
        """See `drafting.protocol.Want.go_on`."""
        if drafted >= self._most:
            return False
        if confidence is None:
            return True
        if confidence < self._p_min:
            return False
        self.confidences.append(confidence)
        return True

    def rate(self, nodes: int) -> float:
        """Whatever it is, it was asked for."""
        return math.inf
