"""Runs made by hand, and a decoder whose replies depend on whether it drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specllama.bench.prompts import Prompt
from specllama.bench.runner import Arm, Run
from specllama.errors import SpecllamaError
from specllama.options import GenerationParams
from specllama.results import Generation, SourceStats, SpecStats, Timings, Usage
from specllama.sampling.params import SamplingParams
from specllama.scheduling.table import CostTable
from tests.cli.fakes import FakeDecoder, FakeStream, OnPrompt, Reply

GREEDY = SamplingParams(temperature=0.0)
PLAIN = Arm("plain", GenerationParams(drafter="none", sampling=GREEDY))
DRAFTING = Arm("drafting", GenerationParams(sampling=GREEDY), against="plain")


def spec(rounds: int, accepted: int, tested: int, source: str = "model") -> SpecStats:
    """Statistics of one drafter that drafts one token at a time."""
    counts = SourceStats(tested, tested, accepted)
    if not tested:
        return SpecStats(rounds=rounds)
    return SpecStats(rounds, tested, tested, accepted, {source: counts}, [counts])


def make_run(
    arm: Arm = PLAIN,
    prompt: str = "p",
    *,
    kind: str = "chat",
    blocks: Sequence[tuple[int, float]] = ((1, 1.0), (1, 2.0)),
    tokens: Sequence[int] | None = None,
    logprobs: Sequence[float] | None = None,
    verify: str = "coupled",
    stats: SpecStats | None = None,
    rate: float | None = 10.0,
    overhead: float = 0.1,
    draft: float = 0.0,
    repetition: int = 1,
) -> Run:
    """A run whose rounds brought `(tokens, when)`; the last token of a round is the target's."""
    times = tuple(at for count, at in blocks for _ in range(count))
    own = tuple(n == count - 1 for count, _ in blocks for n in range(count))
    ids = list(range(len(times))) if tokens is None else list(tokens)
    generation = Generation(
        text="x" * len(times),
        tokens=ids,
        logprobs=[-0.5] * len(ids) if logprobs is None else list(logprobs),
        finish_reason="length",
        usage=Usage(3, len(ids)),
        timings=Timings(0.0, times[0] if times else 0.0, None, rate, 1.0, overhead, draft),
        spec=stats or SpecStats(rounds=len(blocks)),
        seed=1,
        verify=verify,
        guarantee="Exact.",
    )
    seconds = times[-1] if times else 0.5
    return Run(arm, Prompt(prompt, kind, "Hi"), repetition, generation, times, own, seconds)


def at_temperature(arm: Arm, temperature: float) -> Arm:
    """The arm with another temperature."""
    sampling = replace(arm.params.sampling, temperature=temperature)
    return replace(arm, params=replace(arm.params, sampling=sampling))


@dataclass
class BenchDecoder(FakeDecoder):
    """Replies with `plain` or `drafting`; notes every conversation and every emptying of caches.

    Attributes:
        interrupt_at: press Ctrl-C in that chat (from 1) after its first token.
        fail_at: the decoder fails in that chat.
    """

    plain: Reply = field(default_factory=Reply)
    drafting: Reply = field(default_factory=lambda: Reply(drafted=frozenset({1, 2})))
    interrupt_at: int | None = None
    fail_at: int | None = None
    costs: CostTable = field(default_factory=CostTable)
    log: list[str] = field(default_factory=list)
    chats: list[tuple[Any, GenerationParams]] = field(default_factory=list)

    def forget(self) -> None:
        self.log.append("forget")

    def _start(
        self, prompt: Any, words: int, params: GenerationParams, on_prompt: OnPrompt | None
    ) -> FakeStream:
        drafts = bool(params.drafters())
        self.log.append("drafting" if drafts else "plain")
        self.chats.append((prompt, params))
        reply = self.drafting if drafts else self.plain
        if self.interrupt_at is not None and len(self.chats) == self.interrupt_at:
            reply = replace(reply, interrupt_after=1)
        if len(self.chats) == self.fail_at:
            reply = replace(reply, error=SpecllamaError("The memory is gone."))
        self.replies = [reply]
        return super()._start(prompt, words, params, on_prompt)
