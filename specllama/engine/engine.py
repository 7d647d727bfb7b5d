"""The engine: every live sequence advances in one target batch a round, each at its own rate.

A single chat is a batch of one. Words: *accepted* tokens were drafted and kept, a *recovered* token
replaces the first refused one, a *bonus* token follows a path accepted to its end; every round of a
sequence emits accepted + 1 tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Ids

from specllama.drafting.protocol import Drafter
from specllama.engine.propose import Limits, Plan, propose
from specllama.engine.request import EndEvent, Request, TokenEvent
from specllama.engine.round import Verified, verify
from specllama.engine.sequence import Sequence
from specllama.errors import ContextFull, EngineError, UsageError
from specllama.llama.cache import Backend, Progress, TokenCache
from specllama.results import FinishReason, SpecStats
from specllama.sampling.chain import logprob
from specllama.scheduling.scheduler import Account, Scheduler

Event = TokenEvent | EndEvent


class Engine:
    """Sequences over a target backend and any drafters.

    Args:
        target: the model whose law counts.
        drafters: by preference; requests name the ones they want.
        n_slots: sequences alive at once; further ids of the backend serve tree branches.
        max_batch: the most tokens of one sequence in a verify batch (exact mode caps it).
        linear: keep caches as plain decoding would have laid them (see `round.verify`).
    """

    def __init__(
        self,
        target: Backend,
        drafters: Ids[Drafter] = (),
        *,
        n_slots: int = 1,
        max_batch: int | None = None,
        linear: bool = False,
    ) -> None:
        self.cache = TokenCache(target)
        self.drafters = list(drafters)  # also finds their models
        self.scheduler = Scheduler()
        self._max_batch = max_batch or target.n_batch
        self._linear = linear
        self._spare = range(n_slots, target.n_seq)
        self._history: dict[int, list[int]] = {slot: [] for slot in range(n_slots)}
        self._live: dict[int, Sequence] = {}

    def seconds_inside(self) -> float:
        """Seconds spent in the models' own calls so far, target and drafters."""
        return sum(model.seconds for model in self._models)

    @property
    def drafters(self) -> list[Drafter]:
        """The drafters at hand; requests name the ones they want."""
        return self._drafters

    @drafters.setter
    def drafters(self, drafters: Ids[Drafter]) -> None:
        self._drafters = list(drafters)
        drafts = {id(d.backend): d.backend for d in drafters if d.backend is not None}
        self._models = [self.backend, *drafts.values()]

    def inner_stats(self, live: Sequence) -> SpecStats | None:
        """Statistics of the speculation inside a staged drafter, if this sequence used one."""
        inner = (d.inner_stats(live.key) for d in self.drafters if d.name in live.request.drafters)
        return next((stats for stats in inner if stats is not None), None)

    @property
    def backend(self) -> Backend:
        """The target."""
        return self.cache.backend

    def add(self, request: Request, on_prompt: Progress | None = None) -> Sequence:
        """Start a generation: keep the cache's common prefix, decode the rest of the prompt.

        Raises:
            UsageError: an empty prompt.
            ContextFull: a prompt that leaves no room for a reply.
            EngineError: no slot is free, or llama.cpp refused.
        """
        if not request.ids:
            raise UsageError("The prompt is empty.", "Give at least one token of text.")
        n_ctx = self.backend.n_ctx
        if len(request.ids) > n_ctx:
            raise ContextFull(
                f"The prompt has {len(request.ids)} tokens; the context takes {n_ctx}.",
                "Shorten it, or give a larger context (-c).",
            )
        key = self._free_slot(request.ids)
        live = Sequence(key, request, Account(self.scheduler))
        self._rewind_drafters(key, _common(self._history[key], live.ids))
        self._history[key] = live.ids
        try:
            live.n_cached = self.cache.keep_prefix(key, live.ids[:-1])
            self.cache.fill(key, live.ids[:-1], on_prompt)
            for drafter in self.drafters:
                if drafter.name in request.drafters:
                    drafter.prepare(key, live.ids)
        except BaseException:
            self._repair(live)
            raise
        if request.max_tokens == 0:
            live.finish = "length"
        self._live[key] = live
        return live

    def _free_slot(self, ids: Ids[int]) -> int:
        free = [slot for slot in self._history if slot not in self._live]
        if not free:
            raise UsageError("Every slot is busy.", "Wait for a generation to end.")
        return max(free, key=lambda slot: _common(self._history[slot], ids))

    def step(self) -> list[Event]:
        """One round for all live sequences; the events of each in order.

        An exception (also Ctrl-C) leaves every cache as it was before the round.
        """
        events: list[Event] = self._end_finished()
        lives = list(self._live.values())
        if not lives:
            return events
        try:
            self._catch_up(lives)
            started = time.perf_counter()
            plans = propose(lives, self._limits(lives), self.drafters, self.scheduler)
            found = self._verify(lives, plans)
            seconds = (time.perf_counter() - started) / len(lives)
            for verified, plan in zip(found, plans, strict=True):
                events += self._emit(verified, plan, seconds)
        except BaseException:
            for live in lives:
                self._repair(live)
            raise
        return events + self._end_finished()

    def _catch_up(self, lives: Ids[Sequence]) -> None:
        """Decode what is pending beside the last token where it would not fit into a batch."""
        share = min(self.backend.n_batch // len(lives), self._max_batch)
        for live in lives:
            if len(live.ids) - self.cache.length(live.key) > share:
                self.cache.fill(live.key, live.ids[:-1])

    def _limits(self, lives: Ids[Sequence]) -> dict[int, Limits]:
        """How much each sequence may draft: its own limits, the context's, the batch's."""
        share = min(self.backend.n_batch // len(lives), self._max_batch)
        rows = self.backend.n_outputs // len(lives)
        cells = self.backend.n_ctx - sum(len(live.ids) for live in lives)
        spare = len(self._spare) // len(lives) if self.backend.rollback == "free" else 0
        limits = {}
        for live in lives:
            pending = len(live.ids) - self.cache.length(live.key)
            nodes = max(0, min(share - pending, rows - 1, cells // len(lives)))
            depth = min(nodes, live.request.draft_max)
            if live.n_left is not None:
                depth = min(depth, live.n_left - 1)
            branches = spare if live.request.rule.shape == "tree" else 0
            limits[live.key] = Limits(depth=depth, nodes=nodes, branches=branches)
        return limits

    def _verify(self, lives: Ids[Sequence], plans: Ids[Plan]) -> list[Verified]:
        n_tokens = sum(
            len(live.ids) - self.cache.length(live.key) + len(plan.proposal)
            for live, plan in zip(lives, plans, strict=True)
        )
        before = self.backend.seconds
        found = verify(
            self.cache,
            lives,
            [plan.proposal for plan in plans],
            self._spare,
            linear=self._linear,
        )
        if len(lives) == 1:
            self.scheduler.costs.observe_target(n_tokens, self.backend.seconds - before)
        return found

    def _emit(self, verified: Verified, plan: Plan, seconds: float) -> list[Event]:
        """Append a round's tokens up to the end of the reply; cut the cache to match."""
        live, proposal, path = verified.live, verified.proposal, verified.verdict.path
        events: list[Event] = []
        used = 0
        for token, parent in zip(verified.tokens, (-1, *path), strict=True):
            used += 1
            if live.request.is_end(token):
                live.finish = "stop"
                break
            source = proposal.source if used <= len(path) else ""
            told = logprob(verified.row(parent), token) if live.request.logprobs else None
            events.append(TokenEvent(live.key, token, told, source))
            self._append(live, token)
            if live.finish is not None:
                break
        cut = used <= len(path)
        tested = used if cut else verified.verdict.tested
        live.count(proposal, min(used, len(path)), tested)
        usual = self.scheduler.round_s(plan.asked, 1 + len(proposal), max(1, len(proposal)))
        live.account.settle(seconds, usual, used)
        if len(proposal):
            self.scheduler.acceptance(proposal.source).observe(
                verified.steps(), plan.confidences, n_nodes=len(proposal)
            )
        self.cache.truncate(live.key, len(live.ids) - 1)
        self._teach(verified)
        return events

    def _teach(self, verified: Verified) -> None:
        """Show the drafters that learn what the target said along the accepted path."""
        wanted = verified.live.request.drafters
        learners = [d for d in self.drafters if d.learns and d.name in wanted]
        if learners:
            seen = verified.seen()
            for drafter in learners:
                drafter.observe(verified.live.key, seen)

    def _append(self, live: Sequence, token: int) -> None:
        live.ids.append(token)
        drop = live.request.watch(token) if live.request.watch is not None else None
        if drop is not None:
            live.dropped = drop
            del live.ids[len(live.ids) - drop :]
            self._rewind_drafters(live.key, len(live.ids))
            live.finish = "stop"
        elif live.n_left == 0:
            live.finish = "length"
        elif len(live.ids) > self.backend.n_ctx:
            live.finish = "context"

    def _end_finished(self) -> list[Event]:
        ended: list[Event] = []
        for key, live in list(self._live.items()):
            if live.finish is not None:
                del self._live[key]
                ended.append(EndEvent(key, live.finish, live.dropped))
        return ended

    def cancel(self, live: Sequence, reason: FinishReason = "cancelled") -> None:
        """End a sequence between rounds; its cache stays for the next turn."""
        if live.finish is None:
            live.finish = reason
        self._live.pop(live.key, None)

    def _repair(self, live: Sequence) -> None:
        """Back to the invariant: the caches hold a prefix of ids[:-1] and nothing else."""
        self.cache.repair(live.key)
        for branch in self._spare:
            self.backend.drop(branch)
        self.cache.keep_prefix(live.key, live.ids[:-1])
        self._rewind_drafters(live.key, 0)

    def _rewind_drafters(self, key: int, length: int) -> None:
        for drafter in self.drafters:
            drafter.rewind(key, length)

    def forget(self) -> None:
        """Empty the caches and what the drafters remember; no sequence may be alive.

        Raises:
            EngineError: one is.
        """
        if self._live:
            raise EngineError("A generation is still running.", "Cancel it first.")
        for key in self._history:
            self._history[key] = []
            self.cache.forget(key)
            self._rewind_drafters(key, 0)
        for drafter in self.drafters:
            drafter.forget()


def _common(first: Ids[int], second: Ids[int]) -> int:
    """Length of the common prefix."""
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    return next((n for n in range(limit) if first[n] != second[n]), limit)
