"""A generation under way, as text: events while it runs, the result at its end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from specllama.drafting.shapes import FixedShape, Shape, ValueShape
from specllama.engine.engine import Engine
from specllama.engine.request import EndEvent, Request, TokenEvent
from specllama.errors import SpecllamaError
from specllama.llama.cache import Progress
from specllama.options import GenerationParams
from specllama.results import FinishReason, Generation, StreamEvent, Timings, Usage
from specllama.text.stream import TextStream
from specllama.text.vocabulary import Vocabulary
from specllama.verification import RULES, Rule, choose_rule

_TREE_NODES = 16
_TREE_WIDTH = 4


class Stream(Iterator[StreamEvent]):
    """A generation under way: iterate for its events, then read `result`.

    An event is given out when its text is certain, so that no text of a stop string or half a
    character is ever seen; joined, the texts are the result's text.
    """

    def __init__(
        self,
        engine: Engine,
        vocabulary: Vocabulary,
        ids: Sequence[int],
        params: GenerationParams,
        *,
        stops: Sequence[str],
        at_start: bool,
        load_s: float,
        on_prompt: Progress | None,
        on_answer: Callable[[Sequence[int], int], None],
    ) -> None:
        self._engine = engine
        self._on_answer = on_answer
        self._vocabulary = vocabulary
        self._load_s = load_s
        self._params = params
        self._seed = secrets.randbits(32) if params.seed is None else params.seed
        self._rule = _rule(params)
        self._text = TextStream(vocabulary, stops, at_start=at_start)
        self._pieces: list[str] = []
        self._waiting: list[StreamEvent] = []
        self._given: list[StreamEvent] = []
        self._cancelled = False
        self._result: Generation | None = None
        self._clock = _Clock(self._engine)
        self._live = self._engine.add(self._request(ids), on_prompt)
        self._clock.prompt_done(len(ids) - 1 - self._live.n_cached)
        self._events = self._run()

    def _request(self, ids: Sequence[int]) -> Request:
        params = self._params
        loaded = {drafter.name for drafter in self._engine.drafters}
        return Request(
            ids=ids,
            sampling=params.sampling,
            rule=self._rule,
            seed=self._seed,
            is_end=self._vocabulary.is_eog,
            max_tokens=params.max_tokens,
            watch=self._watch,
            drafters=tuple(name for name in params.drafters() if name in loaded),
            shape=_shape(params, self._rule),
            logprobs=params.logprobs,
            draft_max=params.draft_max,
            draft_p_min=params.draft_p_min,
            adaptive=params.adaptive,
        )

    def _watch(self, token: int) -> int | None:
        """The engine's question after each token: does the text end here?"""
        piece = self._text.push(token)
        self._pieces.append(piece.text)
        return piece.dropped_tokens if piece.stopped else None

    def __iter__(self) -> Iterator[StreamEvent]:
        return self

    def __next__(self) -> StreamEvent:
        return next(self._events)

    def _run(self) -> Iterator[StreamEvent]:
        ended: EndEvent | None = None
        try:
            while ended is None and not self._cancelled:
                for event in self._engine.step():
                    if isinstance(event, EndEvent):
                        ended = event
                    else:
                        self._take(event)
                self._clock.round_done()
                if ended is None and not self._text.holds:
                    yield from self._release()
        finally:
            if ended is None:
                self._engine.cancel(self._live)
        if ended is not None:
            self._drop(ended.dropped)
        self._finish_text()
        yield from self._release()
        self._conclude(ended.reason if ended else "cancelled")

    def _take(self, event: TokenEvent) -> None:
        self._clock.token()
        text = self._pieces.pop(0)
        self._waiting.append(
            StreamEvent(event.id, text, event.logprob, bool(event.source), event.source)
        )

    def _release(self) -> Iterator[StreamEvent]:
        """Give the waiting events out; what is not taken counts as given all the same."""
        waiting, self._waiting = self._waiting, []
        self._given += waiting
        yield from waiting

    def _drop(self, count: int) -> None:
        """Take back a stop string's tokens; text they completed stays with the token before."""
        if not count:
            return
        dropped = self._waiting[len(self._waiting) - count :]
        del self._waiting[len(self._waiting) - count :]
        self._add_text("".join(event.text for event in dropped))

    def _finish_text(self) -> None:
        self._add_text(self._text.finish())

    def _add_text(self, text: str) -> None:
        """Add text to the last event that is still here."""
        if text and self._waiting:
            last = self._waiting[-1]
            self._waiting[-1] = StreamEvent(
                last.id, last.text + text, last.logprob, last.from_draft, last.source
            )

    def cancel(self) -> None:
        """End the generation after the current round; safe from signal handlers and threads."""
        self._cancelled = True

    def close(self) -> None:
        """Stop now; the decoder can generate again, and `result` has what there is."""
        if self._result is None:
            self._events.close()  # type: ignore[attr-defined]
            self._engine.cancel(self._live)
            self._finish_text()
            self._given += self._waiting
            self._conclude("cancelled")

    @property
    def key(self) -> int:
        """The engine's number of this sequence."""
        return self._live.key

    def finish(self) -> Generation:
        """Run to the end and return the result."""
        for _ in self:
            pass
        return self.result

    @property
    def result(self) -> Generation:
        """The finished generation.

        Raises:
            SpecllamaError: it is still running.
        """
        if self._result is None:
            raise SpecllamaError("The generation is still running.", "Iterate it to its end first.")
        return self._result

    def _conclude(self, reason: FinishReason) -> None:
        live = self._live
        if reason in ("stop", "length"):
            self._on_answer(live.ids, live.n_prompt)
        live.stats.inner = self._engine.inner_stats(live)
        self._result = Generation(
            text="".join(event.text for event in self._given),
            tokens=[event.id for event in self._given],
            logprobs=[e.logprob for e in self._given if e.logprob is not None],
            finish_reason=reason,
            usage=Usage(live.n_prompt, len(self._given), live.n_cached),
            timings=self._clock.timings(self._load_s),
            spec=live.stats,
            seed=self._seed,
            verify=self._rule.name,
            guarantee=self._rule.guarantee,
            lossless=self._rule.lossless,
        )


