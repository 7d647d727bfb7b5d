"""Drafts that read the target's hidden states: they get the right ones, and no text depends on it.

The fake draft refuses a state that did not say the token it comes with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.drafting.follower import Follower
from specllama.drafting.model import ModelDrafter
from specllama.drafting.protocol import Drafter
from specllama.drafting.recycle import RecycleDrafter
from specllama.drafting.shapes import FixedShape
from specllama.drafting.staged import StagedDrafter
from specllama.drafting.staged_tree import StagedTreeDrafter
from specllama.drafting.tree import TreeDrafter
from specllama.engine.engine import Engine
from specllama.engine.request import TokenEvent
from specllama.sampling.params import SamplingParams
from tests.engine.fake_model import N_VOCAB, FakeModel, language, near
from tests.engine.harness import GREEDY, PLAIN, expected, go_ahead, request, run

N_CTX = 96
WORDS = language(2)
KINDS = ("model", "tree", "staged", "staged-tree")


def reading(**settings_: Any) -> FakeModel:
    """A draft that says what the target says, but only where it was told a state."""
    return FakeModel(near(WORDS, 3, 0.9), N_CTX, n_seq=8, told=WORDS, **settings_)


def drafter(kind: str, draft: FakeModel) -> Drafter:
    follower, guessers = Follower(draft), [RecycleDrafter(N_VOCAB)]
    makers: dict[str, Any] = {
        "model": lambda: ModelDrafter(follower),
        "tree": lambda: TreeDrafter(follower, 2),
        "staged": lambda: StagedDrafter(follower, guessers),
        "staged-tree": lambda: StagedTreeDrafter(follower, 2, guessers),
    }
    made: Drafter = makers[kind]()
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_every_draft_but_the_first_is_told(kind: str) -> None:
    draft = reading()
    engine = Engine(FakeModel(WORDS, N_CTX, n_seq=8), [drafter(kind, draft)])
    asked = request([3, 1, 4], drafters=KINDS, draft_max=2, shape=FixedShape((2, 2)))
    outcome = run(engine, asked)
    assert outcome.tokens == expected(WORDS, asked, N_CTX)[0]
    stats = outcome.live.stats
    assert draft.n_told == stats.drafts - 1 > 2
    assert stats.by_depth[0].accepted >= stats.by_depth[0].tested - 1


def test_a_draft_that_does_not_read_is_not_told() -> None:
    target, draft = FakeModel(WORDS, N_CTX), FakeModel(near(WORDS, 3, 0.9), N_CTX)
    engine = Engine(target, [drafter("model", draft)])
    assert not target.tells_hidden
    engine.drafters = [drafter("model", reading())]
    assert target.tells_hidden
    engine.drafters = []
    assert not target.tells_hidden


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(data=st.data())
def test_any_setting_in_company(data: st.DataObject) -> None:
    """Two chats that share decodes, plain rounds between drafts, decodes that answer later."""
    draw = data.draw
    kind = draw(st.sampled_from(KINDS))
    params = draw(st.sampled_from([GREEDY, PLAIN, SamplingParams(temperature=0.7, top_k=5)]))
    rule = draw(st.sampled_from(["coupled", "match"]))
    target = FakeModel(
        WORDS,
        N_CTX,
        draw(st.integers(4, 16), "n_batch"),
        n_seq=8,
        answers_later=draw(st.booleans(), "later"),
    )
    draft = reading(n_batch=draw(st.integers(4, 16), "draft batch"))
    engine = Engine(
        target, [drafter(kind, draft)], n_slots=2, linear=draw(st.booleans(), "linear"), n_ctx=40
    )
    go_ahead(engine, draw(st.sampled_from([None, 0, 3]), "ahead"))
    chance = np.random.default_rng(draw(st.integers(0, 99), "plain rounds"))
    engine.scheduler.rests = lambda n_lives: bool(chance.random() < 0.4)  # type: ignore[method-assign]
    engine._is_prompted = lambda live: False  # type: ignore[method-assign]
    requests = [
        request(
            draw(st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=9), "prompt"),
            rule,
            drafters=KINDS,
            sampling=params,
            seed=draw(st.integers(0, 2**32), "seed"),
            max_tokens=draw(st.integers(8, 20), "max_tokens"),
            draft_max=draw(st.integers(1, 5), "draft_max"),
            shape=draw(st.sampled_from([None, FixedShape((2, 2))]), "shape"),
        )
        for _ in range(2)
    ]
    lives = [engine.add(asked) for asked in requests]
    said: dict[int, list[int]] = {live.key: [] for live in lives}
    while any(live.finish is None for live in lives):
        for event in engine.step():
            if isinstance(event, TokenEvent):
                said[event.key].append(event.id)
    for asked, live in zip(requests, lives, strict=True):
        assert said[live.key] == expected(WORDS, asked, 40)[0]
