"""The chain from logits to a law, without llama.cpp."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from specllama.errors import EngineError
from specllama.sampling.chain import Sampler, logprob, top_logprobs
from specllama.sampling.constraint import NothingAllowed
from specllama.sampling.noise import SharedNoise
from specllama.sampling.params import LARGEST, SamplingParams

NEUTRAL = SamplingParams(top_k=0, top_p=1.0, min_p=0.0, temperature=1.0)


def row(*logits: float) -> np.ndarray:
    return np.array(logits, np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def by_sorting(logits: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """The chain as a textbook has it: sort everything, ties by lowest id, float64 throughout."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    if params.top_k:
        order = order[: params.top_k]
    if params.typical_p < 1.0:
        p = softmax(logits[order])
        surprise = -np.log(p)
        near = np.argsort(np.abs(surprise - (p * surprise).sum()), kind="stable")
        count = np.searchsorted(np.cumsum(p[near]), params.typical_p, "right") + 1
        order = order[np.sort(near[:count])]
    if params.top_p < 1.0:
        count = np.searchsorted(np.cumsum(softmax(logits[order])), params.top_p) + 1
        order = order[:count]
    if params.min_p > 0.0:
        order = order[softmax(logits[order]) >= params.min_p * softmax(logits[order]).max()]
    ids = np.sort(order)
    return ids, softmax(logits[ids] / params.temperature)


SETTINGS = [
    NEUTRAL,
    SamplingParams(),
    replace(NEUTRAL, temperature=0.5),
    replace(NEUTRAL, top_k=3),
    replace(NEUTRAL, top_k=500),
    replace(NEUTRAL, top_p=0.5),
    replace(NEUTRAL, top_p=0.97),
    replace(NEUTRAL, min_p=0.03),
    replace(NEUTRAL, top_p=0.9, min_p=0.003),
    replace(NEUTRAL, typical_p=0.5),
    SamplingParams(top_k=100, typical_p=0.8, top_p=0.7, min_p=0.01, temperature=1.3),
    SamplingParams(top_k=200, top_p=0.9, min_p=0.001),
]


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("n_vocab", [1, 2, 63, 64, 65, 5000, 70_001])
def test_the_law_is_that_of_a_full_sort(params: SamplingParams, n_vocab: int) -> None:
    random = np.random.default_rng(n_vocab)
    for spread in (0.3, 3.0):
        logits = random.normal(5.0, spread, n_vocab).astype(np.float32)
        ids, probs = by_sorting(logits, params)
        law = Sampler(params).distribution(logits, [])
        np.testing.assert_array_equal(law.ids, ids)
        np.testing.assert_allclose(law.probs, probs, rtol=1e-5)


@given(
    hnp.arrays(np.float32, st.integers(1, 400), elements=st.sampled_from([0.0, 1.0, 2.5, -3.0])),
    st.sampled_from([params for params in SETTINGS if params.typical_p == 1.0]),
)
def test_ties_go_to_the_lowest_ids(logits: np.ndarray, params: SamplingParams) -> None:
    ids, probs = by_sorting(logits, params)
    law = Sampler(params).distribution(logits, [])
    # a tie of masses with top_p itself may go either way by one rounding
    if len(ids) == len(law.ids):
        np.testing.assert_array_equal(law.ids, ids)
        np.testing.assert_allclose(law.probs, probs, rtol=1e-5)
    else:
        assert abs(len(ids) - len(law.ids)) == 1


def test_ties_of_typical_sampling_keep_as_much_as_was_asked_for() -> None:
    """Likely and unlikely tokens as near to the entropy as each other: only the ids tell them
    apart, and counting in another order keeps too few."""
    logits = np.zeros(16, np.float32)
    logits[[1, 3, 7, 8, 10, 11, 12, 14]] = -0.98439085
    logits[[0, 4, 5, 9, 15]] = -9.0
    params = replace(NEUTRAL, typical_p=0.5)
    for seed in range(20):
        shuffled = np.random.default_rng(seed).permutation(logits)
        near = np.flatnonzero(shuffled > -9.0)
        reached = np.cumsum(softmax(shuffled)[near])
        law = Sampler(params).distribution(shuffled, [])
        assert law.ids.tolist() == near[: np.searchsorted(reached, 0.5) + 1].tolist()


@pytest.mark.parametrize("top_k", [0, 40, 500])
def test_temperature_0_takes_the_first_of_many_that_tie(top_k: int) -> None:
    logits = np.zeros(1000, np.float32)
    logits[[700, 300, 500]] = 2.0
    law = Sampler(SamplingParams(temperature=0.0, top_k=top_k)).distribution(logits, [])
    assert law.ids.tolist() == [300]


@pytest.mark.parametrize("params", [*SETTINGS, SamplingParams(repeat_penalty=1.2)], ids=str)
def test_the_row_is_neither_changed_nor_kept(params: SamplingParams) -> None:
    logits = np.random.default_rng(0).normal(0.0, 2.0, 1000).astype(np.float32)
    original = logits.copy()
    logits.setflags(write=False)
    law = Sampler(params).distribution(logits, [1, 2, 3])
    np.testing.assert_array_equal(logits, original)
    assert not np.shares_memory(law.probs, logits)


