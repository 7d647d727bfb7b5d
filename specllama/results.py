"""What a generation gives back: events while it runs, one result at the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "context", "cancelled"]
"""stop: an end-of-generation token or a stop string; length: max_tokens; context: no room left;
cancelled: the caller closed the stream or pressed Ctrl-C."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One emitted token.

    Attributes:
        id: token id.
        text: the text this event completes; "" while a character or a possible stop string is
            still open (it then comes with a later event).
        logprob: natural log-probability of the token under the target's own softmax, before the
            sampling chain; None if it was not asked for.
        from_draft: the token came from a drafter and was accepted.
        source: name of that drafter, "" for the target's own tokens.
        top: the most probable tokens there with their log-probabilities, falling, if asked for.
    """

    id: int
    text: str
    logprob: float | None
    from_draft: bool
    source: str = ""
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; `cached_tokens` of the prompt were still in the cache from an earlier turn."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds and rates of one generation.

    Attributes:
        load_s: loading the models (0 after the first generation of a decoder).
        ttft_s: from the call to the first token, prompt included.
        prompt_tok_s: prompt tokens really decoded per second; None when all were cached.
        decode_tok_s: tokens per second after the first round; None for a reply of one round.
        wall_s: the whole call, without loading.
        overhead_share: share of the decode wall time spent outside llama.cpp calls.
        draft_share: share of it spent in the draft model's.
    """

    load_s: float
    ttft_s: float
    prompt_tok_s: float | None
    decode_tok_s: float | None
    wall_s: float
    overhead_share: float
    draft_share: float = 0.0


@dataclass(slots=True)
class SourceStats:
    """Draft tokens of one drafter (or one depth): `tested` excludes those behind a refusal."""

    drafted: int = 0
    tested: int = 0
    accepted: int = 0

    @property
    def acceptance(self) -> float | None:
        """accepted / tested, None when nothing was tested."""
        return self.accepted / self.tested if self.tested else None


RELIABILITY_BINS = 10
"""Equal bins of predicted probability, from 0 to 1."""


@dataclass(slots=True)
class Reliability:
    """Tested draft tokens whose acceptance was predicted to lie in one bin.

    Attributes:
        predicted: the sum of the predicted probabilities.
        tested, accepted: what became of those tokens; calibrated predictions have
            predicted / tested near accepted / tested.
    """

    predicted: float = 0.0
    tested: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Forecast:
    """What the scheduler expected of the rounds whose costs it knew, beside what they gave.

    Attributes:
        rounds: how many they were.
        tokens, seconds: expected, from its cost table and acceptance estimates.
        measured_tokens, measured_s: emitted and taken, drafting included.
    """

    rounds: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    measured_tokens: int = 0
    measured_s: float = 0.0

    @property
    def error(self) -> float | None:
        """Predicted over measured tokens per second, less 1; None before the first round."""
        if not (self.seconds > 0.0 and self.measured_s > 0.0 and self.measured_tokens):
            return None
        return (self.tokens / self.seconds) / (self.measured_tokens / self.measured_s) - 1.0


