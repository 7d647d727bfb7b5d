"""A model whose places have learned weights (GPT-2): llama.cpp aborts behind the last of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.errors import ContextFull
from tests.llama.tiny import SPECIAL, write_gpt2

pytestmark = pytest.mark.model

N_PLACES = 300
NEVER_ENDS = SamplingParams(temperature=0.0, logit_bias=dict.fromkeys(range(len(SPECIAL)), -100.0))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, llama_cpp: None) -> Path:
    return write_gpt2(tmp_path_factory.mktemp("gpt2") / "model.gguf", N_PLACES)


@pytest.mark.parametrize("n_ctx", [0, 512, 2048])
@pytest.mark.parametrize("drafter", ["none", "model", "suffix"])
def test_a_reply_ends_at_the_last_place(model: Path, n_ctx: int, drafter: str) -> None:
    options = ModelOptions(n_ctx=n_ctx, threads=1)
    draft = model if drafter == "model" else None
    params = GenerationParams(
        drafter=drafter, sampling=NEVER_ENDS, seed=1, adaptive=False, logprobs=False
    )
    prompt = [50 + n % 20 for n in range(N_PLACES - 40)]
    with SpeculativeDecoder(model, draft, options=options) as decoder:
        reply = decoder.generate(prompt, params)
        assert reply.finish_reason == "context"
        assert len(prompt) + len(reply.tokens) == N_PLACES + 1
        with pytest.raises(ContextFull):
            decoder.generate([50] * (N_PLACES + 1), params)
