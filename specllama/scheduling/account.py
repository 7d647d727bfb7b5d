"""What a sequence may lose to drafting, and what it has lost and gained.

Its budget against plain decoding is `BUDGET_SHARE` of its plain time and `BUDGET_S`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specllama.scheduling.scheduler import Scheduler

BUDGET_SHARE = 0.02
BUDGET_S = 0.02
USUAL_TOKENS = 128
"""A reply is taken to be no longer than this."""

_RESERVE_S = 0.005
_SMALL_RESERVE_S = 0.001
_RISKED_SHARE = 0.09
_STAKED_SHARE = 0.5


class Account:
    """One sequence's gains and losses against plain decoding.

    Args:
        n_tokens: the most that it will emit, None where nobody said.

    Attributes:
        promised: the share of its time that drafting is expected to save.
    """

    def __init__(self, scheduler: Scheduler, n_tokens: int | None = None) -> None:
        self._scheduler = scheduler
        self._usual = min(n_tokens or USUAL_TOKENS, USUAL_TOKENS)
        self._lost = 0.0
        self._plain = 0.0
        self.promised = 0.0

    @property
    def slack_s(self) -> float:
        """Seconds that the next round may lose: it emits a token, which takes a plain round.

        A little of the budget is left for decodes that take longer than they usually do, less
        where a device of its own takes them. Sequences that share a round share its milliseconds:
        each waits for the drafts of all. Where tokens are fast, it is no more than a share of
        the reply as it is expected: `_RISKED_SHARE`, or `_STAKED_SHARE` of what drafting promises
        to save.
        """
        n_live = self._scheduler.n_live
        one = self._scheduler.plain_s / n_live
        elapsed = self._plain + one
        reserve = _RESERVE_S if not self._scheduler.costs.switch_s else _SMALL_RESERVE_S
        budget = BUDGET_SHARE * elapsed + (BUDGET_S - reserve) / n_live
        share = max(_RISKED_SHARE, _STAKED_SHARE * self.promised)
        return min(budget, share * max(elapsed, self._usual * one)) - self._lost

    @property
    def may_draft(self) -> bool:
        """Whether this round may draft at all: where not even a token, nobody need be asked."""
        known = self._scheduler
        return known.knows_plain and known.affordable(self, "", 1, 1, n_drafting=1) == 1

    def book(self, seconds: float, plain: float) -> None:
        """What a round cost this sequence, and what its tokens would have cost without drafts."""
        if math.isfinite(seconds):
            self._lost += seconds - plain
            self._plain += plain
