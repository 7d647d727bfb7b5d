"""Pool: many generations at once over one decoder, from any thread.

    with Pool(decoder) as pool:
        tickets = [pool.submit_chat([Message("user", text)]) for text in questions]
        answers = [ticket.finish().text for ticket in tickets]

One worker thread owns the engine and steps it; up to `ModelOptions.parallel` requests share each
target batch, the others wait in order of arrival. While a pool is open, its decoder is the pool's.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Self

from specllama.engine.engine import Engine, Event
from specllama.errors import PoolClosed, QueueFull, SpecllamaError, UsageError
from specllama.options import GenerationParams
from specllama.reply import Reply
from specllama.results import FinishReason, Generation, SpecStats, StreamEvent
from specllama.text.chat import Message

if TYPE_CHECKING:
    from specllama.decoder import SpeculativeDecoder

OnEvent = Callable[[StreamEvent | None], None]
"""Called in the pool's thread with each event, at last with None: `Ticket.result` is ready then.

It must return quickly (an asyncio server passes on to `loop.call_soon_threadsafe`). An exception
out of it ends that request alone, and `Ticket.result` raises it.
"""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool does now, and has done since it was opened; totals count ended requests.

    Attributes:
        slots: how many requests can run at once.
        processing, deferred: requests that run now, and that wait for a slot.
        cells, used_cells: size of the target's KV cache in tokens, and how much of it is filled,
            idle slots included.
        finished: ended requests by finish reason.
        failed: requests that ended with an error.
        prompt_tokens, cached_tokens, completion_tokens: sums of the results' `usage`.
        prompt_s, decode_s: seconds spent reading prompts, and in rounds.
        spec: sum of the results' `spec`.
    """

    slots: int
    processing: int
    deferred: int
    cells: int
    used_cells: int
    finished: Mapping[FinishReason, int]
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prompt_s: float
    decode_s: float
    spec: SpecStats


class Ticket(Iterator[StreamEvent]):
    """One request of a pool: iterate for its events (blocking), then read `result`."""

    def __init__(self, reply: Reply, on_event: OnEvent | None) -> None:
        self._reply = reply
        self._inbox: SimpleQueue[StreamEvent | None] = SimpleQueue()
        self._iterable = on_event is None
        self._tell: OnEvent = on_event or self._inbox.put
        self._submitted = time.perf_counter()
        self._left_queue: float | None = None
        self._cancelled = False
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._exhausted = False

    def __next__(self) -> StreamEvent:
        """The next event, as soon as it is there.

        Raises:
            UsageError: the request was submitted with `on_event`.
            SpecllamaError (or whatever else went wrong with this request).
        """
        if not self._iterable:
            raise UsageError("The events of this request go to its on_event.")
        event = None if self._exhausted else self._inbox.get()
        if event is not None:
            return event
        if not self._exhausted:
            self._exhausted = True
            if self._error is not None:
                raise self._error
        raise StopIteration

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt, known at once."""
        return self._reply.n_prompt

    @property
    def started(self) -> bool:
        """Whether it has left the queue."""
        return self._left_queue is not None

    @property
    def done(self) -> bool:
        """Whether it has ended: `result` returns or raises at once."""
        return self._ended.is_set()

    @property
    def queued_s(self) -> float:
        """Seconds it has waited for a slot (so far, while it does)."""
        return (self._left_queue or time.perf_counter()) - self._submitted

    @property
    def n_cached(self) -> int:
        """Tokens of the prompt that were in the cache already; 0 while it waits."""
        return self._reply.n_cached

    @property
    def result(self) -> Generation:
        """The finished generation, also of a cancelled request.

        Raises:
            SpecllamaError: it is still running; or the error that ended this request.
        """
        if not self.done:
            raise SpecllamaError("The request is still running.", "Wait for its end first.")
        if self._error is not None:
            raise self._error
        return self._reply.result

    def cancel(self) -> None:
        """End it within one round (finish_reason "cancelled"); from any thread, any time."""
        self._cancelled = True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its end; False when `timeout` seconds passed before."""
        return self._ended.wait(timeout)

    def finish(self) -> Generation:
        """Wait for its end and return `result` (or raise as it does)."""
        self.wait()
        return self.result

    # for the pool's thread

    def _begin(self) -> None:
        self._left_queue = time.perf_counter()
        self._reply.begin()

    def _take(self, events: Sequence[Event]) -> None:
        for event in self._reply.take(events):
            self._tell(event)

    def _conclude(self, error: BaseException | None = None) -> None:
        """Leave the engine and tell the last events; with an error, `result` raises it."""
        self._left_queue = self._left_queue or time.perf_counter()
        self._error = error
        try:
            for event in self._reply.end():
                self._tell(event)
        except BaseException as own:
            self._error = self._error or own

    def _end(self) -> None:
        """Tell the end."""
        self._ended.set()
        try:
            self._tell(None)
        except BaseException as own:
            self._error = self._error or own


