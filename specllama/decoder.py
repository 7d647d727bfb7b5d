"""SpeculativeDecoder: text in, text out.

    from specllama import SpeculativeDecoder

    with SpeculativeDecoder("smollm2-135m", "smollm2-135m-draft") as decoder:
        for event in decoder.stream("The three laws of robotics are"):
            print(event.text, end="", flush=True)

What is said depends on the target, the prompt and the settings. The draft decides how fast.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from specllama.drafting.protocol import Drafter
from specllama.drafting.suffix import SuffixDrafter
from specllama.engine.engine import Engine
from specllama.engine.request import EndEvent, Request, TokenEvent
from specllama.errors import SpecllamaError, UsageError
from specllama.llama.cache import Progress
from specllama.loading import DraftModel, LoadProgress, TargetModel, load_draft, load_target
from specllama.options import GenerationParams, ModelOptions
from specllama.results import FinishReason, Generation, StreamEvent, Timings, Usage
from specllama.text.chat import ChatTemplate, Message, chat_prompt
from specllama.text.stream import TextStream
from specllama.verification import choose_rule

_EXACT_BATCH = 7


class SpeculativeDecoder:
    """A target model, optionally a draft model, and one conversation's caches.

    Not thread-safe: one generation at a time (`Stream.cancel` may come from anywhere).

    Args:
        target: a GGUF file, an alias, a built-in name, or `user/repo:QUANT` from the cache.
        draft: the same, a model with the target's vocabulary; None drafts without a model.
        options: how both are loaded.
        strict_draft: raise when the draft cannot serve; False notes it in `warnings` and goes on
            without a draft model.
        chat_template: Jinja source to use instead of the model's own.
        on_progress: called with what is being loaded and how much of it (0..1).

    Attributes:
        target_name, draft_name: what was loaded; draft_name is None without a draft model.
        n_ctx: the context's length in tokens.
        load_s: seconds the loading took.
        warnings: one sentence each.

    Raises:
        ModelNotFound, NotAModel, PairMismatch, OutOfMemory, UsageError.
    """

    def __init__(
        self,
        target: str | Path,
        draft: str | Path | None = None,
        *,
        options: ModelOptions | None = None,
        strict_draft: bool = True,
        chat_template: str | None = None,
        on_progress: LoadProgress | None = None,
    ) -> None:
        started = time.perf_counter()
        self.options = options or ModelOptions()
        self.warnings: list[str] = []
        self._on_progress = on_progress
        self._draft: DraftModel | None = None
        self._target: TargetModel = load_target(target, self.options, on_progress)
        try:
            self._template = ChatTemplate.of(self._target.model.vocabulary, chat_template)
            self._engine = self._new_engine()
            self.set_draft(draft, strict=strict_draft)
        except BaseException:
            self.close()
            raise
        if self._template.is_fallback:
            self.warnings.append(
                f"{self.target_name} has no chat template; using a generic one "
                "(--chat-template FILE gives another)."
            )
        self.load_s = time.perf_counter() - started
        self._load_s_to_report = self.load_s

    @property
    def target_name(self) -> str:
        """Name of the target."""
        return self._target.name

    @property
    def draft_name(self) -> str | None:
        """Name of the draft model, None without one."""
        return self._draft.name if self._draft else None

    @property
    def n_ctx(self) -> int:
        """Context length in tokens."""
        return self._target.context.n_ctx

    def set_draft(self, draft: str | Path | None, *, strict: bool = True) -> None:
        """Use another draft model, or none. The target's cache stays.

        Raises:
            ModelError, OutOfMemory: it cannot serve and `strict` is set; the old one stays.
        """
        loaded = None
        if draft is not None:
            try:
                loaded = load_draft(draft, self._target, self.options, self._on_progress)
            except SpecllamaError as error:
                if strict:
                    raise
                self.warnings.append(f"No draft model: {error}")
        if self._draft is not None:
            self._draft.close()
        self._draft = loaded
        self._engine.drafters = self._drafters()

    def _new_engine(self) -> Engine:
        return Engine(
            self._target.context,
            self._drafters(),
            max_batch=_EXACT_BATCH if self.options.exact else None,
        )

    def _drafters(self) -> list[Drafter]:
        vocabulary = self._target.model.vocabulary
        drafters: list[Drafter] = [SuffixDrafter(vocabulary.is_eog)]
        if self._draft is not None:
            drafters.append(self._draft.drafter)
        return drafters

    def generate(
        self,
        prompt: str | Sequence[int],
        params: GenerationParams | None = None,
        *,
        on_prompt: Progress | None = None,
    ) -> Generation:
        """Continue a text (or token ids) and wait for the end. See `stream`."""
        return self.stream(prompt, params, on_prompt=on_prompt).finish()

    def stream(
        self,
        prompt: str | Sequence[int],
        params: GenerationParams | None = None,
        *,
        on_prompt: Progress | None = None,
    ) -> Stream:
        """Continue a text (or token ids), token by token; no chat template is applied.

        Args:
            on_prompt: called with (tokens done, tokens in all) while a long prompt is read.

        Raises:
            UsageError: an empty prompt, or ids outside the vocabulary.
            ContextFull: the prompt does not fit.
        """
        ids = self._encode(prompt) if isinstance(prompt, str) else self._checked(prompt)
        return Stream(self, ids, params or GenerationParams(), on_prompt, at_start=False)

    def chat(
        self,
        messages: Sequence[Message],
        params: GenerationParams | None = None,
        *,
        on_prompt: Progress | None = None,
    ) -> Generation:
        """Reply to a conversation and wait for the end. See `stream_chat`."""
        return self.stream_chat(messages, params, on_prompt=on_prompt).finish()

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: GenerationParams | None = None,
        *,
        on_prompt: Progress | None = None,
    ) -> Stream:
        """Reply to a conversation in the model's own chat format, token by token.

        Give a reply's tokens back in its `Message` and the caches keep all of the conversation.

        Raises:
            UsageError, ModelError: the template refuses the conversation or fails.
            ContextFull: the conversation does not fit.
        """
        if not messages:
            raise UsageError("The conversation is empty.", "Give at least one message.")
        return Stream(
            self, self._chat_ids(messages), params or GenerationParams(), on_prompt, at_start=True
        )

    def count_tokens(self, text: str) -> int:
        """How many tokens a text is."""
        return len(self._encode(text))

    def count_chat_tokens(self, messages: Sequence[Message]) -> int:
        """How many tokens a conversation's prompt is."""
        return len(self._chat_ids(messages))

    def _encode(self, text: str) -> list[int]:
        vocabulary = self._target.model.vocabulary
        return vocabulary.tokenize(text, special=True, add_bos=vocabulary.add_bos)

    def _chat_ids(self, messages: Sequence[Message]) -> list[int]:
        return chat_prompt(self._target.model.vocabulary, messages, self._template)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        size = self._target.model.vocabulary.size
        wrong = next((token for token in ids if not 0 <= token < size), None)
        if wrong is not None:
            raise UsageError(f"Token id {wrong} is not in the vocabulary (0 to {size - 1}).")
        return list(ids)

    def close(self) -> None:
        """Free both models. Closing twice is fine."""
        if self._draft is not None:
            self._draft.close()
            self._draft = None
        self._target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Stream(Iterator[StreamEvent]):
    """A generation under way: iterate for its events, then read `result`.

    An event is given out when its text is certain, so that no text of a stop string or half a
    character is ever seen; joined, the texts are the result's text.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        ids: Sequence[int],
        params: GenerationParams,
        on_prompt: Progress | None,
        *,
        at_start: bool,
    ) -> None:
        self._decoder = decoder
        self._engine = decoder._engine
        self._params = params
        self._seed = secrets.randbits(32) if params.seed is None else params.seed
        self._rule = choose_rule(params.verify, params.seed is not None)
        vocabulary = decoder._target.model.vocabulary
        stops = (*params.stop, *decoder._template.stops) if at_start else params.stop
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
        params, decoder = self._params, self._decoder
        loaded = {drafter.name for drafter in self._engine.drafters}
        return Request(
            ids=ids,
            sampling=params.sampling,
            rule=self._rule,
            seed=self._seed,
            is_end=decoder._target.model.vocabulary.is_eog,
            max_tokens=params.max_tokens,
            watch=self._watch,
            drafters=tuple(name for name in params.drafters() if name in loaded),
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
        """Take back the tokens of a stop string; text they completed stays with the token before."""
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
        """Stop now; the decoder is ready for the next generation, and `result` has what there is."""
        if self._result is None:
            self._events.close()  # type: ignore[attr-defined]
            self._engine.cancel(self._live)
            self._finish_text()
            self._given += self._waiting
            self._conclude("cancelled")

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
        decoder, live = self._decoder, self._live
        load_s, decoder._load_s_to_report = decoder._load_s_to_report, 0.0
        self._result = Generation(
            text="".join(event.text for event in self._given),
            tokens=[event.id for event in self._given],
            logprobs=[event.logprob for event in self._given],
            finish_reason=reason,
            usage=Usage(live.n_prompt, len(self._given), live.n_cached),
            timings=self._clock.timings(load_s),
            spec=live.stats,
            seed=self._seed,
            verify=self._rule.name,
            guarantee=self._rule.guarantee,
        )


class _Clock:
    """Times of one generation."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._started = time.perf_counter()
        self._prompt_s = 0.0
        self._n_prompt = 0
        self._first = self._last = self._started
        self._first_inside = self._inside = 0.0
        self._n_tokens = 0

    def prompt_done(self, n_decoded: int) -> None:
        """The prompt is read, all but its last token."""
        self._prompt_s = time.perf_counter() - self._started
        self._n_prompt = n_decoded

    def token(self) -> None:
        """A token is out."""
        self._last = time.perf_counter()
        self._inside = self._engine.seconds_inside()
        if self._n_tokens == 0:
            self._first, self._first_inside = self._last, self._inside
        self._n_tokens += 1

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
