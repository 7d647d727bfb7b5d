"""Runs arms over prompts, taking turns: A B … B A, every run from empty caches.

Turns make a busy minute hit all arms alike; empty caches keep an earlier run of the same prompt
from helping a later one, which has inflated benchmarks tenfold (llama.cpp #26100).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, Literal

from specllama.bench.prompts import Prompt
from specllama.errors import SpecllamaError
from specllama.options import GenerationParams
from specllama.results import Generation
from specllama.text.chat import Message

if TYPE_CHECKING:
    from specllama.decoder import SpeculativeDecoder
    from specllama.stream import Stream

Role = Literal["target", "draft"]

TOGETHER_S = 50e-6
"""Less lies between tokens that are given out together: no decode is that fast."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A named way to decode.

    Attributes:
        params: max_tokens and seed are the session's.
        model: which model speaks; "draft" is the draft model on its own.
        against: name of the arm its speed and its text are compared with, "" for none.
    """

    name: str
    params: GenerationParams
    model: Role = "target"
    against: str = ""

    @property
    def drafts(self) -> bool:
        """Whether it drafts at all."""
        return bool(self.params.drafters()) and self.params.draft_max > 0


@dataclass(frozen=True, slots=True)
class Run:
    """One generation of an arm.

    Attributes:
        repetition: from 1.
        times: when each token was there, in seconds after the call, see `when_made`.
        own: whether each token is the target's own, which ends a round.
        seconds: the whole call.
    """

    arm: Arm
    prompt: Prompt
    repetition: int
    generation: Generation
    times: tuple[float, ...]
    own: tuple[bool, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON lines; token ids and log-probabilities are left out."""
        told = self.generation
        return {
            "arm": self.arm.name,
            "model": self.arm.model,
            "prompt": self.prompt.id,
            "kind": self.prompt.kind,
            "repetition": self.repetition,
            "seed": told.seed,
            "verify": told.verify,
            "lossless": told.lossless,
            "finish_reason": told.finish_reason,
            "usage": asdict(told.usage),
            "timings": asdict(told.timings),
            "spec": told.spec.to_dict(),
            "seconds": round(self.seconds, 6),
            "times": [round(at, 6) for at in self.times],
            "own": list(self.own),
            "text": told.text,
        }


@dataclass(frozen=True, slots=True)
class Hooks:
    """Called while it runs: with each stream, from which it can be cancelled; while a prompt is
    read (it may raise); after each run."""

    stream: Callable[[Stream], None] = lambda stream: None
    prompt: Callable[[int, int], None] = lambda done, total: None
    done: Callable[[Arm, Prompt], None] = lambda arm, prompt: None


@dataclass(frozen=True, slots=True)
class Session:
    """What all runs share.

    Attributes:
        decoders: by role; "draft" only where an arm of that model runs.
        max_tokens: of each run; None goes on until replies end.
        seed: of the first prompt; each further prompt has the next one, in all arms.
    """

    decoders: Mapping[Role, SpeculativeDecoder]
    prompts: Sequence[Prompt]
    max_tokens: int | None
    seed: int = 0
    system: str = ""
    hooks: Hooks = Hooks()

    def messages(self, prompt: Prompt) -> list[Message]:
        """A fresh conversation."""
        system = [Message("system", self.system)] if self.system else []
        return [*system, Message("user", prompt.text)]

    def run(self, arm: Arm, prompt: Prompt, repetition: int) -> Run:
        """One generation, timed from outside.

        Raises:
            KeyboardInterrupt: it was cancelled; what it had said is dropped.
            SpecllamaError: see `SpeculativeDecoder.stream_chat`.
        """
        seed = (self.seed + self.prompts.index(prompt)) % 2**64
        params = replace(arm.params, max_tokens=self.max_tokens, seed=seed)
        decoder, messages = self.decoders[arm.model], self.messages(prompt)
        decoder.forget()
        given, own = [], []
        started = time.perf_counter()
        stream = decoder.stream_chat(messages, params, on_prompt=self.hooks.prompt)
        self.hooks.stream(stream)
        try:
            for event in stream:
                given.append(time.perf_counter() - started)
                own.append(not event.from_draft)
        finally:
            stream.close()
        seconds = time.perf_counter() - started
        if stream.result.finish_reason == "cancelled":
            raise KeyboardInterrupt
        self.hooks.done(arm, prompt)
        times = when_made(given, own, stream.result.timings.ttft_s)
        return Run(arm, prompt, repetition, stream.result, tuple(times), tuple(own), seconds)

    def too_long(self) -> list[Prompt]:
        """The prompts that leave some model too little context for `max_tokens`, or for any."""
        room = self.max_tokens or 1
        return [
            prompt
            for prompt in self.prompts
            if any(
                decoder.count_chat_tokens(self.messages(prompt)) + room > decoder.n_ctx
                for decoder in self.decoders.values()
            )
        ]

    def warm_up(self, arms: Sequence[Arm]) -> tuple[list[Arm], list[str]]:
        """Run each arm once, unmeasured; an arm that cannot run is left out with a sentence.

        Raises:
            SpecllamaError: an arm that others are compared with cannot run.
        """
        able, notes = [], []
        compared_with = {arm.against for arm in arms}
        for arm in arms:
            try:
                self.run(arm, self.prompts[0], 0)
            except SpecllamaError as error:
                if arm.name in compared_with:
                    raise
                notes.append(f"{arm.name} is left out: {error}")
            else:
                able.append(arm)
        return able, notes


def when_made(given: Sequence[float], own: Sequence[bool], first: float) -> list[float]:
    """When tokens were there, from when they were given out.

    Text is held back while a character or a stop string is open; then several rounds are given out
    together. They share the wait evenly, after the first of all, which was there at `first`.
    """
    made = list(given)
    ends = [n for n, is_own in enumerate(own, 1) if is_own or n == len(own)]
    held: list[slice] = []
    before = 0.0
    for start, end in pairwise([0, *ends]):
        held.append(slice(start, end))
        if end < len(given) and given[end] - given[end - 1] < TOGETHER_S:
            continue
        if len(held) > 1:
            _spread(made, held, before or min(first, given[end - 1]), known_first=not before)
        held, before = [], given[end - 1]
    return made


def _spread(made: list[float], held: Sequence[slice], start: float, *, known_first: bool) -> None:
    """Even times for rounds given out together, after `start`; a known first one is at `start`."""
    last = made[held[-1].stop - 1]
    steps = len(held) - known_first
    for n, tokens in enumerate(held, not known_first):
        at = start + (last - start) * n / steps
        made[tokens] = [at] * (tokens.stop - tokens.start)


def measure(session: Session, arms: Sequence[Arm], repetitions: int) -> Iterator[Run]:
    """Every arm on every prompt, `repetitions` times, each turn in the reverse order of the last.

    Raises:
        KeyboardInterrupt: cancelled; the runs given out before are complete.
        SpecllamaError: a generation failed.
    """
    turns = product(session.prompts, range(1, repetitions + 1))
    for turn, (prompt, repetition) in enumerate(turns):
        for arm in reversed(arms) if turn % 2 else arms:
            yield session.run(arm, prompt, repetition)