def _rule(params: GenerationParams) -> Rule[Any]:
    """The verification rule; left to us, trees that are not seeded get one that judges trees."""
    seeded = params.seed is not None
    if params.verify == "auto" and not seeded and "tree" in params.drafters():
        return RULES["greedy-one"]
    return choose_rule(params.verify, seeded, params.lossy)


def _shape(params: GenerationParams, rule: Rule[Any]) -> Shape | None:
    """The shape that was asked for, None for a planned one.

    Growing by value picks among drawn tokens, which rules that read laws do not allow: they get
    planned trees.
    """
    if params.tree_widths():
        return FixedShape(params.tree_widths())
    if params.tree == "planned" or (rule.uses_law and params.sampling.temperature > 0):
        return None
    return ValueShape(nodes=_TREE_NODES, width_=_TREE_WIDTH, depth=max(1, params.draft_max))


class _Clock:
    """Times of one generation."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._started = time.perf_counter()
        self._prompt_s = 0.0
        self._n_prompt = 0
        self._first = self._last = self._started
        self._first_inside = self._inside = 0.0
        self._n_tokens = self._n_counted = 0

    def prompt_done(self, n_decoded: int) -> None:
        """The prompt is read, all but its last token."""
        self._prompt_s = time.perf_counter() - self._started
        self._n_prompt = n_decoded

    def token(self) -> None:
        """A token is out."""
        self._last = time.perf_counter()
        if self._n_tokens == 0:
            self._first, self._first_inside = self._last, self._engine.seconds_inside()
        self._n_tokens += 1

    def round_done(self) -> None:
        """All tokens of a round are out."""
        if self._n_tokens > self._n_counted:
            self._inside = self._engine.seconds_inside()
            self._n_counted = self._n_tokens

    def timings(self, load_s: float) -> Timings:
        """The figures, at the end."""
        decode_s = self._last - self._first
        inside = self._inside - self._first_inside
        decoded = self._n_tokens - 1
        return Timings(
            load_s=load_s,
            ttft_s=self._first - self._started,
            prompt_tok_s=self._n_prompt / self._prompt_s if self._n_prompt > 0 else None,
            decode_tok_s=decoded / decode_s if decoded > 0 and decode_s > 0 else None,
            wall_s=time.perf_counter() - self._started,
            overhead_share=max(0.0, 1 - inside / decode_s) if decode_s > 0 else 0.0,
        )
