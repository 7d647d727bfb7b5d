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
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Share:
    """One sequence's part in a round: the last drafter it asked ("" for none), what came of it."""

    account: Account
    asked: str
    n_drafted: int
    n_emitted: int


class Scheduler:
    """What one engine has learned about costs and acceptance.

    What a sequence gains by drafting is judged as if all live ones did the same: then the round's
    batch grows by as many tokens for each of them.

    Args:
        max_batch: the most tokens of a target decode; a round of more takes several.

    Attributes:
        n_live: how many sequences share this round's batches; the engine says so.
    """

    def __init__(self, max_batch: int = 1 << 30) -> None:
        self.costs = Costs()
        self.n_live = 1
        self._max_batch = max_batch
        self._acceptance: dict[str, Acceptance] = {}
        self._plans: dict[tuple[str, int], tuple[int, Shape | None]] = {}

    @property
    def _plain_size(self) -> int:
        return min(self.n_live, self._max_batch)

    @property
    def knows_plain(self) -> bool:
        """Whether a plain round of so many sequences was measured, and not too long ago."""
        size = self._plain_size
        return self.costs.known(size) and not self.costs.stale(size)

    def batch_s(self, n_tokens: int) -> float:
        """Seconds of a round's target decodes if each sequence brings so many tokens."""
        full, rest = divmod(self.n_live * n_tokens, self._max_batch)
        seconds = self.costs.target_s(rest) if rest else 0.0
        return seconds + (full * self.costs.target_s(self._max_batch) if full else 0.0)

    def draft_s(self, name: str) -> float:
        """Seconds of a drafted token for each sequence."""
        return self.n_live * self.costs.draft_s(name)

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
        if not self.costs.known(self._plain_size):
            return FixedShape(_FIRST_TREE)
        age, shape = self._plans.get((name, self.n_live), (0, None))
        if shape is None or age >= _PLAN_AGE:
            topology = plan(
                self.acceptance(name).by_rank(),
                min(nodes, _PLAN_NODES),
                min(depth, _PLAN_DEPTH),
                self.batch_s,
                self.costs.level_s(name),
            )
            age, shape = 0, PlannedShape(topology or ((),))
        self._plans[name, self.n_live] = (age + 1, shape)
        return shape

    def plain_rate(self) -> float:
        """Tokens per second of each sequence without drafts."""
        return 1.0 / self.batch_s(1)

    def best_length(self, name: str, limit: int) -> tuple[int, float]:
        """The chain length up to `limit` with the most tokens per second, and that rate."""
        best, best_rate = 0, self.plain_rate()
        tokens, survival = 1.0, 1.0
        acceptance, draft_s = self.acceptance(name), self.draft_s(name)
        for length in range(1, limit + 1):
            survival *= acceptance.at_depth(length - 1)
            tokens += survival
            rate = tokens / (self.batch_s(1 + length) + length * draft_s)
            if rate > best_rate:
                best, best_rate = length, rate
        return best, best_rate

    def tree_rate(self, name: str, nodes: int) -> float:
        """Tokens per second with the trees a drafter usually makes, of at most `nodes` nodes."""
        acceptance = self.acceptance(name)
        usual = min(nodes, acceptance.usual_nodes)
        seconds = self.batch_s(1 + round(usual)) + usual * self.draft_s(name)
        return (1.0 + acceptance.usual_accepted) / seconds

    def settle(self, seconds: float, shares: Sequence[Share]) -> None:
        """Book one round of all live sequences.

        Each bears its part of a plain round; what the round took beyond that is shared by who
        drafted. A hiccup of the machine, which would have hit plain decoding as well, counts as no
        more than twice the usual time.
        """
        if not self.costs.known(self._plain_size):
            return
        plain = self.batch_s(1)
        extra = min(seconds, _HICCUP * self._usual_s(shares)) - plain
        n_drafted = sum(share.n_drafted for share in shares)
        for share in shares:
            part = share.n_drafted / n_drafted if n_drafted else 1 / len(shares)
            own = plain / len(shares)
            share.account.book(own + part * extra, share.n_emitted * own)

    def _usual_s(self, shares: Sequence[Share]) -> float:
        """Seconds that such a round usually takes; infinity where no such batch was measured: a
        guess excuses nothing."""
        n_tokens = sum(1 + share.n_drafted for share in shares)
        if not self.costs.measured(n_tokens):
            return math.inf
        drafting = sum(max(1, s.n_drafted) * self.costs.draft_s(s.asked) for s in shares if s.asked)
        return self.costs.target_s(n_tokens) + drafting


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
        return self._scheduler.knows_plain and self.within_budget

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

    def book(self, seconds: float, plain: float) -> None:
        """What a round cost this sequence, and what its tokens would have cost without drafts."""
        self._elapsed += seconds
        self._plain += plain


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
        self._batch_s = scheduler.batch_s
        self._acceptance = scheduler.acceptance(name)
        self._draft_s = scheduler.draft_s(name)
        self._rate = rate
        self._p_min = p_min
        self._survival = 1.0
        self._tokens = 1.0
        self.confidences: list[float] = []

    def go_on(self, drafted: int, confidence: float | None) -> bool:
        """See `drafting.protocol.Want.go_on`."""
        longer = self._batch_s(drafted + 2) - self._batch_s(drafted + 1)
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
        return self._tokens / self._batch_s(1 + nodes)


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
