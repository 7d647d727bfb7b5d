"""A tree that was partly read ahead is the tree the draft model draws alone, only sooner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.drafting import staged_tree
from specllama.drafting.follower import Follower
from specllama.drafting.protocol import Drafter, Want
from specllama.drafting.recycle import RecycleDrafter
from specllama.drafting.shapes import FixedShape, PlannedShape, Shape, ValueShape
from specllama.drafting.staged_tree import AheadGrowth, StagedTreeDrafter
from specllama.drafting.tree import TreeDrafter
from specllama.engine.engine import Engine
from specllama.errors import EngineError
from specllama.sampling.chain import Sampler
from specllama.sampling.noise import GreedyDrafts, RandomStream, SharedNoise
from specllama.sampling.params import SamplingParams
from specllama.verification.recursive import without_replacement
from specllama.verification.traversal import traversal
from specllama.verification.types import Proposal
from tests.drafting.test_staged import PROMPT, V, ask, fake, law_of_row, logits_of
from tests.engine.fake_model import N_VOCAB, FakeModel, Fault, Language, language, near
from tests.engine.harness import check, expected, finish, request, run
from tests.verification.enumeration import (
    Model,
    Tokens,
    Trace,
    law_of,
    round_distance,
    total_variation,
)
from tests.verification.models import KINDS, pair

EXACT = 1e-12
BRANCHES = 6
SHAPES: dict[str, Shape] = {
    "2,2": FixedShape((2, 2)),
    "1,2": FixedShape((1, 2)),
    "planned": PlannedShape((((), ()), ())),
}


class Trees(Drafter):
    """Guesses what a function says: (ids, want) -> a proposal."""

    name = "guesses"

    def __init__(self, says: Callable[[Tokens, Want], Proposal]) -> None:
        self._says = says

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        return [self._says(tuple(want.ids), want) for want in wants]


def nothing(ids: Tokens, want: Want) -> Proposal:
    return Proposal()


def some(ids: Tokens, want: Want) -> Proposal:
    """A tree of any form that fits, of tokens up to 2."""
    random = np.random.default_rng([7, *ids])
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    leaves = 1 + want.branches
    for _ in range(int(random.integers(0, want.nodes + 1))):
        parent = int(random.integers(-1, len(tokens)))
        depth = 1 if parent < 0 else depths[parent] + 1
        token = int(random.integers(0, V))
        siblings = [t for t, p in zip(tokens, parents, strict=True) if p == parent]
        new_leaf = bool(siblings) or parent < 0
        if depth > want.limit or token in siblings or (new_leaf and leaves == 0):
            continue
        leaves -= new_leaf
        tokens.append(token)
        parents.append(parent)
        depths.append(depth)
    return Proposal(tuple(tokens), tuple(parents), (None,) * (len(tokens) + 1), "guesses")


GUESSERS: dict[str, Callable[[], Drafter]] = {
    "none": lambda: Trees(nothing),
    "some": lambda: Trees(some),
    "recycle": lambda: RecycleDrafter(V),
}
every_guesser = pytest.mark.parametrize("guesser", GUESSERS.values(), ids=GUESSERS)


def staged(model: FakeModel, guesser: Drafter) -> StagedTreeDrafter:
    return StagedTreeDrafter(Follower(model), 1, [guesser])


def drafted(drafter: Drafter, context: Tokens, chance: Any, shape: Shape) -> Proposal:
    ids = (*PROMPT, *context)
    drafter.prepare(0, ids)
    wanted = ask(ids, shape.depth, chance, law=law_of_row, branches=BRANCHES, shape=shape)
    (proposal,) = drafter.propose([wanted])
    assert len(proposal) >= shape.depth
    return proposal


def model_of(draft: Model) -> FakeModel:
    return fake(logits_of(draft), n_seq=1 + 2 * BRANCHES, n_ctx=256)


# --- the law, by exhaustion


@every_guesser
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_tree_has_the_law_of_the_draft_model(
    guesser: Callable[[], Drafter], kind: str, shape: Shape
) -> None:
    _, draft = pair(kind, 0)

    def tree(make: Callable[[], Drafter]) -> Callable[[Trace], Tokens]:
        def run(chance: Trace) -> Tokens:
            proposal = drafted(make(), (), chance, shape)
            return (*proposal.tokens, -1, *proposal.parents)

        return run

    alone = law_of(tree(lambda: TreeDrafter(Follower(model_of(draft)), 1)))
    ahead = law_of(tree(lambda: staged(model_of(draft), guesser())))
    assert total_variation(ahead, alone) < EXACT


@pytest.mark.parametrize("verify", [without_replacement, traversal])
@pytest.mark.parametrize("kind", KINDS)
def test_the_target_keeps_its_law(verify: Any, kind: str) -> None:
    target, draft = pair(kind, 5)

    def draws(model: Model, chance: Any, context: Tokens) -> Proposal:
        return drafted(staged(model_of(model), Trees(some)), context, chance, SHAPES["1,2"])

    assert round_distance(verify, draws, target, draft, 3) < EXACT


class TakesAnyRow(AheadGrowth):
    """A mutant: what was read behind a token is taken for any node of that token."""

    def _decode(self, nodes: Sequence[int]) -> Any:
        by_token = {path[-1:]: read for path, read in self.ahead.items()}
        for node in nodes:
            path = tuple(self._path(node))
            if path[-1:] in by_token:
                self.ahead[path] = by_token[path[-1:]]
        return super()._decode(nodes)


def test_a_row_of_another_path_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The instrument itself."""
    monkeypatch.setattr(staged_tree, "AheadGrowth", TakesAnyRow)
    _, draft = pair("random", 0)
    shape = FixedShape((1, 2, 2))

    def tree(make: Callable[[], Drafter]) -> Callable[[Trace], Tokens]:
        return lambda chance: drafted(make(), (), chance, shape).tokens

    alone = law_of(tree(lambda: TreeDrafter(Follower(model_of(draft)), 1)))
    wrong = law_of(tree(lambda: staged(model_of(draft), Trees(chain_of_ones))))
    assert total_variation(wrong, alone) > 0.01