@dataclass(slots=True)
class SpecStats:
    """Speculation statistics of one generation, or summed over a session.

    Attributes:
        rounds: target batches.
        by_source: per drafter name.
        by_depth: index 0 is the first drafted token of a round.
        reliability: predicted acceptance against observed, by bins of the prediction.
        forecast: predicted speed against measured.
        inner: the same of the speculation inside a staged drafter, whose rounds are the draft
            model's batches.
        drafts: rounds that had something to verify.
    """

    rounds: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    by_source: dict[str, SourceStats] = field(default_factory=dict)
    by_depth: list[SourceStats] = field(default_factory=list)
    reliability: list[Reliability] = field(
        default_factory=lambda: [Reliability() for _ in range(RELIABILITY_BINS)]
    )
    forecast: Forecast = field(default_factory=Forecast)
    inner: SpecStats | None = None
    drafts: int = 0

    @property
    def acceptance(self) -> float | None:
        """accepted / tested, None when nothing was tested."""
        return self.accepted / self.tested if self.tested else None

    @property
    def tokens_per_round(self) -> float:
        """1 + accepted / rounds (vLLM's and llama.cpp's mean acceptance length)."""
        return 1.0 + self.accepted / self.rounds if self.rounds else 1.0

    def add(self, other: SpecStats) -> None:
        """Sum another generation's statistics into this one."""
        self.rounds += other.rounds
        self.drafts += other.drafts
        self.drafted += other.drafted
        self.tested += other.tested
        self.accepted += other.accepted
        for name, stats in other.by_source.items():
            _sum_into(self.by_source.setdefault(name, SourceStats()), stats)
        for depth, stats in enumerate(other.by_depth):
            if depth == len(self.by_depth):
                self.by_depth.append(SourceStats())
            _sum_into(self.by_depth[depth], stats)
        for total, part in zip(self.reliability, other.reliability, strict=True):
            total.predicted += part.predicted
            total.tested += part.tested
            total.accepted += part.accepted
        self._add_forecast(other.forecast)
        if other.inner is not None:
            self.inner = self.inner or SpecStats()
            self.inner.add(other.inner)

    def predict(self, probability: float, accepted: bool) -> None:
        """Count one tested draft token whose acceptance had been predicted."""
        place = min(RELIABILITY_BINS - 1, int(probability * RELIABILITY_BINS))
        entry = self.reliability[place]
        entry.predicted += probability
        entry.tested += 1
        entry.accepted += accepted

    def _add_forecast(self, other: Forecast) -> None:
        total = self.forecast
        total.rounds += other.rounds
        total.tokens += other.tokens
        total.seconds += other.seconds
        total.measured_tokens += other.measured_tokens
        total.measured_s += other.measured_s

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with the derived figures."""
        return asdict(self) | {
            "acceptance": self.acceptance,
            "tokens_per_round": self.tokens_per_round,
        }


def _sum_into(total: SourceStats, part: SourceStats) -> None:
    total.drafted += part.drafted
    total.tested += part.tested
    total.accepted += part.accepted


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished generation.

    Attributes:
        text: the reply, cut before a stop string.
        tokens: ids of exactly that text (an end-of-generation token is not among them), but for
            one that a stop string begins in: it is there whole.
        logprobs: per token, see StreamEvent; empty if they were not asked for.
        finish_reason: why it ended.
        seed: the seed that was used, also when it was drawn. Giving it again repeats the text where
            `verify` is given too (a seed alone chooses "coupled") and drafts as `guarantee` says.
        guarantee: one sentence saying what the verification rule promised for this run.
        lossless: the rule left the target's distribution as it is.
    """

    text: str
    tokens: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    spec: SpecStats
    seed: int
    verify: str
    guarantee: str
    lossless: bool = True


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A continuation that beam search found.

    Attributes:
        text: the continuation.
        tokens: its ids, without an end token.
        score: what hypotheses are ranked by, see `BeamParams.length_penalty`.
        logprob: natural log-probability under the target's own softmax, that of an end token
            included.
        finish_reason: "stop" where the target ended it.
    """

    text: str
    tokens: list[int]
    score: float
    logprob: float
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class BeamStats:
    """Work of one beam search.

    Attributes:
        steps: steps of the search; plain beam search takes a target batch for each.
        batches, draft_batches: decodes of the target (prompt not counted) and of the draft model.
        drafted, used: nodes of drafted trees, and those of them that became beams.
    """

    steps: int
    batches: int
    draft_batches: int
    drafted: int
    used: int


@dataclass(frozen=True, slots=True)
class BeamResult:
    """What beam search found, the best hypothesis first; `wall_s` is the whole call in seconds."""

    hypotheses: list[Hypothesis]
    usage: Usage
    stats: BeamStats
    wall_s: float
