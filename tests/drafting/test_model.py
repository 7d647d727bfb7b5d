"""The model drafter and what it follows with, over a strict fake cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.drafting.follower import Follower
from specllama.drafting.model import ModelDrafter
from specllama.drafting.protocol import Want
from specllama.drafting.shapes import FixedShape
from specllama.drafting.staged import StagedDrafter
from specllama.drafting.staged_tree import StagedTreeDrafter
from specllama.drafting.tree import TreeDrafter
from specllama.engine.engine import Engine
from specllama.sampling.chain import Sampler
from specllama.sampling.noise import RandomStream, SharedNoise
from specllama.sampling.params import SamplingParams
from tests.engine.fake_model import FakeModel, Fault, language
from tests.engine.harness import expected, request, run

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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["model", "tree", "staged", "staged-tree"])
def test_a_draft_that_computes_nonsense_drafts_nothing(name: str, temperature: float) -> None:
    """The target's reply is none the worse for it."""
    follower = Follower(FakeModel(lambda ids: WORDS(ids) * np.nan, n_seq=8))
    drafter = {
        "model": lambda: ModelDrafter(follower),
        "tree": lambda: TreeDrafter(follower, first_branch=4),
        "staged": lambda: StagedDrafter(follower, []),
        "staged-tree": lambda: StagedTreeDrafter(follower, 4, []),
    }[name]()
    sampling = SamplingParams(temperature=temperature)
    asked = request([1, 2], drafters=(name,), sampling=sampling, shape=FixedShape((2, 1)))
    outcome = run(Engine(FakeModel(WORDS, n_seq=8), [drafter]), asked)
    assert outcome.tokens == expected(WORDS, asked)[0]
    assert outcome.stats.drafted == 0


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


def test_go_on_can_end_a_chain_before_the_next_decode() -> None:
    """Whether what it would look at was drafted ahead or not."""
    drafter, fake = drafter_over()
    ids = [1, 2, 3]
    brief = want(ids, go_on=lambda drafted, confidence: drafted < 2 or confidence is not None)
    (first,) = drafter.propose([brief])
    assert first.tokens == said(ids, 2)
    assert fake.batches == [3, 1]
    drafter.go_ahead({0: first.tokens}, 9)
    ids += said(ids, 3)
    assert drafter.ready(0, ids) == 8
    assert drafter.propose([replace(brief, ids=ids)])[0].tokens == said(ids, 2)


@pytest.mark.parametrize("n_ctx", [8, 64])
def test_no_room_for_the_whole_draft(n_ctx: int) -> None:
    """In the cache, or in a sequence's own part of it."""
    drafter, fake = drafter_over(n_ctx=n_ctx)
    fake.n_ctx_seq = 8
    assert len(drafter.propose([want([1] * 5)])[0]) == 0
    assert len(drafter.propose([want([1] * 5, limit=3)])[0]) == 3
    assert len(drafter.propose([want([1] * 8, limit=1)])[0]) == 0
    assert fake.length(0) <= 8


@pytest.mark.parametrize("n_ctx", [8, 64])
def test_a_prompt_that_does_not_fit_is_not_read(n_ctx: int) -> None:
    drafter, fake = drafter_over(n_ctx=n_ctx)
    fake.n_ctx_seq = 8
    drafter.read(0, [1] * 8)
    assert not fake.batches
    drafter.read(0, [1] * 7)
    assert fake.batches == [6]


def test_a_prompt_takes_the_cells_of_another_sequence() -> None:
    drafter, fake = drafter_over(n_ctx=16, n_seq=2)
    for key in range(2):
        drafter.read(key, [key] * 12)
    assert [fake.length(key) for key in range(2)] == [0, 11]


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


def test_reads_several_sequences_at_once_all_the_same() -> None:
    fake = FakeModel(WORDS, n_seq=2)
    drafter = ModelDrafter(Follower(fake, one_by_one=True))
    texts = [[1, 2, 3], [4, 5, 6]]
    for key, proposal in enumerate(
        drafter.propose([want(ids, key) for key, ids in enumerate(texts)])
    ):
        texts[key] = [*texts[key], *proposal.tokens, 7]
    fake.batches.clear()
    drafter.propose([want(ids, key) for key, ids in enumerate(texts)])
    assert fake.batches == [4, 2, 2, 2]


