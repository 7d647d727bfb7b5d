"""SpeculativeDecoder over the real pair: streams, stops, interruptions, what results say."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama import (
    BeamParams,
    ContextFull,
    GenerationParams,
    Message,
    ModelOptions,
    Pool,
    SamplingParams,
    SpecllamaError,
    SpeculativeDecoder,
    UsageError,
)
from specllama.errors import EngineError
from specllama.llama.context import Context
from specllama.stream import Stream

pytestmark = pytest.mark.model

STORY = "Once upon a time, there was a little robot who"
COUNT = "one, two, three, four, one, two, three, four, one, two, three,"


@pytest.fixture(scope="module")
def decoder(target_file: Path, draft_file: Path) -> Iterator[SpeculativeDecoder]:
    options = ModelOptions(exact=True, threads=1, n_ctx=256)
    with SpeculativeDecoder(target_file, draft_file, options=options) as decoder:
        yield decoder


def params(max_tokens: int | None = 12, **settings: Any) -> GenerationParams:
    temperature = settings.pop("temperature", 0.0)
    defaults: dict[str, Any] = {"seed": 7, "adaptive": False, "draft_max": 4}
    sampling = SamplingParams(temperature=temperature)
    return GenerationParams(max_tokens=max_tokens, sampling=sampling, **{**defaults, **settings})


def detokenised(decoder: SpeculativeDecoder, tokens: list[int]) -> str:
    pieces = map(decoder._target.model.vocabulary.piece, tokens)
    return b"".join(pieces).decode("utf-8", "replace")


class TestStreams:
    @pytest.mark.parametrize("temperature", [0.0, 1.2])
    @pytest.mark.parametrize("prompt", [STORY, "🦙 🦙 🦙 🦙 🦙 🦙 🦙", COUNT])
    def test_events_are_the_result(
        self, decoder: SpeculativeDecoder, prompt: str, temperature: float
    ) -> None:
        stream = decoder.stream(prompt, params(temperature=temperature))
        events = list(stream)
        result = stream.result
        assert "".join(event.text for event in events) == result.text
        assert [event.id for event in events] == result.tokens
        assert [event.logprob for event in events] == result.logprobs
        assert result.usage.completion_tokens == len(events)
        assert detokenised(decoder, result.tokens) == result.text
        assert sum(event.from_draft for event in events) <= result.spec.accepted
        assert all(event.from_draft == bool(event.source) for event in events)

    def test_no_half_characters(self, decoder: SpeculativeDecoder) -> None:
        stream = decoder.stream("🦙 🦙 🦙 🦙 🦙 🦙 🦙", params())
        texts = [event.text for event in stream]
        assert any(len(text.encode()) == 4 for text in texts), "no character of four bytes"
        assert not any("\ufffd" in text for text in texts[:-1])

    def test_statistics(self, decoder: SpeculativeDecoder) -> None:
        result = decoder.generate(COUNT, params(drafter="suffix"))
        spec = result.spec
        assert spec.by_source.keys() == {"suffix"}
        assert 0 < spec.accepted <= spec.tested <= spec.drafted
        assert spec.rounds < len(result.tokens)
        assert result.verify == "coupled"
        assert result.guarantee.startswith("Exact")
        assert "rounding" not in result.guarantee, "exact mode lets nothing be rounded otherwise"

    def test_timings(self, decoder: SpeculativeDecoder) -> None:
        timings = decoder.generate(STORY, params(8)).timings
        assert 0 < timings.ttft_s <= timings.wall_s
        assert timings.decode_tok_s is not None
        assert timings.decode_tok_s > 0
        assert 0 <= timings.overhead_share < 1

    def test_a_reply_of_one_round_has_no_rate(self, decoder: SpeculativeDecoder) -> None:
        """Its tokens came together: between them there is no time to divide by."""
        result = decoder.generate(COUNT, params(3, drafter="suffix"))
        assert (result.spec.rounds, len(result.tokens)) == (1, 3)
        assert result.timings.decode_tok_s is None
        assert result.timings.overhead_share == 0

    def test_the_draft_models_time_is_told_apart(self, decoder: SpeculativeDecoder) -> None:
        plain = decoder.generate(STORY, params(8, drafter="none")).timings
        assert plain.draft_share == 0
        drafted = decoder.generate(STORY, params(8, drafter="model", adaptive=False)).timings
        assert 0 < drafted.draft_share < 1 - drafted.overhead_share

    def test_what_is_no_options_is_told(self, decoder: SpeculativeDecoder) -> None:
        given: Any = {"max_tokens": 2}
        with pytest.raises(UsageError, match="A GenerationParams is needed, not a dict"):
            decoder.generate(STORY, given)
        with pytest.raises(UsageError, match="A BeamParams is needed, not a dict"):
            decoder.beam_search(STORY, given)
        with pytest.raises(UsageError, match="A ModelOptions is needed, not a dict"):
            SpeculativeDecoder("no-such-model", options=given)

    def test_max_tokens(self, decoder: SpeculativeDecoder) -> None:
        for limit in (0, 1, 5):
            result = decoder.generate(COUNT, params(limit))
            assert (len(result.tokens), result.finish_reason) == (limit, "length")

    def test_results_have_to_be_waited_for(self, decoder: SpeculativeDecoder) -> None:
        stream = decoder.stream(STORY, params())
        with pytest.raises(SpecllamaError, match="still running"):
            _ = stream.result
        stream.close()

    def test_the_cache_is_kept(self, decoder: SpeculativeDecoder) -> None:
        first = decoder.generate(STORY, params(8))
        ids = [*decoder._encode(STORY), *first.tokens]
        assert decoder.generate(ids, params(4)).usage.cached_tokens == len(ids) - 1

    def test_chat(self, decoder: SpeculativeDecoder) -> None:
        messages = [Message("user", "Say hello.")]
        reply = decoder.chat(messages, params(12))
        plain = decoder.chat(messages, params(12, drafter="none"))
        assert reply.text == plain.text
        assert "<|im_end|>" not in reply.text


class TestLogprobs:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_are_the_targets(self, decoder: SpeculativeDecoder, temperature: float) -> None:
        """Computed again from the plain softmax of a context of its own."""
        result = decoder.generate(STORY, params(temperature=temperature))
        start = decoder._encode(STORY)
        ids = [*start, *result.tokens]
        model = decoder._target.model
        context = Context(model, n_ctx=256, threads=1, flash_attn="on", cache_type_k="bf16",
                          cache_type_v="bf16")  # fmt: skip
        wanted = [n >= len(start) - 1 for n in range(len(ids))]
        found = context.decode(ids, range(len(ids)), [(0,)] * len(ids), wanted)
        rows = np.stack(found).astype(np.float64)
        context.close()
        rows -= rows.max(axis=1, keepdims=True)
        logs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        direct = [logs[n, token] for n, token in enumerate(result.tokens)]
        assert result.logprobs == pytest.approx(direct, abs=5e-3)


class TestStops:
    @pytest.mark.parametrize("drafter", ["none", "suffix", "model", "auto"])
    def test_stop_strings(self, decoder: SpeculativeDecoder, drafter: str) -> None:
        """At every place of the text, also inside a token and over several."""
        whole = decoder.generate(COUNT, params(drafter="none")).text
        for start in (1, 8):
            stop = whole[start : start + 6]
            stream = decoder.stream(COUNT, params(drafter=drafter, stop=(stop,)))
            texts = [event.text for event in stream]
            result = stream.result
            assert result.text == whole[: whole.index(stop)] == "".join(texts)
            assert result.finish_reason == "stop"
            assert detokenised(decoder, result.tokens).startswith(result.text)
            assert len(detokenised(decoder, result.tokens[:-1])) <= len(result.text)

    def test_the_next_turn_is_whole(self, decoder: SpeculativeDecoder) -> None:
        """Tokens that a stop string took back are in no cache."""
        whole = decoder.generate(COUNT, params(drafter="none"))
        decoder.generate(COUNT, params(stop=(whole.text[6:14],)))
        assert decoder.generate(COUNT, params()).tokens == whole.tokens

    def test_end_of_generation(self, decoder: SpeculativeDecoder) -> None:
        """A biased end token ends the text, and is not part of it."""
        sampling = SamplingParams(temperature=0.0, logit_bias={2: 100.0})
        result = decoder.generate(STORY, GenerationParams(max_tokens=9, sampling=sampling))
        assert (result.tokens, result.text, result.finish_reason) == ([], "", "stop")


@pytest.fixture(scope="module")
def plain(decoder: SpeculativeDecoder) -> list[int]:
    """The story without drafts."""
    return decoder.generate(STORY, params(drafter="none")).tokens


class TestInterruptions:
    @pytest.mark.parametrize("taken", [0, 1, 6])
    def test_close(self, decoder: SpeculativeDecoder, plain: list[int], taken: int) -> None:
        stream = decoder.stream(STORY, params())
        events = [next(stream) for _ in range(taken)]
        stream.close()
        stream.close()
        result = stream.result
        assert result.finish_reason == "cancelled"
        assert result.tokens[:taken] == [event.id for event in events]
        assert result.tokens == plain[: len(result.tokens)]
        assert detokenised(decoder, result.tokens) == result.text
        assert list(stream) == []
        assert decoder.generate(STORY, params()).tokens == plain

    def test_cancel(self, decoder: SpeculativeDecoder, plain: list[int]) -> None:
        stream = decoder.stream(STORY, params())
        next(stream)
        stream.cancel()
        rest = list(stream)
        assert len(rest) <= 5
        assert stream.result.finish_reason == "cancelled"
        assert decoder.generate(STORY, params()).tokens == plain

    def test_an_abandoned_stream(self, decoder: SpeculativeDecoder, plain: list[int]) -> None:
        """`break` out of a loop and go on."""
        stream = decoder.stream(STORY, params())
        next(stream)
        assert decoder.generate(STORY, params()).tokens == plain
        assert stream.result.finish_reason == "cancelled"

    @pytest.mark.parametrize("call", [0, 1, 4])
    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("who", ["_target", "_draft"])
    def test_ctrl_c(
        self,
        decoder: SpeculativeDecoder,
        plain: list[int],
        monkeypatch: pytest.MonkeyPatch,
        call: int,
        after: bool,
        who: str,
    ) -> None:
        """In any decode of target or draft, before or after it changed the cache."""
        context = getattr(decoder, who).context
        decode, calls = context.decode, 0

        def interrupted(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call + 1 and not after:
                raise KeyboardInterrupt
            rows = decode(*args)
            if calls == call + 1:
                raise KeyboardInterrupt
            return rows

        monkeypatch.setattr(context, "decode", interrupted)
        stream = None
        with pytest.raises(KeyboardInterrupt):
            stream = decoder.stream([*decoder._encode("Another one."), 28], params(drafter="model"))
            list(stream)
        monkeypatch.undo()
        if stream is not None:
            assert list(stream) == []
            assert stream.result.finish_reason == "cancelled"
            assert detokenised(decoder, stream.result.tokens) == stream.result.text
        assert decoder.generate(STORY, params(drafter="model")).tokens == plain

    @pytest.mark.parametrize("late", [False, True])
    def test_ctrl_c_while_a_stream_begins(
        self,
        decoder: SpeculativeDecoder,
        plain: list[int],
        monkeypatch: pytest.MonkeyPatch,
        late: bool,
    ) -> None:
        """Nobody has the stream, and nobody could give its slot back."""
        owner, name = (Stream, "__init__") if late else (decoder._drafters, "predict")
        begin = getattr(owner, name)

        def interrupted(*args: Any) -> None:
            begin(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoder.stream(STORY, params())
        monkeypatch.undo()
        assert decoder.generate(STORY, params()).tokens == plain

    def test_an_error_leaves_what_was_said(
        self, decoder: SpeculativeDecoder, plain: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = decoder.stream(STORY, params(drafter="none"))
        said = [next(stream).id for _ in range(3)]

        def refusing(*args: Any) -> Any:
            raise EngineError("llama.cpp refused.")

        monkeypatch.setattr(decoder._target.context, "decode", refusing)
        with pytest.raises(EngineError):
            next(stream)
        monkeypatch.undo()
        assert (stream.result.tokens, stream.result.finish_reason) == (said, "cancelled")
        assert decoder.generate(STORY, params()).tokens == plain


class TestAtWork:
    """llama.cpp would end the process if a call came in the middle of another."""

    CALLS: tuple[Callable[[SpeculativeDecoder], object], ...] = (
        lambda decoder: decoder.generate(STORY, params(max_tokens=1)),
        lambda decoder: decoder.beam_search(STORY, BeamParams(max_tokens=1)),
        lambda decoder: decoder.forget(),
        lambda decoder: decoder.set_draft(None),
        lambda decoder: Pool(decoder),
        lambda decoder: decoder.close(),
    )

    @pytest.mark.parametrize("call", CALLS)
    def test_another_thread(
        self,
        decoder: SpeculativeDecoder,
        plain: list[int],
        monkeypatch: pytest.MonkeyPatch,
        call: Callable[[SpeculativeDecoder], object],
    ) -> None:
        """It comes while a decode is under way, and changes nothing."""
        context = decoder._target.context
        decode = context.decode
        refusals: list[BaseException] = []

        def called() -> None:
            try:
                call(decoder)
            except UsageError as error:
                refusals.append(error)

        def decoding(*args: Any) -> Any:
            thread = threading.Thread(target=called)
            thread.start()
            thread.join()
            return decode(*args)

        monkeypatch.setattr(context, "decode", decoding)
        assert decoder.generate(STORY, params()).tokens == plain
        assert refusals
        assert all("at work" in str(error) for error in refusals)

    def test_two_threads_of_one_stream(
        self, decoder: SpeculativeDecoder, plain: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = decoder.stream(STORY, params())
        take = stream._reply.take
        refusals: list[str] = []

        def called() -> None:
            try:
                next(stream)
            except UsageError as error:
                refusals.append(str(error))

        def taking(events: Any) -> Any:
            thread = threading.Thread(target=called)
            thread.start()
            thread.join()
            return take(events)

        monkeypatch.setattr(stream._reply, "take", taking)
        assert stream.finish().tokens == plain
        assert refusals
        assert all("at work" in refusal for refusal in refusals)

    def test_closing_its_stream(self, decoder: SpeculativeDecoder) -> None:
        """From a callback; `cancel` is what ends it from there."""

        def on_prompt(_done: int, _of: int) -> None:
            with pytest.raises(UsageError, match="at work"):
                stream.close()
            stream.cancel()

        decoder.forget()
        stream = decoder.stream(STORY, params(), on_prompt=on_prompt)
        assert stream.finish().finish_reason == "cancelled"

    def test_beams(self, decoder: SpeculativeDecoder) -> None:
        def on_step(_steps: int) -> None:
            with pytest.raises(UsageError, match="at work"):
                decoder.generate(STORY)

        decoder.beam_search(STORY, BeamParams(max_tokens=2), on_step=on_step)


def test_a_prompt_may_be_an_array(decoder: SpeculativeDecoder) -> None:
    ids = decoder._encode(STORY)
    array: Any = np.array(ids)
    assert decoder.generate(array, params()).tokens == decoder.generate(ids, params()).tokens


class TestRefusals:
    def test_prompts(self, decoder: SpeculativeDecoder) -> None:
        with pytest.raises(UsageError, match="empty"):
            decoder.generate("")
        with pytest.raises(UsageError, match="49152 is not in the vocabulary"):
            decoder.generate([49152])
        with pytest.raises(UsageError, match="whole numbers"):
            decoder.generate([5.5])  # type: ignore[list-item]
        with pytest.raises(ContextFull, match="context takes 256"):
            decoder.generate([5] * 257)
        with pytest.raises(UsageError, match="empty"):
            decoder.chat([])
        with pytest.raises(UsageError, match="bytes"):
            decoder.generate(b"once")

    @pytest.mark.parametrize(
        "messages", ["Hello", Message("user", "Hello"), [{"role": "user", "content": "Hello"}]]
    )
    def test_conversations(self, decoder: SpeculativeDecoder, messages: Any) -> None:
        for call in (decoder.chat, decoder.count_chat_tokens, decoder.beam_search_chat):
            with pytest.raises(UsageError, match="list of Message"):
                call(messages)

    def test_a_conversation_that_can_be_read_once(self, decoder: SpeculativeDecoder) -> None:
        messages = [Message("user", "Hello")]
        once: Any = iter(messages)
        asked = params(max_tokens=3, copy_input=True)
        assert decoder.chat(once, asked).tokens == decoder.chat(messages, asked).tokens

    def test_context_edge(self, decoder: SpeculativeDecoder) -> None:
        """Generation ends where the context does, with drafts and without."""
        ids = (decoder._encode(COUNT) * 40)[:251]
        plain = decoder.generate(ids, params(max_tokens=None, drafter="none"))
        assert plain.finish_reason in ("context", "stop")
        for drafter in ("suffix", "model"):
            drafted = decoder.generate(ids, params(max_tokens=None, drafter=drafter))
            assert (drafted.tokens, drafted.finish_reason) == (plain.tokens, plain.finish_reason)
        assert len(plain.tokens) == 6 or plain.finish_reason == "stop"


def test_without_a_draft_then_with_one(target_file: Path, draft_file: Path) -> None:
    options = ModelOptions(exact=True, threads=1, n_ctx=256)
    with SpeculativeDecoder(target_file, options=options) as decoder:
        assert decoder.draft_name is None
        plain = decoder.generate(STORY, params(12)).tokens
        decoder.set_draft(draft_file)
        drafted = decoder.generate(STORY, params(12, drafter="model"))
        assert drafted.tokens == plain
        assert drafted.spec.drafted > 0
        decoder.set_draft(None)
        assert decoder.generate(STORY, params(12)).tokens == plain


def test_a_draft_that_cannot_serve(target_file: Path, tmp_path: Path) -> None:
    from tests.llama.tiny import write_mamba

    wrong = write_mamba(tmp_path / "wrong.gguf")
    options = ModelOptions(threads=1, n_ctx=256)
    with pytest.raises(SpecllamaError, match="Draft cannot serve this target"):
        SpeculativeDecoder(target_file, wrong, options=options)
    with SpeculativeDecoder(target_file, wrong, options=options, strict_draft=False) as decoder:
        assert any("No draft model" in warning for warning in decoder.warnings)
        assert decoder.generate(STORY, params(3)).tokens


class TestTooLong:
    """What cannot fit is refused before llama.cpp looks for its tokens, which takes minutes."""

    @pytest.fixture
    def silent(self, decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
        vocabulary = decoder._target.model.vocabulary
        monkeypatch.setattr(vocabulary, "tokenize", lambda *_, **__: pytest.fail("looked"))

    def test_a_text(self, decoder: SpeculativeDecoder, silent: None) -> None:
        with pytest.raises(ContextFull, match="more tokens than the context takes"):
            decoder.generate("word " * 100_000, params(4))

    def test_messages(self, decoder: SpeculativeDecoder, silent: None) -> None:
        with pytest.raises(ContextFull, match="more tokens than the context takes"):
            decoder.chat([Message("user", "")] * (decoder.n_ctx + 1), params(4))

    def test_tokens_may_be_long(self, decoder: SpeculativeDecoder) -> None:
        text = ("\n" + 80 * " ") * 60
        assert len(text) > 16 * decoder.n_ctx
        assert decoder.count_tokens(text) < decoder.n_ctx
        assert decoder.generate(text, params(1)).tokens


def test_a_draft_cannot_change_under_a_pool(
    target_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before a model is loaded for nothing."""
    monkeypatch.setattr("specllama.decoder.load_draft", lambda *_: pytest.fail("loaded"))
    with (
        SpeculativeDecoder(target_file, options=ModelOptions(threads=1, n_ctx=256)) as decoder,
        decoder.lent(),
        pytest.raises(UsageError, match="A pool is using"),
    ):
        decoder.set_draft("whatever.gguf")


