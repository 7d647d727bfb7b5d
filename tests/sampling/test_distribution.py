"""Laws over tokens, and what is left of one after another."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specllama.sampling.distribution import FEW, Distribution, remainder, residual

SIZE = 12
weights = st.lists(st.sampled_from([0.0, 0.0, 1e-9, 0.1, 0.5, 1.0, 3.0]), min_size=1, max_size=SIZE)


def law_from(values: list[float], first: int = 0) -> Distribution:
    ids = np.arange(first, first + len(values))
    law = Distribution.from_weights(ids, np.array(values))
    assume(law is not None)
    assert law is not None
    return law


def dense(law: Distribution) -> np.ndarray:
    full = np.zeros(3 * SIZE)
    full[law.ids] = law.probs
    return full


laws = st.builds(law_from, weights, st.integers(0, SIZE))


@given(weights, st.integers(0, SIZE))
def test_from_weights_normalises_and_drops_zeros(values: list[float], first: int) -> None:
    given_weights = np.array(values)
    law = Distribution.from_weights(np.arange(first, first + len(values)), given_weights)
    np.testing.assert_array_equal(given_weights, values)
    if law is None:
        assert sum(values) == 0.0
        return
    assert law.probs.sum() == pytest.approx(1.0)
    assert (law.probs > 0.0).all()
    assert (np.diff(law.ids) > 0).all()
    expected = np.array(values) / sum(values)
    np.testing.assert_allclose(dense(law)[first : first + len(values)], expected)


@given(laws)
def test_prob_and_at_read_the_law(law: Distribution) -> None:
    full = dense(law)
    tokens = np.arange(3 * SIZE)
    np.testing.assert_array_equal(law.at(tokens), full)
    np.testing.assert_array_equal([law.prob(int(t)) for t in tokens], full)
    np.testing.assert_array_equal(law.at(law.ids), law.probs)


@given(laws, st.integers(1, SIZE + 3))
def test_top_is_the_head_of_a_full_sort(law: Distribution, count: int) -> None:
    order = np.lexsort((law.ids, -law.probs))[:count]
    assert law.top(count) == law.ids[order].tolist()


@given(laws, st.integers(0, 2 * SIZE))
def test_without_is_the_conditional_law(law: Distribution, token: int) -> None:
    rest = law.without(token)
    expected = dense(law)
    expected[token] = 0.0
    if rest is None:
        assert law.prob(token) == 1.0
        return
    np.testing.assert_allclose(dense(rest), expected / expected.sum(), rtol=1e-12)


def test_a_point_is_certain() -> None:
    point = Distribution.point(5)
    assert (point.prob(5), point.prob(4), point.top(3)) == (1.0, 0.0, [5])
    assert point.without(5) is None


@given(laws, laws, st.sampled_from([1.0, 0.7, 0.01, 0.0]))
def test_residual_is_the_positive_part_of_the_difference(
    target: Distribution, draft: Distribution, scale: float
) -> None:
    expected = np.maximum(scale * dense(target) - dense(draft), 0.0)
    left, law = remainder(target, draft, scale)
    assert left == pytest.approx(expected.sum(), abs=1e-15)
    if law is None:
        assert expected.sum() < 1e-15
    elif expected.sum() > 1e-12:
        np.testing.assert_allclose(dense(law), expected / expected.sum(), atol=1e-9)


@given(laws)
def test_nothing_is_left_of_a_law_after_itself(law: Distribution) -> None:
    assert residual(law, law) is None
    assert remainder(law, Distribution(law.ids.copy(), law.probs)) == (0.0, None)


@given(laws, laws)
def test_overlap_and_residual_make_up_the_target(target: Distribution, draft: Distribution) -> None:
    """min(p, q) + (p - q)+ = p: the identity rejection sampling rests on."""
    overlap = np.minimum(dense(target), dense(draft))
    left, law = remainder(target, draft)
    rest = left * dense(law) if law is not None else 0.0
    np.testing.assert_allclose(overlap + rest, dense(target), atol=1e-15)


@pytest.mark.parametrize("gap", [False, True])
def test_an_untruncated_law_and_one_with_gaps_read_alike(gap: bool) -> None:
    ids = np.arange(1000) * (2 if gap else 1) + 10
    probs = np.random.default_rng(0).dirichlet(np.ones(1000))
    law = Distribution(ids, probs)
    tokens = np.array([0, 9, 10, 11, 12, int(ids[-1]), int(ids[-1]) + 1, 10**9])
    expected = [dict(zip(ids.tolist(), probs, strict=True)).get(int(t), 0.0) for t in tokens]
    np.testing.assert_array_equal(law.at(tokens), expected)


@given(weights, st.integers(0, SIZE))
def test_lists_and_arrays_tell_the_same(values: list[float], first: int) -> None:
    law = law_from(values, first)
    twin = Distribution.of_few(law.ids.tolist(), law.probs.tolist())
    np.testing.assert_array_equal(twin.ids, law.ids)
    np.testing.assert_array_equal(twin.probs, law.probs)
    assert twin.ids.dtype == np.int64 and twin.probs.dtype == np.float64
    assert twin.lists == law.lists == (law.ids.tolist(), law.probs.tolist())
    assert len(twin) == len(law) == len(law.ids)
    assert twin.highest == law.highest == law.probs.max()


def test_small_and_large_laws_answer_alike() -> None:
    random = np.random.default_rng(5)
    for size in (FEW, FEW + 1, 1000, 3200):
        ids = np.cumsum(random.integers(1, 4, size))
        weights = np.round(random.exponential(size=size), 1)  # with ties
        law = Distribution(ids, (weights + 0.1) / (weights + 0.1).sum())
        falling = sorted(zip(-law.probs, law.ids, strict=True))
        for count in (1, 2, 7, size - 1, size, size + 1):
            assert law.top(count) == [token for _, token in falling[:count]]
        for token in range(int(ids[-1]) + 2):
            assert law.prob(token) == law.probs[ids == token].sum()
        assert law.highest == law.probs.max()


@pytest.mark.parametrize("size", [FEW, FEW + 1, 5000])
def test_what_is_left_of_laws_of_any_size(size: int) -> None:
    """Small laws are lists and large ones arrays: both against the definition."""
    random = np.random.default_rng(size)
    target, draft = (
        Distribution(np.sort(random.choice(2 * size, size, replace=False)), probs)
        for probs in random.dirichlet(np.ones(size), 2)
    )
    p, q = np.zeros(2 * size), np.zeros(2 * size)
    p[target.ids], q[draft.ids] = target.probs, draft.probs
    expected = np.maximum(0.7 * p - q, 0.0)
    left, law = remainder(target, draft, 0.7)
    assert law is not None
    assert left == pytest.approx(expected.sum())
    np.testing.assert_allclose(law.at(np.arange(2 * size)), expected / expected.sum(), atol=1e-15)
    gone = [int(draft.ids[0]), int(draft.ids[-1]), 2 * size]
    rest = draft.without(*gone)
    q[gone[:2]] = 0.0
    assert rest is not None
    np.testing.assert_allclose(rest.at(np.arange(2 * size)), q / q.sum(), atol=1e-15)
