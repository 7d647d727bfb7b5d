"""N-grams of the target's own answers, on the real target."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder, UsageError
from specllama.bench.own_ngrams import QUESTIONS, train_on_answers
from specllama.bench.prompts import builtin
from specllama.errors import SpecllamaError

GREEDY = SamplingParams(temperature=0.0)


def test_no_question_is_a_prompt_of_the_benchmark() -> None:
    assert not {*QUESTIONS} & {prompt.prompt for prompt in builtin()}
    assert len({*QUESTIONS}) == len(QUESTIONS) >= 40


@pytest.mark.model
def test_what_was_answered_is_drafted_from(target_file: Path, tmp_path: Path) -> None:
    file, answered = tmp_path / "own.ngram", list[int]()
    plain = GenerationParams(max_tokens=40, drafter="none", sampling=GREEDY)
    asked = GenerationParams(max_tokens=40, drafter="ngram", sampling=GREEDY, adaptive=False)
    options = ModelOptions(exact=True, threads=1, n_ctx=512)
    with SpeculativeDecoder(target_file, options=options) as decoder:
        with pytest.raises(UsageError):
            decoder.generate("Bridges are", asked)
        n_tokens = train_on_answers(
            decoder, target_file, file, questions=QUESTIONS[:3], answered=lambda: answered.append(1)
        )
        assert len(answered) == 3 and 20 < n_tokens <= 3 * 64
        decoder.set_ngrams(file)
        drafted = decoder.generate("Bridges are", asked)
        assert drafted.tokens == decoder.generate("Bridges are", plain).tokens
        assert drafted.spec.by_source["ngram"].drafted > 0


@pytest.mark.model
def test_a_file_that_cannot_be_used_changes_nothing(target_file: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.ngram"
    wrong.write_text("no n-grams")
    with SpeculativeDecoder(target_file, options=ModelOptions(threads=1, n_ctx=256)) as decoder:
        with pytest.raises(SpecllamaError):
            decoder.set_ngrams(wrong)
        assert decoder.options.ngram is None
        assert "ngram" not in decoder.drafters
