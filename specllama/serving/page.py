"""The chat page: three files of static/, served as they are, that load nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).parent / "static"
_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def add_page(app: FastAPI) -> None:
    """Serve the page at `/`."""
    for path, (name, kind) in _FILES.items():
        content = (_FOLDER / name).read_bytes()

        async def show(request: Request, content: bytes = content, kind: str = kind) -> Response:
            return Response(content, headers=_HEADERS, media_type=kind)

        app.router.routes.append(Route(path, show, methods=["GET"]))
