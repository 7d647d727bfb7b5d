"""The model drafter and what it follows with, over a strict fake cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from specllama.drafting.follower import Follower
from specllama.drafting.model import ModelDrafter
from specllama.drafting.protocol import Want
from specllama.drafting.shapes import FixedShape
from specllama.drafting.tree import TreeDrafter
from specllama.engine.engine import Engine
from specllama.sampling.chain import Sampler
from specllama.sampling.noise import RandomStream, SharedNoise
from specllama.sampling.params import SamplingParams
from tests.engine.fake_model import FakeModel, language

WORDS = language(3)
SAMPLER = Sampler(SamplingParams(top_k=0, top_p=1.0, min_p=0.0, temperature=1.0))


def want(
    ids: Sequence[int],
    key: int = 0,
    limit: int = 4,
    chance: Any = None,
    keeps_laws: bool = False,
    go_on: Callable[[int, float | None], bool] = lambda drafted, confidence: True,
) -> Want:
    return Want(
        key=key,
        ids=ids,
        limit=limit,
        nodes=limit,
        branches=0,
        shape=FixedShape((1,)),
        law=lambda row, path: SAMPLER.distribution(row, ()),
        chance=chance or SharedNoise(5),
        keeps_laws=keeps_laws,
        go_on=go_on,
    )


def drafter_over(**settings: Any) -> tuple[ModelDrafter, FakeModel]:
    fake = FakeModel(WORDS, **settings)
    return ModelDrafter(Follower(fake)), fake


def said(ids: Sequence[int], count: int) -> tuple[int, ...]:
    """What shared noise makes of the draft's law."""
    path = list(ids)
    for _ in range(count):
        path.append(SharedNoise(5).pick(SAMPLER.distribution(WORDS(tuple(path)), ()), len(path)))
    return tuple(path[len(ids) :])


def test_drafts_from_its_own_law() -> None:
    drafter, _ = drafter_over()
    (proposal,) = drafter.propose([want([1, 2, 3])])
    assert proposal.tokens == said([1, 2, 3], 4)
    assert proposal.parents == (-1, 0, 1, 2)
    assert proposal.source == "model"


def test_the_laws_are_those_it_drew_from() -> None:
    drafter, _ = drafter_over()
    (proposal,) = drafter.propose([want([1, 2, 3], chance=RandomStream(1), keeps_laws=True)])
    path = [1, 2, 3]
    for node, token in enumerate(proposal.tokens):
        law = proposal.law(node - 1)
        assert law is not None
        assert list(law.probs) == list(SAMPLER.distribution(WORDS(tuple(path)), ()).probs)
        path.append(token)


@pytest.mark.parametrize("accepted", range(5))
@pytest.mark.parametrize("rollback", ["free", "checkpoint"])
def test_follows_what_was_accepted(accepted: int, rollback: Any) -> None:
    drafter, _ = drafter_over(rollback=rollback)
    ids = [1, 2, 3]
    (first,) = drafter.propose([want(ids)])
    ids += [*first.tokens[:accepted], 9]
    (second,) = drafter.propose([want(ids)])
    assert second.tokens == said(ids, 4)


def test_a_chain_costs_one_decode_a_token() -> None:
    drafter, fake = drafter_over()
    drafter.prepare(0, [1, 2, 3])
    drafter.read(0, [1, 2, 3])
    ids = [1, 2, 3]
    (first,) = drafter.propose([want(ids)])
    drafter.propose([want([*ids, *first.tokens, 9])])
    assert fake.batches == [2, 1, 1, 1, 1, 2, 1, 1, 1]


def test_several_sequences_share_batches() -> None:
    drafter, fake = drafter_over(n_seq=2)
    proposals = drafter.propose([want([1, 2, 3], key=0), want([4, 5], key=1, limit=2)])
    assert proposals[0].tokens == said([1, 2, 3], 4)
    assert proposals[1].tokens == said([4, 5], 2)
    assert fake.batches == [5, 2, 1, 1]


def test_too_much_for_one_batch_goes_one_by_one() -> None:
    drafter, _ = drafter_over(n_seq=2, n_batch=4)
    wants = [want([1, 2, 3], key=0), want([4, 5, 6, 7], key=1)]
    for proposal, asked in zip(drafter.propose(wants), wants, strict=True):
        assert proposal.tokens == said(asked.ids, 4)


def test_go_on_is_asked_before_anything_is_decoded() -> None:
    drafter, fake = drafter_over()
    (proposal,) = drafter.propose([want([1, 2], go_on=lambda drafted, confidence: False)])
    assert (len(proposal), fake.batches) == (0, [])


def test_go_on_sees_the_best_probability_before_the_draw() -> None:
    drafter, _ = drafter_over()
    asked: list[tuple[int, float | None]] = []

    def go_on(drafted: int, confidence: float | None) -> bool:
        asked.append((drafted, confidence))
        return drafted < 2 or confidence is None

    (proposal,) = drafter.propose([want([1, 2], go_on=go_on)])
    assert len(proposal) == 2
    assert [drafted for drafted, confidence in asked if confidence is not None] == [0, 1, 2]
    best = float(SAMPLER.distribution(WORDS((1, 2)), ()).probs.max())
    assert asked[1] == (0, best)


def test_no_room_for_the_whole_draft() -> None:
    drafter, fake = drafter_over(n_ctx=8)
    assert len(drafter.propose([want([1] * 5)])[0]) == 0
    assert len(drafter.propose([want([1] * 5, limit=3)])[0]) == 3
    assert len(drafter.propose([want([1] * 8, limit=1)])[0]) == 0
    assert fake.length(0) <= 8


def test_rewritten_ids_need_a_rewind() -> None:
    drafter, _ = drafter_over()
    drafter.propose([want([1, 2, 3, 4])])
    drafter.rewind(0, 1)
    (proposal,) = drafter.propose([want([1, 9, 3, 4])])
    assert proposal.tokens == said([1, 9, 3, 4], 4)


def test_drafters_that_share_a_model_count_its_time_once() -> None:
    words = language(1)
    target, draft = FakeModel(words), FakeModel(words)
    target.seconds, draft.seconds = 2.0, 0.5
    follower = Follower(draft)
    engine = Engine(target, [ModelDrafter(follower), TreeDrafter(follower, first_branch=1)])
    assert engine.seconds_inside() == 2.5


def test_reads_what_is_pending_one_by_one_where_decodes_are_replayed() -> None:
    fake = FakeModel(WORDS)
    drafter = ModelDrafter(Follower(fake, one_by_one=True))
    (first,) = drafter.propose([want([1, 2, 3, 4, 5, 6])])
    assert fake.batches[0] == 6, "a prompt is read at once"
    ids = [1, 2, 3, 4, 5, 6, *first.tokens, 7]
    fake.batches.clear()
    (second,) = drafter.propose([want(ids)])
    assert second.tokens == said(ids, 4)
    assert set(fake.batches) == {1}
