"""Drafts of another vocabulary over the real target: their guesses go through text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama import (
    BeamParams,
    GenerationParams,
    Message,
    ModelOptions,
    PairMismatch,
    SamplingParams,
    SpeculativeDecoder,
    UsageError,
)
from tests.hub.ggufs import shuffled
from tests.llama.tiny import write_llama, write_mamba

pytestmark = pytest.mark.model

PROMPTS = (
    "Once upon a time, there was a little robot who",
    "def reverse(items):\n    ",
    "Où êtes-vous? 漢字 🦙 und Größe,",
)
OPTIONS = ModelOptions(exact=True, threads=1, n_ctx=512, translate=True)


@pytest.fixture(scope="module")
def stranger(draft_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The draft with its ids in another order."""
    return shuffled(tmp_path_factory.mktemp("stranger") / "stranger.gguf", draft_file)


@pytest.fixture(scope="module")
def decoder(target_file: Path, stranger: Path) -> Iterator[SpeculativeDecoder]:
    with SpeculativeDecoder(target_file, stranger, options=OPTIONS) as decoder:
        yield decoder


def params(temperature: float, **changes: Any) -> GenerationParams:
    fixed = {"seed": 3, "adaptive": False, "draft_max": 4, "max_tokens": 40, "drafter": "model"}
    sampling = SamplingParams(temperature=temperature)
    return GenerationParams(sampling=sampling, logprobs=False, **{**fixed, **changes})


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_text_is_that_of_plain_decoding(
    decoder: SpeculativeDecoder, prompt: str, temperature: float
) -> None:
    plain = decoder.generate(prompt, params(temperature, drafter="none"))
    drafted = decoder.generate(prompt, params(temperature))
    assert drafted.tokens == plain.tokens
    assert drafted.spec.drafted > 0


def test_greedy_it_is_as_good_as_with_ids(
    decoder: SpeculativeDecoder, target_file: Path, draft_file: Path
) -> None:
    with SpeculativeDecoder(target_file, draft_file, options=OPTIONS) as usual:
        both = [one.generate(PROMPTS[0], params(0.0)).spec for one in (usual, decoder)]
    ids, text = both
    assert text.accepted == pytest.approx(ids.accepted, abs=2)
    assert text.rounds == pytest.approx(ids.rounds, abs=2)


def test_turns_of_a_chat(decoder: SpeculativeDecoder) -> None:
    said = [Message("user", "Name three trees.")]
    for _ in range(2):
        drafted = decoder.chat(said, params(0.0))
        decoder.forget()
        assert drafted.tokens == decoder.chat(said, params(0.0, drafter="none")).tokens
        said += [Message("assistant", drafted.text), Message("user", "And three more.")]


def test_a_draft_of_bytes_without_a_truncatable_cache(target_file: Path, tmp_path: Path) -> None:
    """A recurrent model whose tokens are single bytes."""
    with SpeculativeDecoder(
        target_file, write_mamba(tmp_path / "bytes.gguf"), options=OPTIONS
    ) as decoder:
        plain = decoder.generate(PROMPTS[0], params(0.0, drafter="none"))
        drafted = decoder.generate(PROMPTS[0], params(0.0))
        assert drafted.tokens == plain.tokens
        assert drafted.spec.drafted > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_vocabularies_that_add_spaces(
    target_file: Path, stranger: Path, tmp_path: Path, temperature: float
) -> None:
    """As the draft and as the target."""
    tiny = write_llama(tmp_path / "tiny.gguf")
    prompt = "<|note|> hello<|note|>the fox 漢字 😀 </s>"
    for target, draft in ((target_file, tiny), (tiny, stranger)):
        with SpeculativeDecoder(target, draft, options=OPTIONS) as decoder:
            plain = decoder.generate(prompt, params(temperature, drafter="none"))
            drafted = decoder.generate(prompt, params(temperature))
            assert drafted.tokens == plain.tokens
            assert drafted.spec.drafted > 0


def test_trees_need_the_targets_vocabulary(decoder: SpeculativeDecoder) -> None:
    with pytest.raises(UsageError, match="needs a draft with the target's vocabulary"):
        decoder.generate(PROMPTS[0], params(0.0, drafter="tree"))


def test_the_papers_setting(target_file: Path, stranger: Path) -> None:
    with SpeculativeDecoder(target_file, stranger, gamma=3, options=OPTIONS) as decoder:
        assert decoder.generate(PROMPTS[0]).spec.drafted > 0


def test_beams_do_without_it(decoder: SpeculativeDecoder) -> None:
    found = decoder.beam_search(PROMPTS[0], BeamParams(width=2, max_tokens=8))
    assert len(found.hypotheses) == 2
    with pytest.raises(UsageError, match="translate"):
        decoder.beam_search(PROMPTS[0], BeamParams(drafter="model"))


def test_a_saved_conversation_goes_on(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    said = decoder.generate(PROMPTS[0], params(0.0)).text
    file = tmp_path / "kept.bin"
    decoder.save(file)
    expected = decoder.generate(PROMPTS[0] + said, params(0.0)).tokens
    decoder.forget()
    decoder.restore(file)
    assert decoder.generate(PROMPTS[0] + said, params(0.0)).tokens == expected


def test_calibration_learns_what_it_costs(target_file: Path, stranger: Path) -> None:
    with SpeculativeDecoder(target_file, stranger, options=OPTIONS) as decoder:
        calibration = decoder.calibration(["Name a tree."])
        for _ in calibration.run():
            pass
        calibration.finish()
        assert "model" in decoder.engine.scheduler.table().draft


def test_it_has_to_be_asked_for(target_file: Path, stranger: Path) -> None:
    with pytest.raises(PairMismatch, match="--translate"):
        SpeculativeDecoder(target_file, stranger, options=ModelOptions(threads=1, n_ctx=256))
