"""Who drafts for whom, and how much: the scheduler's choices put to the drafters."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from specllama.drafting.protocol import Drafter, Want
from specllama.drafting.shapes import Shape, ValueShape
from specllama.engine.sequence import Guess
from specllama.engine.sequence import Sequence as Live
from specllama.scheduling.acceptance import Step
from specllama.scheduling.account import USUAL_TOKENS
from specllama.scheduling.policy import Policy, Stopping
from specllama.scheduling.prices import Among
from specllama.scheduling.scheduler import Bet, Scheduler, kind
from specllama.verification.types import ROOT, Proposal

PROBE_TOKENS = 1
_NO_SHAPE = ValueShape(nodes=0, width_=0, depth=0)


@dataclass(frozen=True, slots=True)
class Limits:
    """The most a sequence may draft now: tokens in a row, nodes of a tree, branches beside one."""

    depth: int
    nodes: int
    branches: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What one sequence brings to a round: a proposal, and what is staked on it."""

    proposal: Proposal = field(default_factory=Proposal)
    bet: Bet = field(default_factory=Bet)


def propose(
    lives: Sequence[Live],
    limits: Mapping[int, Limits],
    drafters: Sequence[Drafter],
    scheduler: Scheduler,
    asked: Collection[Live],
) -> list[Plan]:
    """The best proposal for every live sequence, empty where drafting does not pay.

    Free drafters with an idea are all asked; a drafter that costs is asked, the best one only,
    where nothing free is expected to be better.

    Args:
        limits: what each sequence (by key) may draft now.
        asked: those of them that may have something to draft.
    """
    able = [live for live in asked if limits[live.key].depth > 0 and _may_draft(live)]
    if not any(limits[live.key].depth for live in lives):
        scheduler.stay()
    for live in able:
        _overhear(live)
    goals = {live.key: _Goal(live, limits[live.key], drafters, scheduler) for live in able}
    for drafter in drafters:
        if drafter.free and (users := [live for live in able if _inspires(drafter, live)]):
            _ask(drafter, [goals[live.key] for live in users], scheduler)
    for drafter in drafters:
        users = [] if drafter.free else [live for live in able if goals[live.key].prefers(drafter)]
        if users:
            _ask(drafter, [goals[live.key] for live in users], scheduler)
    return [goals[live.key].plan if live.key in goals else Plan() for live in lives]


def _overhear(live: Live) -> None:
    """Learn from guesses that were not verified: their token has been said since."""
    for guess in live.guesses:
        if guess.place < len(live.ids):
            said = live.ids[guess.place]
            rank = guess.tokens.index(said) if said in guess.tokens else None
            guess.acceptance.overhear(Step(rank, len(guess.tokens)), guess.confidence)
    live.guesses.clear()


def draft_on(
    group: Sequence[tuple[Live, Plan]],
    n_tokens: int,
    drafters: Sequence[Drafter],
    scheduler: Scheduler,
) -> None:
    """Draft behind proposals that are being verified, as much as fits into that time.

    Args:
        n_tokens: of the decode that verifies them.
    """
    for drafter in drafters:
        if not drafter.runs_ahead:
            continue
        proposals = {
            live.key: plan.proposal.tokens
            for live, plan in group
            if not len(plan.proposal) or plan.proposal.source == drafter.name
        }
        longest = max(_longest(live, scheduler) for live, _ in group)
        count = min(1 + longest, scheduler.ahead.fitting(drafter.name, n_tokens, len(group)))
        started = time.perf_counter()
        n_looks = drafter.go_ahead(proposals, count) if count else 0
        scheduler.ahead.observe(drafter.name, n_looks, time.perf_counter() - started)


def _longest(live: Live, scheduler: Scheduler) -> int:
    """The most tokens in a row that a sequence is likely to draft."""
    most = live.request.draft_max
    return scheduler.kept.longest(most) if live.request.adaptive else most


def _may_draft(live: Live) -> bool:
    if not live.request.drafters:
        return False
    return not live.request.adaptive or live.account.may_draft


