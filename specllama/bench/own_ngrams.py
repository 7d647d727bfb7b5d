"""N-grams for a suite where nobody gave a file: of the target's answers to other questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specllama.drafting.ngram_train import build
from specllama.hub.fingerprint import fingerprint_of
from specllama.options import GenerationParams
from specllama.sampling.params import SamplingParams
from specllama.text.chat import Message

if TYPE_CHECKING:
    from specllama.decoder import SpeculativeDecoder

MIN_COUNT = 1
_ASKS = (
    "Tell me about {}.",
    "Write a short story about {}.",
    "List five facts about {}.",
    "Explain {} to a child.",
    "Write a Python class for {}.",
    "Answer a customer who asks about {}.",
)
_TOPICS = ("bridges", "the sea", "bicycles", "bread", "a library", "winter", "a train", "gardens")
QUESTIONS = tuple(ask.format(topic) for topic in _TOPICS for ask in _ASKS)
"""None of them is a prompt of the benchmark."""

_ANSWER = GenerationParams(
    max_tokens=64, sampling=SamplingParams(temperature=0.7), seed=11, logprobs=False
)


def train_on_answers(
    decoder: SpeculativeDecoder,
    model: Path,
    file: Path,
    *,
    questions: Sequence[str] = QUESTIONS,
    answered: Callable[[], None] = lambda: None,
) -> int:
    """Let the target answer, and write an n-gram file of that; how many tokens it said.

    Args:
        model: the target's file.
        file: where to write.
        answered: called after each answer.
    """
    answers = []
    for question in questions:
        answers.append(decoder.chat([Message("user", question)], _ANSWER).tokens)
        answered()
    documents = [np.array(tokens, np.uint32) for tokens in answers if tokens]
    build(
        file,
        documents,
        fingerprint=fingerprint_of(model),
        model=model.name,
        n_vocab=decoder.vocabulary.size,
        min_count=MIN_COUNT,
    )
    return sum(map(len, documents))