class TestMemory:
    def test_forgetting_starts_over(self, decoder: SpeculativeDecoder) -> None:
        first = decoder.generate(STORY, params(drafter="recycle+suffix"))
        again = decoder.generate(STORY, params(drafter="recycle+suffix"))
        decoder.forget()
        fresh = decoder.generate(STORY, params(drafter="recycle+suffix"))
        assert first.text == again.text == fresh.text
        assert again.usage.cached_tokens == again.usage.prompt_tokens - 1
        assert fresh.usage.cached_tokens == 0

    def test_a_new_generation_ends_an_open_stream(self, decoder: SpeculativeDecoder) -> None:
        stream = decoder.stream(STORY, params())
        next(stream)
        other = decoder.generate(COUNT, params())
        assert stream.result.finish_reason == "cancelled"
        assert other.finish_reason == "length"

    def test_a_predicted_text_is_drafted(self, decoder: SpeculativeDecoder) -> None:
        plain = decoder.generate(STORY, params(24, drafter="none"))
        drafted = decoder.generate(STORY, params(24, drafter="text", predict=plain.text))
        assert drafted.text == plain.text
        assert drafted.spec.by_source["text"].accepted > 12
        assert drafted.spec.rounds < plain.spec.rounds / 2

    def test_a_copied_input_is_drafted(self, decoder: SpeculativeDecoder) -> None:
        messages = [Message("user", "Repeat: the cat sat on the mat and the dog sat on the log.")]
        plain = decoder.chat(messages, params(24, drafter="none"))
        copied = decoder.chat(messages, params(24, drafter="text", copy_input=True))
        assert copied.text == plain.text
        assert copied.spec.drafted > 0

    def test_a_text_that_nobody_gave_is_asked_for(self, decoder: SpeculativeDecoder) -> None:
        with pytest.raises(UsageError, match="'text' has nothing to draft from"):
            decoder.generate(STORY, params(drafter="text"))

    def test_a_store_drafts_what_was_answered(
        self, target_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SPECLLAMA_HOME", str(tmp_path))
        options = ModelOptions(exact=True, threads=1, n_ctx=256, store=True)
        texts = []
        for _ in range(2):
            with SpeculativeDecoder(target_file, options=options) as decoder:
                result = decoder.generate(STORY, params(24, drafter="store"))
                texts.append(result.text)
        assert texts[0] == texts[1]
        assert result.spec.by_source["store"].accepted > 12

    def test_a_drafter_without_its_file_says_what_to_do(self, decoder: SpeculativeDecoder) -> None:
        with pytest.raises(UsageError, match="--ngram FILE"):
            decoder.generate(STORY, params(drafter="ngram"))


def test_gamma_as_in_the_papers(target_file: Path, draft_file: Path) -> None:
    options = ModelOptions(threads=1, n_ctx=256)
    with SpeculativeDecoder(target_file, draft_file, 3, options=options) as decoder:
        stream = decoder.stream(STORY)
        for _ in range(20):
            next(stream)
        stream.close()
    spec = stream.result.spec
    assert stream.result.verify == "block"
    assert spec.drafted == 3 * spec.rounds
    assert list(spec.by_source) == ["model"]


@pytest.mark.parametrize("gamma", [-1, 2.5, "4"])
def test_a_gamma_that_is_none_is_named(target_file: Path, gamma: Any) -> None:
    with pytest.raises(UsageError, match=r"^gamma must be "):
        SpeculativeDecoder(target_file, gamma=gamma)


@pytest.fixture(scope="module")
def closed(target_file: Path, draft_file: Path) -> SpeculativeDecoder:
    options = ModelOptions(threads=1, n_ctx=256)
    decoder = SpeculativeDecoder(target_file, draft_file, options=options)
    decoder.generate(STORY, params(max_tokens=2))
    decoder.close()
    return decoder


class TestClosed:
    """llama.cpp would end the process where it reads what was freed."""

    @pytest.mark.parametrize(
        "use",
        [
            lambda decoder: decoder.generate(STORY),
            lambda decoder: decoder.generate([5, 6]),
            lambda decoder: decoder.chat([Message("user", "Hello")]),
            lambda decoder: decoder.beam_search([5, 6]),
            lambda decoder: decoder.count_tokens(STORY),
            lambda decoder: decoder.set_draft(None),
            lambda decoder: decoder.save("nowhere"),
            lambda decoder: decoder.restore("nowhere"),
            lambda decoder: decoder.forget(),
            lambda decoder: decoder.calibration(),
            lambda decoder: Pool(decoder),
            lambda decoder: decoder.vocabulary.piece(4711),
        ],
    )
    def test_says_so(
        self, closed: SpeculativeDecoder, use: Callable[[SpeculativeDecoder], object]
    ) -> None:
        with pytest.raises(UsageError, match="was closed"):
            use(closed)

    def test_again(self, closed: SpeculativeDecoder) -> None:
        closed.close()

    def test_a_stream_that_was_open(self, target_file: Path) -> None:
        with SpeculativeDecoder(target_file, options=ModelOptions(threads=1, n_ctx=256)) as decoder:
            stream = decoder.stream(STORY, params())
            first = next(stream)
        assert list(stream) == []
        assert (stream.result.finish_reason, stream.result.text) == ("cancelled", first.text)


def test_what_nobody_holds_is_freed(target_file: Path, draft_file: Path) -> None:
    """Not before its stream has ended."""
    options = ModelOptions(threads=1, n_ctx=256)
    decoder = SpeculativeDecoder(target_file, draft_file, options=options)
    ends = [part._end for part in (decoder._target.context, decoder._target.model)]
    ends += [part._end for part in (decoder._draft.context, decoder._draft.model)]  # type: ignore[union-attr]
    stream = decoder.stream(STORY, params())
    vocabulary = decoder.vocabulary
    del decoder
    gc.collect()
    assert len(list(stream)) == 12
    del stream
    gc.collect()
    assert [end.alive for end in ends] == [False, True, False, False]
    assert vocabulary.piece(4711)
    del vocabulary
    assert not any(end.alive for end in ends)
