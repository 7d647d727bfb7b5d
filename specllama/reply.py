"""One generation as text: the engine's events in, stream events and at last the result out."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specllama.drafters import Drafters
from specllama.drafting.shapes import FixedShape, Shape, ValueShape
from specllama.engine.engine import Engine, Event
from specllama.engine.request import EndEvent, Request, TokenEvent
from specllama.engine.sequence import Sequence as Live
from specllama.errors import SpecllamaError
from specllama.llama.cache import Progress
from specllama.options import GenerationParams
from specllama.results import FinishReason, Generation, SpecStats, StreamEvent, Timings, Usage
from specllama.sampling.constraint import Constraint
from specllama.text.stream import TextStream
from specllama.text.vocabulary import Vocabulary
from specllama.verification import Rule, choose_rule

_TREE_NODES = 16
_TREE_WIDTH = 4
_TREE_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for, checked and in tokens.

    Attributes:
        ids: the prompt.
        constraint: what the reply may say, None for anything.
        predicted: ids that the reply will probably resemble.
        stops: strings that end the text.
        at_start: the reply starts a text of its own (see `text.detokenizer`).
        load_s: seconds of loading to report with it.
    """

    ids: Sequence[int]
    params: GenerationParams
    constraint: Constraint | None
    predicted: Sequence[int]
    stops: Sequence[str]
    at_start: bool
    load_s: float


class Reply:
    """One generation, from what is asked to its result.

    It is made at once, begins when there is a slot for it, takes what each round of the engine
    brings, and ends by itself or is ended. An event is given out when its text is certain, so
    that no text of a stop string or half a character is ever seen; joined, the texts are the
    result's text.
    """

    def __init__(
        self, engine: Engine, drafters: Drafters, vocabulary: Vocabulary, asked: Asked
    ) -> None:
        params = asked.params
        self._engine = engine
        self._drafters = drafters
        self._vocabulary = vocabulary
        self._asked = asked
        self._seed = secrets.randbits(32) if params.seed is None else params.seed
        self._rule: Rule[Any] = choose_rule(
            params.verify, params.seed is not None, params.lossy, trees=params.drafts_trees
        )
        self._text = TextStream(vocabulary, asked.stops, at_start=asked.at_start)
        self._pieces: list[str] = []
        self._waiting: list[StreamEvent] = []
        self._given: list[StreamEvent] = []
        self._live: Live | None = None
        self._result: Generation | None = None
        self._clock = _Clock(engine)

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self._asked.ids)

    @property
    def n_cached(self) -> int:
        """Those that were in the cache when it began."""
        return self._live.n_cached if self._live is not None else 0

    @property
    def read_s(self) -> float:
        """Seconds spent on reading the others."""
        return self._live.read_s if self._live is not None else 0.0

    @property
    def live(self) -> Live | None:
        """The engine's sequence, None before it has begun."""
        return self._live

    def begin(self, on_prompt: Progress | None = None) -> None:
        """Take a slot of the engine.

        Raises:
            UsageError, ContextFull: see `Engine.add`.
        """
        self._live = self._engine.add(self._request(), on_prompt)
        self._drafters.predict(self._live.key, self._asked.predicted)

    def _request(self) -> Request:
        params = self._asked.params
        loaded = {drafter.name for drafter in self._engine.drafters}
        return Request(
            ids=self._asked.ids,
            sampling=params.sampling,
            rule=self._rule,
            seed=self._seed,
            is_end=self._vocabulary.is_eog,
            max_tokens=params.max_tokens,
            watch=self._watch,
            constraint=self._asked.constraint,
            drafters=tuple(name for name in params.drafters() if name in loaded),
            shape=_shape(params, self._rule),
            logprobs=params.logprobs,
            top_logprobs=params.top_logprobs,
            draft_max=params.draft_max,
            draft_p_min=params.draft_p_min,
            adaptive=params.adaptive,
        )

    def _watch(self, token: int) -> int | None:
        """The engine's question after each token: does the text end here?"""
        piece = self._text.push(token)
        self._pieces.append(piece.text)
        return piece.dropped_tokens if piece.stopped else None

    def take(self, events: Iterable[Event]) -> list[StreamEvent]:
        """What a round of the engine brought; the events whose text is now certain."""
        for event in events:
            if self._live is None or event.key != self._live.key:
                continue
            if isinstance(event, EndEvent):
                self._drop(event.dropped)
                return self.end(event.reason)
            self._take(event)
        self._clock.round_done()
        return [] if self._text.holds else self._release()

    def _take(self, event: TokenEvent) -> None:
        self._clock.token()
        text = self._pieces.pop(0)
        self._waiting.append(
            StreamEvent(event.id, text, event.logprob, bool(event.source), event.source, event.top)
        )

    def _release(self) -> list[StreamEvent]:
        """Give the waiting events out."""
        waiting, self._waiting = self._waiting, []
        self._given += waiting
        return waiting

    def _drop(self, count: int) -> None:
        """Take back a stop string's tokens; text they completed stays with the token before."""
        if not count:
            return
        dropped = self._waiting[len(self._waiting) - count :]
        del self._waiting[len(self._waiting) - count :]
        self._add_text("".join(event.text for event in dropped))

    def _add_text(self, text: str) -> None:
        """Add text to the last event that is still here."""
        if text and self._waiting:
            last = self._waiting[-1]
            self._waiting[-1] = replace(last, text=last.text + text)

    def end(self, reason: FinishReason = "cancelled") -> list[StreamEvent]:
        """End it, if it has not ended: leave the engine, fix the result; the last events."""
        if self._result is not None:
            return []
        if self._live is not None:
            self._engine.cancel(self._live, reason)
        self._clock.round_done()
        self._add_text(self._text.finish())
        last = self._release()
        self._conclude(reason)
        return last

    @property
    def ended(self) -> bool:
        """Whether `result` is there."""
        return self._result is not None

    @property
    def result(self) -> Generation:
        """The finished generation.

        Raises:
            SpecllamaError: it is still running.
        """
        if self._result is None:
            raise SpecllamaError(
                "The generation is still running.", "Iterate it to its end, or close it."
            )
        return self._result

    def _conclude(self, reason: FinishReason) -> None:
        live = self._live
        stats, n_prompt, n_cached = SpecStats(), self.n_prompt, self.n_cached
        if live is not None:
            stats = live.stats
            stats.inner = self._engine.inner_stats(live)
            if reason in ("stop", "length"):
                self._drafters.remember(live.ids, n_prompt)
        self._result = Generation(
            text="".join(event.text for event in self._given),
            tokens=[event.id for event in self._given],
            logprobs=[e.logprob for e in self._given if e.logprob is not None],
            finish_reason=reason,
            usage=Usage(n_prompt, len(self._given), n_cached),
            timings=self._clock.timings(
                self._asked.load_s, n_prompt - 1 - self.n_cached, self.read_s
            ),
            spec=stats,
            seed=self._seed,
            verify=self._rule.name,
            guarantee=self._rule.promise(exact=self._engine.linear),
            lossless=self._rule.lossless,
        )