def _inspires(drafter: Drafter, live: Live) -> bool:
    """Whether a free drafter has something to say; putting a question in order costs more."""
    return drafter.name in live.request.drafters and drafter.idea(live.key, live.ids) > 0.0


class _Goal:
    """What drafting has to beat for one sequence in this round, and what does so far.

    Attributes:
        plan: the best so far.
    """

    def __init__(
        self, live: Live, limits: Limits, drafters: Sequence[Drafter], scheduler: Scheduler
    ) -> None:
        self.live = live
        self.plan = Plan()
        self._limits = limits
        self._scheduler = scheduler
        self._probing = False
        costly = [d for d in drafters if not d.free and d.name in live.request.drafters]
        if live.request.adaptive:
            self._rate = scheduler.plain_rate()
            self._best = self._choose(costly)
            self._gain = 1.0 - self._rate * scheduler.undrafted_s()
        else:
            self._best = costly[0] if costly else None
            self._gain = 0.0

    def _choose(self, costly: Sequence[Drafter]) -> Drafter | None:
        """The drafter that pays best; where none pays, now and then one to try."""
        if not costly:
            return None
        scheduler = self._scheduler
        scheduler.settle_size(lambda: max(map(self._rate_of, costly)))
        rates = [self._rate_of(drafter) for drafter in costly]
        rate = max(rates)
        best = costly[rates.index(rate)]
        which = self._kind(best)
        self._rate = max(rate, plain := scheduler.plain_rate())
        self.live.account.promised = 1.0 - plain / self._rate
        account, unread = self.live.account, best.unread(self.live.key, self.live.ids)
        if scheduler.kept.is_worth(rate, self._tokens_ahead()):
            return best if scheduler.pays(which, best.name, account, unread) else None
        bears = scheduler.affordable(account, best.name, 1, 1, unread) > 0
        self._probing = scheduler.probe_due(which, may=bears)
        return best if self._probing else None

    def _tokens_ahead(self) -> int:
        """How much longer the reply may go on, as far as that is worth a thought."""
        left = self.live.n_left
        return USUAL_TOKENS if left is None else min(left, USUAL_TOKENS)

    def _kind(self, drafter: Drafter) -> str:
        return kind(drafter.name, self.live.request.sampling.temperature)

    def _rate_of(self, drafter: Drafter) -> float:
        which, nodes = self._kind(drafter), self._limits.nodes
        depth = min(self.live.request.draft_max, nodes)
        if drafter.trees:
            return self._scheduler.tree_outlook(drafter.name, which, nodes, depth).rate
        return self._scheduler.chain_outlook(drafter.name, which, depth).rate

    def prefers(self, drafter: Drafter) -> bool:
        """Whether to ask this drafter although there is a plan from a free one."""
        return drafter is self._best and not (len(self.plan.proposal) and self._gain >= 0.0)

    def policy(self, drafter: Drafter, n_drafting: int) -> Policy:
        """When this drafter stops, which drafts for so many sequences."""
        request, scheduler = self.live.request, self._scheduler
        acceptance = scheduler.acceptance(drafter.name, request.sampling.temperature)
        ready = drafter.ready(self.live.key, self.live.ids)
        if not request.adaptive:
            return Policy(acceptance, request.draft_p_min, ready)
        least = PROBE_TOKENS if self._probing or drafter.free else 0
        return Stopping(
            scheduler if n_drafting == scheduler.n_live else Among(scheduler, n_drafting),
            drafter.name,
            acceptance,
            rate=self._rate,
            p_min=request.draft_p_min,
            ready=ready,
            most=self._limits.depth,
            least=least,
        )

    def want(self, drafter: Drafter, policy: Policy, n_drafting: int) -> Want | None:
        """What to ask of a drafter; None where the budget does not bear it."""
        live, limits = self.live, self._limits
        depth, nodes = limits.depth, limits.nodes
        if live.request.adaptive:
            name = "" if drafter.free else drafter.name
            unread = drafter.unread(live.key, live.ids)
            nodes = self._scheduler.affordable(
                live.account, name, nodes, depth, unread, n_drafting=n_drafting
            )
            depth = min(depth, nodes)
        if depth < 1:
            return None
        return Want(
            key=live.key,
            ids=live.ids,
            limit=depth,
            nodes=nodes,
            branches=limits.branches,
            shape=self._shape(drafter, nodes, depth),
            law=live.draft_law,
            chance=live.draft_chance,
            keeps_laws=live.keeps_laws,
            go_on=policy.go_on,
            best=live.draft_best,
        )

    def _shape(self, drafter: Drafter, nodes: int, depth: int) -> Shape:
        if not drafter.trees:
            return _NO_SHAPE
        return self.live.request.shape or self._scheduler.planned_shape(
            drafter.name, self._kind(drafter), nodes, depth
        )

    def consider(
        self, drafter: Drafter, policy: Policy, proposal: Proposal, draft_s: float | None
    ) -> None:
        """A proposal: it becomes the plan if it is better than what there is.

        Args:
            draft_s: what drafting was expected to take.
        """
        if policy.first_look is not None:
            policy.acceptance.look(policy.first_look)
        bet = self.plan.bet
        asked = bet.draft_s
        spent = None if draft_s is None or asked is None else draft_s + asked
        said = proposal
        if len(proposal):
            proposal = policy.trim(self.live.permitted(proposal))
        if len(proposal):
            expected = policy.expect(proposal)
            gain = policy.gain(proposal, expected)
            forced = self._probing and not drafter.free
            if forced or proposal.is_drawn or gain > self._gain:
                self._gain = gain
                which = self._kind(drafter)
                bet = Bet(which, expected, policy.confidences, spent, drafter.name)
                self.plan = Plan(proposal, bet)
                return
        if drafter.free and len(said):
            self._note_guess(policy, said)
        bet = Bet(bet.kind, bet.expected, bet.confidences, spent, drafter.name)
        self.plan = Plan(self.plan.proposal, bet)

    def _note_guess(self, policy: Policy, said: Proposal) -> None:
        """What a free drafter says next teaches how good it is, though nobody verifies it."""
        tokens = [said.tokens[node] for node in said.children(ROOT)]
        confidence = next(iter(policy.confidences), None)
        guess = Guess(len(self.live.ids), tokens, policy.acceptance, confidence)
        self.live.guesses.append(guess)


