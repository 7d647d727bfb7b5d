"""The chain against llama.cpp's own samplers, driven without a model."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from specllama.sampling.chain import Sampler
from specllama.sampling.params import SamplingParams


@pytest.fixture(scope="module")
def llama() -> Any:
    return pytest.importorskip("llama_cpp.llama_cpp")


Reference = Callable[[np.ndarray, Sequence[int]], dict[int, float]]


@pytest.fixture
def chain(llama: Any) -> Iterator[Callable[[SamplingParams, int], Reference]]:
    """Builds llama.cpp's default chain for some settings; frees it after the test."""
    made: list[Any] = []

    def build(params: SamplingParams, n_vocab: int) -> Reference:
        smpl = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        made.append(smpl)
        for step in _steps(llama, params, n_vocab):
            llama.llama_sampler_chain_add(smpl, step)
        return lambda logits, history: _law(llama, smpl, logits, history)

    yield build
    for smpl in made:
        llama.llama_sampler_free(smpl)


def _steps(llama: Any, params: SamplingParams, n_vocab: int) -> list[Any]:
    biases = (llama.llama_logit_bias * len(params.logit_bias))(
        *(llama.llama_logit_bias(token, bias) for token, bias in params.logit_bias.items())
    )
    return [
        llama.llama_sampler_init_logit_bias(n_vocab, len(biases), biases),
        llama.llama_sampler_init_penalties(
            n_vocab,
            params.repeat_last_n,
            params.repeat_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        ),
        llama.llama_sampler_init_top_k(params.top_k),
        llama.llama_sampler_init_typical(params.typical_p, 1),
        llama.llama_sampler_init_top_p(params.top_p, 1),
        llama.llama_sampler_init_min_p(params.min_p, 1),
        llama.llama_sampler_init_temp(params.temperature),
    ]


def _law(llama: Any, smpl: Any, logits: np.ndarray, history: Sequence[int]) -> dict[int, float]:
    llama.llama_sampler_reset(smpl)
    for token in history:
        llama.llama_sampler_accept(smpl, int(token))
    data = (llama.llama_token_data * len(logits))()
    cells = np.ctypeslib.as_array(data)
    cells["id"] = np.arange(len(logits))
    cells["logit"] = logits
    array = llama.llama_token_data_array(data, len(logits), -1, False)
    llama.llama_sampler_apply(smpl, ctypes.byref(array))
    left = cells[: array.size]
    weights = np.exp(left["logit"].astype(np.float64) - left["logit"].max())
    weights /= weights.sum()
    pairs = zip(left["id"], weights, strict=True)
    return {int(token): float(weight) for token, weight in pairs if weight > 0.0}


NEUTRAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "nothing": NEUTRAL,
    "temperature": NEUTRAL | {"temperature": 0.3},
    "high temperature": NEUTRAL | {"temperature": 1.7},
    "top-k": NEUTRAL | {"top_k": 7},
    "top-k beyond the vocabulary": NEUTRAL | {"top_k": 10**6},
    "top-p": NEUTRAL | {"top_p": 0.8},
    "top-p 0": NEUTRAL | {"top_p": 0.0},
    "min-p": NEUTRAL | {"min_p": 0.1},
    "min-p 1": NEUTRAL | {"min_p": 1.0},
    "typical": NEUTRAL | {"typical_p": 0.6},
    "typical 0": NEUTRAL | {"typical_p": 0.0},
    "all truncations": {"top_k": 50, "typical_p": 0.9, "top_p": 0.8, "min_p": 0.02},
    "typical, top-p and min-p": NEUTRAL | {"typical_p": 0.8, "top_p": 0.7, "min_p": 0.05},
    "top-p and min-p": NEUTRAL | {"top_p": 0.9, "min_p": 0.01},
    "repeat": {"repeat_penalty": 1.3},
    "reward": {"repeat_penalty": 0.7, "frequency_penalty": -0.5},
    "frequency": {"frequency_penalty": 0.4},
    "presence": {"presence_penalty": 0.9},
    "all penalties": {
        "repeat_penalty": 1.1,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
        "repeat_last_n": 20,
    },
    "bias": {"logit_bias": {3: 2.5, 5: -1.0, 0: float("-inf")}},
    "bias and penalties": {"logit_bias": {3: 4.0, 2: -2.0}, "repeat_penalty": 1.5},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize(("n_vocab", "spread"), [(20, 1.0), (300, 2.0), (3000, 2.5), (49152, 3.5)])
def test_the_chain_is_llama_cpps(
    chain: Callable[[SamplingParams, int], Reference],
    settings: dict[str, Any],
    n_vocab: int,
    spread: float,
) -> None:
    params = SamplingParams(**settings)
    reference, sampler = chain(params, n_vocab), Sampler(params)
    random = np.random.default_rng(n_vocab)
    for _ in range(20 if n_vocab < 4000 else 2):
        logits = random.normal(0.0, spread, n_vocab).astype(np.float32)
        history = [int(token) for token in random.integers(0, 12, 30)]
        expected = reference(logits, history)
        law = sampler.distribution(logits, history)
        assert set(law.ids.tolist()) == set(expected)
        np.testing.assert_allclose(law.probs, [expected[t] for t in law.ids], rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize("settings", [{}, {"repeat_penalty": 1.4}, {"logit_bias": {1: 3.0}}])
def test_temperature_0_is_llama_cpps_greedy(
    chain: Callable[[SamplingParams, int], Reference], settings: dict[str, Any]
) -> None:
    params = SamplingParams(temperature=0.0, **settings)
    reference, sampler = chain(params, 500), Sampler(params)
    random = np.random.default_rng(1)
    for _ in range(20):
        logits = random.normal(0.0, 2.0, 500).astype(np.float32)
        history = [int(np.argmax(logits)), 3, 3]
        assert reference(logits, history) == {
            int(sampler.distribution(logits, history).ids[0]): 1.0
        }
