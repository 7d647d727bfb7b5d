"""Who is let in, how much may be sent, and what becomes of clients that stall or leave."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import requests

from specllama.serving import app as routes
from specllama.serving import limits, server
from tests.serving.conftest import CHAT, Client, Serve, error_of
from tests.serving.fakes import Script

LONG = Script(tokens=(("word ", ""),) * 2000, token_s=0.005)
SLOW_PROMPT = Script(prompt_s=30.0)


@contextmanager
def connected(client: Client) -> Iterator[socket.socket]:
    """A bare connection."""
    host, port = client.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as plain:
        yield plain


def request(body: object, path: str = "/v1/chat/completions") -> bytes:
    """A request as bytes."""
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


class TestKey:
    def test_the_right_one_is_let_in(self, serve: Serve) -> None:
        client = serve(api_key="k€y")
        for header in ("Bearer k€y", "bearer k€y"):
            sent = {"authorization": header.encode()}
            assert client.get("/v1/models", headers=sent).ok
            assert client.post("/v1/chat/completions", CHAT, headers=sent).ok

    def test_others_are_not(self, serve: Serve) -> None:
        client = serve(api_key="key")
        headers = ({"authorization": value} for value in ("", "Bearer", "Bearer ke", "Basic key"))
        for sent in ({}, *headers, {"authorization": "Bearer keyy"}):
            for path in ("/v1/models", "/metrics", "/props", "/openapi.json", "/nothing"):
                response = client.get(path, headers=sent)
                assert response.status_code == 401
                assert error_of(response)["code"] == "invalid_api_key"
            assert client.post("/v1/chat/completions", CHAT, headers=sent).status_code == 401
        assert client.pool.prompts == []

    def test_the_page_and_health_need_none(self, serve: Serve) -> None:
        client = serve(api_key="key")
        assert [client.get(path).status_code for path in limits.OPEN_PATHS] == [200] * 4


class TestBrowsers:
    """A page from anywhere can make a browser send requests to 127.0.0.1."""

    def test_pages_of_other_origins_are_refused(self, client: Client) -> None:
        others = ("https://evil.example", "null", "http://127.0.0.1:1", "http://[", "http://a]b")
        for origin in others:
            response = client.post("/v1/chat/completions", CHAT, headers={"origin": origin})
            assert response.status_code == 403
            assert error_of(response)["code"] == "origin_not_allowed"
        assert client.post("/v1/chat/completions", CHAT, headers={"origin": client.url}).ok

    def test_other_names_of_this_machine_are_refused(self, serve: Serve) -> None:
        client = serve()
        for host in ("evil.example", "evil.example:8080", "", "[", "127.0.0.1.evil.example"):
            response = client.get("/v1/models", headers={"host": host})
            assert response.status_code == 403 and error_of(response)["code"] == "host_not_allowed"
        for host in ("localhost:9", "127.0.0.1", "[::1]:8080", "127.0.0.2"):
            assert client.get("/v1/models", headers={"host": host}).ok
        with_key = serve(api_key="k")
        named = {"host": "my.example", "authorization": "Bearer k"}
        assert with_key.get("/v1/models", headers=named).ok

    def test_no_cors_by_default(self, client: Client) -> None:
        asked = {"origin": "https://ui.example", "access-control-request-method": "POST"}
        response = requests.options(client.url + "/v1/models", headers=asked, timeout=5)
        assert "access-control-allow-origin" not in response.headers

    def test_cors_for_the_origins_given(self, serve: Serve) -> None:
        client = serve(origins=("https://ui.example",), api_key="k")
        asked = {
            "origin": "https://ui.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        preflight = requests.options(client.url + "/v1/models", headers=asked, timeout=5)
        assert preflight.headers["access-control-allow-origin"] == "https://ui.example"
        sent = {"origin": "https://ui.example", "authorization": "Bearer k"}
        reply = client.post("/v1/chat/completions", CHAT, headers=sent)
        assert reply.ok and reply.headers["access-control-allow-origin"] == "https://ui.example"
        other = sent | {"origin": "https://evil.example"}
        assert client.get("/v1/models", headers=other).status_code == 403


class TestBodies:
    def test_ten_megabytes_are_refused_and_nothing_breaks(self, client: Client) -> None:
        headers = {"content-type": "application/json"}
        big = b'{"messages":[{"role":"user","content":"' + b"x" * 10_000_000 + b'"}]}'
        response = client.post("/v1/chat/completions", data=big, headers=headers)
        assert response.status_code == 413 and error_of(response)["code"] == "request_too_large"
        chunks = (b"x" * 1_000_000 for _ in range(10))
        response = client.post("/v1/chat/completions", data=chunks, headers=headers)
        assert response.status_code == 413
        assert client.chat().ok

    def test_a_body_that_does_not_come(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "BODY_TIMEOUT_S", 0.2)
        with connected(client) as plain:
            plain.sendall(request(CHAT)[:-5])
            assert plain.recv(1000).startswith(b"HTTP/1.1 408")
            while plain.recv(1000):
                pass

    def test_headers_that_do_not_come(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with connected(client) as second:
            second.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answered = b""
            while not answered.endswith(b'{"status":"ok"}'):
                found = second.recv(1000)
                assert found, "closed without an answer"
                answered += found
            monkeypatch.setattr(server, "HEADERS_TIMEOUT_S", 0.3)
            with connected(client) as silent, connected(client) as slow:
                for plain in (slow, second):
                    with suppress(ConnectionError):
                        plain.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: local")
                for plain in (silent, slow, second):
                    with suppress(ConnectionError):
                        assert plain.recv(1000) == b""
        monkeypatch.undo()
        assert client.chat().ok

    def test_what_is_not_http(self, client: Client) -> None:
        with connected(client) as plain:
            plain.sendall(b"\x16\x03\x01\x02\x00 this is no HTTP\r\n\r\n")
            assert plain.recv(1000).startswith(b"HTTP/1.1 400")
        assert client.chat().ok


class TestLeaving:
    """A client gone at any stage takes its sequence with it, and disturbs nobody."""

    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize("script", [LONG, SLOW_PROMPT], ids=["reply", "prompt"])
    def test_while_it_is_answered(self, serve: Serve, script: Script, stream: bool) -> None:
        client = serve(script)
        with connected(client) as plain:
            plain.sendall(request(CHAT | {"stream": stream}))
            if stream:
                assert plain.recv(1000).startswith(b"HTTP/1.1 200")
            wait_for(lambda: len(client.pool.live) == 1)
        client.pool.wait_until_idle()
        assert client.pool.tickets[0].cancelled.is_set()

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
    def test_in_the_middle_of_asking(self, client: Client, share: float) -> None:
        whole, asked = request(CHAT), len(client.pool.prompts)
        with connected(client) as plain:
            plain.sendall(whole[: int(len(whole) * share)])
        time.sleep(0.05)
        assert client.chat().ok and len(client.pool.prompts) == asked + 1

    def test_right_after_asking(self, serve: Serve) -> None:
        client = serve(LONG, slots=8, max_queue=100)
        for _ in range(20):
            with connected(client) as plain:
                plain.sendall(request(CHAT | {"stream": True}))
        assert client.get("/health").ok, "who comes later is let in later"
        state, pool = running(client).server_state, client.pool

        def idle() -> bool:
            gone = all(ticket.cancelled.is_set() for ticket in list(pool.tickets))
            return gone and not (state.connections or state.tasks or pool.live)

        wait_for(idle)

    @pytest.mark.parametrize("stream", [True, False])
    def test_a_reader_that_stalls(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch, stream: bool
    ) -> None:
        monkeypatch.setattr(server, "SEND_TIMEOUT_S", 0.3)
        client = serve(Script(tokens=(("x" * 100_000, ""),) * 100, token_s=0.001))
        with connected(client) as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.sendall(request(CHAT | {"stream": stream}))
            wait_for(lambda: len(client.pool.live) == 1)
            client.pool.wait_until_idle(10)
            wait_for(lambda: not running(client).server_state.connections)

    def test_a_reader_that_is_slow(self) -> None:
        looks: list[Callable[[], None]] = []

        class Transport:
            left, aborted = 900, False

            def get_write_buffer_size(self) -> int:
                return self.left

            def abort(self) -> None:
                self.aborted = True

        class Loop:
            def call_later(self, _: float, look: Callable[[int], None], left: int) -> None:
                looks.append(lambda: look(left))

        transport = Transport()
        protocol: Any = object.__new__(server.ImpatientProtocol)
        protocol.transport, protocol.loop = transport, Loop()
        protocol._look_later()
        for left, aborted in ((800, False), (700, False), (700, True)):
            transport.left = left
            looks[-1]()
            assert transport.aborted is aborted


class TestQueue:
    def test_a_full_one(self, serve: Serve) -> None:
        client = serve(LONG, slots=1, max_queue=1)
        with connected(client) as first, connected(client) as second:
            for plain in (first, second):
                plain.sendall(request(CHAT))
            wait_for(lambda: len(client.pool.live) == 2)
            for stream in (True, False):
                response = client.chat(stream=stream)
                assert response.status_code == 429 and error_of(response)["code"] == "queue_full"
                assert 1 <= int(response.headers["retry-after"]) <= 60
        client.pool.wait_until_idle()

    def test_a_reply_that_takes_too_long(self, serve: Serve) -> None:
        client = serve(LONG, timeout_s=0.2)
        response = client.chat()
        assert response.status_code == 504 and error_of(response)["code"] == "timeout"
        *_, last = client.parts()
        assert last["error"]["code"] == "timeout"
        client.pool.wait_until_idle()

    def test_streams_say_that_they_live(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(routes, "PING_S", 0.05)
        go = threading.Event()
        client = serve(Script(go=go))
        body = CHAT | {"stream": True}
        with requests.post(
            client.url + "/v1/chat/completions", json=body, stream=True, timeout=10
        ) as reply:
            n_pings, last = 0, b""
            for line in reply.iter_lines():
                n_pings += line == b": ping"
                last = line or last
                if n_pings == 2:
                    go.set()
        assert n_pings >= 2 and last == b"data: [DONE]"


class TestShutdown:
    def test_replies_under_way_are_finished(self, serve: Serve) -> None:
        client = serve(Script(tokens=(("x", ""),) * 50, token_s=0.01))
        found: list[str] = []
        asking = threading.Thread(target=lambda: found.append(client.chat(stream=True).text))
        asking.start()
        wait_for(lambda: client.pool.live)
        running(client).should_exit = True
        asking.join(5)
        assert found[0].endswith("data: [DONE]\n\n")
        assert sum(map(int, re.findall(r'"tokens":(\d+)', found[0]))) == 50

    def test_longer_ones_are_told(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "GRACE_S", 0.3)
        client = serve(LONG)
        found: list[requests.Response] = []
        whole = threading.Thread(target=lambda: found.append(client.chat()))
        streamed = threading.Thread(target=lambda: found.append(client.chat(stream=True)))
        for asking in (whole, streamed):
            asking.start()
        wait_for(lambda: len(client.pool.live) == 2)
        running(client).should_exit = True
        for asking in (whole, streamed):
            asking.join(5)
        assert all("shutting_down" in response.text for response in found) and len(found) == 2


def running(client: Client) -> server.Server:
    """The server behind a client."""
    from tests.serving.fakes import SERVERS

    return SERVERS[client.url]


def wait_for(condition: object, seconds: float = 5.0) -> None:
    """Until it holds, or the test fails."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
