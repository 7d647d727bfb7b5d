"""How a reply is written: OpenAI's objects, with llama.cpp's `timings` and our `specllama` block.

`usage` counts what people pay for, and of drafts only those out of the *user's* prediction; what
drafters guessed is in `timings` (only if something was drafted) and in `specllama`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from specllama.results import FinishReason, Generation, StreamEvent
from specllama.serving.tools import CallReader
from specllama.text.vocabulary import Vocabulary

Json = dict[str, Any]
Events = Sequence[StreamEvent]

_REASONS: Mapping[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "context": "length",
}


class Format(Protocol):
    """The objects of one endpoint's reply."""

    def whole(self, generation: Generation, events: Events) -> Json:
        """The reply in one piece."""

    def start(self) -> Json | None:
        """What a stream begins with."""

    def piece(self, events: Events) -> Json | None:
        """Part of a stream: tokens that one drafter (or none) proposed; None for no part."""

    def end(self, generation: Generation) -> list[Json]:
        """The last parts of a stream, `usage` of its own not among them."""

    def usage(self, generation: Generation) -> Json:
        """The part of a stream that only says what was used."""


class _Base:
    """What both endpoints write.

    Args:
        predicted: the request had a prediction.
    """

    whole_object = chunk_object = ""
    prefix = ""

    def __init__(self, model: str, vocabulary: Vocabulary, *, predicted: bool) -> None:
        self._vocabulary = vocabulary
        self._predicted = predicted
        self._head: Json = {
            "id": f"{self.prefix}{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def _chunk(self, choices: list[Json], **more: Any) -> Json:
        return {**self._head, "object": self.chunk_object, "choices": choices, **more}

    def _whole(self, choice: Json, generation: Generation) -> Json:
        return {
            **self._head,
            "object": self.whole_object,
            "choices": [choice],
            "usage": usage(generation, predicted=self._predicted),
            "timings": timings(generation),
            "specllama": speculation(generation),
        }

    def usage(self, generation: Generation) -> Json:
        return self._chunk([], usage=usage(generation, predicted=self._predicted))

    def _text_of(self, token: int) -> tuple[str, bytes]:
        raw = self._vocabulary.piece(token, special=True)
        return raw.decode("utf-8", "replace"), raw


class ChatFormat(_Base):
    """/v1/chat/completions.

    Args:
        forced: the reply is a tool call, and nothing else.
    """

    whole_object, chunk_object, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def __init__(
        self, model: str, vocabulary: Vocabulary, *, predicted: bool, forced: bool = False
    ) -> None:
        super().__init__(model, vocabulary, predicted=predicted)
        self._call = CallReader() if forced else None
        self._named = False

    def whole(self, generation: Generation, events: Events) -> Json:
        message: Json = {"role": "assistant", "content": generation.text, "refusal": None}
        if self._call is not None:
            arguments = self._call.push(generation.text) + self._rest(self._call, generation)
            function = {"name": self._call.name, "arguments": arguments}
            call = {"id": self._call.id, "type": "function", "function": function}
            message["content"] = None
            if self._call.name:  # else the reply ended before it was said whose arguments follow
                message["tool_calls"] = [call]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(events),
            "finish_reason": self._reason(generation),
        }
        return self._whole(choice, generation)

    def start(self) -> Json:
        content = None if self._call is not None else ""
        return self._delta({"role": "assistant", "content": content})

    def piece(self, events: Events) -> Json | None:
        text = "".join(event.text for event in events)
        if self._call is not None:
            delta = self._call_delta(self._call, self._call.push(text))
        else:
            delta = {"content": text}
        logprobs = self._logprobs(events)
        if not delta and logprobs is None:
            return None
        return self._delta(delta, logprobs=logprobs, specllama=provenance(events))

    def end(self, generation: Generation) -> list[Json]:
        chunks = []
        if self._call is not None:
            delta = self._call_delta(self._call, self._rest(self._call, generation))
            chunks += [self._delta(delta)] if delta else []
        last = self._delta({}, finish=self._reason(generation), specllama=speculation(generation))
        return [*chunks, last | {"timings": timings(generation)}]

    def _rest(self, call: CallReader, generation: Generation) -> str:
        return call.finish(complete=generation.finish_reason == "stop")

    def _call_delta(self, call: CallReader, arguments: str) -> Json:
        """The next part of a call; its first part says whose arguments these are."""
        if self._named or not call.name:
            function: Json = {"arguments": arguments} if arguments else {}
            return {"tool_calls": [{"index": 0, "function": function}]} if function else {}
        self._named = True
        function = {"name": call.name, "arguments": arguments}
        first = {"index": 0, "id": call.id, "type": "function", "function": function}
        return {"tool_calls": [first]}

    def _reason(self, generation: Generation) -> str:
        reason = _REASONS[generation.finish_reason]
        return "tool_calls" if self._call is not None and reason == "stop" else reason

    def _delta(
        self, delta: Json, *, finish: str | None = None, logprobs: Json | None = None, **more: Any
    ) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._chunk([choice], **more)

    def _logprobs(self, events: Events) -> Json | None:
        if not events or events[0].logprob is None:
            return None
        content = [
            self._logprob(event.id, event.logprob or 0.0)
            | {"top_logprobs": [self._logprob(token, value) for token, value in event.top]}
            for event in events
        ]
        return {"content": content, "refusal": None}

    def _logprob(self, token: int, value: float) -> Json:
        text, raw = self._text_of(token)
        return {"token": text, "logprob": value, "bytes": list(raw)}


