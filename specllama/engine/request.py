"""What is asked of the engine, and what it says while it works. Token ids only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.drafting.shapes import Shape
from specllama.results import FinishReason
from specllama.sampling.constraint import Constraint
from specllama.sampling.params import SamplingParams
from specllama.verification import Rule


@dataclass(frozen=True, slots=True)
class Request:
    """One generation.

    Attributes:
        ids: the prompt, at least one token.
        sampling: the sampling chain, for target and drafts alike.
        rule: how drafts are verified.
        seed: of the rule's chance.
        max_tokens: None: until the model ends or the context is full.
        is_end: whether a token ends a generation; that token is not emitted.
        watch: called with each emitted token; a number means: drop that many of the latest tokens
            (this one included) and stop. That is how stop strings reach an engine without text.
        constraint: what the reply may say, in its state before the first token; None for anything.
        drafters: names, in order of preference; empty for plain decoding.
        shape: how trees of a draft model grow; None lets the scheduler plan them.
        logprobs, top_logprobs, draft_max, draft_p_min, adaptive: see `options.GenerationParams`.
    """

    ids: Sequence[int]
    sampling: SamplingParams
    rule: Rule[Any]
    seed: int
    is_end: Callable[[int], bool]
    max_tokens: int | None = None
    watch: Callable[[int], int | None] | None = None
    constraint: Constraint | None = None
    drafters: tuple[str, ...] = ()
    shape: Shape | None = None
    logprobs: bool = True
    top_logprobs: int = 0
    draft_max: int = 16
    draft_p_min: float = 0.0
    adaptive: bool = True


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """An emitted token; see `results.StreamEvent`."""

    key: int
    id: int
    logprob: float | None
    source: str
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EndEvent:
    """A sequence has ended; the latest `dropped` of its tokens belong to a stop string."""

    key: int
    reason: FinishReason
    dropped: int = 0
