"""The line of figures after a reply, and what a session adds up."""

from __future__ import annotations

from dataclasses import dataclass, field

from specllama.results import Generation, SpecStats

ROUNDS_BEFORE_ADVICE = 64
"""Rounds with drafts before their speed is compared with plain decoding."""


def stats_line(generation: Generation, n_ctx: int | None = None) -> str:
    """The figures of one reply; drafting's only if draft tokens were tested.

        128 tok · 41.7 tok/s · first 0.18 s · draft 71% (92/130) · 3.6 tok/step · ctx 812/8192

    draft: accepted / tested; tok/step: 1 + accepted / rounds; ctx: tokens used, given `n_ctx`.
    """
    usage, timings, spec = generation.usage, generation.timings, generation.spec
    parts = [f"{usage.completion_tokens} tok"]
    if timings.decode_tok_s is not None:
        parts.append(f"{timings.decode_tok_s:.1f} tok/s")
    if usage.completion_tokens:
        parts.append(f"first {timings.ttft_s:.2f} s")
    if spec.acceptance is not None:
        parts.append(f"draft {spec.acceptance:.0%} ({spec.accepted}/{spec.tested})")
        parts.append(f"{spec.tokens_per_round:.1f} tok/step")
    if not generation.lossless:
        parts.append(f"not exact ({generation.verify})")
    if n_ctx is not None:
        parts.append(f"ctx {context_used(generation)}/{n_ctx}")
    return " · ".join(parts)


def cut_off(n_ctx: int) -> str:
    """What is said of an answer that ended because the context is full."""
    return f"The context is full ({n_ctx} tokens): the answer is cut off. -c gives a larger one."


def context_used(generation: Generation) -> int:
    """Tokens of prompt and reply."""
    return generation.usage.prompt_tokens + generation.usage.completion_tokens


@dataclass(slots=True)
class Speed:
    """Decoding speed over several replies, each reply's first token (the prompt's) left out."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0

    def add(self, generation: Generation) -> None:
        """Count one reply; one without a measured rate adds nothing."""
        rate = generation.timings.decode_tok_s
        if rate:
            tokens = generation.usage.completion_tokens - 1
            self.tokens += tokens
            self.seconds += tokens / rate
            self.rounds += generation.spec.rounds

    @property
    def rate(self) -> float | None:
        """Tokens per second, None before anything was measured."""
        return self.tokens / self.seconds if self.seconds else None


@dataclass(slots=True)
class Totals:
    """What a session has measured, with drafting on and off apart.

    Attributes:
        spec: the replies with drafting on.
        plain, drafted: speeds; `drafted` is that of the latest way of drafting only.
    """

    replies: int = 0
    tokens: int = 0
    spec: SpecStats = field(default_factory=SpecStats)
    plain: Speed = field(default_factory=Speed)
    drafted: Speed = field(default_factory=Speed)
    last: Generation | None = None
    _setup: object = None
    _advised: bool = False

    def add(self, generation: Generation, setup: object | None) -> None:
        """Count one reply; `setup` is the way of drafting, None for plain decoding."""
        self.replies += 1
        self.tokens += generation.usage.completion_tokens
        self.last = generation
        if setup is None:
            self.plain.add(generation)
            return
        if setup != self._setup:
            self._setup, self.drafted = setup, Speed()
        self.drafted.add(generation)
        self.spec.add(generation.spec)

    @property
    def speedup(self) -> float | None:
        """Speed with drafts over plain speed; None unless both were measured."""
        drafted, plain = self.drafted.rate, self.plain.rate
        return drafted / plain if drafted and plain else None

    def advice(self) -> str | None:
        """One sentence, once, when drafting was measured to be slower than plain decoding."""
        ratio = self.speedup
        if self._advised or self.drafted.rounds < ROUNDS_BEFORE_ADVICE or not ratio or ratio >= 1:
            return None
        self._advised = True
        return (
            f"drafting is slower here ({self.drafted.rate:.0f} vs {self.plain.rate:.0f} tok/s); "
            "/draft off, or try /draft 3"
        )

    def report(self) -> list[str]:
        """The lines of /stats."""
        if self.last is None:
            return ["No reply yet."]
        replies = count(self.replies, "reply", "replies")
        lines = [" · ".join([replies, f"{self.tokens} tok", *self._speeds()])]
        if self.spec.acceptance is not None:
            lines += _drafting(self.spec)
        return [*lines, self.last.guarantee]

    def _speeds(self) -> list[str]:
        speeds = []
        if self.drafted.rate is not None:
            speeds.append(f"{self.drafted.rate:.1f} tok/s drafting")
        if self.plain.rate is not None:
            speeds.append(f"{self.plain.rate:.1f} tok/s plain")
        if self.speedup is not None:
            speeds.append(f"{self.speedup:.2f}x")
        return speeds


def _drafting(spec: SpecStats) -> list[str]:
    lines = [
        f"draft {spec.acceptance:.0%} ({spec.accepted}/{spec.tested} tested, "
        f"{spec.drafted} drafted) · {spec.tokens_per_round:.1f} tok/step · {spec.rounds} rounds"
    ]
    lines += _sources(spec)
    if spec.inner is not None:  # the other stage of staged drafting
        lines += [f"{line} of guesses for the draft model" for line in _sources(spec.inner)]
    for depth, stats in enumerate(spec.by_depth, start=1):
        if stats.acceptance is not None:
            lines.append(
                f"  token {depth:<2} {stats.acceptance:4.0%} {_bar(stats.acceptance)}"
                f" ({stats.accepted}/{stats.tested})"
            )
    return lines


def _sources(spec: SpecStats) -> list[str]:
    return [
        f"  {name:<8} {stats.acceptance:4.0%} ({stats.accepted}/{stats.tested})"
        for name, stats in spec.by_source.items()
        if stats.acceptance is not None
    ]


def count(number: int, one: str, many: str) -> str:
    """A number with its noun."""
    return f"{number} {one if number == 1 else many}"


def _bar(share: float, width: int = 20) -> str:
    filled = round(share * width)
    return "█" * filled + "░" * (width - filled)
