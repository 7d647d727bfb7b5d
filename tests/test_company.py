"""The real pair in exact mode: a reply is the same alone and in company, bit by bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama import (
    GenerationParams,
    Message,
    ModelOptions,
    Pool,
    SamplingParams,
    SpeculativeDecoder,
    UsageError,
)

pytestmark = pytest.mark.model

QUESTIONS = (
    "Why is the sky blue?",
    "Count: one, two, three, four, one, two, three, four, one, two,",
    "Write a poem about rain.",
    "What is a hash table?",
    "Why is the sky blue at noon?",
    "Name three fruits.",
    "Say hello to the robot in five languages.",
)
DRAFTERS = ("none", "suffix", "model", "suffix+model", "auto", "tree", "staged")


def settings(number: int) -> GenerationParams:
    return GenerationParams(
        max_tokens=10 + 3 * number,
        seed=number,
        sampling=SamplingParams(temperature=(0.0, 0.8, 1.2)[number % 3]),
        drafter=DRAFTERS[number],
        draft_max=1 + number % 4,
        adaptive=number == 4,
        verify="coupled",
    )


def chat(number: int) -> list[Message]:
    return [Message("user", QUESTIONS[number])]


@pytest.fixture(scope="module")
def alone(target_file: Path) -> list[list[int]]:
    """Each reply by a decoder that does nothing else, without drafts."""
    options = ModelOptions(exact=True, threads=1, n_ctx=256)
    replies = []
    with SpeculativeDecoder(target_file, options=options) as decoder:
        for number in range(len(QUESTIONS)):
            decoder.forget()
            params: Any = settings(number)
            replies.append(decoder.chat(chat(number), _plain(params)).tokens)
    return replies


def _plain(params: GenerationParams) -> GenerationParams:
    return GenerationParams(
        max_tokens=params.max_tokens,
        seed=params.seed,
        sampling=params.sampling,
        drafter="none",
        verify="coupled",
    )


@pytest.fixture(scope="module")
def company(target_file: Path, draft_file: Path) -> Iterator[SpeculativeDecoder]:
    options = ModelOptions(exact=True, threads=1, n_ctx=256, parallel=3)
    with SpeculativeDecoder(target_file, draft_file, options=options) as decoder:
        yield decoder


def test_this_machine_is_exact(company: SpeculativeDecoder) -> None:
    assert not [warning for warning in company.warnings if "bit-exact" in warning]


def test_a_pool_has_its_decoder_to_itself(company: SpeculativeDecoder) -> None:
    with Pool(company):
        for use in (lambda: company.generate("Hello"), company.forget, company.close):
            with pytest.raises(UsageError, match="pool"):
                use()
    assert company.generate("Hello", settings(0)).tokens


@pytest.mark.parametrize("seed", range(2))
def test_the_same_in_company(
    company: SpeculativeDecoder, alone: list[list[int]], seed: int
) -> None:
    """Random order and arrivals, and others that are cancelled in the middle."""
    chance = random.Random(seed)
    order = chance.sample(range(len(QUESTIONS)), len(QUESTIONS))
    company.forget()
    with Pool(company, max_queue=40) as pool:
        tickets = {}
        for number in order:
            tickets[number] = pool.submit_chat(chat(number), settings(number))
            if chance.random() < 0.5:
                noise = pool.submit_chat(chat(chance.randrange(7)), settings(2))
                for _ in range(chance.randrange(6)):
                    next(noise, None)
                noise.cancel()
        replies = [tickets[number].finish() for number in range(len(QUESTIONS))]
    assert [reply.tokens for reply in replies] == alone
    drafted = [reply.spec.accepted for reply in replies]
    assert sum(n > 0 for n in drafted) >= 4, "hardly anything was drafted"
