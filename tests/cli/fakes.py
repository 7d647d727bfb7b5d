"""A decoder without a model: the interface of `SpeculativeDecoder`, replies from a script."""

from __future__ import annotations

import io
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from specllama.cli import model_flags
from specllama.cli.main import run
from specllama.errors import ContextFull, PairMismatch
from specllama.options import GenerationParams
from specllama.results import (
    FinishReason,
    Generation,
    SourceStats,
    SpecStats,
    StreamEvent,
    Timings,
    Usage,
)
from specllama.scheduling.explain import Explanation, explain
from specllama.scheduling.scheduler import Scheduler
from specllama.scheduling.table import CostTable

TABLE = CostTable(
    how="calibrated",
    date="2026-11-28T12:00",
    load=0.5,
    same={1: 0.0118, 2: 0.0199, 4: 0.0313, 8: 0.0541},
    draft={"model": {1: 0.0017, 4: 0.0066}},
    prefill=0.004,
    threads={"plain": 2, "batched": 2},
    exact_batch=7,
)

OnPrompt = Callable[[int, int], None]
DEFAULTS = GenerationParams()


@dataclass(frozen=True)
class Reply:
    """One scripted reply.

    Attributes:
        tokens: the text of each token ("" for one that completes no character).
        drafted: indices of the tokens that a drafter had guessed.
        finish: why it ends when nobody cancels.
        error: raised instead of (or, with `tokens`, after) the tokens.
        interrupt_after: press Ctrl-C once that many tokens were shown.
        number: of the signal that is sent then.
        interrupt_prompt: press Ctrl-C while the prompt is read.
        delay: seconds before each token.
        tok_s: the decode rate the statistics report.
        rounds: the rounds the statistics report; None derives them from `drafted`.
    """

    tokens: tuple[str, ...] = ("Hello", ",", " world", ".")
    drafted: frozenset[int] = frozenset()
    finish: FinishReason = "stop"
    error: Exception | None = None
    interrupt_after: int | None = None
    number: int = signal.SIGINT
    interrupt_prompt: bool = False
    delay: float = 0.0
    tok_s: float = 40.0
    rounds: int | None = None


def say(text: str, **more: Any) -> Reply:
    """A reply of one token a word."""
    words = text.split(" ")
    return Reply(tokens=(words[0], *(f" {word}" for word in words[1:])), **more)


class FakeStream:
    """What `stream` and `stream_chat` return."""

    def __init__(self, reply: Reply, prompt_tokens: int, params: GenerationParams) -> None:
        self._reply = reply
        self._prompt_tokens = prompt_tokens
        self._params = params
        self._emitted: list[StreamEvent] = []
        self._cancelled = False
        self._ended = False
        self._events = self._run()

    def __iter__(self) -> Iterator[StreamEvent]:
        return self._events

    def __next__(self) -> StreamEvent:
        return next(self._events)

    def cancel(self) -> None:
        self._cancelled = True

    def close(self) -> None:
        self._cancelled = self._cancelled or not self._ended
        self._events.close()

    @property
    def result(self) -> Generation:
        tokens = len(self._emitted)
        rate = self._reply.tok_s if tokens > 1 else None
        return Generation(
            text="".join(event.text for event in self._emitted),
            tokens=[event.id for event in self._emitted],
            logprobs=[e.logprob for e in self._emitted if e.logprob is not None],
            finish_reason=self._finish_reason(),
            usage=Usage(self._prompt_tokens, tokens),
            timings=Timings(0.5, 0.18, 90.0, rate, 0.18 + tokens / self._reply.tok_s, 0.05),
            spec=self._spec(),
            seed=self._params.seed if self._params.seed is not None else 4711,
            verify=self._params.verify,
            guarantee="The text follows the target's own distribution.",
        )

    def _run(self) -> Iterator[StreamEvent]:
        limit = self._params.max_tokens
        for index, text in enumerate(self._reply.tokens[:limit]):
            time.sleep(self._reply.delay)
            if self._cancelled:
                return
            drafted = self._drafts(index)
            logprob = -0.25 if self._params.logprobs else None
            event = StreamEvent(100 + index, text, logprob, drafted, "model" if drafted else "")
            self._emitted.append(event)
            yield event
            if self._reply.interrupt_after == index + 1:
                signal.raise_signal(self._reply.number)
        if self._reply.error is not None:
            raise self._reply.error
        self._ended = True

    def _drafts(self, index: int) -> bool:
        return index in self._reply.drafted and bool(self._params.drafters())

    def _finish_reason(self) -> FinishReason:
        if self._cancelled and not self._ended:
            return "cancelled"
        limit = self._params.max_tokens
        cut = limit is not None and limit < len(self._reply.tokens)
        return "length" if cut else self._reply.finish

    def _spec(self) -> SpecStats:
        accepted = sum(event.from_draft for event in self._emitted)
        tested = accepted + bool(accepted)
        rounds = self._reply.rounds or max(1, len(self._emitted) - accepted)
        counts = SourceStats(drafted=tested, tested=tested, accepted=accepted)
        return SpecStats(
            rounds=rounds,
            drafted=tested,
            tested=tested,
            accepted=accepted,
            by_source={"model": counts} if accepted else {},
            by_depth=[counts] if accepted else [],
        )


