"""The engine: every live sequence advances in one target batch a round, each at its own rate.

A single chat is a batch of one. Words: *accepted* tokens were drafted and kept, a *recovered* token
replaces the first refused one, a *bonus* token follows a path accepted to its end; every round of a
sequence emits accepted + 1 tokens.

Sequences come and go between rounds. A prompt is read in chunks, so that those which are further
wait for no more than `_CHUNK_S` seconds (`_CHUNK` tokens at least). The cache is shared: where it
is full, idle slots are emptied first, then younger sequences give way to elder ones and read their
ids again when there is room.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as Ids
from itertools import starmap

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.protocol import Drafter
from specllama.engine.propose import Limits, Plan, draft_on, propose
from specllama.engine.request import EndEvent, Request, TokenEvent
from specllama.engine.round import Verified, next_rows, next_token, verify
from specllama.engine.sequence import Sequence
from specllama.errors import ContextFull, EngineError, UsageError
from specllama.llama.cache import Backend, Progress, TokenCache
from specllama.results import FinishReason, SpecStats
from specllama.sampling.chain import logprob, top_logprobs
from specllama.scheduling.scheduler import Scheduler, Share

Event = TokenEvent | EndEvent
Group = list[tuple[Sequence, Plan]]
"""Sequences that share a decode, and what each brings to it."""

_MOSTLY = 0.5
_CHUNK = 32
_CHUNK_S = 0.1
_PLAIN = Plan()


class Engine:
    """Sequences over a target backend and any drafters.

    Args:
        target: the model whose law counts.
        drafters: by preference; requests name the ones they want.
        n_slots: sequences alive at once, one a slot; further ids of the backend serve branches.
        n_ctx: the most tokens of one sequence; None takes all cells of the backend.
        max_batch: the most tokens of a decode (exact mode caps it); a round may take several.
        linear: keep caches as plain decoding would have laid them (see `round.verify`).

    Attributes:
        read_s: seconds spent on reading prompts so far.
    """

    def __init__(
        self,
        target: Backend,
        drafters: Ids[Drafter] = (),
        *,
        n_slots: int = 1,
        n_ctx: int | None = None,
        max_batch: int | None = None,
        linear: bool = False,
    ) -> None:
        self.cache = TokenCache(target)
        self.drafters = list(drafters)  # also finds their models
        self.n_ctx = min(n_ctx or target.n_ctx, target.n_ctx)
        self._max_batch = min(max_batch or target.n_batch, target.n_batch)
        self.scheduler = Scheduler(self._max_batch, kept_graphs=target.kept_graphs)
        self.linear = linear
        self._spare = range(n_slots, target.n_seq)
        self._history: dict[int, list[int]] = {slot: [] for slot in range(n_slots)}
        self._ended = dict.fromkeys(self._history, 0)
        self._n_ended = 0
        self.read_s = 0.0
        self._live: dict[int, Sequence] = {}  # the eldest first
        self._events: list[Event] = []

    def seconds_inside(self) -> float:
        """Seconds spent in the models' own calls so far, target and drafters."""
        seconds = 0.0
        for model in self._models:
            seconds += model.seconds
        return seconds

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
        """Start a generation, in the slot whose cache suits it best; rounds read its prompt.

        Args:
            on_prompt: called with (tokens done, tokens in all) while the prompt is read.

        Raises:
            UsageError: an empty prompt, or no slot is free.
            ContextFull: a prompt that leaves no room for a reply.
        """
        self.check(request.ids)
        key = self._choose_slot(request.ids)
        if not self.backend.graphs_alive:
            self.scheduler.costs.lost_graphs()
        account = self.scheduler.open_account(request.max_tokens)
        drafters = [drafter for drafter in self.drafters if drafter.name in request.drafters]
        live = Sequence(key, request, account, drafters, on_prompt)
        self._rewind_drafters(key, _common(self._history[key], live.ids))
        self._history[key] = live.ids
        try:
            live.n_cached = self.cache.share_prefix(key, live.ids[:-1])
            for drafter in live.drafters:
                drafter.prepare(key, live.ids)
        except BaseException:
            self._repair([live])
            raise
        if request.max_tokens == 0:
            live.finish = "length"
        self._live[key] = live
        return live

    def hold(self, ids: Ids[int], on_prompt: Progress | None = None) -> int:
        """Read a prompt, all but its last token, into an idle slot without starting a sequence.

        Returns:
            The slot; `spare` ids are for branches of it, until the next call of anything here.

        Raises:
            UsageError, ContextFull: as `add`.
            EngineError: no room, or llama.cpp refused.
        """
        self.check(ids)
        key = self._choose_slot(ids)
        self._rewind_drafters(key, _common(self._history[key], ids))
        self._history[key] = list(ids)
        try:
            held = first = self.cache.share_prefix(key, ids[:-1])
            if not self.cache.make_room(len(ids) - held, [*self._live, key]):
                raise EngineError("The KV cache has no room for this prompt.")
            while held < len(ids) - 1:
                held = min(held + self.backend.n_batch, len(ids) - 1)
                self.cache.fill(key, ids[:held])
                if on_prompt is not None:
                    on_prompt(held - first, len(ids) - 1 - first)
        except BaseException:
            self.cache.repair(key)
            raise
        return key

    @property
    def max_batch(self) -> int:
        """The most tokens of a decode."""
        return self._max_batch

    @property
    def spare(self) -> range:
        """Sequence ids of the backend that belong to no slot."""
        return self._spare

    def check(self, ids: Ids[int]) -> None:
        """Raise what `add` would raise for such a prompt."""
        if not ids:
            raise UsageError("The prompt is empty.", "Give at least one token of text.")
        if len(ids) > self.n_ctx:
            raise ContextFull(
                f"The prompt has {len(ids)} tokens; the context takes {self.n_ctx}.",
                "Shorten it, or give a larger context (-c).",
                needed=len(ids),
            )

    def _choose_slot(self, ids: Ids[int]) -> int:
        """The free slot that this prompt goes on from, else the one that was idle for longest."""
        free = self._free_slots()
        nearest = max(free, key=lambda slot: _common(self._history[slot], ids))
        history = self._history[nearest]
        if history and _common(history, ids) >= _MOSTLY * len(history):
            return nearest
        return min(free, key=lambda slot: self._ended[slot])

    def _free_slots(self) -> list[int]:
        free = [slot for slot in self._history if slot not in self._live]
        if not free:
            raise UsageError("Every slot is busy.", "Wait for a generation to end.")
        return free

    @property
    def latest_slot(self) -> int | None:
        """The slot of the sequence that ended last, None before the first one."""
        ended = [slot for slot in self._history if slot not in self._live and self._ended[slot]]
        return max(ended, key=lambda slot: self._ended[slot], default=None)

    def take_in(self, ids: Ids[int]) -> int:
        """Make the slot that was idle for longest one of this text; its caches are up to you.

        Raises:
            UsageError: no slot is free.
        """
        slot = min(self._free_slots(), key=lambda slot: self._ended[slot])
        self._rewind_drafters(slot, _common(self._history[slot], ids))
        self._history[slot] = list(ids)
        return slot

    def touch(self, slot: int) -> None:
        """This slot is the one that was worked on last."""
        self._n_ended += 1
        self._ended[slot] = self._n_ended

    def step(self, only: Collection[Sequence] | None = None) -> list[Event]:
        """One round for all live sequences (or some); the events of each in order.

        An exception (also Ctrl-C) leaves the caches, ids and chances of those that were not through
        as they were before the round; the events of those that were come with the next round's.
        """
        lives = [
            live
            for live in self._live.values()
            if live.finish is None and (only is None or live in only)
        ]
        before = [(live, live.n_emitted, live.chance.place) for live in lives]
        try:
            ready = self._with_room(self._read(lives))
            if ready:
                self._round(ready)
        except BaseException:
            self._repair(lives)
            for live, n_emitted, place in before:
                if live.n_emitted == n_emitted:
                    live.chance.go_back(place)
            raise
        self._end_finished()
        events, self._events = self._events, []
        return events

    def _read(self, lives: Ids[Sequence]) -> list[Sequence]:
        """Read on in prompts, the eldest first; those that are through."""
        waiting = [live for live in lives if not self._is_read(live)]
        if not waiting:
            return list(lives)
        budget = self.backend.n_batch
        if len(waiting) < len(lives):
            budget = min(budget, self.scheduler.costs.readable(_CHUNK_S, _CHUNK))
        for live in waiting:
            if budget > 0:
                budget -= self._read_chunk(live, budget)
        return [live for live in lives if self._is_read(live)]

    def _is_read(self, live: Sequence) -> bool:
        """Whether what is pending of a sequence fits into its verify batch."""
        pending = len(live.ids) - self.cache.length(live.key)
        return pending <= 1 or (live.n_emitted > 0 and pending <= self._share(len(self._live)))

    def _share(self, n_lives: int) -> int:
        """The most tokens that each of so many sequences brings to a round."""
        return max(1, min(self.backend.n_batch // n_lives, self._max_batch))

    def _read_chunk(self, live: Sequence, budget: int) -> int:
        """Read up to so many tokens, where there is room for all of the sequence; how many.

        What a sequence before it has just read of the same prompt is shared.
        """
        before = self.cache.length(live.key)
        held = self.cache.share_prefix(live.key, live.ids[:-1])
        if not live.n_emitted:
            live.n_cached = min(live.n_cached + held - before, held)
        if not self.cache.make_room(len(live.ids) - held, self._elders(live)):
            return 0
        end = min(len(live.ids) - 1, held + budget)
        started = time.perf_counter()
        self._read_along(live, end)
        self.cache.fill(live.key, live.ids[:end], self._max_batch)
        seconds = time.perf_counter() - started
        if end > held:
            self.scheduler.costs.observe_reading(end - held, seconds)
        self.read_s += seconds
        live.was_read(end, seconds)
        return end - held

    def _read_along(self, live: Sequence, end: int) -> None:
        """Let the drafters read the first ids of a prompt; the first with a model does it for all.

        Args:
            end: the target is about to have read so many.
        """
        ids = live.ids[: end + 1]
        for drafter in live.drafters:
            n_unread = drafter.unread(live.key, ids)
            started = time.perf_counter()
            drafter.read(live.key, ids)
            n_read = n_unread - drafter.unread(live.key, ids)
            self.scheduler.costs.observe_catching_up(n_read, time.perf_counter() - started)

    def _elders(self, live: Sequence) -> list[int]:
        """This sequence and those that came before it."""
        keys = list(self._live)
        return keys[: keys.index(live.key) + 1]

    def _with_room(self, lives: Ids[Sequence]) -> list[Sequence]:
        """Those for whose next token the cache has room; the others wait for them to end."""
        new = sum(
            len(live.ids) - self.cache.length(live.key) + live.request.draft_max for live in lives
        )
        if self.cache.n_cells + new <= self.backend.n_ctx:  # as nearly always
            return list(lives)
        fitting: list[Sequence] = []
        n_new = 0
        for live in lives:
            if not self._is_read(live):  # any more: it gave way to an elder one
                break
            n_new += len(live.ids) - self.cache.length(live.key)
            if not self.cache.make_room(n_new, self._elders(live)):
                break
            fitting.append(live)
        n_drafts = sum(live.request.draft_max for live in fitting)
        self.cache.make_room(n_new + n_drafts, self._live)
        return fitting

    def _round(self, lives: Ids[Sequence]) -> None:
        """Propose, verify and emit, in as many decodes as it takes."""
        if len(self._history) == 1:  # of several slots nobody knows which cells they have
            self.scheduler.costs.reach(self.cache.n_cells)
        if not any(live.request.drafters for live in lives):
            return self._plain_round(lives)
        asked, resting = lives, self.scheduler.rests(len(lives))
        if resting:
            asked = [live for live in lives if self._is_prompted(live)]
            if not (asked or self.scheduler.costs.is_changing):
                self._plain_round(lives)
                return self.scheduler.rested([live.account for live in lives])
        self.scheduler.begin(len(lives), resting=resting)
        started = time.perf_counter()
        plans = propose(lives, self._limits(lives), self.drafters, self.scheduler, asked)
        seconds = propose_s = time.perf_counter() - started
        shares: list[Share] = []
        for group in self._groups(list(zip(lives, plans, strict=True))):
            started = time.perf_counter()
            n_tokens = sum(starmap(self._n_tokens, group))
            adaptive = any(live.request.adaptive for live, _ in group)
            choose = self.scheduler.size_for if adaptive else self.scheduler.fixed_size
            size = choose(n_tokens)
            found, n_tokens = self._verify(group, size if size > n_tokens else 0)
            verify_s = time.perf_counter() - started
            if self.backend.overran:  # drafting on took longer: the decode's own time is not known
                self.scheduler.overran(n_tokens)
            else:
                self.scheduler.observe_batch(n_tokens, verify_s, len(group))
            seconds += verify_s
            shares += [
                self._emit(verified, plan) for verified, (_, plan) in zip(found, group, strict=True)
            ]
        self.scheduler.settle(seconds, propose_s, shares)

    def _is_prompted(self, live: Sequence) -> bool:
        """Whether a drafter that costs nothing has a new idea, or it drafts at any price."""
        if not live.request.adaptive:
            return len(live.drafters) > 0
        for drafter in live.drafters:
            idea = drafter.idea(live.key, live.ids) if drafter.free else 0.0
            if idea and idea >= live.dull.get(drafter.name, 0.0) and live.account.may_draft:
                live.dull[drafter.name] = idea + 1
                return True
        return False

    def _plain_round(self, lives: Ids[Sequence]) -> None:
        """The same where nobody drafts: there is nothing to choose, to book or to learn."""
        for group in self._groups([(live, _PLAIN) for live in lives]):
            members = [live for live, _ in group]
            self.scheduler.costs.pass_by(len(members))
            rows = next_rows(self.cache, members)
            for index, live in enumerate(members):
                live.stats.rounds += 1
                self._put(live, next_token(live, rows[index]), rows[index], "")
                self.cache.truncate(live.key, len(live.ids) - 1)

    def _groups(self, pairs: Group) -> list[Group]:
        """Who shares a decode."""
        if len(pairs) == 1:
            return [pairs]
        groups: list[Group] = [[]]
        n_tokens = 0
        for live, plan in pairs:
            new = self._n_tokens(live, plan)
            if groups[-1] and n_tokens + new > self._max_batch:
                groups.append([])
                n_tokens = 0
            groups[-1].append((live, plan))
            n_tokens += new
        return groups

    def _n_tokens(self, live: Sequence, plan: Plan) -> int:
        """What a sequence brings to a decode."""
        return len(live.ids) - self.cache.length(live.key) + len(plan.proposal)

    def _limits(self, lives: Ids[Sequence]) -> dict[int, Limits]:
        """How much each sequence may draft: its own limits, the context's, the batch's."""
        share = self._share(len(lives))
        rows = self.backend.n_outputs // len(lives)
        pending = {live.key: len(live.ids) - self.cache.length(live.key) for live in lives}
        cells = self.backend.n_ctx - self.cache.n_cells - sum(pending.values())
        spare = len(self._spare) // len(lives) if self.backend.rollback == "free" else 0
        limits = {}
        for live in lives:
            room = min(cells // len(lives), self.n_ctx - len(live.ids))
            nodes = max(0, min(share - pending[live.key], rows - 1, room))
            depth = min(nodes, live.request.draft_max)
            if live.n_left is not None:
                depth = min(depth, live.n_left - 1)
            branches = spare if live.request.rule.shape == "tree" else 0
            limits[live.key] = Limits(depth=depth, nodes=nodes, branches=branches)
        return limits

    def _verify(self, group: Group, size: int) -> tuple[list[Verified], int]:
        """What the target says to each proposal, and the tokens that were decoded."""
        return verify(
            self.cache,
            [live for live, _ in group],
            [plan.proposal for _, plan in group],
            self._spare,
            size=size,
            linear=self.linear,
            meanwhile=self._ahead(group, size),
        )

    def _ahead(self, group: Group, size: int) -> Callable[[], None] | None:
        """What to do while the target verifies, where it works on its own: draft on."""
        if not self.backend.answers_later:
            return None
        n_tokens = max(size, sum(starmap(self._n_tokens, group)))
        return lambda: draft_on(group, n_tokens, self.drafters, self.scheduler)

    def _emit(self, verified: Verified, plan: Plan) -> Share:
        """Append a round's tokens up to the end of the reply; cut the cache to match."""
        live, proposal, path = verified.live, verified.proposal, verified.verdict.path
        used = 0
        for token, parent in zip(verified.tokens, (-1, *path), strict=True):
            used += 1
            source = proposal.source if used <= len(path) else ""
            self._put(live, token, verified.row(parent), source)
            if live.finish is not None:
                break
        cut = used <= len(path)
        tested = used if cut else verified.verdict.tested
        live.count(proposal, min(used, len(path)), tested)
        if len(proposal):
            live.dull.clear()
            self.scheduler.learn(plan.bet, live.stats, verified.steps(), proposal, path)
        self.cache.truncate(live.key, len(live.ids) - 1)
        if live.request.drafters:
            self._teach(verified)
        return Share(live.account, live.stats, plan.bet, len(proposal), used)

    def _put(self, live: Sequence, token: int, row: NDArray[np.float32], source: str) -> None:
        """Emit a token, drawn from the law of a row, unless it ends the reply."""
        asked = live.request
        if asked.is_end(token):
            live.finish = "stop"
            return
        told = logprob(row, token) if asked.logprobs else None
        top = top_logprobs(row, asked.top_logprobs) if asked.top_logprobs else ()
        self._events.append(TokenEvent(live.key, token, told, source, top))
        self._append(live, token)

    def _teach(self, verified: Verified) -> None:
        """Show the drafters that learn what the target said along the accepted path."""
        learners = [drafter for drafter in verified.live.drafters if drafter.learns]
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
        elif len(live.ids) > self.n_ctx:
            live.finish = "context"

    def _end_finished(self) -> None:
        for key, live in list(self._live.items()):
            if live.finish is not None:
                self._events.append(EndEvent(key, live.finish, live.dropped))
                self._leave(live)

    def _leave(self, live: Sequence) -> None:
        self.touch(live.key)
        del self._live[live.key]

    def cancel(self, live: Sequence, reason: FinishReason = "cancelled") -> None:
        """End a sequence between rounds; its cache stays for the next turn."""
        if live.finish is None:
            live.finish = reason
        if self._live.get(live.key) is live:
            self._leave(live)
            self._events = [event for event in self._events if event.key != live.key]

    def cancel_all(self) -> None:
        """End whatever is alive."""
        for live in list(self._live.values()):
            self.cancel(live)

    def _repair(self, lives: Ids[Sequence]) -> None:
        """Back to the invariant: the caches hold a prefix of ids[:-1] and nothing else."""
        for slot in self._history:
            self.cache.repair(slot)
        for branch in self._spare:
            self.backend.drop(branch)
        for live in lives:
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
        self.cache.clear()
        for key in self._history:
            self._history[key] = []
            self._rewind_drafters(key, 0)
        for drafter in self.drafters:
            drafter.forget()


def _common(first: Ids[int], second: Ids[int]) -> int:
    """Length of the common prefix."""
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    return next((n for n in range(limit) if first[n] != second[n]), limit)
