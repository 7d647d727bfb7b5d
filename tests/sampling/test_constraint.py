"""Laws under a constraint, and its states along a text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.errors import EngineError
from specllama.sampling.chain import Sampler
from specllama.sampling.constraint import NothingAllowed, States
from specllama.sampling.params import SamplingParams

N_VOCAB = 3000
NEUTRAL = SamplingParams(top_k=0, top_p=1.0, min_p=0.0, temperature=1.0)


@dataclass
class Only:
    """Allows some tokens, always the same; counts the questions."""

    tokens: np.ndarray
    asked: list[int] = field(default_factory=list)

    def allowed(self, ids: np.ndarray) -> np.ndarray:
        self.asked.append(len(ids))
        return np.isin(ids, self.tokens)

    def every(self) -> np.ndarray:
        self.asked.append(-1)
        return self.tokens

    def after(self, token: int) -> Only | None:
        return self if token in self.tokens else None


@given(
    seed=st.integers(0, 2**32),
    n_allowed=st.sampled_from([1, 3, 40, 41, 200, 2900]),
    few_values=st.booleans(),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 7, 40, 200, 5000]),
        top_p=st.sampled_from([1.0, 0.9, 0.4]),
        min_p=st.sampled_from([0.0, 0.05]),
        typical_p=st.sampled_from([1.0, 0.7]),
        repeat_penalty=st.sampled_from([1.0, 1.6]),
        logit_bias=st.sampled_from([{}, {5: -np.inf, 7: 9.0}]),
    ),
)
def test_the_law_is_the_chain_over_a_masked_row(
    seed: int, n_allowed: int, few_values: bool, params: SamplingParams
) -> None:
    random = np.random.default_rng(seed)
    row = random.normal(0.0, 3.0, N_VOCAB).astype(np.float32)
    if few_values:
        row = np.round(row)
    tokens = np.sort(random.choice(np.arange(10, N_VOCAB), n_allowed, replace=False))
    history = [7, 12, 12, int(tokens[0])]
    masked = np.full_like(row, -np.inf)
    masked[tokens] = row[tokens]
    expected = Sampler(params).distribution(masked, history)
    law = Sampler(params).distribution(row, history, Only(tokens))
    assert law.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(law.probs, expected.probs, rtol=1e-5)


def test_few_tokens_are_asked_about_where_the_likeliest_are_allowed() -> None:
    row = np.arange(N_VOCAB, dtype=np.float32)
    constraint = Only(np.arange(100, N_VOCAB))
    Sampler(SamplingParams()).distribution(row, (), constraint)
    assert sum(constraint.asked) <= 64 and -1 not in constraint.asked


def test_a_draft_with_fewer_tokens_has_a_law_over_those() -> None:
    law = Sampler(NEUTRAL).distribution(np.zeros(10, np.float32), (), Only(np.array([3, 9, 10])))
    assert law.ids.tolist() == [3, 9]


def test_nothing_allowed_is_an_error() -> None:
    with pytest.raises(NothingAllowed):
        Sampler(NEUTRAL).distribution(np.zeros(10, np.float32), (), Only(np.array([10])))


@pytest.mark.parametrize("n_allowed", [1, 100])
@pytest.mark.parametrize("params", [NEUTRAL, SamplingParams(), SamplingParams(temperature=0.0)])
def test_forbidding_all_that_is_allowed_is_a_mistake(
    params: SamplingParams, n_allowed: int
) -> None:
    tokens = np.arange(50, 50 + n_allowed)
    forbidding = replace(params, logit_bias=dict.fromkeys(tokens.tolist(), -np.inf))
    with pytest.raises(NothingAllowed, match="logit_bias"):
        Sampler(forbidding).distribution(np.zeros(N_VOCAB, np.float32), (), Only(tokens))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_row_stays_an_error(temperature: float) -> None:
    row = np.zeros(N_VOCAB, np.float32)
    row[5] = np.nan
    with pytest.raises(EngineError, match="largest logit is nan"):
        Sampler(replace(NEUTRAL, temperature=temperature)).distribution(
            row, (), Only(np.array([7, 8]))
        )


@dataclass(frozen=True)
class Rising:
    """Each token has to be larger than the one before."""

    last: int = -1

    def allowed(self, ids: np.ndarray) -> np.ndarray:
        return ids > self.last

    def every(self) -> np.ndarray:
        return np.arange(self.last + 1, 10)

    def after(self, token: int) -> Rising | None:
        return Rising(token) if token > self.last else None


def test_states_follow_the_reply_and_every_path_behind_it() -> None:
    states = States(Rising(), n_prompt=2)
    ids = [9, 9]
    assert states.at(ids, ()) == Rising()
    assert states.at(ids, (3, 5)) == Rising(5)
    assert states.at(ids, (3, 4)) == Rising(4)
    assert states.at(ids, (3, 2)) is None
    assert states.at(ids, (3, 2, 8)) is None
    ids += [3]
    assert states.at(ids, (4,)) == Rising(4)
    assert states.at(ids, ()) == Rising(3)
    ids += [4, 6]
    assert states.at(ids, (7,)) == Rising(7)
    assert states.at(ids, (5,)) is None


def test_states_are_computed_once() -> None:
    made: list[int] = []

    @dataclass(frozen=True)
    class Counted(Rising):
        def after(self, token: int) -> Rising | None:
            made.append(token)
            return Counted(token) if token > self.last else None

    states = States(Counted(), n_prompt=0)
    states.at([], (1, 2, 3))
    states.at([], (1, 2, 4))
    states.at([1, 2], (3,))
    assert made == [1, 2, 3, 4]


def test_a_forbidden_token_in_the_reply_is_an_error() -> None:
    with pytest.raises(EngineError, match="forbids"):
        States(Rising(), n_prompt=0).at([5, 3], ())