class Pool:
    """Runs requests over a decoder's slots in one thread; every method may be called from any.

    Args:
        decoder: loaded with `ModelOptions(parallel=N)`; it cannot be used otherwise until the pool
            is closed, and is not closed with it.
        max_queue: how many requests may wait for a slot.

    Raises:
        UsageError: another pool uses this decoder, or `max_queue` is below 0.
    """

    def __init__(self, decoder: SpeculativeDecoder, *, max_queue: int = 16) -> None:
        if max_queue < 0:
            raise UsageError(f"max_queue must be at least 0, not {max_queue}.")
        self._decoder = decoder
        self._max_queue = max_queue
        self._lease = ExitStack()
        self._engine: Engine = self._lease.enter_context(decoder.lent())
        self._n_slots = decoder.options.parallel
        self._changed = threading.Condition()
        self._queue: deque[Ticket] = deque()
        self._running: list[Ticket] = []
        self._closing = False
        self._totals = _Totals(self._engine.read_s)
        self._thread = threading.Thread(target=self._work, name="specllama pool", daemon=True)
        self._thread.start()

    def submit(
        self,
        prompt: str | Sequence[int],
        params: GenerationParams | None = None,
        *,
        on_event: OnEvent | None = None,
    ) -> Ticket:
        """Continue a text (or token ids), no chat template applied, when a slot is free.

        Raises:
            QueueFull: `max_queue` requests wait already.
            PoolClosed: the pool is closed or closing.
            UsageError, ContextFull: as `SpeculativeDecoder.stream`; nothing was queued.
        """
        self._check_open()
        return self._enter(Ticket(self._decoder.reply(prompt, params), on_event))

    def submit_chat(
        self,
        messages: Sequence[Message],
        params: GenerationParams | None = None,
        *,
        on_event: OnEvent | None = None,
    ) -> Ticket:
        """Reply to a conversation when a slot is free.

        Raises:
            QueueFull, PoolClosed, UsageError, ContextFull, ModelError: as `submit` and
                `SpeculativeDecoder.stream_chat`.
        """
        self._check_open()
        return self._enter(Ticket(self._decoder.chat_reply(messages, params), on_event))

    def _check_open(self) -> None:
        """Before a prompt is read for nothing; it counts when the ticket enters."""
        if not self._closing and not self._thread.is_alive():
            raise PoolClosed("The pool's thread is not in this process.", "Fork before you pool.")
        with self._changed:
            if self._closing:
                raise PoolClosed("The pool takes no more requests.")
            if len(self._queue) >= self._max_queue + self._n_slots - len(self._running):
                raise QueueFull(
                    f"{self._max_queue} requests wait for one of {self._n_slots} slots already.",
                    "Try again later.",
                )

    def _enter(self, ticket: Ticket) -> Ticket:
        with self._changed:
            self._check_open()
            self._queue.append(ticket)
            self._changed.notify_all()
        return ticket

    def stats(self) -> PoolStats:
        """Figures for metrics."""
        with self._changed:
            return self._totals.stats(
                self._engine, self._n_slots, len(self._running), len(self._queue)
            )

    def close(self, grace_s: float = 0.0) -> None:
        """Take no more requests, let those at hand end for `grace_s` seconds, cancel the rest.

        Not from `on_event`: it waits for the thread that calls it.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(grace_s)
        with self._changed:
            for ticket in (*self._queue, *self._running):
                ticket.cancel()
        self._thread.join()
        self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # the pool's thread

    def _work(self) -> None:
        try:
            while self._wait_for_work():
                self._drop_cancelled()
                self._admit()
                if self._running:
                    self._round()
        finally:
            self._abandon()

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._running or self._closing)
            return bool(self._queue or self._running)

    def _drop_cancelled(self) -> None:
        with self._changed:
            waiting = [ticket for ticket in self._queue if ticket._cancelled]
            for ticket in waiting:
                self._queue.remove(ticket)
        for ticket in (*waiting, *(ticket for ticket in self._running if ticket._cancelled)):
            self._end(ticket)

    def _admit(self) -> None:
        while len(self._running) < self._n_slots:
            with self._changed:
                if not self._queue:
                    return
                ticket = self._queue.popleft()
                self._running.append(ticket)
            try:
                ticket._begin()
            except Exception as error:
                self._end(ticket, error)

    def _round(self) -> None:
        """One round for all; where it fails, one for each, so that only the guilty one ends."""
        started = time.perf_counter()
        try:
            self._hand_out(self._engine.step())
        except Exception as error:
            if len(self._running) == 1:
                self._end(self._running[0], error)
            else:
                self._one_by_one()
        with self._changed:
            self._totals.add_time(time.perf_counter() - started, self._engine.read_s)

    def _one_by_one(self) -> None:
        for ticket in list(self._running):
            if (live := ticket._reply.live) is None:
                continue
            try:
                events = self._engine.step([live])
            except Exception as error:
                self._end(ticket, error)
            else:
                self._hand_out(events)

    def _hand_out(self, events: Sequence[Event]) -> None:
        for ticket in list(self._running):
            live = ticket._reply.live
            own = [event for event in events if live is not None and event.key == live.key]
            if not own:
                continue
            try:
                ticket._take(own)
            except BaseException as error:  # of an `on_event`
                self._end(ticket, error)
            else:
                if ticket._reply.ended:
                    self._end(ticket)

    def _end(self, ticket: Ticket, error: BaseException | None = None) -> None:
        with self._changed:
            if ticket in self._running:
                self._running.remove(ticket)
        ticket._conclude(error)
        with self._changed:
            self._totals.count(ticket)  # before anybody can ask for it
        ticket._end()

    def _abandon(self) -> None:
        """The thread ends; nobody is left waiting, whatever made it end."""
        with self._changed:
            self._closing = True
            left = [*self._running, *self._queue]
            self._queue.clear()
        for ticket in left:
            self._end(ticket, PoolClosed("The pool has ended."))


class _Totals:
    """What a pool has done so far.

    Args:
        read_s: seconds that the engine had read prompts before.
    """

    def __init__(self, read_s: float) -> None:
        self._read_before = read_s
        self._decode_s = 0.0
        self._finished: Counter[FinishReason] = Counter()
        self._failed = self._prompt = self._cached = self._completion = 0
        self._read_s = 0.0
        self._spec = SpecStats()

    def add_time(self, seconds: float, read_s: float) -> None:
        """A step took so long, and the engine has read prompts for so long by now."""
        reading = read_s - self._read_before - self._read_s
        self._read_s += reading
        self._decode_s += max(0.0, seconds - reading)

    def count(self, ticket: Ticket) -> None:
        """A request has ended."""
        self._failed += ticket._error is not None
        if not ticket._reply.ended:
            return
        generation = ticket._reply.result
        if ticket._error is None:
            self._finished[generation.finish_reason] += 1
        if ticket._reply.live is not None:
            self._prompt += generation.usage.prompt_tokens
        self._cached += generation.usage.cached_tokens
        self._completion += generation.usage.completion_tokens
        self._spec.add(generation.spec)

    def stats(self, engine: Engine, slots: int, processing: int, deferred: int) -> PoolStats:
        """The figures; nothing in them changes later."""
        spec = SpecStats()
        spec.add(self._spec)
        return PoolStats(
            slots=slots,
            processing=processing,
            deferred=deferred,
            cells=engine.backend.n_ctx,
            used_cells=engine.cache.n_cells,
            finished=dict(self._finished),
            failed=self._failed,
            prompt_tokens=self._prompt,
            cached_tokens=self._cached,
            completion_tokens=self._completion,
            prompt_s=self._read_s,
            decode_s=self._decode_s,
            spec=spec,
        )
