"""A server over a pool that follows a script, and small ways to ask it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from specllama.serving.app import ServerOptions
from tests.serving.fakes import DEFAULT, FakePool, Script, serving
from tests.serving.real import Server, started

CHAT = {"messages": [{"role": "user", "content": "Say hello."}]}


@dataclass
class Client:
    """One server, asked with plain HTTP."""

    url: str
    pool: FakePool

    def post(self, path: str, body: Any = None, **more: Any) -> requests.Response:
        return requests.post(self.url + path, json=body, timeout=10, **more)

    def get(self, path: str, **more: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=10, **more)

    def chat(self, **fields: Any) -> requests.Response:
        return self.post("/v1/chat/completions", CHAT | fields)

    def parts(self, path: str = "/v1/chat/completions", **fields: Any) -> list[Any]:
        """The parts of a stream, "[DONE]" among them."""
        response = self.post(path, CHAT | {"stream": True} | fields)
        assert response.headers["content-type"].startswith("text/event-stream"), response.text
        lines = [line for line in response.text.split("\n") if line.startswith("data: ")]
        return [_data(line.removeprefix("data: ")) for line in lines]


def _data(text: str) -> Any:
    return text if text == "[DONE]" else json.loads(text)


def error_of(response: requests.Response) -> dict[str, Any]:
    """OpenAI's error object, which every refusal has."""
    body = response.json()
    assert list(body) == ["error"] and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"].endswith(".")
    return dict(body["error"])


Serve = Callable[..., Client]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers: `serve(Script(...), slots=1, api_key="k")`."""
    with ExitStack() as stack:

        def start(
            script: Script = DEFAULT,
            *,
            slots: int = 2,
            max_queue: int = 2,
            decoder: Any = None,
            **options: Any,
        ) -> Client:
            pool = FakePool(script, slots=slots, max_queue=max_queue)
            wanted = ServerOptions(**{"name": "fake"} | options)
            return Client(stack.enter_context(serving(pool, wanted, decoder)), pool)

        yield start


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One server for tests that leave it as it was."""
    pool = FakePool()
    with serving(pool, ServerOptions("fake")) as url:
        yield Client(url, pool)


@pytest.fixture(scope="session")
def real(target_file: Path, draft_file: Path, tmp_path_factory: Any) -> Iterator[Server]:
    """The built-in pair, served bit for bit; drafts are always made, whether they pay or not."""
    home = tmp_path_factory.mktemp("serve")
    fixed = ("--no-adaptive", "--draft-max", "4", "-c", "1024", "-np", "3", "--exact")
    pair = ("-m", str(target_file), "-md", str(draft_file), "--alias", "smol")
    with started(home, *pair, *fixed) as server:
        yield server
        assert server.process.poll() is None, server.log.read_text()
