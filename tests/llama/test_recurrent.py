"""A recurrent model: its state is saved before drafts, restored and replayed after a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.errors import NotAModel
from tests.llama.tiny import SPECIAL, write_bert, write_mamba

pytestmark = pytest.mark.model

OPTIONS = ModelOptions(n_ctx=512, n_batch=32, threads=1)
PROMPT = "one two three, one two three, one two"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, llama_cpp: None) -> Iterator[SpeculativeDecoder]:
    """A tiny Mamba with random weights, drafted by a disturbed copy."""
    folder = tmp_path_factory.mktemp("mamba")
    target = write_mamba(folder / "target.gguf")
    draft = write_mamba(folder / "draft.gguf", noise=0.03)
    with SpeculativeDecoder(target, draft, options=OPTIONS) as decoder:
        yield decoder


def params(drafter: str, temperature: float, **settings: object) -> GenerationParams:
    # a narrow choice makes a random model repeat itself, so that look-ups find something
    never_ends = dict.fromkeys(range(len(SPECIAL)), -100.0)
    sampling = SamplingParams(temperature=temperature, top_k=3, logit_bias=never_ends)
    defaults = {"max_tokens": 40, "seed": 3, "draft_max": 4, "adaptive": False, "verify": "coupled"}
    return GenerationParams(sampling=sampling, drafter=drafter, **{**defaults, **settings})  # type: ignore[arg-type]


def test_it_is_recognised(pair: SpeculativeDecoder) -> None:
    assert pair._target.context.rollback == "checkpoint"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["model", "suffix", "auto"])
def test_the_text_is_the_plain_one(
    pair: SpeculativeDecoder, drafter: str, temperature: float
) -> None:
    plain = pair.generate(PROMPT, params("none", temperature))
    assert len(plain.tokens) == 40
    for draft_max in (1, 4, 9):
        drafted = pair.generate(PROMPT, params(drafter, temperature, draft_max=draft_max))
        assert drafted.tokens == plain.tokens
        if drafter != "suffix":
            assert 0 < drafted.spec.accepted < drafted.spec.tested, "nothing was put to the test"


@pytest.mark.parametrize("verify", ["match", "rejection", "block"])
def test_other_rules(pair: SpeculativeDecoder, verify: str) -> None:
    plain = pair.generate(PROMPT, params("none", 0.0))
    assert pair.generate(PROMPT, params("model", 0.0, verify=verify)).tokens == plain.tokens


def test_turns(pair: SpeculativeDecoder) -> None:
    """Longer, edited and shorter histories after drafts were refused."""
    first = pair.generate(PROMPT, params("model", 1.0))
    start = pair._encode(PROMPT)
    for history in (
        [*start, *first.tokens, 20, 21],
        [*start, *first.tokens[:9], 50],
        start[:5],
        [60, 61, 62],
    ):
        drafted = pair.generate(history, params("model", 1.0))
        pair._engine.cache.forget(0)
        assert drafted.tokens == pair.generate(history, params("none", 1.0)).tokens


def test_an_encoder_is_no_target(tmp_path: Path, llama_cpp: None) -> None:
    with pytest.raises(NotAModel, match="embedding or encoder"):
        SpeculativeDecoder(write_bert(tmp_path / "bert.gguf"), options=OPTIONS)
