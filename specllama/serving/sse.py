"""Server-sent events: one object a line, comments while nothing happens, `[DONE]` at the end.

sse-starlette is not used: it replaces uvicorn's signal handler and ends every stream at the first
Ctrl-C, where replies under way are to be finished.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
SEND_TIMEOUT_S = 30.0
"""A client that takes nothing for so long has gone, whatever its connection says."""


class EventStream(StreamingResponse):
    """Sends what an iterator yields as it comes, until it ends or the client goes.

    Args:
        close: called at the end, also when the iterator was never begun.
    """

    def __init__(self, body: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(body, media_type="text/event-stream", headers=headers)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()

    async def stream_response(self, send: Send) -> None:
        """Send all of it; a send that hangs ends the stream."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send(message)

        try:
            await super().stream_response(send_in_time)
        except TimeoutError:
            return


def event(data: Any) -> bytes:
    """One object as an event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return b"data: " + text.encode("utf-8", "replace") + b"\n\n"