def chain_of_ones(ids: Tokens, want: Want) -> Proposal:
    return Proposal.chain([1] * want.limit, source="guesses")


# --- the same tree as the draft model alone, node for node


def right(says: Language, share: float = 1.0, seed: int = 0) -> Trees:
    """Guesses the two likeliest tokens after each path, with some tokens wrong."""
    random = np.random.default_rng(seed)

    def tree(ids: Tokens, want: Want) -> Proposal:
        tokens: list[int] = []
        parents: list[int] = []
        level: list[tuple[int, Tokens]] = [(-1, ids)]
        leaves = 1 + want.branches
        for _ in range(want.limit):
            below = []
            for parent, path in level:
                for rank, token in enumerate(np.argsort(-says(path))[:2]):
                    new_leaf = rank > 0 or parent < 0
                    if len(tokens) == want.nodes or (new_leaf and leaves == 0):
                        continue
                    leaves -= new_leaf
                    guess = int(token) if random.random() < share else (int(token) + 3) % N_VOCAB
                    below.append((len(tokens), (*path, guess)))
                    tokens.append(guess)
                    parents.append(parent)
            level = below
        return Proposal(tuple(tokens), tuple(parents), (None,) * (len(tokens) + 1), "guesses")

    return Trees(tree)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    chance=st.sampled_from([SharedNoise, RandomStream, GreedyDrafts]),
    shape=st.sampled_from(
        [
            FixedShape((2, 2, 1)),
            FixedShape((3, 1, 2)),
            FixedShape((1, 1, 1, 1)),
            ValueShape(7, 3, 4),
        ]
    ),
    share=st.sampled_from([0.0, 0.6, 1.0]),
    rollback=st.sampled_from(["free", "checkpoint"]),
    n_outputs=st.sampled_from([4, 64]),
)
def test_the_tree_is_the_one_the_draft_model_draws_alone(
    seed: int, chance: Any, shape: Shape, share: float, rollback: Any, n_outputs: int
) -> None:
    says = language(seed, spread=2.5)
    law = Sampler(SamplingParams(top_k=6)).distribution
    if rollback == "checkpoint":
        shape = FixedShape((1, 1, 1))
    n_outputs = max(n_outputs, 4 * shape.depth) if n_outputs > 4 else 12
    fakes = [
        FakeModel(says, n_ctx=200, n_batch=40, n_outputs=n_outputs, n_seq=20, rollback=rollback)
        for _ in range(2)
    ]
    pairs = [staged(fakes[0], right(says, share, seed)), TreeDrafter(Follower(fakes[1]), 1)]
    chances = [chance(seed), chance(seed)]
    random = np.random.default_rng(seed)
    ids = [1, 2, 3]
    for drafter in pairs:
        drafter.prepare(0, ids)
    for _ in range(4):
        found = []
        for drafter, own in zip(pairs, chances, strict=True):
            wanted = ask(
                list(ids), 4, own, law=law, branches=8, nodes=16, shape=shape, keeps_laws=False
            )
            found += drafter.propose([wanted])
        assert found[0].tokens == found[1].tokens
        assert found[0].parents == found[1].parents
        path = found[0].path(int(random.integers(-1, len(found[0]))))
        ids += [*path, int(random.integers(0, N_VOCAB))]
    for model, drafter in zip(fakes, pairs, strict=True):
        assert model.held <= {0}
        assert drafter._follower.cache.length(0) == model.length(0)


