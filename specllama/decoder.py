"""SpeculativeDecoder: text in, text out.

    from specllama import SpeculativeDecoder

    with SpeculativeDecoder("smollm2-135m", "smollm2-135m-draft") as decoder:
        for event in decoder.stream("The three laws of robotics are"):
            print(event.text, end="", flush=True)

What is said depends on the target, the prompt and the settings. The draft decides how fast.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, Self, TypeVar

from specllama import saved
from specllama.beams import BeamSearcher, OnStep
from specllama.calibration import Calibration, first_look
from specllama.drafters import Drafters
from specllama.engine.engine import Engine
from specllama.errors import ContextFull, SpecllamaError, UsageError
from specllama.hub.resolve import locate
from specllama.kept_costs import KeptCosts, exact_range
from specllama.llama import library
from specllama.llama.cache import Progress
from specllama.llama.selftest import batch_difference
from specllama.llama.width import ConstantWidth
from specllama.loading import (
    DraftModel,
    LoadProgress,
    TargetModel,
    load_draft,
    load_target,
)
from specllama.options import BeamParams, GenerationParams, ModelOptions
from specllama.reply import Asked, Reply
from specllama.results import BeamResult, Generation, SpecStats
from specllama.sampling.constraint import Constraint
from specllama.scheduling.explain import Explanation, explain
from specllama.scheduling.table import CostTable
from specllama.stream import Stream, Turn
from specllama.text.chat import ChatTemplate, Message, chat_prompt, conversation
from specllama.text.schema import to_gbnf
from specllama.text.vocabulary import Vocabulary

_EXACT_BATCH = 7
_USUAL_LONGEST = 16


class SpeculativeDecoder:
    """A target model, optionally a draft model, and one conversation's caches.

    One thread, and one generation at a time: a new one closes a stream that was left open, and what
    needs the models in the middle of another call raises UsageError (`Stream.cancel` may come from
    anywhere). A `Pool` over it runs many at once, for any thread.

    Args:
        target: a GGUF file, an alias, a name of the catalogue (the built-in pair is in it), or
            `user/repo:QUANT` from the cache.
        draft: the same, a model with the target's vocabulary (another one: see
            `ModelOptions.translate`); None drafts without a model.
        gamma: the papers' setting: calls that give no params draft exactly `gamma` tokens a round
            with the draft model (block, Sun et al. 2024; coupled when a seed is given).
            None leaves drafters and lengths to the scheduler. Other rules at a fixed length:
            `GenerationParams(verify="rejection", drafter="model", draft_max=gamma,
            adaptive=False)`.
        options: how both are loaded.
        strict_draft: raise when the draft cannot serve, and when a drafter is asked for that
            needs one and has none; False notes the first in `warnings` and goes on without.
        chat_template: Jinja source to use instead of the model's own.
        on_progress: called with what is being loaded and how much of it (0..1).

    Attributes:
        target_name, draft_name: what was loaded; draft_name is None without a draft model.
        n_ctx: the context's length in tokens, of each conversation.
        load_s: seconds the loading took.
        warnings: one sentence each.

    Raises:
        ModelNotFound, NotAModel, PairMismatch, OutOfMemory, UsageError.
    """

    def __init__(
        self,
        target: str | Path,
        draft: str | Path | None = None,
        gamma: int | None = None,
        *,
        options: ModelOptions | None = None,
        strict_draft: bool = True,
        chat_template: str | None = None,
        on_progress: LoadProgress | None = None,
    ) -> None:
        started = time.perf_counter()
        self.options = _of_kind(ModelOptions, options) or ModelOptions()
        self._defaults = _papers_setting(gamma)
        self.warnings: list[str] = []
        self._on_progress = on_progress
        self._draft: DraftModel | None = None
        self._open: Stream | None = None
        self._turn = Turn()
        self._lent = self._closed = False
        self._costs = KeptCosts()
        self._target: TargetModel = load_target(target, self.options, on_progress)
        try:
            self._template = ChatTemplate.of(self._target.model.vocabulary, chat_template)
            self._drafters = Drafters(self._target, self.options, strict_draft=strict_draft)
            self.warnings += self._drafters.warnings
            self._engine = Engine(
                self._target.context,
                n_slots=self.options.parallel,
                n_ctx=self._target.n_ctx,
                max_batch=self._exact_batch(draft) if self.options.exact else None,
                linear=self.options.exact,
            )
            self.set_draft(draft, strict=strict_draft)
        except BaseException:
            self.close()
            raise
        if self._template.is_fallback:
            self.warnings.append(
                f"{self.target_name} has no chat template; using a generic one "
                "(--chat-template FILE gives another)."
            )
        if self.n_ctx_trained and self.options.n_ctx > self.n_ctx_trained:
            self.warnings.append(
                f"{self.target_name} was made for {self.n_ctx_trained} tokens; "
                f"in a context of {self.n_ctx} its text may fall apart behind them."
            )
        if self.options.exact:
            self._check_exactness()
        library.end_team()
        self.load_s = time.perf_counter() - started
        self._load_s_to_report = self.load_s

    def _exact_batch(self, draft: str | Path | None) -> int:
        """The most tokens of a decode in exact mode: as many as were measured to be exact here."""
        context = self._target.context
        width = context.width if isinstance(context, ConstantWidth) else 0
        draft_path = None
        if draft is not None:
            with suppress(SpecllamaError):  # loading it tells of that
                draft_path = locate(str(draft), "draft")
        measured = exact_range(self._target.model.path, draft_path, self.options)
        usual = width or _EXACT_BATCH
        return min(measured or usual, width or self.options.n_batch)

    def _check_exactness(self) -> None:
        most = self._engine.max_batch
        if most == 1:
            self.warnings.append(
                "No batch is bit-exact here, by the last calibration: --exact drafts nothing and "
                "reads prompts token by token."
            )
        difference = batch_difference(self._target.context, most, self.options.parallel)
        if difference > 0.0:
            self.warnings.append(
                f"Not bit-exact here: logits of batches differ by up to {difference:.2g} from "
                "single tokens, so texts may differ where two tokens are nearly equal."
            )

    @property
    def target_name(self) -> str:
        """Name of the target."""
        return self._target.name

    @property
    def draft_name(self) -> str | None:
        """Name of the draft model, None without one."""
        return self._draft.name if self._draft else None

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters that have something to draft from."""
        return tuple(drafter.name for drafter in self._engine.drafters)

    @property
    def vocabulary(self) -> Vocabulary:
        """The target's tokens."""
        return self._target.model.vocabulary

    @property
    def costs(self) -> CostTable:
        """What decodes cost here, as far as that was measured."""
        return self._engine.scheduler.table()

    @property
    def n_ctx(self) -> int:
        """Context length in tokens."""
        return self._target.n_ctx

    @property
    def n_ctx_trained(self) -> int | None:
        """The longest context that the target was made for, None where its file does not say."""
        return self._target.model.n_ctx_train or None

    def set_draft(self, draft: str | Path | None, *, strict: bool = True) -> None:
        """Use another draft model, or none. The target's cache stays.

        Raises:
            ModelError, OutOfMemory: it cannot serve and `strict` is set; the old one stays.
        """
        self._end_open_stream()
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
        self._engine.drafters = self._drafters.all(loaded)
        files = self._target.model.path, loaded.model.path if loaded else None
        self.warnings += self._costs.recall(self._engine.scheduler, *files, self.options)
        if self._costs.table is None and not self._engine.scheduler.costs.measured():
            self._engine.forget()
            self._engine.scheduler.recall(
                first_look(self._target.context, loaded.context if loaded else None)
            )

    def set_ngrams(self, path: str | Path) -> None:
        """Draft from another n-gram file (the drafter "ngram").

        Raises:
            SpecllamaError: it cannot be read, or is of another vocabulary; the old one stays.
        """
        self._end_open_stream()
        self._drafters.set_ngrams(path)
        self.options = replace(self.options, ngram=path)
        self._engine.drafters = self._drafters.all(self._draft)

    def save(self, path: str | Path) -> None:
        """Write the last conversation's caches to a file, for `restore`.

        Raises:
            UsageError: nothing was said yet, or the file cannot be written.
        """
        self._end_open_stream()
        saved.save(Path(path), self._engine, self._target, self._draft, self.options)

    def restore(self, path: str | Path) -> int:
        """Take a conversation up where it was saved; prompts that go on from it read only what is
        new.

        Returns:
            How many tokens need not be read again.

        Raises:
            ModelError: no such file, a damaged one, or one of another model, llama.cpp or cache
                format.
            UsageError: it is longer than the context.
            EngineError: llama.cpp refused it.
        """
        self._end_open_stream()
        return saved.restore(Path(path), self._engine, self._target, self._draft, self.options)

    def forget(self) -> None:
        """Start as if nothing had been said: empty caches, drafters that remember nothing.

        What the scheduler has learned about costs stays; a store on disk does too.
        """
        self._end_open_stream()
        self._engine.forget()

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
            UsageError: an empty prompt, ids outside the vocabulary, or a grammar or JSON schema
                that cannot be served.
            ContextFull: the prompt does not fit.
        """
        return self._start(self.reply(prompt, params), on_prompt)

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
        return self._start(self.chat_reply(messages, params), on_prompt)

    def _start(self, reply: Reply, on_prompt: Progress | None) -> Stream:
        self._end_open_stream()
        self._open = Stream(self._engine, reply, on_prompt, self._turn)
        return self._open

    def reply(self, prompt: str | Sequence[int], params: GenerationParams | None = None) -> Reply:
        """What `stream` and `Pool.submit` begin: a request that is checked and in tokens.

        Raises:
            UsageError: ids outside the vocabulary, or a grammar or JSON schema that cannot be
                served.
            ContextFull: the prompt does not fit.
        """
        ids = self._prompt_ids(prompt)
        return self._reply(ids, ids, params, at_start=False)

    def chat_reply(
        self, messages: Sequence[Message], params: GenerationParams | None = None
    ) -> Reply:
        """The same for `stream_chat` and `Pool.submit_chat`.

        Raises:
            UsageError, ModelError, ContextFull: as `stream_chat`.
        """
        messages = conversation(messages)
        ids = self._conversation_ids(messages)
        params, asked = params or self._defaults, []
        if params.copy_input:
            asked = self.vocabulary.tokenize(messages[-1].content, special=False, add_bos=False)
        return self._reply(ids, asked, params, at_start=True)

    def _reply(
        self,
        ids: Sequence[int],
        question: Sequence[int],
        params: GenerationParams | None,
        *,
        at_start: bool,
    ) -> Reply:
        params = _of_kind(GenerationParams, params) or self._defaults
        self._checked(tuple(params.sampling.logit_bias))
        self._drafters.require(params, self.options)
        self._engine.check(ids)
        predicted = self.vocabulary.tokenize(params.predict, special=False, add_bos=False)
        load_s, self._load_s_to_report = self._load_s_to_report, 0.0
        asked = Asked(
            ids=ids,
            params=params,
            constraint=self._constraint(params),
            predicted=[*predicted, *(question if params.copy_input else ())],
            stops=(*params.stop, *self._template.stops) if at_start else params.stop,
            at_start=at_start,
            load_s=load_s,
        )
        return Reply(self._engine, self._drafters, self.vocabulary, asked)

    def beam_search(
        self,
        prompt: str | Sequence[int],
        params: BeamParams | None = None,
        *,
        on_prompt: Progress | None = None,
        on_step: OnStep | None = None,
    ) -> BeamResult:
        """The most probable continuations of a text (or token ids), by speculative beam search.

        They are those of plain beam search with the target, with the same scores; a draft model
        only saves target batches.

        Args:
            on_prompt: called with (tokens done, tokens in all) while a long prompt is read.
            on_step: called with the steps taken so far.

        Raises:
            UsageError: an empty prompt, ids outside the vocabulary, more beams than there is room
                for, or a model whose memory cannot branch.
            ContextFull: the prompt does not fit.
        """
        ids, searcher = self._prompt_ids(prompt), self._searcher()
        with self._turn.taken():
            return searcher.search(
                ids,
                _of_kind(BeamParams, params) or BeamParams(),
                at_start=False,
                on_prompt=on_prompt,
                on_step=on_step,
            )

    def beam_search_chat(
        self,
        messages: Sequence[Message],
        params: BeamParams | None = None,
        *,
        on_prompt: Progress | None = None,
        on_step: OnStep | None = None,
    ) -> BeamResult:
        """The most probable replies to a conversation. See `beam_search` and `stream_chat`."""
        ids, searcher = self._conversation_ids(conversation(messages)), self._searcher()
        with self._turn.taken():
            return searcher.search(
                ids,
                _of_kind(BeamParams, params) or BeamParams(),
                at_start=True,
                on_prompt=on_prompt,
                on_step=on_step,
            )

    def _searcher(self) -> BeamSearcher:
        self._end_open_stream()
        draft = self._draft
        follower = None if draft is None or draft.is_foreign else draft.follower
        return BeamSearcher(self._engine, self.vocabulary, follower, self._drafters.recycle)

    def _constraint(self, params: GenerationParams) -> Constraint | None:
        """What a reply may say, None for anything."""
        schema = params.schema()
        grammar = params.grammar if schema is None else to_gbnf(schema)
        return None if grammar is None else self._target.grammars.read(grammar)

    @property
    def engine(self) -> Engine:
        """What runs the generations."""
        return self._engine

    @contextmanager
    def lent(self) -> Iterator[Engine]:
        """While entered, the engine is somebody else's (a `Pool`'s).

        Raises:
            UsageError: it is already.
        """
        self._end_open_stream()
        library.end_team()
        self._lent = True
        try:
            yield self._engine
        finally:
            self._lent = False

    def _end_open_stream(self) -> None:
        if self._lent:
            raise UsageError("A pool is using this decoder.", "Close the pool first.")
        if self._closed:
            raise UsageError("The decoder was closed.", "Load another one.")
        self._turn.check()
        if self._open is not None:
            self._open.close()
            self._open = None
        self._engine.cancel_all()  # Ctrl-C may have come before a stream was known

    def calibration(self, prompts: Sequence[str] = ()) -> Calibration:
        """Measure what decodes cost here; run it to its end, or as far as you like, and finish it.

        Args:
            prompts: messages to answer, which teach how often drafts are accepted.
        """
        self.forget()
        return Calibration(
            self._target,
            self._draft,
            self.options,
            self._engine.scheduler,
            self._costs,
            self.forget,
            lambda text, params: self.chat([Message("user", text)], params),
            prompts,
        )

    def explain(self, stats: SpecStats, params: GenerationParams) -> Explanation:
        """Why generations with these statistics were drafted for as they were."""
        names = params.drafters()
        wanted = [drafter for drafter in self._engine.drafters if drafter.name in names]
        return explain(
            self._engine.scheduler,
            stats,
            costly=[drafter.name for drafter in wanted if not drafter.free],
            free=[drafter.name for drafter in wanted if drafter.free],
            temperature=params.sampling.temperature,
            adaptive=params.adaptive,
        )

    def count_tokens(self, text: str) -> int:
        """How many tokens a text is."""
        return len(self._encode(text))

    def count_chat_tokens(self, messages: Sequence[Message]) -> int:
        """How many tokens a conversation's prompt is."""
        return len(self._chat_ids(conversation(messages)))

    def _prompt_ids(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, bytes | bytearray):
            raise UsageError("A prompt is text or token ids, not bytes.", "Decode them first.")
        if not isinstance(prompt, str):
            return self._checked(prompt)
        self._check_length([prompt])
        return self._encode(prompt)

    def _conversation_ids(self, messages: Sequence[Message]) -> list[int]:
        if not messages:
            raise UsageError("The conversation is empty.", "Give at least one message.")
        self._check_length([message.content.strip() for message in messages])
        return self._chat_ids(messages)

    def _check_length(self, texts: Sequence[str]) -> None:
        """Refuse what cannot fit before its tokens are found, which nothing can stop.

        llama.cpp takes seconds for megabytes, and minutes for many control tokens.
        """
        n_ctx, size = self.n_ctx, sum(map(len, texts))
        # the longest token is looked for where it matters: that takes .2 s for 49k tokens
        is_long = size > _USUAL_LONGEST * n_ctx
        if len(texts) > n_ctx or (is_long and size > self._target.model.vocabulary.longest * n_ctx):
            raise ContextFull(
                f"The prompt has more tokens than the context takes ({n_ctx}).",
                "Shorten it, or give a larger context (-c).",
            )

    def _encode(self, text: str) -> list[int]:
        vocabulary = self._target.model.vocabulary
        return vocabulary.tokenize(text, special=True, add_bos=vocabulary.add_bos)

    def _chat_ids(self, messages: Sequence[Message]) -> list[int]:
        return chat_prompt(self._target.model.vocabulary, messages, self._template)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        size = self._target.model.vocabulary.size
        try:
            known = list(map(index, ids))  # numpy's integers are none to llama.cpp's bindings
        except TypeError as error:
            raise UsageError(f"Token ids are whole numbers ({error}).") from error
        wrong = next((token for token in known if not 0 <= token < size), None)
        if wrong is not None:
            raise UsageError(f"Token id {wrong} is not in the vocabulary (0 to {size - 1}).")
        return known

    def close(self) -> None:
        """End an open stream and free both models. Closing twice is fine; other calls raise."""
        if self._closed:
            return
        self._end_open_stream()
        self._closed = True
        self._costs.close()
        if self._draft is not None:
            self._draft.close()
            self._draft = None
        self._target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_Kind = TypeVar("_Kind")


def _of_kind(kind: type[_Kind], given: Any) -> _Kind | None:
    """What was given, which types alone do not keep from being a dictionary."""
    if given is not None and not isinstance(given, kind):
        raise UsageError(
            f"A {kind.__name__} is needed, not a {type(given).__name__}.",
            f"Write {kind.__name__}(...).",
        )
    return given


def _papers_setting(gamma: int | None) -> GenerationParams:
    if gamma is None:
        return GenerationParams()
    try:
        return GenerationParams(drafter="model", draft_max=gamma, adaptive=False)
    except UsageError as error:
        raise UsageError(error.message.replace("draft_max", "gamma"), error.hint) from error
