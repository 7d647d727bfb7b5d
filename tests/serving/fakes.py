"""A pool without a model, and a server around it in a thread of the test's own process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from specllama.errors import ContextFull, PoolClosed, QueueFull, SpecllamaError
from specllama.options import GenerationParams
from specllama.pool import OnEvent, PoolStats
from specllama.results import (
    FinishReason,
    Generation,
    SourceStats,
    SpecStats,
    StreamEvent,
    Timings,
    Usage,
)
from specllama.serving.app import ServerOptions, create_app
from specllama.serving.server import Server, bound_socket, url_of
from specllama.text.chat import Message
from tests.text.fakes import FakeVocabulary

HELLO = (("Hel", ""), ("lo", "model"), (" wor", "model"), ("ld", ""))


@dataclass(frozen=True)
class Script:
    """What every request gets: tokens (text, drafter), and what happens on the way.

    Attributes:
        prompt_s, token_s: seconds before the first token, and before each.
        error: raised as the result after the tokens.
        go: has to be set before the first token.
        inexact: what a lossy rule says of itself.
    """

    tokens: tuple[tuple[str, str], ...] = HELLO
    finish: FinishReason = "stop"
    prompt_s: float = 0.0
    token_s: float = 0.0
    error: Exception | None = None
    go: threading.Event | None = None
    inexact: str = ""


DEFAULT = Script()


@dataclass
class FakeDecoder:
    """What the server asks of a decoder besides replies."""

    target_name: str = "fake-135m"
    draft_name: str | None = "fake-draft"
    n_ctx: int = 512
    drafters: tuple[str, ...] = ("text", "model")
    warnings: list[str] = field(default_factory=list)
    vocabulary: FakeVocabulary = field(default_factory=lambda: FakeVocabulary(("hello", " world")))


class FakeTicket:
    def __init__(self, pool: FakePool, n_prompt: int, params: GenerationParams) -> None:
        self.n_prompt = n_prompt
        self.cancelled = threading.Event()
        self.ended = threading.Event()
        self.error: Exception | None = None
        self.given: list[StreamEvent] = []
        self._pool = pool
        self._params = params

    def cancel(self) -> None:
        self.cancelled.set()

    def run(self, on_event: OnEvent) -> None:
        script = self._pool.script
        with self._pool.slots:
            self.cancelled.wait(script.prompt_s)
            if script.go is not None:
                script.go.wait(20)
            for index, (text, source) in enumerate(script.tokens[: self._params.max_tokens]):
                if self.cancelled.wait(script.token_s):
                    break
                shown = self._params.logprobs
                top = tuple((97 + n, -0.5 * n) for n in range(self._params.top_logprobs))
                event = StreamEvent(
                    97 + index % 20, text, -0.25 if shown else None, bool(source), source, top
                )
                self.given.append(event)
                on_event(event)
            self.error = script.error
        self._pool.live.discard(self)
        self.ended.set()
        on_event(None)

    @property
    def result(self) -> Generation:
        if not self.ended.is_set():
            raise SpecllamaError("The generation is still running.")
        if self.error is not None:
            raise self.error
        accepted = sum(event.from_draft for event in self.given)
        counts = SourceStats(accepted + 1, accepted + 1, accepted)
        spec = SpecStats(rounds=max(1, len(self.given) - accepted))
        if self._params.drafters():
            spec.drafted = spec.tested = accepted + 1
            spec.accepted = accepted
            spec.by_depth = [counts]
            spec.by_source = {"text" if self._params.predict else "model": counts}
        length = len(self.given) == self._params.max_tokens
        finish: FinishReason = "length" if length else self._pool.script.finish
        return Generation(
            text="".join(event.text for event in self.given),
            tokens=[event.id for event in self.given],
            logprobs=[event.logprob for event in self.given if event.logprob is not None],
            finish_reason="cancelled" if self.cancelled.is_set() else finish,
            usage=Usage(self.n_prompt, len(self.given), self.n_prompt // 2),
            timings=Timings(0.0, 0.1, 90.0, 40.0, 0.2, 0.05),
            spec=spec,
            seed=7 if self._params.seed is None else self._params.seed,
            verify=self._params.verify,
            guarantee=self._pool.script.inexact or "The text follows the target's own law.",
            lossless=not self._pool.script.inexact,
        )


class FakePool:
    """Runs every request in a thread; `prompts` and `params` note what was asked."""

    def __init__(self, script: Script = DEFAULT, *, slots: int = 2, max_queue: int = 2) -> None:
        self.script = script
        self.slots = threading.Semaphore(slots)
        self.n_slots = slots
        self.max_queue = max_queue
        self.live: set[FakeTicket] = set()
        self.tickets: list[FakeTicket] = []
        self.prompts: list[Any] = []
        self.params: list[GenerationParams] = []
        self.closed = False

    def submit(
        self, prompt: str | Sequence[int], params: GenerationParams, *, on_event: OnEvent
    ) -> FakeTicket:
        return self._start(prompt, len(prompt), params, on_event)

    def submit_chat(
        self, messages: Sequence[Message], params: GenerationParams, *, on_event: OnEvent
    ) -> FakeTicket:
        length = sum(len(message.content) for message in messages)
        plain = [(message.role, message.content) for message in messages]
        return self._start(plain, length, params, on_event)

    def _start(
        self, prompt: Any, n_prompt: int, params: GenerationParams, on_event: OnEvent
    ) -> FakeTicket:
        if self.closed:
            raise PoolClosed("The pool is closed.")
        if n_prompt > 512:
            raise ContextFull(f"The prompt has {n_prompt} tokens; the context takes 512.")
        if len(self.live) >= self.n_slots + self.max_queue:
            raise QueueFull("Too many requests are waiting.")
        self.prompts.append(prompt)
        self.params.append(params)
        ticket = FakeTicket(self, n_prompt, params)
        self.tickets.append(ticket)
        self.live.add(ticket)
        threading.Thread(target=ticket.run, args=(on_event,), daemon=True).start()
        return ticket

    def stats(self) -> PoolStats:
        ended = [ticket for ticket in self.tickets if ticket.ended.is_set()]
        spec = SpecStats()
        for ticket in ended:
            if ticket.error is None:
                spec.add(ticket.result.spec)
        return PoolStats(
            slots=self.n_slots,
            processing=len(self.live),
            deferred=0,
            cells=512,
            used_cells=128,
            finished={"stop": len(ended)},
            failed=0,
            prompt_tokens=sum(ticket.n_prompt for ticket in ended),
            cached_tokens=0,
            completion_tokens=sum(len(ticket.given) for ticket in ended),
            prompt_s=0.1,
            decode_s=0.2 * len(ended),
            spec=spec,
        )

    def close(self, grace_s: float = 0.0) -> None:
        self.closed = True
        for ticket in list(self.live):
            ticket.cancel()

    def wait_until_idle(self, seconds: float = 2.0) -> None:
        """Every sequence has ended, or the test fails."""
        deadline = time.monotonic() + seconds
        while self.live:
            assert time.monotonic() < deadline, f"{len(self.live)} sequences outlive their clients"
            time.sleep(0.005)


SERVERS: dict[str, Server] = {}
"""Those that run, by URL."""


@contextmanager
def serving(pool: Any, options: ServerOptions, decoder: Any = None) -> Iterator[str]:
    """A real server on a free port; gives its URL."""
    app = create_app(decoder or FakeDecoder(), pool, options)
    server = Server(app, pool)
    with bound_socket("127.0.0.1", 0) as bound:
        bound.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        url = url_of(bound, "127.0.0.1")
        thread.start()
        SERVERS[url] = server
        try:
            yield url
        finally:
            del SERVERS[url]
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive(), "the server does not stop"
