"""Who may ask, and how much: guards in front of the routes, as plain ASGI.

Browsers are the reason for the first two. A page from anywhere may send requests to 127.0.0.1, and
through a name of its own that resolves there even read the replies (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllama.serving.errors import ApiError

MAX_BODY = 8 << 20
"""Bytes of a request. Half a million tokens are about 2 MB of text."""

DRAINED = 64 << 20
"""Bytes of a body too large that are still read, so that its sender gets to see the error."""

BODY_TIMEOUT_S = 30.0

OPEN_PATHS = ("/", "/page.js", "/page.css", "/health")
"""What may be seen without a key: the page (it asks for the key) and whether the server lives."""


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class Guard:
    """Lets requests of known origin and host through.

    Args:
        origins: the web origins that may call ("*" for all) besides the server's own.
        local_names: only hosts that are names of this machine; for a server that others cannot
            reach and that needs no key.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str], *, local_names: bool) -> None:
        self._app = app
        self._origins = origins
        self._local_names = local_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._refusal(Headers(scope=scope))):
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._local_names and not is_loopback(_name_of(f"//{host}")):
            return ApiError(
                403,
                f"This server answers to names of its own machine only, not to {host!r}. "
                "Start it with --api-key to reach it by another name.",
                code="host_not_allowed",
            )
        if origin is None or "*" in self._origins or origin in self._origins:
            return None
        if _place_of(origin) == host:
            return None
        return ApiError(
            403,
            f"Pages from {origin} may not use this server. Start it with --cors {origin}.",
            code="origin_not_allowed",
        )


def _name_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _place_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


class Key:
    """Asks for a bearer token everywhere but on OPEN_PATHS; compares it in constant time."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._fits(scope):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            "This server needs its API key, as the header Authorization: Bearer KEY.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await error.response()(scope, receive, send)

    def _fits(self, scope: Scope) -> bool:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("latin-1"), self._key)
        return same and scheme.lower() == "bearer"


class BodyLimit:
    """Reads bodies ahead of the routes: at most MAX_BODY bytes in at most BODY_TIMEOUT_S."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await _read(receive)
        except TimeoutError:
            await _refuse(408, "The body did not arrive in time.", scope, receive, send)
            return
        if body is None:
            return
        if len(body) > MAX_BODY:
            sentence = f"The body is larger than {MAX_BODY >> 20} MiB."
            await _refuse(413, sentence, scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)


async def _read(receive: Receive) -> bytes | None:
    """The body, or as much of it as shows that it is too large; None if the client went away."""
    body, n_read = bytearray(), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        n_read += len(chunk)
        if len(body) <= MAX_BODY:
            body += chunk
        if not message.get("more_body", False) or n_read > DRAINED:
            return bytes(body)


async def _refuse(status: int, sentence: str, scope: Scope, receive: Receive, send: Send) -> None:
    code = "request_too_large" if status == 413 else "timeout"
    error = ApiError(status, sentence, code=code, headers={"connection": "close"})
    await error.response()(scope, receive, send)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, then what comes after it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