def clean(drafter: ModelDrafter, fake: FakeModel) -> None:
    """Cache and mirror agree; no cell is left that nobody knows of."""
    cache = drafter._follower.cache
    assert all(cache.tokens(seq) == list(fake.tokens(seq)) for seq in range(fake.n_seq))
    assert cache.n_cells == len(fake.cells)


def ahead(ids: list[int], count: int, **settings: Any) -> tuple[ModelDrafter, FakeModel, list[int]]:
    """A drafter that went so far ahead of a proposal which is right, and the ids after it."""
    drafter, fake = drafter_over(**settings)
    (first,) = drafter.propose([want(ids)])
    assert drafter.go_ahead({0: first.tokens}, count) == count
    clean(drafter, fake)
    return drafter, fake, [*ids, *said(ids, 5)]


class TestAhead:
    """Drafting on while the target verifies."""

    @pytest.mark.parametrize("count", range(1, 9))
    def test_what_is_there_takes_no_decodes(self, count: int) -> None:
        """The first token looked at behind a proposal is the guess at the target's own."""
        drafter, fake, ids = ahead([1, 2, 3], count)
        assert drafter.ready(0, ids) == count - 1
        fake.batches.clear()
        (second,) = drafter.propose([want(ids)])
        assert second.tokens == said(ids, 4)
        assert fake.batches == [1] * max(0, 5 - count)
        clean(drafter, fake)

    def test_the_last_tokens_of_a_chain_are_still_ahead_of_the_next_one(self) -> None:
        drafter, _, ids = ahead([1, 2, 3], 9)
        (second,) = drafter.propose([want(ids)])
        assert drafter.go_ahead({0: second.tokens}, 9) == 5
        assert drafter.ready(0, [*ids, *said(ids, 5)]) == 8

    @pytest.mark.parametrize("accepted", range(5))
    @pytest.mark.parametrize("right", [False, True])
    def test_nothing_else_is_used(self, accepted: int, right: bool) -> None:
        """Refused drafts, and a guess that was wrong."""
        if accepted == 4 and right:
            return
        drafter, fake, ids = ahead([1, 2, 3], 5)
        token = ids[3 + accepted]
        ids = [*ids[: 3 + accepted], token if right else (token + 1) % 15]
        assert drafter.ready(0, ids) == 0
        fake.batches.clear()
        (second,) = drafter.propose([want(ids)])
        assert second.tokens == said(ids, 4)
        assert len(fake.batches) == 4
        clean(drafter, fake)

    def test_behind_a_proposal_that_ended_early(self) -> None:
        """The token that was not worth proposing is the guess; it takes no look of its own."""
        drafter, fake = drafter_over()
        ids = [1, 2, 3]
        short = want(ids, go_on=lambda drafted, confidence: drafted < 2 or confidence is None)
        (first,) = drafter.propose([short])
        assert len(first) == 2
        assert drafter.go_ahead({0: first.tokens}, 4) == 3
        assert drafter.go_ahead({0: first.tokens}, 4) == 0, "it is drawn once"
        ids += said(ids, 3)
        assert drafter.ready(0, ids) == 3
        fake.batches.clear()
        assert drafter.propose([want(ids, limit=3)])[0].tokens == said(ids, 3)
        assert not fake.batches
        clean(drafter, fake)

    def test_behind_a_look_that_was_not_worth_a_token(self) -> None:
        drafter, fake = drafter_over()
        ids = [1, 2, 3]
        never = want(ids, go_on=lambda drafted, confidence: confidence is None)
        assert len(drafter.propose([never])[0]) == 0
        assert drafter.go_ahead({0: ()}, 5) == 4
        ids += said(ids, 1)
        fake.batches.clear()
        assert drafter.propose([want(ids)])[0].tokens == said(ids, 4)
        assert not fake.batches

    @pytest.mark.parametrize("tokens", [(), (9,), (9, 9, 9, 9)])
    def test_only_behind_its_own_proposals(self, tokens: tuple[int, ...]) -> None:
        drafter, fake = drafter_over()
        (first,) = drafter.propose([want([1, 2, 3])])
        before = len(fake.batches)
        for others in ({0: tokens}, {0: first.tokens[:2]}, {1: first.tokens}, {}):
            assert drafter.go_ahead(others, 5) == 0
        assert len(fake.batches) == before

    def test_not_behind_a_proposal_of_an_earlier_round(self) -> None:
        """Ids are one list that grows."""
        drafter, fake = drafter_over()
        ids = [1, 2, 3]
        (first,) = drafter.propose([want(ids)])
        ids.append(9)
        before = len(fake.batches)
        assert drafter.go_ahead({0: first.tokens}, 5) == 0
        assert len(fake.batches) == before

    def test_nothing_to_go_on_behind(self) -> None:
        """Sequences that it was not asked to read, or cannot."""
        drafter, fake = drafter_over(n_ctx=8)
        for asked in (want([1, 2], go_on=lambda drafted, confidence: False), want([1] * 8)):
            assert len(drafter.propose([asked])[0]) == 0
            assert drafter.go_ahead({0: ()}, 3) == 0
        assert not fake.batches

    @pytest.mark.parametrize("after", range(4))
    def test_stops_where_the_draft_can_say_nothing(self, after: int) -> None:
        """In the proposal or behind it: what was read last is not read again."""
        silent = 3 + after

        def law(row: Any, path: Sequence[int]) -> Any:
            return SAMPLER.distribution(row, ()) if 3 + len(path) < silent else None

        drafter, fake = drafter_over()
        ids = [1, 2, 3]
        (first,) = drafter.propose([replace(want(ids, limit=2), law=law)])
        assert len(first) == min(2, after)
        drafter.go_ahead({0: first.tokens}, 5)
        assert fake.tokens(0) == (1, 2, 3, *said(ids, after))
        assert drafter.go_ahead({0: first.tokens}, 5) == 0
        clean(drafter, fake)
        ids += said(ids, len(first) + 1)
        assert drafter.propose([want(ids)])[0].tokens == said(ids, 4)

    def test_sequences_share_decodes_and_each_has_its_own(self) -> None:
        drafter, fake = drafter_over(n_seq=2)
        both = [[1, 2, 3], [4, 5]]
        wants = [want(both[0], key=0), want(both[1], key=1, limit=2)]
        first, second = drafter.propose(wants)
        fake.batches.clear()
        assert drafter.go_ahead({0: first.tokens, 1: second.tokens}, 3) == 3
        assert fake.batches == [2, 2, 2]
        both = [[*both[0], *said(both[0], 5)], [*both[1], *said(both[1], 2), 0]]
        assert [drafter.ready(key, ids) for key, ids in enumerate(both)] == [2, 0]
        fake.batches.clear()
        proposals = drafter.propose([want(ids, key=key) for key, ids in enumerate(both)])
        assert [p.tokens for p in proposals] == [said(ids, 4) for ids in both]
        assert fake.batches == [1, 2, 2, 1]
        clean(drafter, fake)

    @pytest.mark.parametrize("n_ctx", range(12, 24))
    def test_no_further_than_there_is_room(self, n_ctx: int) -> None:
        """All that was proposed was read but for its last tokens: 12 cells."""
        drafter, fake = drafter_over(n_seq=2, n_ctx=n_ctx)
        prompts = [[1, 2, 3], [4, 5, 6]]
        proposals = drafter.propose([want(ids, key=key) for key, ids in enumerate(prompts)])
        if not all(map(len, proposals)):
            assert n_ctx < 14, "reading takes 6 cells, drafting 8"
            return
        n_looks = drafter.go_ahead({key: p.tokens for key, p in enumerate(proposals)}, 7)
        assert n_looks == min(7, (n_ctx - 12) // 2)
        clean(drafter, fake)

    def test_no_further_than_a_sequences_own_part_of_the_cells(self) -> None:
        drafter, fake = drafter_over(n_ctx=64)
        fake.n_ctx_seq = 10
        (first,) = drafter.propose([want([1, 2, 3])])
        assert drafter.go_ahead({0: first.tokens}, 9) == 3
        assert fake.length(0) == 9, "the last token was drawn, and is not read"

    @pytest.mark.parametrize("n_ctx", range(20, 45))
    @pytest.mark.parametrize("fresh", [0, 1, 2])
    @pytest.mark.parametrize(("keys", "count", "limit"), [((0, 1, 2), 2, 5), ((2,), 9, 1)])
    def test_all_of_them_have_room_for_what_follows(
        self, n_ctx: int, fresh: int, keys: tuple[int, ...], count: int, limit: int
    ) -> None:
        """Those that go on, even if they have more than they may say, and those that begin anew."""
        drafter, fake = drafter_over(n_seq=4, n_ctx=n_ctx)
        prompts = {key: [key, 2, 3] for key in range(3)}
        proposals = drafter.propose([want(ids, key=key) for key, ids in prompts.items()])
        drafter.go_ahead({key: proposals[key].tokens for key in keys}, count)
        ids = {key: [*ids, *said(ids, 5)] for key, ids in prompts.items()}
        for key in range(fresh):
            ids[key][-1] = (ids[key][-1] + 1) % 15
        limits = {2: limit, 1: 5, 0: 5}
        second = drafter.propose([want(ids[key], key, limits[key]) for key in limits])
        for key, proposal in zip(limits, second, strict=True):
            assert proposal.tokens in ((), said(ids[key], limits[key]))
        clean(drafter, fake)
        for key in ids:
            held = fake.tokens(key)
            assert held == (*ids[key], *said(ids[key], 9))[: len(held)]

    def test_a_limit_that_the_context_does_not_bear(self) -> None:
        """As without what was drafted ahead: all of it has to fit, or nothing is proposed."""
        drafter, _, ids = ahead([1, 2, 3], 5, n_ctx=13)
        assert drafter.ready(0, ids) == 4
        assert len(drafter.propose([want(ids, limit=6)])[0]) == 0
        assert drafter.propose([want(ids, limit=5)])[0].tokens == said(ids, 5)

    @pytest.mark.parametrize(
        "change",
        [
            lambda drafter, ids: drafter.rewind(0, len(ids)),
            lambda drafter, ids: drafter.rewind(0, 1),
            lambda drafter, ids: drafter.prepare(0, ids),
            lambda drafter, ids: drafter.forget(),
        ],
        ids=["rewind to here", "rewind", "prepare", "forget"],
    )
    def test_is_forgotten(self, change: Any) -> None:
        """It was drawn for another request, whose law and chance may be others."""
        drafter, fake, ids = ahead([1, 2, 3], 5)
        assert drafter.ready(0, ids) == 4
        change(drafter, ids)
        assert drafter.ready(0, ids) == 0
        fake.batches.clear()
        other = SharedNoise(6)
        fresh, _ = drafter_over()
        expected = fresh.propose([want(ids, chance=other)])
        assert drafter.propose([want(ids, chance=other)]) == expected
        assert expected[0].tokens != said(ids, 4)
        clean(drafter, fake)

    @pytest.mark.parametrize("key", [0, 1])
    def test_only_of_the_sequence_that_was_rewound(self, key: int) -> None:
        drafter, _, ids = ahead([1, 2, 3], 5, n_seq=2)
        drafter.rewind(key, 0)
        drafter.prepare(key, [1, 2])
        assert drafter.ready(0, ids) == (4 if key else 0)

    @pytest.mark.parametrize("rest", [0, 1, 2])
    def test_ids_may_say_more_of_it(self, rest: int) -> None:
        """Rounds in which nobody drafts."""
        drafter, fake, ids = ahead([1, 2, 3], 8)
        ids += said(ids, rest)
        assert drafter.ready(0, ids) == 7 - rest
        fake.batches.clear()
        assert drafter.propose([want(ids)])[0].tokens == said(ids, 4)
        assert not fake.batches

    @pytest.mark.parametrize("limit", [1, 2, 5, 9])
    @pytest.mark.parametrize("tree", [False, True])
    def test_another_drafter_used_the_same_cache(self, limit: int, tree: bool) -> None:
        drafter, fake, ids = ahead([1, 2, 3], 5, n_seq=2)
        follower = drafter._follower
        other = TreeDrafter(follower, first_branch=1) if tree else ModelDrafter(follower)
        other.propose([want(ids, limit=limit)])
        assert drafter.propose([want(ids, limit=6)])[0].tokens == said(ids, 6)
        clean(drafter, fake)

    def test_another_sequence_took_the_cells(self) -> None:
        drafter, fake, ids = ahead([1, 2, 3], 5, n_seq=2, n_ctx=16)
        assert drafter.propose([want([7, 7, 7, 7], key=1)])[0].tokens == said([7, 7, 7, 7], 4)
        assert fake.tokens(0) == ()
        assert drafter.propose([want(ids)])[0].tokens == said(ids, 4)
        clean(drafter, fake)

    def test_saved_states_are_not_put_at_risk(self) -> None:
        assert drafter_over()[0].runs_ahead
        assert not drafter_over(rollback="checkpoint")[0].runs_ahead

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    @pytest.mark.parametrize("when", ["before", "half", "after"])
    @pytest.mark.parametrize("call", range(3))
    def test_broken_off(self, error: type[BaseException], when: Any, call: int) -> None:
        drafter, fake = drafter_over()
        ids = [1, 2, 3]
        (first,) = drafter.propose([want(ids)])
        fake.faults[len(fake.batches) + call] = Fault(error, when)
        with pytest.raises(error):
            drafter.go_ahead({0: first.tokens}, 5)
        drafter.rewind(0, 0)
        ids += said(ids, 5)
        assert drafter.propose([want(ids)])[0].tokens == said(ids, 4)
        clean(drafter, fake)


def best_of(row: Any, path: Sequence[int]) -> tuple[int, float]:
    """What a greedy request asks instead of a law."""
    law = SAMPLER.distribution(row, ())
    return int(law.ids[law.probs.argmax()]), law.highest


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_proposals_are_those_of_a_drafter_that_never_goes_ahead(data: st.DataObject) -> None:
    """Token for token, law for law, and question for question to `go_on`, whatever that says."""
    draw = data.draw
    greedy = draw(st.booleans(), "greedy")
    one, plain = (ModelDrafter(Follower(FakeModel(WORDS, 400, n_seq=3))) for _ in range(2))
    texts = {key: [key, 2, 3] for key in range(draw(st.integers(1, 3), "sequences"))}
    for _ in range(draw(st.integers(2, 6), "rounds")):
        questions: tuple[list[Any], list[Any]] = ([], [])
        answers = {
            key: draw(
                st.lists(st.sampled_from([True, True, True, False]), min_size=12, max_size=12)
            )
            for key in texts
        }
        limits = {key: draw(st.integers(1, 5), "limit") for key in texts}

        def asked(
            key: int,
            seen: list[Any],
            answers: dict[int, list[bool]] = answers,
            limits: dict[int, int] = limits,
        ) -> Want:
            def go_on(n_drafted: int, confidence: float | None) -> bool:
                seen.append((key, n_drafted, confidence))
                return answers[key][2 * n_drafted + (confidence is not None)]

            made = want(texts[key], key, limits[key], keeps_laws=not greedy, go_on=go_on)
            return replace(made, best=best_of) if greedy else made

        found = one.propose([asked(key, questions[0]) for key in texts])
        expected = plain.propose([asked(key, questions[1]) for key in texts])
        for key, mine, true in zip(texts, found, expected, strict=True):
            assert mine.tokens == true.tokens
            mine_laws, true_laws = (
                [law and law.probs.tolist() for law in proposal.laws] for proposal in (mine, true)
            )
            assert mine_laws == true_laws
            of_key = [[q for q in seen if q[0] == key] for seen in questions]
            assert of_key[0] == of_key[1]
        count = draw(st.integers(0, 8), "count")
        drafted = {key: proposal.tokens for key, proposal in enumerate(found)}
        one.go_ahead({key: drafted[key] for key in texts if draw(st.booleans())}, count)
        for key, tokens in drafted.items():
            accepted = draw(st.sampled_from([0, 1, 2, 5, 5, 5]), "accepted")
            texts[key] += tokens[:accepted]
            row = WORDS(tuple(texts[key]))
            token = best_of(row, ())[0] if greedy else said(texts[key], 1)[0]
            texts[key].append(token if draw(st.integers(0, 3)) else draw(st.integers(0, 14)))
        clean(one, one.backend)  # type: ignore[arg-type]


def test_what_is_unread_is_what_the_cache_lacks() -> None:
    drafter, fake = drafter_over()
    ids = [1, 2, 3, 4, 5]
    assert drafter.unread(0, ids) == 5
    drafter.read(0, ids[:4])
    assert drafter.unread(0, ids) == 2, "all but the last of what it was shown"
    (proposal,) = drafter.propose([want(ids, limit=2)])
    assert len(proposal) == 2 and fake.length(0) == 6
    assert drafter.unread(0, [*ids, *proposal.tokens]) == 1
    assert drafter.unread(0, [*ids, *range(1, 10)]) == 8
    assert drafter.unread(0, ids[:3]) == 0


def test_reading_a_prompt_tells_what_catching_up_costs() -> None:
    """Of a drafter with a model only, and where the prompt is more than a few tokens."""
    for length, is_known in ((40, True), (4, False)):
        drafter, _ = drafter_over(n_ctx=64)
        engine = Engine(FakeModel(WORDS, n_ctx=64), [drafter])
        run(engine, request([1] * length, drafters=("model",), max_tokens=2))
        assert (engine.scheduler.costs.catching_up_s(100) > 0.0) == is_known
