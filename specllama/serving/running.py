"""One request of the pool, seen from the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import groupby
from typing import TypeVar

from starlette.types import Receive

from specllama.pool import OnEvent, Ticket
from specllama.results import Generation, StreamEvent
from specllama.serving.errors import shutting_down, timed_out

Result = TypeVar("Result")
Submit = Callable[[OnEvent], Ticket]


class ClientGone(Exception):
    """Nobody waits for the reply any more."""


class Running:
    """A submitted request: its events in batches, its result, its end.

    Whoever makes one has to `close` it, whatever happens: the sequence must not outlive it.

    Args:
        limit_s: seconds that the whole reply may take, from now on.
    """

    def __init__(self, limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._deadline = self._loop.time() + limit_s
        self._news = asyncio.Event()
        self._events: deque[StreamEvent] = deque()
        self._woken = False
        self._ended = False
        self._ticket: Ticket | None = None

    async def submit(self, submit: Submit) -> None:
        """Put the request into the pool (reading a long prompt's tokens takes a moment).

        Raises:
            SpecllamaError: see `Pool.submit`.
        """
        working = asyncio.ensure_future(asyncio.to_thread(submit, self._on_event))
        try:
            self._ticket = await asyncio.shield(working)
        except asyncio.CancelledError:
            # the client left while the pool took the request
            working.add_done_callback(_cancel)
            raise

    def _on_event(self, event: StreamEvent | None) -> None:
        """In the pool's thread: keep the event, and wake the event loop once for all it finds."""
        if event is None:
            self._ended = True
        else:
            self._events.append(event)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._woken = False
        self._news.set()

    async def batches(self, patience: float) -> AsyncIterator[list[StreamEvent]]:
        """What has come since, again and again; an empty batch after `patience` idle seconds.

        Raises:
            ApiError: the reply took too long.
        """
        ended = False
        while not ended:
            has_news = await self._wait(patience)
            ended = self._ended
            events = self._taken()
            if events or not has_news:
                yield events

    async def _wait(self, patience: float) -> bool:
        """Wait for news; False when `patience` seconds passed before."""
        left = self._deadline - self._loop.time()
        if left <= 0:
            raise timed_out(self._limit_s)
        try:
            async with asyncio.timeout(min(patience, left)):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True

    def _taken(self) -> list[StreamEvent]:
        # one by one: the pool's thread may be adding another
        return [self._events.popleft() for _ in range(len(self._events))]

    @property
    def result(self) -> Generation:
        """The finished generation; raises what ended it otherwise."""
        assert self._ticket is not None
        generation = self._ticket.result
        if generation.finish_reason == "cancelled":
            # nobody here has cancelled it, so the pool is closing
            raise shutting_down()
        return generation

    def close(self) -> None:
        """End the sequence if it still runs; nothing happens to one that has ended."""
        if self._ticket is not None:
            self._ticket.cancel()


def _cancel(submitted: asyncio.Future[Ticket]) -> None:
    if not submitted.cancelled() and submitted.exception() is None:
        submitted.result().cancel()


def by_source(events: list[StreamEvent]) -> list[list[StreamEvent]]:
    """Runs of events that one drafter (or none) proposed."""
    return [list(run) for _, run in groupby(events, key=lambda event: event.source)]


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`, which is cancelled when the client goes away.

    Raises:
        ClientGone: it went away first.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
