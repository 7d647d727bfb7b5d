"""Who drafts for whom, and how much: the scheduler's choices put to the drafters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Plan:
    """What one sequence brings to a round."""

    proposal: Proposal = field(default_factory=Proposal)
    confidences: Sequence[float] = ()


def propose(
    lives: Sequence[Live],
    limits: Mapping[int, Limits],
    drafters: Sequence[Drafter],
    scheduler: Scheduler,
) -> list[Plan]:
    """A proposal for every live sequence, empty where drafting does not pay.

    Free drafters are asked first; the others are asked for the sequences still without.

    Args:
        limits: what each sequence (by key) may draft now.
    """
    plans = {live.key: Plan() for live in lives}
    for drafter in sorted(drafters, key=lambda drafter: not drafter.free):
        asked: list[Live] = []
        policies: list[Policy] = []
        wants: list[Want] = []
        for live in lives:
            if len(plans[live.key].proposal) or drafter.name not in live.request.drafters:
                continue
            chosen = _choose(live, limits[live.key].depth, drafter, scheduler)
            if chosen is not None:
                limit, policy = chosen
                asked.append(live)
                policies.append(policy)
                wants.append(_want(live, limit, limits[live.key], policy))
        for live, policy, proposal in zip(
            asked, policies, _ask(drafter, wants, scheduler), strict=True
        ):
            if _worthwhile(live, drafter, proposal, scheduler):
                plans[live.key] = Plan(proposal, policy.confidences)
    return [plans[live.key] for live in lives]


def _choose(
    live: Live, limit: int, drafter: Drafter, scheduler: Scheduler
) -> tuple[int, Policy] | None:
    """How many tokens a drafter is asked for, and when it stops; None: not now."""
    request = live.request
    if limit < 1:
        return None
    if not request.adaptive:
        return limit, FixedLength(request.draft_p_min)
    if not live.account.may_draft:
        return None
    planned, rate = scheduler.best_length(drafter.name, limit)
    if planned:
        live.account.paid()
        if drafter.free:
            return limit, FixedLength(request.draft_p_min)
        return limit, Stopping(scheduler, drafter.name, planned, rate, request.draft_p_min)
    if live.account.probe_due():
        return min(limit, PROBE_TOKENS), FixedLength(request.draft_p_min)
    return None


def _want(live: Live, limit: int, limits: Limits, policy: Policy) -> Want:
    return Want(
        key=live.key,
        ids=live.ids,
        limit=limit,
        nodes=limits.nodes,
        branches=limits.branches,
        law=live.draft_law,
        chance=live.draft_chance,
        keeps_laws=live.keeps_laws,
        go_on=policy.go_on,
    )


def _ask(drafter: Drafter, wants: Sequence[Want], scheduler: Scheduler) -> list[Proposal]:
    if not wants:
        return []
    started = time.perf_counter()
    proposals = drafter.propose(wants)
    drafted = sum(len(proposal) for proposal in proposals)
    scheduler.costs.observe_draft(drafter.name, drafted, time.perf_counter() - started)
    return proposals


def _worthwhile(live: Live, drafter: Drafter, proposal: Proposal, scheduler: Scheduler) -> bool:
    """A free guess must not take the place of a better one that another drafter would make."""
    if not len(proposal):
        return False
    if not live.request.adaptive or not drafter.free:
        return True
    _, rate = scheduler.best_length(drafter.name, len(proposal))
    others = (name for name in live.request.drafters if name != drafter.name)
    return all(scheduler.best_length(name, len(proposal))[1] <= rate for name in others)
