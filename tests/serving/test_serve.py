"""`specllama serve` as a command: what it says before it serves, and how it ends."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from specllama.cli import model_flags
from specllama.cli.main import run
from specllama.cli.output import out
from specllama.serving import server
from tests.serving.fakes import FakeDecoder
from tests.serving.real import Server, started


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out.configure()
    monkeypatch.setenv("SPECLLAMA_HOME", str(tmp_path))
    monkeypatch.delenv("SPECLLAMA_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_taken_port_is_said_before_models_are_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_flags, "open_decoder", lambda *_: pytest.fail("loaded"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert run(["serve", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"port {port}" in said and "--port" in said


def test_missing_packages_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name)
    )
    assert run(["serve"]) == 2
    said = capsys.readouterr().err
    assert "uvicorn" in said and "specllama[server]" in said


@pytest.mark.parametrize(
    "options, warned",
    [
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--api-key", "k"], False),
        (["--host", "127.0.0.1"], False),
    ],
)
def test_an_open_door_is_warned_of(
    options: list[str],
    warned: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Opened(FakeDecoder):
        def __enter__(self) -> Any:
            raise EOFError

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(model_flags, "open_decoder", lambda *_: Opened())
    assert run(["serve", "--port", "0", *options]) == 1
    assert ("Warning" in capsys.readouterr().err) is warned


def serving(target_file: Path, home: Path) -> AbstractContextManager[Server]:
    """The target alone."""
    return started(home, "-m", str(target_file), "-md", "none", "-c", "512")


@contextmanager
def stream(server: Server, tokens: int) -> Iterator[http.client.HTTPResponse]:
    """A reply that has begun."""
    host, port = server.root.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        body = {"prompt": "One,", "max_tokens": tokens, "stream": True, "logit_bias": {"2": -100}}
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        yield response
    finally:
        connection.close()


def wait_until_closed(server: Server) -> None:
    """The first Ctrl-C has been seen: nobody is let in any more."""
    host, port = server.root.removeprefix("http://").split(":")
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.02)
    pytest.fail("the door stays open")


def test_what_cannot_be_stopped_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread inside llama.cpp that does not come back: the process ends all the same."""
    released, codes = threading.Event(), []

    def end(code: int) -> None:
        codes.append(code)
        released.set()

    monkeypatch.setattr(server.os, "_exit", end)
    monkeypatch.setattr(server, "STUCK_S", 0.05)
    stuck: Any = SimpleNamespace(close=lambda: released.wait(20))
    serving = server.Server(FastAPI(), stuck)
    serving.force_exit = True
    asyncio.run(serving._close_pool())
    assert codes == [130]


def test_a_long_decode_is_waited_for_until_a_second_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.os, "_exit", lambda code: pytest.fail("left"))
    monkeypatch.setattr(server, "STUCK_S", 0.0)
    closed = []
    pool: Any = SimpleNamespace(close=lambda: closed.append(time.sleep(0.3)))
    asyncio.run(server.Server(FastAPI(), pool)._close_pool())
    assert closed == [None]


@pytest.mark.model
class TestCtrlC:
    def test_once_lets_replies_end(self, target_file: Path, tmp_path: Path) -> None:
        with serving(target_file, tmp_path) as server, stream(server, 8) as reply:
            server.process.send_signal(signal.SIGINT)
            assert reply.read().endswith(b"data: [DONE]\n\n")
            assert server.process.wait(20) == 130
        assert "Traceback" not in server.log.read_text()

    def test_twice_does_not(self, target_file: Path, tmp_path: Path) -> None:
        with serving(target_file, tmp_path) as server, stream(server, 500) as reply:
            server.process.send_signal(signal.SIGINT)
            wait_until_closed(server)  # two signals at once may be one to a starved process
            asked = time.monotonic()
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(20) == 130
            assert time.monotonic() - asked < 4
            assert b'"code":"shutting_down"' in reply.read()
        assert "Traceback" not in server.log.read_text()
