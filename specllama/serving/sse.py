"""Server-sent events: one object a line, comments while nothing happens, `[DONE]` at the end.

sse-starlette is not used: it replaces uvicorn's signal handler and ends every stream at the first
Ctrl-C, where replies under way are to be finished.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


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


def event(data: Any) -> bytes:
    """One object as an event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return b"data: " + text.encode("utf-8", "replace") + b"\n\n"
