"""Batches filled up to a size that is cheaper: nothing of it may show but the size."""

from __future__ import annotations

import pytest

from specllama.engine.engine import Engine
from specllama.scheduling.table import CostTable
from specllama.verification.types import Proposal
from tests.engine.fake_model import FakeModel, Language, language
from tests.engine.harness import Script, expected, request, right, run

WORDS = language(1)
STAIRS = CostTable(same={1: 0.010, 2: 0.030, 3: 0.031, 4: 0.020, 6: 0.1})
"""Kernels for four tokens are faster than those for two."""


def engine(words: Language, n_seq: int, **settings: int) -> Engine:
    says = right(words)
    drafter = Script(lambda want: Proposal.chain(says(want.ids, 1) if want.limit else []))
    made = Engine(FakeModel(words, n_seq=n_seq, **settings), [drafter])
    made.scheduler.recall(STAIRS)
    return made


@pytest.mark.parametrize("n_seq", [1, 2, 4])
def test_the_text_stays_the_same(n_seq: int) -> None:
    """Two tokens are decoded as four, where there is a sequence for what fills them up."""
    made = engine(WORDS, n_seq)
    asked = request([1, 2, 3], drafters=("script",))
    outcome = run(made, asked)
    assert (outcome.tokens, outcome.reason) == expected(WORDS, asked)
    backend = made.backend
    assert isinstance(backend, FakeModel)
    assert (4 in backend.batches[1:]) == (n_seq > 1)
    assert (2 in backend.batches[1:]) == (n_seq == 1)


@pytest.mark.parametrize("limits", [{"n_batch": 3}, {"n_outputs": 3}])
def test_never_more_than_a_decode_takes(limits: dict[str, int]) -> None:
    made = engine(WORDS, 4, **limits)
    asked = request([1, 2, 3], drafters=("script",))
    assert run(made, asked).tokens == expected(WORDS, asked)[0]
    backend = made.backend
    assert isinstance(backend, FakeModel)
    assert 4 not in backend.batches[1:]


def test_never_more_than_the_context_holds() -> None:
    made = engine(WORDS, 4, n_ctx=16)
    asked = request([1, 2, 3], drafters=("script",), max_tokens=None, is_end=lambda token: False)
    outcome = run(made, asked)
    assert outcome.reason == "context"
    assert outcome.tokens == expected(WORDS, asked, n_ctx=16)[0]


def test_a_size_kept_for_other_requests_does_not_fill_up_fixed_lengths() -> None:
    same = {n: 0.010 + 0.001 * n for n in (1, 2, 3, 4)}
    other = {n: seconds + 0.1 for n, seconds in same.items()}
    made = engine(WORDS, 4)
    made.scheduler.recall(CostTable(same=same, other=other))
    made.scheduler.settle_size(lambda: float(made.scheduler.padded(2) == 4))
    assert made.scheduler.padded(2) == 4
    asked = request([1, 2, 3], drafters=("script",), adaptive=False)
    assert run(made, asked).tokens == expected(WORDS, asked)[0]
    backend = made.backend
    assert isinstance(backend, FakeModel)
    assert 2 in backend.batches[1:] and 4 not in backend.batches[1:]
