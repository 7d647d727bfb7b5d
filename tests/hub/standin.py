"""A stand-in for huggingface.co: the endpoints that huggingface_hub and our downloader call.

`GET /api/models/REPO[/revision/REV]` lists files, `HEAD` and `GET /REPO/resolve/REV/FILE` serve
them, with ETag (the SHA-256, as large files have it), Range, and the hub's error headers.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class StandIn:
    """The hub's state, and what was asked of it.

    Attributes:
        repos: repository -> file -> contents.
        gated, private: repositories that need approval; that need `token`.
        cuts: how many of the next downloads break off after `cut_after` bytes.
        ignores_range: answer 200 with the whole file to a Range request.
        broken: answer 503 to everything.
        ranges: the Range header of every download, None where there was none.
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    token: str = "hf_secret"
    cuts: int = 0
    cut_after: int = 1000
    ignores_range: bool = False
    broken: bool = False
    ranges: list[str | None] = field(default_factory=list)
    url: str = ""

    def downloads(self) -> int:
        """How many files were asked for with GET."""
        return len(self.ranges)


@contextmanager
def serving(hub: StandIn) -> Iterator[StandIn]:
    """Serve `hub` on a free port while the block runs."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandIn

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""

    def _answer(self) -> None:
        if self.hub.broken:
            return self._send(503, b"")
        parts = [unquote(part) for part in urlsplit(self.path).path.split("/")[1:]]
        if parts[:2] == ["api", "models"]:
            return self._list("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
        if len(parts) > 4 and parts[2] == "resolve":
            return self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self._fail(404, "RepoNotFound")

    def _refused(self, repo: str, revision: str) -> bool:
        authorized = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if repo not in self.hub.repos or (repo in self.hub.private and not authorized):
            self._fail(401, "RepoNotFound")
        elif repo in self.hub.gated and not authorized:
            self._fail(403, "GatedRepo")
        elif revision not in ("main", COMMIT):
            self._fail(404, "RevisionNotFound")
        else:
            return False
        return True

    def _list(self, repo: str, revision: str) -> None:
        if self._refused(repo, revision):
            return
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": "0" * 40,
                "lfs": {"sha256": _sha256(data), "size": len(data), "pointerSize": 134},
            }
            for name, data in self.hub.repos[repo].items()
        ]
        body = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "tags": []}
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        if self._refused(repo, revision):
            return
        if name not in self.hub.repos[repo]:
            self._fail(404, "EntryNotFound")
            return
        data = self.hub.repos[repo][name]
        headers = {
            "ETag": f'"{_sha256(data)}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        if self.command == "HEAD":
            self._send(200, data, headers)
        else:
            self._download(data, headers)

    def _download(self, data: bytes, headers: dict[str, str]) -> None:
        wanted = self.headers.get("Range")
        self.hub.ranges.append(wanted)
        status, start = 200, 0
        if wanted and not self.hub.ignores_range:
            status, start = 206, int(wanted.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cut = self.hub.cuts > 0
        self.hub.cuts -= cut
        self._send(status, data[start:], headers, stop_after=self.hub.cut_after if cut else None)

    def _fail(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        stop_after: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[:stop_after])
        if stop_after is not None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