# --- fewer decodes, and how many


def grown(guesser: Drafter) -> tuple[FakeModel, StagedTreeDrafter]:
    says = language(6)
    model = FakeModel(says, n_ctx=256, n_batch=40, n_seq=20)
    drafter = staged(model, guesser)
    drafter.prepare(0, [1, 2, 3])
    wanted = ask(
        [1, 2, 3],
        3,
        GreedyDrafts(0),
        law=Sampler(SamplingParams(top_k=0, top_p=1.0, min_p=0.0)).distribution,
        branches=8,
        shape=FixedShape((2, 2, 1)),
        keeps_laws=False,
    )
    drafter.propose([wanted])
    return model, drafter


def test_right_guesses_take_one_decode() -> None:
    model, drafter = grown(right(language(6)))
    assert model.batches == [3 + 6]  # the prompt and all six nodes that have children
    stage = drafter.stages[0]
    assert (stage.rounds, stage.drafted, stage.tested, stage.accepted) == (1, 6, 6, 6)
    assert stage.by_source["guesses"].accepted == 6
    assert [depth.accepted for depth in stage.by_depth] == [2, 4]


def test_wrong_guesses_take_as_many_decodes_as_none() -> None:
    without, none = grown(Trees(nothing))
    model, drafter = grown(right(language(6), share=0.0))
    assert without.batches == [3, 2, 4]
    assert len(model.batches) == 3
    assert drafter.stages[0].accepted == 0 < drafter.stages[0].drafted
    assert (none.stages[0].rounds, none.stages[0].drafted) == (3, 0)


def test_half_right_guesses_are_decoded_by_half() -> None:
    """Below the first guessed node everything was read, below its sibling nothing."""
    whole = right(language(6))

    def half(ids: Tokens, want: Want) -> Proposal:
        (guess,) = whole.propose([want])
        return guess.only(
            [node for node in range(len(guess)) if guess.path(node)[0] == guess.tokens[0]]
        )

    model, _ = grown(Trees(half))
    assert model.batches == [3 + 3, 1, 2]