def _shape(params: GenerationParams, rule: Rule[Any]) -> Shape | None:
    """The shape that was asked for, None for a planned one.

    Growing by value picks among drawn tokens, which rules that read laws do not allow: they get
    planned trees.
    """
    if params.tree_widths():
        return FixedShape(params.tree_widths())
    if params.tree == "planned" or (rule.uses_law and params.sampling.temperature > 0):
        return None
    return ValueShape(
        nodes=_TREE_NODES, width_=_TREE_WIDTH, depth=max(1, min(params.draft_max, _TREE_DEPTH))
    )


class _Clock:
    """Times of one generation."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._target = engine.backend
        self._started = time.perf_counter()
        self._first = self._last = self._started
        self._first_inside = self._inside = self._first_target = self._in_target = 0.0
        self._n_tokens = self._n_counted = self._n_first = 0

    def token(self) -> None:
        """A token is out."""
        self._last = time.perf_counter()
        if self._n_tokens == 0:
            self._first = self._last
            self._first_inside = self._engine.seconds_inside()
            self._first_target = self._target.seconds
        self._n_tokens += 1

    def round_done(self) -> None:
        """All tokens of a round are out."""
        if self._n_tokens > self._n_counted:
            self._inside, self._in_target = self._engine.seconds_inside(), self._target.seconds
            self._n_first = self._n_first or self._n_tokens
            self._n_counted = self._n_tokens

    def timings(self, load_s: float, n_read: int, read_s: float) -> Timings:
        """The figures, at the end."""
        # the first round's time is the prompt's, so none of its tokens counts
        decoded = self._n_tokens - self._n_first
        decode_s = self._last - self._first if decoded else 0.0
        inside = self._inside - self._first_inside
        drafting = inside - (self._in_target - self._first_target)
        return Timings(
            load_s=load_s,
            ttft_s=self._first - self._started,
            prompt_tok_s=n_read / read_s if n_read > 0 and read_s > 0 else None,
            decode_tok_s=decoded / decode_s if decode_s > 0 else None,
            wall_s=time.perf_counter() - self._started,
            overhead_share=max(0.0, 1 - inside / decode_s) if decode_s > 0 else 0.0,
            draft_share=max(0.0, drafting / decode_s) if decode_s > 0 else 0.0,
        )
