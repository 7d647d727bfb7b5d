"""The law of a small top-k and the most probable token, compiled and in Python."""

import ctypes
import math
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from specllama.errors import EngineError
from specllama.sampling import few
from specllama.sampling.chain import Sampler
from specllama.sampling.params import SamplingParams

NEUTRAL = SamplingParams(top_k=0, top_p=1.0, min_p=0.0, temperature=1.0)
HEADER = Path(sysconfig.get_paths()["include"], "Python.h")


def in_python(answer: Callable[[], Any]) -> Any:
    """What comes of it where nothing was compiled."""
    with mock.patch.object(few, "_few", None):
        return answer()


@pytest.mark.skipif(not (shutil.which("cc") and HEADER.exists()), reason="no C compiler")
def test_it_is_compiled_where_that_is_possible() -> None:
    assert few.is_compiled()
    assert not in_python(few.is_compiled)


def few_by_numpy(logits: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """Top-k, top-p, min-p, temperature by one stable sort; min-p's bound is float32, as its row."""
    order = np.argsort(-logits, kind="stable")[: params.top_k]
    falling = logits[order]
    count = len(order)
    if params.top_p < 1.0:
        weights = np.array([math.exp(value - falling[0].item()) for value in falling.tolist()])
        reached = np.cumsum(weights) >= params.top_p * math.fsum(weights)
        count = int(reached.argmax()) + 1 if reached.any() else count
    if params.min_p > 0.0:
        bound = np.float32(falling[0] + np.float32(math.log(params.min_p)))
        count = min(count, int((falling >= bound).sum()))
    ids = np.sort(order[:count])
    weights = np.exp((logits[ids].astype(np.float64) - float(falling[0])) / params.temperature)
    return ids[weights > 0.0], weights[weights > 0.0] / weights.sum()


FEW_SETTINGS = st.builds(
    SamplingParams,
    top_k=st.sampled_from([1, 2, 5, 7, 40, 128]),
    top_p=st.sampled_from([1.0, 0.97, 0.8, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 1e-4, 0.05, 0.3, 1.0]),
    temperature=st.sampled_from([1e-4, 0.3, 1.0, 2.0]),
)


TINIEST = 1e-289
"""Those below `LEAST` are left out of a law; at that edge one rounding decides."""


def check_few(logits: np.ndarray, params: SamplingParams) -> None:
    """Both ways of making the law give the same bits, and what a sort gives."""
    law = Sampler(params).distribution(logits, [])
    assert in_python(lambda: Sampler(params).distribution(logits, [])).lists == law.lists
    ids, probs = few_by_numpy(logits, params)
    seen, expected = law.probs > TINIEST, probs > TINIEST
    np.testing.assert_array_equal(law.ids[seen], ids[expected])
    np.testing.assert_allclose(law.probs[seen], probs[expected], rtol=1e-9)


def tied(least: int) -> st.SearchStrategy[np.ndarray]:
    """Rows of so many tokens or more, of few different logits, not all of them forbidden."""
    logits = hnp.arrays(
        np.float32,
        st.integers(least, 9000),
        elements=st.sampled_from([0.0, 1.0, 1.5, 2.5, 8.0, -3.0, -np.inf]),
        fill=st.sampled_from([0.0, -1.0]),
    )
    return logits.map(lambda row: np.append(row, np.float32(0.0)))


@given(tied(129), FEW_SETTINGS)
def test_a_few_candidates_with_ties_at_every_edge(
    logits: np.ndarray, params: SamplingParams
) -> None:
    check_few(logits, params)


@pytest.mark.parametrize(("n_more", "count"), [(0, 1), (38, 2)])
def test_many_small_ones_count_in_what_top_p_measures(n_more: int, count: int) -> None:
    """The second has .055 of the first; each of the others .006, .23 in all."""
    logits = np.full(5000, -20.0, np.float32)
    logits[:2], logits[2 : 2 + n_more] = (0.0, -2.9), -5.1
    params = SamplingParams(top_p=0.8)
    check_few(logits, params)
    assert len(Sampler(params).distribution(logits, [])) == count


@pytest.mark.parametrize(("top_p", "count"), [(0.25, 1), (0.5, 2), (0.51, 3), (1.0, 4)])
def test_top_p_that_is_just_reached(top_p: float, count: int) -> None:
    """Four of two hundred that tie."""
    params = replace(NEUTRAL, top_k=4, top_p=top_p)
    law = Sampler(params).distribution(np.zeros(200, np.float32), [])
    assert law.ids.tolist() == [0, 1, 2, 3][:count]


@given(st.integers(0, 1 << 32), FEW_SETTINGS, st.sampled_from([150, 700, 9_000, 20_000]))
def test_a_few_candidates_of_all_sizes(seed: int, params: SamplingParams, n_vocab: int) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(random.choice([0.0, -900.0, 900.0]), 3.0, n_vocab).astype(np.float32)
    check_few(logits, params)


@given(st.integers(0, 1 << 32), st.floats(0.001, 0.9))
def test_min_p_is_compared_in_float32(seed: int, min_p: float) -> None:
    """A value at the rounded bound stays, its neighbour below goes: as in rows of any length."""
    random = np.random.default_rng(seed)
    top = np.float32(random.normal(0.0, 20.0))
    bound = np.float32(top + np.float32(math.log(min_p)))
    below = np.nextafter(bound, np.float32(-np.inf))
    logits = np.full(3000, top - np.float32(30.0), np.float32)
    logits[[3, 90, 7]] = top, bound, below
    for top_k in (40, 0):
        params = replace(NEUTRAL, min_p=min_p, top_k=top_k)
        assert Sampler(params).distribution(logits, []).ids.tolist() == [3, 90]


@pytest.mark.skipif(not few.is_compiled(), reason="no C compiler")
def test_arrays_of_numpy_and_of_ctypes_are_worked_on_in_c() -> None:
    """Rows of llama.cpp are the latter, which name their type otherwise."""
    made = np.arange(9000, dtype=np.float32)
    borrowed = np.ctypeslib.as_array((ctypes.c_float * 9000)(*range(9000)))
    for logits in (made, borrowed):
        found = few._few.law(logits, 2, 1.0, -math.inf, 1.0)
        assert found is not None and found[0] == [8998, 8999]
        assert few._few.best(logits) is not None
    assert few._few.best(made.astype(">f4")) is None


def test_only_float32_is_read_as_such() -> None:
    """Other arrays are worked out in Python, not misread."""
    logits = np.random.default_rng(3).normal(0.0, 3.0, 9000).astype(np.float32)
    law = Sampler(SamplingParams()).distribution(logits, [])
    wide = logits.astype(np.float64)
    assert Sampler(SamplingParams()).distribution(wide, []).lists == law.lists
    assert few.best(wide)[0] == few.best(logits)[0]
    swapped = logits.astype(">f4")
    assert Sampler(SamplingParams()).distribution(swapped, []).lists == law.lists


def test_a_row_with_gaps_between_its_values() -> None:
    pairs = np.random.default_rng(4).normal(0.0, 3.0, (9000, 2)).astype(np.float32)
    assert few.best(pairs[:, 0])[0] == few.best(pairs[:, 0].copy())[0]
    check_few(pairs[:, 0], SamplingParams())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 63, 300, 8999])