def test_the_draft_model_teaches_its_guesser() -> None:
    says = language(6)
    model = FakeModel(says, n_ctx=256, n_batch=40, n_seq=20)
    drafter = staged(model, RecycleDrafter(N_VOCAB))
    law = Sampler(SamplingParams(top_k=5)).distribution
    wanted = ask([1, 2, 3], 3, GreedyDrafts(0), law=law, branches=8, shape=FixedShape((1, 1, 1)))
    drafter.propose([wanted])
    before = len(model.batches)
    drafter.propose([wanted])
    assert len(model.batches) - before < before


# --- in the engine


def engine_with(says: Language, **settings: Any) -> Engine:
    draft = FakeModel(near(says, 9, share=0.3), n_ctx=128, n_seq=12, n_batch=40, **settings)
    return Engine(FakeModel(says, n_seq=8, n_batch=40), [staged(draft, RecycleDrafter(N_VOCAB))])


@pytest.mark.parametrize("rule", ["coupled", "match"])
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), SamplingParams(top_k=6)])
@pytest.mark.parametrize("shape", [None, FixedShape((2, 2, 1)), ValueShape(8, 3, 4)])
def test_the_engine_says_the_same(rule: str, sampling: SamplingParams, shape: Shape | None) -> None:
    says, hits = language(4), 0
    for seed in range(4):
        asked = request(
            [1, 2, 3], rule, drafters=("staged-tree",), sampling=sampling, seed=seed, shape=shape
        )
        engine = engine_with(says)
        outcome = run(engine, asked)
        assert outcome.tokens == expected(says, asked)[0]
        inner = engine.inner_stats(outcome.live)
        assert inner is not None
        assert inner.rounds > 0
        hits += inner.accepted
    assert hits > 0


@pytest.mark.parametrize("shape", [FixedShape((1, 5, 1)), FixedShape((3, 2)), FixedShape((6,))])
@pytest.mark.parametrize("n_spare", [1, 3, 5])
def test_as_wide_as_there_are_sequences(shape: Shape, n_spare: int) -> None:
    says = language(4)
    draft = FakeModel(near(says, 9, share=0.3), n_ctx=128, n_seq=1 + n_spare, n_batch=40)
    target = FakeModel(says, n_seq=1 + n_spare, n_batch=40)
    engine = Engine(target, [staged(draft, RecycleDrafter(N_VOCAB))])
    sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    asked = request([1, 2, 3], drafters=("staged-tree",), sampling=sampling, shape=shape)
    assert run(engine, asked).tokens == expected(says, asked)[0]


@pytest.mark.parametrize("n_ctx", [48, 50, 52, 56, 60, 64])
def test_up_to_the_end_of_the_drafts_context(n_ctx: int) -> None:
    """Guesses need cells, too; where there are none, it goes on without them."""
    says = language(4)
    draft = FakeModel(near(says, 9, share=0.3), n_ctx=n_ctx, n_seq=12, n_batch=40)
    target = FakeModel(says, n_seq=8, n_batch=40)
    engine = Engine(target, [staged(draft, RecycleDrafter(N_VOCAB))])
    asked = request(
        [1, 2, 3, 1, 2, 3], drafters=("staged-tree",), shape=FixedShape((2, 2, 1)), max_tokens=30
    )
    outcome = run(engine, asked)
    assert outcome.tokens == expected(says, asked)[0]
    assert outcome.live.stats.accepted > 0


@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("number", [2, 3])
def test_a_draft_decode_that_breaks_off_leaves_everything_consistent(
    when: Any, number: int
) -> None:
    says = language(4)
    asked = request([1, 2, 3], drafters=("staged-tree",), shape=FixedShape((2, 2, 1)))
    engine = engine_with(says, faults={number: Fault(EngineError, when)})
    live = engine.add(asked)
    with pytest.raises(EngineError, match="broken off"):
        for _ in range(20):
            engine.step()
    check(engine, [live])
    outcome = finish(engine, live)
    assert outcome.live.ids[3:] == expected(says, asked)[0]
