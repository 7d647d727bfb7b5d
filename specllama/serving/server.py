"""uvicorn, with the patience this server has: for headers, for replies at the end, for nobody."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from specllama.errors import UsageError
from specllama.pool import Pool

log = logging.getLogger("specllama.server")

HEADERS_TIMEOUT_S = 15.0
"""A connection that has not finished asking by then is closed."""

SEND_TIMEOUT_S = 30.0
"""A client that takes nothing for so long has gone, whatever its connection says."""

KEEP_ALIVE_S = 30

GRACE_S = 5.0
"""Replies under way at the first Ctrl-C have so long to end; a second Ctrl-C ends them at once."""

STUCK_S = 5.0
"""How long the second Ctrl-C waits for llama.cpp, which ends no decode half-way."""

LOOK_S = 0.1

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended."""

TOLD_S = 1.0
"""How long the clients of cancelled replies may take to read that they were cancelled."""


class ImpatientProtocol(H11Protocol):
    """Closes connections whose request's headers do not come, or whose replies are not taken."""

    _waiting: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, but not for ever."""
        super().connection_made(transport)
        # at any byte left behind, not only above 64 KiB: those would be kept for ever
        transport.set_write_buffer_limits(high=0)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """More headers or a body; the clock runs until the headers are complete."""
        super().data_received(data)
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._wait_no_more()
        elif self._waiting is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._wait_no_more()
        self._taken()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        super().pause_writing()
        if self._sending is None:
            self._look_later()

    def resume_writing(self) -> None:
        """It has taken all of it."""
        self._taken()
        super().resume_writing()

    def _look_later(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._sending = self.loop.call_later(SEND_TIMEOUT_S, self._look, left)

    def _look(self, left: int) -> None:
        """Give a slow client more time, one that takes nothing none."""
        if self.transport.get_write_buffer_size() < left:
            self._look_later()
        else:
            self.transport.abort()

    def _taken(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(HEADERS_TIMEOUT_S, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class Server(uvicorn.Server):
    """Serves an application over a pool until it is told to stop; then the pool is empty."""

    def __init__(self, app: ASGIApp, pool: Pool) -> None:
        self._pool = pool
        config = uvicorn.Config(
            app,
            http=ImpatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            # a little more than GRACE_S, so that what is cut off can still be told
            timeout_graceful_shutdown=int(GRACE_S) + 2,
        )
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, let replies end for GRACE_S seconds, then cancel them.

        A second Ctrl-C cancels them at once; either way their clients are told.
        """
        ended = asyncio.Event()
        closing = asyncio.create_task(self._close_pool_in_time(ended))
        try:
            await super().shutdown(sockets)  # since Python 3.12 until no connection is open
        finally:
            ended.set()
            await closing
        if self.force_exit and (waiting := set(self.server_state.tasks)):
            await asyncio.wait(waiting, timeout=TOLD_S)

    async def _close_pool_in_time(self, ended: asyncio.Event) -> None:
        """Once all replies have ended, GRACE_S seconds are over, or Ctrl-C came again."""
        deadline = time.monotonic() + GRACE_S
        while not (ended.is_set() or self.force_exit or time.monotonic() > deadline):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), LOOK_S)
        await self._close_pool()

    async def _close_pool(self) -> None:
        """Wait for its thread, or from a second Ctrl-C on end the process: nothing else ends a
        thread that is stuck in llama.cpp."""
        closing = asyncio.ensure_future(asyncio.to_thread(self._pool.close))
        while not (closing.done() or self.force_exit):
            await asyncio.wait([closing], timeout=LOOK_S)
        _, stuck = await asyncio.wait([closing], timeout=STUCK_S)
        if stuck:
            log.error("A reply cannot be stopped; the server ends without it.")
            os._exit(INTERRUPTED)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket of our own; nobody is let in before it listens.

    Raises:
        UsageError: no such address, or another program has it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"Cannot serve on {host}: {error.strerror}.", "Check --host.") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        raise UsageError(
            f"Cannot serve on {host} port {port}: {error.strerror}.",
            "Another program may have it; give another --port (0 takes a free one).",
        ) from error
    return found


def url_of(bound: socket.socket, host: str) -> str:
    """Where people reach a bound socket."""
    port = bound.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