def test_broken_rows_are_told(bad: float, place: int) -> None:
    logits = np.random.default_rng(1).normal(0.0, 2.0, 9000).astype(np.float32)
    logits[place] = bad
    for params in (SamplingParams(), SamplingParams(top_k=2, min_p=0.0)):
        with pytest.raises(EngineError, match="No token can be chosen"):
            Sampler(params).distribution(logits, [])
    with pytest.raises(EngineError, match="No token can be chosen"):
        few.best(logits)
    with pytest.raises(EngineError, match="No token can be chosen"):
        few.best(np.full(9000, -np.inf, np.float32))


def test_so_many_equal_ones_that_the_compiled_part_gives_up() -> None:
    logits = np.zeros(50_000, np.float32)
    logits[49_000] = 1.0
    check_few(logits, replace(NEUTRAL, top_k=40))
    check_few(logits, SamplingParams())


@given(tied(0))
def test_the_most_probable_token(logits: np.ndarray) -> None:
    token, probability = few.best(logits)
    assert token == int(logits.argmax())
    assert in_python(lambda: few.best(logits)) == (token, pytest.approx(probability, rel=1e-5))
    exact = 1.0 / np.exp(logits.astype(np.float64) - logits[token]).sum()
    assert exact * (1 - 1e-5) <= probability <= min(1.0, 64 * exact)


def test_nothing_is_lost_in_thousands_of_laws() -> None:
    """References: each call gives back what it took."""
    import tracemalloc

    logits = np.random.default_rng(2).normal(0.0, 3.0, 9000).astype(np.float32)
    sampler = Sampler(SamplingParams())
    sampler.distribution(logits, []), few.best(logits)
    tracemalloc.start()
    for _ in range(2000):
        sampler.distribution(logits, []), few.best(logits)
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 20_000