def _ask(drafter: Drafter, goals: Sequence[_Goal], scheduler: Scheduler) -> None:
    """Let a drafter propose for its users; better proposals replace their plans."""
    asked = []
    n_drafting = len(goals) if drafter.free else scheduler.n_live
    for goal in goals:
        policy = goal.policy(drafter, n_drafting)
        want = goal.want(drafter, policy, n_drafting)
        if want is not None:
            asked.append((goal, policy, want))
    if not asked:
        return
    unread = 0
    if not drafter.free:
        unread = max(drafter.unread(want.key, want.ids) for _, _, want in asked)
    started = time.perf_counter()
    proposals = drafter.propose([want for _, _, want in asked])
    seconds = time.perf_counter() - started
    draft_s: float | None = 0.0
    if not drafter.free:
        looks = max(_looks(p, q) for (_, p, _), q in zip(asked, proposals, strict=True))
        ready = min(policy.ready for _, policy, _ in asked)
        scheduler.ahead.observe_ready(drafter.name, min(ready, looks), looks)
        looks = max(0, looks - ready)
        draft_s = scheduler.drafting_s(drafter.name, looks, len(asked), unread)
        scheduler.observe_draft(drafter.name, looks, seconds, len(asked), unread)
    for (goal, policy, _), proposal in zip(asked, proposals, strict=True):
        goal.consider(drafter, policy, proposal, draft_s)


def _looks(policy: Policy, proposal: Proposal) -> int:
    """How many positions were looked at, one after the other."""
    return max(policy.looks, max(proposal.depths(), default=0))