def test_temperature_0_is_a_point_on_the_argmax_with_ties_to_the_lowest_id() -> None:
    law = Sampler(SamplingParams(temperature=0.0)).distribution(row(1, 4, 4, 2), [])
    assert (law.ids.tolist(), law.probs.tolist()) == ([1], [1.0])


def test_temperature_0_sees_bias_and_penalties() -> None:
    logits = row(1, 4, 3.9, 2)
    penalised = SamplingParams(temperature=0.0, repeat_penalty=1.5)
    assert Sampler(penalised).distribution(logits, [1]).ids.tolist() == [2]
    biased = SamplingParams(temperature=0.0, logit_bias={3: 5.0})
    assert Sampler(biased).distribution(logits, []).ids.tolist() == [3]


def test_temperature_comes_after_truncation() -> None:
    logits = np.log(row(0.5, 0.3, 0.2))
    law = Sampler(replace(NEUTRAL, top_p=0.7, temperature=100.0)).distribution(logits, [])
    assert law.ids.tolist() == [0, 1]
    np.testing.assert_allclose(law.probs, [0.5, 0.5], atol=0.01)


def test_top_p_keeps_the_token_that_crosses_the_threshold() -> None:
    logits = np.log(row(0.4, 0.35, 0.25))
    assert Sampler(replace(NEUTRAL, top_p=0.5)).distribution(logits, []).ids.tolist() == [0, 1]


def test_typical_may_drop_the_most_probable_token() -> None:
    """The entropy here is near the surprise of the many small tokens, not of the large one."""
    logits = np.log(np.array([0.3] + [0.7 / 30] * 30, np.float32))
    law = Sampler(replace(NEUTRAL, typical_p=0.2)).distribution(logits, [])
    assert 0 not in law.ids


def test_penalties_follow_llama_cpps_formulas() -> None:
    params = replace(
        NEUTRAL, repeat_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, repeat_last_n=4
    )
    history = [3, 3, 0, 1, 1, 0]  # the window is 0, 1, 1, 0
    law = Sampler(params).distribution(row(4.0, -1.0, 0.5, 3.0), history)
    adjusted = row(4.0 / 2 - 2 * 0.5 - 0.25, -1.0 * 2 - 2 * 0.5 - 0.25, 0.5, 3.0)
    np.testing.assert_allclose(law.probs, softmax(adjusted), rtol=1e-6)


@pytest.mark.parametrize(
    ("last_n", "touched"), [(0, set()), (1, {2}), (2, {1, 2}), (-1, {0, 1, 2})]
)
def test_the_window_of_the_penalties(last_n: int, touched: set[int]) -> None:
    params = replace(NEUTRAL, presence_penalty=1.0, repeat_last_n=last_n)
    law = Sampler(params).distribution(row(0, 0, 0, 0), [0, 1, 2])
    lowered = {token for token in range(4) if law.probs[token] < law.probs.max()}
    assert lowered == touched


def test_an_empty_history_has_no_penalties() -> None:
    logits = row(1, 2, 3)
    law = Sampler(replace(NEUTRAL, repeat_penalty=2.0)).distribution(logits, [])
    np.testing.assert_allclose(law.probs, softmax(logits), rtol=1e-6)


def test_bias_adds_and_forbids() -> None:
    params = replace(NEUTRAL, logit_bias={0: 1.0, 2: -math.inf})
    law = Sampler(params).distribution(row(0, 0, 9), [])
    assert law.ids.tolist() == [0, 1]
    np.testing.assert_allclose(law.probs, softmax(row(1, 0)), rtol=1e-6)


@pytest.mark.parametrize("params", [SamplingParams(), NEUTRAL, replace(NEUTRAL, typical_p=0.5)])
def test_a_forbidden_token_stays_out_of_every_step(params: SamplingParams) -> None:
    biased = replace(params, logit_bias={1: -math.inf})
    law = Sampler(biased).distribution(row(0.5, 9, 0.2), [])
    assert 1 not in law.ids
    assert law.probs.sum() == pytest.approx(1.0)


def test_ids_beyond_a_shorter_row_are_passed_over() -> None:
    params = replace(NEUTRAL, logit_bias={7: 5.0}, repeat_penalty=2.0)
    logits = row(1, 2, 3)
    law = Sampler(params).distribution(logits, [7])
    np.testing.assert_allclose(law.probs, softmax(logits), rtol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [NEUTRAL, SamplingParams(), SamplingParams(temperature=0.0)])
def test_logits_that_are_not_numbers_are_an_error(bad: float, params: SamplingParams) -> None:
    logits = np.zeros(5000, np.float32)
    logits[4321] = bad
    with pytest.raises(EngineError, match="largest logit"):
        Sampler(params).distribution(logits, [])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forbidding_every_token_is_an_error(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, logit_bias={0: -math.inf, 1: -math.inf})
    with pytest.raises(NothingAllowed, match="logit_bias"):
        Sampler(params).distribution(row(1, 2), [])


