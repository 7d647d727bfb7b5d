"""A decoder without a model file: the real engine, replies and pool over a fake model."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from specllama import UsageError
from specllama.drafting.protocol import Drafter
from specllama.engine.engine import Engine
from specllama.options import GenerationParams, ModelOptions
from specllama.reply import Asked, Reply
from tests.engine.fake_model import END, N_VOCAB, FakeModel, language
from tests.engine.harness import GREEDY, right

LETTERS = "abcdefghijklmno"
WAIT_S = 20.0


class Alphabet:
    """Token n is the n-th letter; the last one ends a reply."""

    size = N_VOCAB
    add_bos = False
    bos = eos = None

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        return [LETTERS.index(letter) for letter in text]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return LETTERS[token].encode()

    def is_eog(self, token: int) -> bool:
        return token == END

    def is_control(self, token: int) -> bool:
        return token == END


@dataclass
class NoDrafters:
    """What a reply tells the drafters."""

    answers: list[list[int]] = field(default_factory=list)

    def predict(self, key: int, text: Sequence[int]) -> None:
        pass

    def remember(self, ids: Sequence[int], n_prompt: int) -> None:
        self.answers.append(list(ids))


class FakeDecoder:
    """What a pool needs of a decoder, over a fake model whose decodes may wait for `gate`."""

    def __init__(self, n_slots: int = 2, drafters: Sequence[Drafter] = (), **model: Any) -> None:
        self.target_name = "fake"
        self.gate = threading.Event()
        self.gate.set()
        self.words = endless(language(1))
        settings = {"n_ctx": 400, "n_batch": 64} | model
        self.target = FakeModel(
            self.words, n_seq=n_slots, on_decode=lambda _: self._pass(), **settings
        )
        self.options = ModelOptions(parallel=n_slots)
        self.engine = Engine(self.target, drafters, n_slots=n_slots)
        self.drafters = NoDrafters()
        self.is_lent = False

    def _pass(self) -> None:
        assert self.gate.wait(WAIT_S)

    @contextmanager
    def lent(self) -> Iterator[Engine]:
        if self.is_lent:
            raise UsageError("lent")
        self.is_lent = True
        yield self.engine
        self.is_lent = False

    @property
    def n_ctx(self) -> int:
        return self.engine.n_ctx

    def reply(self, prompt: str | Sequence[int], params: GenerationParams | None = None) -> Reply:
        vocabulary: Any = Alphabet()
        ids = vocabulary.tokenize(prompt, special=True, add_bos=False)
        self.engine.check(ids)
        params = params or said(6)
        asked = Asked(ids, params, None, (), params.stop, at_start=False, load_s=0.0)
        drafters: Any = self.drafters
        return Reply(self.engine, drafters, vocabulary, asked)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def chat_reply(self, messages: Any, params: GenerationParams | None = None) -> Reply:
        return self.reply(messages[-1].content, params)

    def says(self, prompt: str, count: int) -> str:
        ids = [LETTERS.index(letter) for letter in prompt]
        return "".join(LETTERS[token] for token in right(self.words)(ids, count))


def endless(words: Any) -> Any:
    def row(context: tuple[int, ...]) -> Any:
        logits = np.array(words(context))
        logits[END] = -50.0
        return logits

    return row


def said(count: int | None, **settings: Any) -> GenerationParams:
    return GenerationParams(
        max_tokens=count, **{"sampling": GREEDY, "seed": 1, "drafter": "none", **settings}
    )