class TextFormat(_Base):
    """/v1/completions."""

    whole_object = chunk_object = "text_completion"
    prefix = "cmpl-"

    def __init__(self, model: str, vocabulary: Vocabulary, *, predicted: bool) -> None:
        super().__init__(model, vocabulary, predicted=predicted)
        self._offset = 0

    def whole(self, generation: Generation, events: Events) -> Json:
        reason = _REASONS[generation.finish_reason]
        choice = self._choice(generation.text, self._logprobs(events), reason)
        return self._whole(choice, generation)

    def start(self) -> None:
        return None

    def piece(self, events: Events) -> Json:
        text = "".join(event.text for event in events)
        choice = self._choice(text, self._logprobs(events), None)
        return self._chunk([choice], specllama=provenance(events))

    def end(self, generation: Generation) -> list[Json]:
        choice = self._choice("", None, _REASONS[generation.finish_reason])
        extra = {"timings": timings(generation), "specllama": speculation(generation)}
        return [self._chunk([choice], **extra)]

    def _choice(self, text: str, logprobs: Json | None, finish: str | None) -> Json:
        return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, events: Events) -> Json | None:
        """The older form: four lists side by side."""
        if not events or events[0].logprob is None:
            return None
        offsets = []
        for event in events:
            offsets.append(self._offset)
            self._offset += len(event.text)
        return {
            "tokens": [self._name_of(event.id) for event in events],
            "token_logprobs": [event.logprob for event in events],
            "top_logprobs": [self._top(event) for event in events],
            "text_offset": offsets,
        }

    def _top(self, event: StreamEvent) -> dict[str, float | None]:
        """The likeliest tokens and the one that was said, which need not be one of them."""
        found: dict[str, float | None] = {}
        for token, value in (*event.top, (event.id, event.logprob)):
            found.setdefault(self._name_of(token), value)
        return found

    def _name_of(self, token: int) -> str:
        """A token's text; its bytes, as OpenAI writes them, where they are no whole characters."""
        raw = self._text_of(token)[1]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def provenance(events: Events) -> Json:
    """Where the tokens of a part come from: a drafter, or "" for the target itself."""
    return {"source": events[0].source, "tokens": len(events)}


def usage(generation: Generation, *, predicted: bool) -> Json:
    """OpenAI's `usage`. Of drafts, only those out of the user's own prediction are in it."""
    used = generation.usage
    drafts = generation.spec.by_source.get("text") if predicted else None
    # what a stop string took back may have been accepted rounds before
    accepted = min(drafts.accepted, used.completion_tokens) if drafts is not None else 0
    rejected = drafts.drafted - accepted if drafts is not None else 0
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
            "reasoning_tokens": 0,
        },
    }


def timings(generation: Generation) -> Json:
    """llama.cpp's `timings`; the draft's figures only where something was drafted.

    Milliseconds are what so many tokens take at the measured rates, which leave the first round
    out; a rate that was not measured is 0.
    """
    used, times, spec = generation.usage, generation.timings, generation.spec
    n_read = used.prompt_tokens - used.cached_tokens
    reading, predicting = times.prompt_tok_s or 0.0, times.decode_tok_s or 0.0
    prompt_s = n_read / reading if reading else 0.0
    waited_s = max(0.0, times.wall_s - times.ttft_s)
    predicted_s = used.completion_tokens / predicting if predicting else waited_s
    figures: Json = {
        "cache_n": used.cached_tokens,
        "prompt_n": n_read,
        "prompt_ms": 1000 * prompt_s,
        "prompt_per_second": reading,
        "predicted_n": used.completion_tokens,
        "predicted_ms": 1000 * predicted_s,
        "predicted_per_second": predicting,
    }
    if spec.drafted:
        figures |= {
            "draft_n": spec.drafted,
            "draft_n_accepted": spec.accepted,
            "draft_rounds": spec.rounds,
        }
    return figures


def speculation(generation: Generation) -> Json:
    """What it takes to understand and to repeat this reply."""
    spec = generation.spec
    return {
        "finish_reason": generation.finish_reason,
        "seed": generation.seed,
        "verify": generation.verify,
        "guarantee": generation.guarantee,
        "lossless": generation.lossless,
        "rounds": spec.rounds,
        "tokens_per_round": spec.tokens_per_round,
        "acceptance": spec.acceptance,
        "by_depth": [asdict(stats) for stats in spec.by_depth],
        "by_source": {name: asdict(stats) for name, stats in spec.by_source.items()},
    }