@pytest.mark.parametrize("penalty", [1e-6, 1e6])
@pytest.mark.parametrize("bias", [-LARGEST, LARGEST])
def test_the_largest_settings_stay_within_float32(penalty: float, bias: float) -> None:
    params = replace(NEUTRAL, repeat_penalty=penalty, logit_bias={0: bias}, temperature=LARGEST)
    law = Sampler(params).distribution(row(1, -2, -math.inf), [0, 0, 1])
    assert law.probs.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e30])
def test_extreme_temperatures_give_a_law(temperature: float) -> None:
    law = Sampler(replace(NEUTRAL, temperature=temperature)).distribution(row(1, 2, 3), [])
    assert law.probs.sum() == pytest.approx(1.0)
    assert law.top(1)[0] in ([2] if temperature < 1 else [0, 1, 2])


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-12])
@pytest.mark.parametrize("params", [NEUTRAL, SamplingParams(), replace(NEUTRAL, typical_p=0.2)])
def test_the_coldest_temperatures_pick_the_largest_that_is_left(
    temperature: float, params: SamplingParams
) -> None:
    logits = np.random.default_rng(5).normal(0.0, 2.0, 3000).astype(np.float32)
    left = Sampler(params).distribution(logits, []).ids
    cold = Sampler(replace(params, temperature=temperature)).distribution(logits, [])
    assert cold.ids.tolist() == [left[np.argmax(logits[left])]]


def test_large_logits_do_not_overflow() -> None:
    law = Sampler(NEUTRAL).distribution(row(3e38, -3e38, 3e38), [])
    assert law.ids.tolist() == [0, 2]


@given(hnp.arrays(np.float32, st.integers(1, 500), elements=st.floats(-50, 50, width=32)))
def test_logprob_is_the_log_softmax(logits: np.ndarray) -> None:
    expected = np.log(softmax(logits))
    for token in {0, len(logits) // 2, len(logits) - 1}:
        assert logprob(logits, token) == pytest.approx(expected[token], abs=2e-5)


@pytest.mark.parametrize("count", [1, 5, 400])
def test_top_logprobs_are_the_likeliest_tokens_falling(count: int) -> None:
    logits = np.random.default_rng(5).normal(0.0, 2.0, 300).astype(np.float32)
    logits[7] = logits[190] = 9.0
    found = top_logprobs(logits, count)
    expected = sorted(range(300), key=lambda token: (-logits[token], token))[:count]
    assert [token for token, _ in found] == expected
    assert [value for _, value in found] == [logprob(logits, token) for token in expected]


def test_logprob_of_a_large_vocabulary_is_accurate() -> None:
    logits = np.random.default_rng(3).normal(0.0, 1.0, 262_144).astype(np.float32)
    wide = logits.astype(np.float64)
    expected = wide[99] - np.log(np.exp(wide).sum())
    assert logprob(logits, 99) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("size", [5, 64, 1000, 4133])
def test_best_is_the_greedy_token_with_about_its_probability(size: int) -> None:
    random = np.random.default_rng(size)
    for scale in (0.1, 2.0, 20.0):
        logits = (scale * random.standard_normal(size)).astype(np.float32)
        token, confidence = Sampler(SamplingParams(temperature=0.0)).best(logits, ())
        exact = softmax(logits)
        assert token == int(logits.argmax())
        assert exact[token] * (1 - 1e-5) <= confidence <= 1.0
    if size == 64:  # a single block
        return
    peaked = np.full(size, -20.0, np.float32)
    peaked[[1, 3]] = 1.0, 0.0
    token, confidence = Sampler(SamplingParams(temperature=0.0)).best(peaked, ())
    assert (token, confidence) == (1, pytest.approx(softmax(peaked)[1], rel=1e-4))


def test_best_heeds_bias_and_penalties_and_refuses_nan() -> None:
    logits = row(*[0.0] * 70, 5.0, 4.0)
    params = SamplingParams(temperature=0.0, logit_bias={70: -3.0})
    assert Sampler(params).best(logits, ())[0] == 71
    penalised = SamplingParams(temperature=0.0, repeat_penalty=2.0)
    assert Sampler(penalised).best(logits, [70])[0] == 71
    with pytest.raises(EngineError):
        Sampler(params).best(row(1.0, math.nan), ())


@pytest.mark.parametrize("n_likely", [3, 40, 200])
@pytest.mark.parametrize("temperature", [1e-3, 1e-6])
def test_nothing_is_left_in_a_law_that_cannot_be_divided_by(
    n_likely: int, temperature: float
) -> None:
    """exp ends in numbers of a few bits; half of the smallest is 0, and 1 / it infinity."""
    logits = np.full(5000, -50.0, np.float32)
    logits[:n_likely] = np.linspace(-0.6, -0.746, n_likely) * (temperature / 1e-3)
    logits[:2] = 0.0
    params = SamplingParams(top_k=0 if n_likely > 100 else 100, temperature=temperature)
    law = Sampler(params).distribution(logits, [])
    assert law.probs.min() > 1e-300
    with np.errstate(all="raise"):
        assert SharedNoise(1).pick(law, 5) in (0, 1)
