"""Who drafts for whom, and how much: the scheduler's choices put to the drafters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specllama.drafting.protocol import Drafter, Want
from specllama.engine.sequence import Sequence as Live
from specllama.scheduling.scheduler import PROBE_TOKENS, FixedLength, Scheduler, Stopping
from specllama.verification.types import Proposal

Policy = Stopping | FixedLength


@dataclass(frozen=True, slots=True)
class Limits:
    """The most a sequence may draft now: tokens in a row, nodes of a tree, branches beside one."""

    depth: int
    nodes: int
    branches: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What one sequence brings to a round.

    Attributes:
        rate: tokens per second to expect of it.
        asked: the last drafter that was asked, "" for none.
    """

    proposal: Proposal = field(default_factory=Proposal)
    confidences: Sequence[float] = ()
    rate: float = 0.0
    asked: str = ""


def propose(
    lives: Sequence[Live],
    limits: Mapping[int, Limits],
    drafters: Sequence[Drafter],
    scheduler: Scheduler,
) -> list[Plan]:
    """The best proposal for every live sequence, empty where drafting does not pay.

    Free drafters are all asked; a drafter that costs is asked, the best one only, where nothing
    free is expected to be better.

    Args:
        limits: what each sequence (by key) may draft now.
    """
    able = [live for live in lives if limits[live.key].depth > 0 and _may_draft(live)]
    if not able:
        return [Plan() for _ in lives]
    goals = {live.key: _Goal(live, limits[live.key], drafters, scheduler) for live in able}
    plans = {live.key: Plan() for live in lives}
    for drafter in drafters:
        if drafter.free:
            users = [live for live in able if drafter.name in live.request.drafters]
            policies = {live.key: goals[live.key].while_free(drafter) for live in users}
            _ask(drafter, users, limits, policies, scheduler, plans)
    for drafter in drafters:
        if not drafter.free:
            users = [live for live in able if goals[live.key].prefers(drafter, plans[live.key])]
            policies = {live.key: goals[live.key].while_costly(drafter) for live in users}
            _ask(drafter, users, limits, policies, scheduler, plans)
    return [plans[live.key] for live in lives]


def _may_draft(live: Live) -> bool:
    if not live.request.drafters:
        return False
    return not live.request.adaptive or live.account.may_draft


class _Goal:
    """What drafting has to beat for one sequence in this round.

    Attributes:
        rate: tokens per second of plain decoding or of the best drafter that costs.
    """

    def __init__(
        self, live: Live, limits: Limits, drafters: Sequence[Drafter], scheduler: Scheduler
    ) -> None:
        self._live = live
        self._limits = limits
        self._scheduler = scheduler
        self._probing = False
        self.rate = 0.0
        costly = [d for d in drafters if not d.free and d.name in live.request.drafters]
        if live.request.adaptive:
            self._best = self._choose(costly)
        else:
            self._best = costly[0] if costly else None

    def _choose(self, costly: Sequence[Drafter]) -> Drafter | None:
        """The drafter that pays best; where none pays, now and then one to try."""
        plain = self.rate = self._scheduler.plain_rate()
        if not costly:
            return None
        best = max(costly, key=self._rate_of)
        self.rate = max(plain, self._rate_of(best))
        if self.rate > plain:
            self._live.account.paid()
            return best
        self._probing = self._live.account.probe_due()
        return best if self._probing else None

    def _rate_of(self, drafter: Drafter) -> float:
        if drafter.trees:
            return self._scheduler.tree_rate(drafter.name, self._limits.nodes)
        return self._scheduler.best_length(drafter.name, self._limits.depth)[1]

    def prefers(self, drafter: Drafter, plan: Plan) -> bool:
        """Whether to ask this drafter although there is a plan from a free one."""
        return drafter is self._best and not (len(plan.proposal) and plan.rate >= self.rate)

    def while_free(self, drafter: Drafter) -> Policy:
        """When a free drafter stops: it has no cost of its own, so no planned length either."""
        request = self._live.request
        if not request.adaptive:
            return FixedLength(request.draft_p_min)
        return Stopping(self._scheduler, drafter.name, 0, self.rate, request.draft_p_min)

    def while_costly(self, drafter: Drafter) -> Policy:
        """When a drafter that costs stops."""
        request = self._live.request
        if self._probing and not drafter.trees:
            return FixedLength(request.draft_p_min, PROBE_TOKENS)
        if not request.adaptive or drafter.trees:
            return FixedLength(request.draft_p_min)
        planned, _ = self._scheduler.best_length(drafter.name, self._limits.depth)
        return Stopping(self._scheduler, drafter.name, planned, self.rate, request.draft_p_min)


def _ask(
    drafter: Drafter,
    users: Sequence[Live],
    limits: Mapping[int, Limits],
    policies: Mapping[int, Policy],
    scheduler: Scheduler,
    plans: dict[int, Plan],
) -> None:
    """Let a drafter propose for its users; better proposals replace their plans."""
    if not users:
        return
    wants = [
        _want(live, limits[live.key], policies[live.key], drafter, scheduler) for live in users
    ]
    started = time.perf_counter()
    proposals = [
        live.permitted(proposal)
        for live, proposal in zip(users, drafter.propose(wants), strict=True)
    ]
    drafted = sum(len(proposal) for proposal in proposals)
    if drafted or not drafter.free:
        scheduler.observe_draft(drafter.name, proposals, time.perf_counter() - started)
    for live, proposal in zip(users, proposals, strict=True):
        policy = policies[live.key]
        rate = policy.rate(len(proposal)) if len(proposal) else 0.0
        if rate > plans[live.key].rate:
            plans[live.key] = Plan(proposal, policy.confidences, rate, drafter.name)
        else:
            plans[live.key] = replace(plans[live.key], asked=drafter.name)


def _want(
    live: Live, limits: Limits, policy: Policy, drafter: Drafter, scheduler: Scheduler
) -> Want:
    return Want(
        key=live.key,
        ids=live.ids,
        limit=limits.depth,
        nodes=limits.nodes,
        branches=limits.branches,
        shape=live.request.shape
        or scheduler.planned_shape(drafter.name, limits.nodes, limits.depth),
        law=live.draft_law,
        chance=live.draft_chance,
        keeps_laws=live.keeps_laws,
        go_on=policy.go_on,
    )