@dataclass
class FakeDecoder:
    """Gives the scripted replies in order, the last one again and again, and notes every call.

    A text's tokens are its words. The context holds `n_ctx` of them.
    """

    replies: Sequence[Reply] = (Reply(),)
    target_name: str = "fake-135m"
    draft_name: str | None = "fake-draft"
    n_ctx: int = 8192
    n_ctx_trained: int | None = None
    load_s: float = 0.5
    warnings: list[str] = field(default_factory=list)
    prompts: list[Any] = field(default_factory=list)
    params: list[GenerationParams] = field(default_factory=list)
    drafts: list[str | None] = field(default_factory=list)
    closed: bool = False

    @property
    def drafters(self) -> tuple[str, ...]:
        return ("text", "suffix", *(("model",) if self.draft_name else ()))

    def stream(
        self,
        prompt: str | Sequence[int],
        params: GenerationParams = DEFAULTS,
        *,
        on_prompt: OnPrompt | None = None,
    ) -> FakeStream:
        words = self.count_tokens(prompt) if isinstance(prompt, str) else len(prompt)
        return self._start(prompt, words, params, on_prompt)

    def stream_chat(
        self,
        messages: Sequence[Any],
        params: GenerationParams = DEFAULTS,
        *,
        on_prompt: OnPrompt | None = None,
    ) -> FakeStream:
        plain = [(message.role, message.content) for message in messages]
        return self._start(plain, self.count_chat_tokens(messages), params, on_prompt)

    def generate(
        self,
        prompt: str | Sequence[int],
        params: GenerationParams = DEFAULTS,
        *,
        on_prompt: OnPrompt | None = None,
    ) -> Generation:
        return _drain(self.stream(prompt, params, on_prompt=on_prompt))

    def chat(
        self,
        messages: Sequence[Any],
        params: GenerationParams = DEFAULTS,
        *,
        on_prompt: OnPrompt | None = None,
    ) -> Generation:
        return _drain(self.stream_chat(messages, params, on_prompt=on_prompt))

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def count_chat_tokens(self, messages: Sequence[Any]) -> int:
        return sum(self.count_tokens(message.content) for message in messages)

    def set_draft(self, draft: str | Path | None, *, strict: bool = True) -> None:
        if draft is not None and "mismatch" in str(draft):
            raise PairMismatch(
                'Draft cannot serve this target: token 5 is "a" there and "b" in the draft.',
                "Use a draft of the same family.",
            )
        self.drafts.append(None if draft is None else str(draft))
        self.draft_name = None if draft is None else Path(draft).stem

    def explain(self, stats: SpecStats, params: GenerationParams) -> Explanation:
        known = Scheduler()
        known.recall(TABLE)
        return explain(
            known,
            stats,
            costly=["model"] if params.drafters() else [],
            free=[],
            temperature=params.sampling.temperature,
        )

    def close(self) -> None:
        self.closed = True
        self.draft_name = None  # as the real one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(
        self, prompt: Any, words: int, params: GenerationParams, on_prompt: OnPrompt | None
    ) -> FakeStream:
        if words >= self.n_ctx:
            message = f"The prompt has {words} tokens; the context takes {self.n_ctx}."
            raise ContextFull(message, needed=words)
        reply = self.replies[min(len(self.prompts), len(self.replies) - 1)]
        self.prompts.append(prompt)
        self.params.append(params)
        if reply.interrupt_prompt:
            signal.raise_signal(signal.SIGINT)
        if on_prompt is not None:
            on_prompt(words, words)
        return FakeStream(reply, words, params)


def _drain(stream: FakeStream) -> Generation:
    for _ in stream:
        pass
    return stream.result


class FakeText(io.TextIOWrapper):
    """A text stream over bytes that is a terminal if it is told so."""

    def __init__(self, data: bytes = b"", *, tty: bool = False) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8", write_through=True)
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    @property
    def text(self) -> str:
        """What was written."""
        written = self.buffer
        assert isinstance(written, io.BytesIO)
        return written.getvalue().decode("utf-8")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def run_with(
    monkeypatch: pytest.MonkeyPatch,
    decoder: FakeDecoder,
    *args: str,
    stdin: bytes | str = b"",
    tty: Sequence[str] = (),
) -> Result:
    """One command line on a fake decoder; `tty` names the streams that are terminals."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    streams = {
        "stdin": FakeText(data, tty="stdin" in tty),
        "stdout": FakeText(tty="stdout" in tty),
        "stderr": FakeText(tty="stderr" in tty),
    }
    with monkeypatch.context() as patch:
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        patch.setattr(model_flags, "open_decoder", lambda *_: decoder)
        code = run(args)
    return Result(code, streams["stdout"].text, streams["stderr"].text)


if __name__ == "__main__":
    # `python fakes.py chat`: the real command in a real terminal, each reply slow enough to stop.
    slow = say(" ".join(f"word{index}" for index in range(400)), delay=0.02)
    short = say(" ".join(f"ahead{index}" for index in range(20)), delay=0.05)
    model_flags.open_decoder = lambda *_: FakeDecoder([slow, short])  # type: ignore[assignment,return-value]
    sys.exit(run(sys.argv[1:]))
