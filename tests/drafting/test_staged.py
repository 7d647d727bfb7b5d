from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.drafting.follower import Follower
from specllama.drafting.model import ModelDrafter
from specllama.drafting.protocol import Drafter, Seen, Want
from specllama.drafting.recycle import RecycleDrafter
from specllama.drafting.shapes import FixedShape
from specllama.drafting.staged import StagedDrafter
from specllama.drafting.text import TextDrafter
from specllama.engine.engine import Engine
from specllama.errors import EngineError
from specllama.sampling.chain import Sampler
from specllama.sampling.distribution import Distribution
from specllama.sampling.noise import GreedyDrafts, RandomStream, SharedNoise
from specllama.sampling.params import SamplingParams
from specllama.verification.block import block
from specllama.verification.match import match
from specllama.verification.rejection import rejection
from specllama.verification.types import Proposal, Verify
from tests.engine.fake_model import END, N_VOCAB, FakeModel, Fault, Language, language, near
from tests.engine.harness import PLAIN, check, expected, finish, request, run
from tests.verification.enumeration import (
    Model,
    Tokens,
    Trace,
    completed,
    distance,
    law_of,
    one_round,
    round_distance,
    total_variation,
)
from tests.verification.models import KINDS, V, pair

EXACT = 1e-12
WRONG = 0.01
PROMPT = (0,)


class Guesses(Drafter):
    """Guesses what a function of the ids says; checks that it sees what a drafter has to see."""

    name = "guesses"

    def __init__(self, says: Callable[[Tokens], Sequence[int]]) -> None:
        self._says = says
        self.shown: list[int] = []

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        return [self._propose(want) for want in wants]

    def _propose(self, want: Want) -> Proposal:
        ids = list(want.ids)
        assert ids[: len(self.shown)] == self.shown, "ids changed without a rewind"
        assert want.limit >= 1
        self.shown = ids
        return Proposal.chain(list(self._says(tuple(ids)))[: want.limit], source=self.name)

    def rewind(self, key: int, length: int) -> None:
        del self.shown[length:]


def always(*tokens: int) -> Callable[[Tokens], Sequence[int]]:
    return lambda ids: tokens


def hashed(n_vocab: int, seed: int = 0) -> Callable[[Tokens], Sequence[int]]:
    """A guess that depends on everything said, of any length up to 4."""

    def says(ids: Tokens) -> Sequence[int]:
        random = np.random.default_rng([seed, *ids])
        return [int(t) for t in random.integers(0, n_vocab, random.integers(0, 5))]

    return says


# --- the law, by exhaustion


def logits_of(model: Model) -> Language:
    """A fake draft model whose rows are log-probabilities of a toy model."""

    @cache
    def row(context: Tokens) -> np.ndarray:
        dense = np.zeros(V)
        law = model(context[len(PROMPT) :])
        dense[law.ids] = law.probs
        with np.errstate(divide="ignore"):
            return np.log(dense).astype(np.float32)

    return row


def law_of_row(row: np.ndarray, path: Sequence[int] = ()) -> Distribution:
    found = Distribution.from_weights(np.arange(V), np.exp(row.astype(np.float64)))
    assert found is not None
    return found


def q_of(model: Model) -> Model:
    """The law that the drafter really sees: the toy model's after a trip through float32 logits."""
    rows = logits_of(model)
    return lambda context: law_of_row(rows((*PROMPT, *context)))


def staged(
    guesser: Callable[[], Drafter],
    length: int,
    go_on: Callable[[int, float | None], bool] = lambda drafted, confidence: True,
) -> Any:
    """A drafter for the harness: the real one, over a fake draft model."""

    def draft(model: Model, chance: Any, context: Tokens) -> Proposal:
        ids = (*PROMPT, *context)
        drafter = StagedDrafter(Follower(fake(logits_of(model))), [guesser()])
        drafter.prepare(0, ids)
        drafter.read(0, ids)
        (proposal,) = drafter.propose([ask(ids, length, chance, law=law_of_row, go_on=go_on)])
        return proposal

    return draft


def fake(rows: Language, **settings: Any) -> FakeModel:
    return FakeModel(rows, **{"n_vocab": V} | settings)


def ask(ids: Sequence[int], limit: int, chance: Any, **settings: Any) -> Want:
    defaults: dict[str, Any] = {
        "key": 0,
        "nodes": 64,
        "branches": 0,
        "shape": FixedShape((1,)),
        "keeps_laws": True,
        "go_on": lambda drafted, confidence: True,
    }
    return Want(ids=ids, limit=limit, chance=chance, **(defaults | settings))


GUESSERS: dict[str, Callable[[], Drafter]] = {
    "none": lambda: Guesses(always()),
    "constant": lambda: Guesses(always(0, 0, 0)),
    "mixed": lambda: Guesses(always(1, 2, 0)),
    "any": lambda: Guesses(hashed(V)),
    "recycle": lambda: RecycleDrafter(V),
}
every_guesser = pytest.mark.parametrize("guesser", GUESSERS.values(), ids=GUESSERS)


@every_guesser
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_chain_has_the_law_of_the_draft_model(
    guesser: Callable[[], Drafter], kind: str, length: int
) -> None:
    for seed in range(2):
        _, draft = pair(kind, seed)

        def chain(chance: Trace, draft: Model = draft) -> Tokens:
            return tuple(staged(guesser, length)(draft, chance, ()).tokens)

        alone = completed({(): 1.0}, q_of(draft), length)
        assert total_variation(law_of(chain), alone) < EXACT


@every_guesser
@pytest.mark.parametrize("verify", [rejection, block, match])
@pytest.mark.parametrize("kind", KINDS)
def test_the_target_keeps_its_law(
    guesser: Callable[[], Drafter], verify: Verify[Trace], kind: str
) -> None:
    target, draft = pair(kind, 5)
    for length in (1, 3):
        assert round_distance(verify, staged(guesser, length), target, draft, length + 1) < EXACT


@pytest.mark.parametrize("verify", [rejection, block, match])
@pytest.mark.parametrize("kind", KINDS)
def test_stopping_by_confidence_keeps_the_law(verify: Verify[Trace], kind: str) -> None:
    def sure(drafted: int, confidence: float | None) -> bool:
        return confidence is None or confidence > 0.5

    target, draft = pair(kind, 8)
    drafter = staged(GUESSERS["any"], 3, sure)
    assert round_distance(verify, drafter, target, draft, 4) < EXACT


@pytest.mark.parametrize("verify", [rejection, block, match])
def test_two_rounds_keep_the_law(verify: Verify[Trace]) -> None:
    """The draft's cache and what the guesser learned go on from the first round to the second."""
    target, draft = pair("random", 4)

    def run_two(chance: Trace) -> Tokens:
        drafter = StagedDrafter(Follower(fake(logits_of(draft))), [RecycleDrafter(V)])
        drafter.prepare(0, PROMPT)
        drafter.read(0, PROMPT)
        said: Tokens = ()
        for length in (2, 1):
            wanted = ask((*PROMPT, *said), length, chance, law=law_of_row)
            (proposal,) = drafter.propose([wanted])
            said += one_round(verify, proposal, target, chance, said)[0]
        return said

    assert distance(law_of(run_two), target, 4) < EXACT


class TakesGuesses(StagedDrafter):
    """A mutant: what was guessed and is likely is taken without a draw."""

    def _draw(self, chain: Any, rows: Any) -> int:
        draws, guesses = chain.want.chance, iter(list(chain.guess))

        class Trusting:
            def children(self, law: Distribution, position: int, count: int) -> list[int]:
                guess = next(guesses, None)
                if guess is not None and law.prob(guess) > 0.3:
                    return [guess]
                return draws.children(law, position, count)

        honest = chain.want
        chain.want = replace(honest, chance=Trusting())
        accepted = super()._draw(chain, rows)
        chain.want = honest
        return accepted


def test_the_harness_catches_a_drafter_that_takes_guesses_undrawn() -> None:
    distances = []
    for seed in range(6):
        target, draft = pair("random", seed)

        def drafted(model: Model, chance: Any, context: Tokens) -> Proposal:
            drafter = TakesGuesses(Follower(fake(logits_of(model))), [Guesses(always(0, 1, 2))])
            (proposal,) = drafter.propose([ask((*PROMPT, *context), 3, chance, law=law_of_row)])
            return proposal

        distances.append(round_distance(rejection, drafted, target, draft, 4))
    assert max(distances) > WRONG


# --- the same chain as the draft model alone, token for token


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    chance=st.sampled_from([SharedNoise, RandomStream, GreedyDrafts]),
    rollback=st.sampled_from(["free", "checkpoint"]),
    limits=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    p_min=st.sampled_from([0.0, 0.2, 0.5]),
    n_batch=st.sampled_from([12, 20, 40]),
)
def test_the_chain_is_the_one_the_draft_model_draws_alone(
    seed: int, chance: Any, rollback: Any, limits: list[int], p_min: float, n_batch: int
) -> None:
    says = language(seed, spread=3.0)
    law = Sampler(SamplingParams(top_k=5, top_p=0.9)).distribution

    def fixed(drafted: int, confidence: float | None) -> bool:
        return confidence is None or confidence >= p_min

    fakes = [
        FakeModel(says, n_ctx=128, n_batch=n_batch, rollback=rollback, n_seq=2) for _ in range(2)
    ]
    guesser = Guesses(hashed(N_VOCAB, seed))
    drafters = StagedDrafter(Follower(fakes[0]), [guesser]), ModelDrafter(Follower(fakes[1]))
    chances = [[chance(seed + key) for key in range(2)] for _ in drafters]
    random = np.random.default_rng(seed)
    texts = [[1, 2, 3], [4, 5]]
    for drafter in drafters:
        for key, ids in enumerate(texts):
            drafter.prepare(key, ids)
            drafter.read(key, ids)
    for limit in limits:
        found = []
        for drafter, own in zip(drafters, chances, strict=True):
            guesser.shown = []
            found.append([])
            for key, ids in enumerate(texts):
                guesser.shown = []
                wanted = ask(list(ids), limit, own[key], key=key, law=law, go_on=fixed)
                found[-1] += drafter.propose([wanted])
        for ours, alone in zip(*found, strict=True):
            assert ours.tokens == alone.tokens
            assert len(ours.laws) == len(alone.laws)
            for mine, theirs in zip(ours.laws[:-1], alone.laws[:-1], strict=True):
                assert mine is not None and theirs is not None
                assert np.array_equal(mine.ids, theirs.ids)
                assert np.array_equal(mine.probs, theirs.probs)
        for ids, proposal in zip(texts, found[0], strict=True):
            kept = random.integers(0, len(proposal) + 1)
            ids += [*proposal.tokens[:kept], int(random.integers(0, N_VOCAB))]


@pytest.mark.parametrize(("n_batch", "n_outputs"), [(16, 16), (24, 24), (64, 64), (64, 5)])
def test_sequences_drafted_together_are_drafted_as_alone(n_batch: int, n_outputs: int) -> None:
    """In one batch or, where that is too small or has too few rows of logits, in several."""
    says = language(2)
    law = Sampler(PLAIN).distribution
    texts = [[1, 2, 3, 4, 5], [6], [7, 8, 9]]

    def drafted(together: bool) -> list[Tokens]:
        model = FakeModel(says, n_ctx=128, n_batch=n_batch, n_outputs=n_outputs, n_seq=3)
        drafter = StagedDrafter(Follower(model), [RecycleDrafter(N_VOCAB)])
        teach(drafter, says)
        wants = [ask(t, 7, SharedNoise(1), key=k, law=law) for k, t in enumerate(texts)]
        proposals = drafter.propose(wants) if together else [drafter.propose([w])[0] for w in wants]
        assert [model.length(key) for key in range(3)] == [
            drafter._follower.cache.length(key) for key in range(3)
        ]
        return [proposal.tokens for proposal in proposals]

    assert drafted(together=True) == drafted(together=False)


def teach(drafter: StagedDrafter, says: Language) -> None:
    for guesser in drafter._guessers:
        guesser.observe(0, [Seen(token, says((token,))) for token in range(N_VOCAB)])


# --- fewer decodes, and how many


def right(says: Language) -> Callable[[Tokens], Sequence[int]]:
    """What a greedy model goes on to say, 8 tokens of it."""

    def tokens(ids: Tokens) -> list[int]:
        path = list(ids)
        for _ in range(8):
            path.append(int(np.argmax(says(tuple(path)))))
        return path[len(ids) :]

    return tokens


def greedy_chain(guesser: Drafter, limit: int = 8) -> tuple[FakeModel, StagedDrafter, Proposal]:
    says = language(6)
    model = FakeModel(says)
    drafter = StagedDrafter(Follower(model), [guesser])
    drafter.prepare(0, [1, 2, 3])
    drafter.read(0, [1, 2, 3])
    law = Sampler(PLAIN).distribution
    (proposal,) = drafter.propose([ask([1, 2, 3], limit, GreedyDrafts(0), law=law)])
    assert list(proposal.tokens) == right(says)((1, 2, 3))[:limit]
    return model, drafter, proposal


def test_right_guesses_take_one_decode() -> None:
    model, drafter, _ = greedy_chain(Guesses(right(language(6))))
    assert model.batches == [2, 8]  # the prompt but its last token; that one and 7 guesses
    stage = drafter.stages[0]
    assert (stage.rounds, stage.drafted, stage.tested, stage.accepted) == (1, 7, 7, 7)
    assert stage.by_source["guesses"].accepted == 7
    assert [depth.accepted for depth in stage.by_depth] == [1] * 7
    assert stage.tokens_per_round == 8.0


def test_wrong_guesses_take_as_many_decodes_as_no_guesses() -> None:
    def wrong(ids: Tokens) -> list[int]:
        return [(token + 1) % END for token in right(language(6))(ids)]

    without, none, _ = greedy_chain(Guesses(always()))
    model, drafter, _ = greedy_chain(Guesses(wrong))
    assert len(model.batches) == len(without.batches) == 9
    assert without.batches == [2] + [1] * 8
    stage = drafter.stages[0]
    assert (stage.rounds, stage.drafted, stage.tested, stage.accepted) == (8, 28, 7, 0)
    assert [depth.tested for depth in stage.by_depth] == [7, *[0] * 6]
    assert (none.stages[0].rounds, none.stages[0].drafted) == (8, 0)


def test_a_guesser_without_a_guess_leaves_it_to_the_next() -> None:
    model = FakeModel(language(6))
    drafter = StagedDrafter(
        Follower(model), [Guesses(always()), TextDrafter(), Guesses(right(language(6)))]
    )
    drafter.prepare(0, [1, 2, 3])
    drafter.read(0, [1, 2, 3])
    law = Sampler(PLAIN).distribution
    drafter.propose([ask([1, 2, 3], 8, GreedyDrafts(0), law=law)])
    assert len(model.batches) == 2


def test_guessers_are_rewound_to_what_was_said() -> None:
    guesser = Guesses(always(END))
    _, drafter, proposal = greedy_chain(guesser)
    other = (proposal.tokens[0] + 1) % END
    law = Sampler(PLAIN).distribution
    drafter.propose([ask([1, 2, 3, other], 4, GreedyDrafts(0), law=law)])
    assert guesser.shown == [1, 2, 3, other]


def test_a_rewind_reaches_the_guessers() -> None:
    guesser = Guesses(always(END))
    _, drafter, _ = greedy_chain(guesser)
    drafter.rewind(0, 1)
    assert guesser.shown == [1]


def test_a_new_generation_is_one_for_the_guessers_too() -> None:
    text = TextDrafter()
    _, drafter, _ = greedy_chain(text)
    text.predict(0, [4, 5])
    assert text.idea(0, [1, 2, 3])
    drafter.prepare(0, [1, 2, 3])
    assert not text.idea(0, [1, 2, 3])


def test_nothing_is_remembered_when_it_forgets() -> None:
    recycle = RecycleDrafter(N_VOCAB)
    model, drafter, _ = greedy_chain(recycle)
    assert recycle.successors(3)
    drafter.forget()
    assert recycle.successors(3) == []
    assert drafter.inner_stats(0) is None
    assert model.length(0) == 0


def partly_right(ids: Tokens) -> list[int]:
    """Two tokens that the draft model will say, and one that it will not."""
    first, second, third = right(language(6))(ids)[:3]
    return [first, second, (third + 1) % END]


def test_guesses_that_were_right_are_not_read_again() -> None:
    model, _, _ = greedy_chain(Guesses(partly_right))
    # the prompt; a token and three guesses, of which it says two; at last there is room for one
    assert model.batches == [2, 4, 4, 2]


def test_a_decode_counts_at_each_depth_that_was_guessed() -> None:
    _, drafter, _ = greedy_chain(Guesses(partly_right))
    assert [(d.drafted, d.accepted) for d in drafter.stages[0].by_depth] == [(3, 3), (2, 2), (2, 0)]


def test_whether_to_go_on_is_asked_about_the_draft_models_tokens_alone() -> None:
    class Asking(Guesses):
        def _propose(self, want: Want) -> Proposal:
            assert want.go_on(0, -1.0), "a guess is always worth it"
            return super()._propose(want)

    asked: list[float | None] = []

    def sure(drafted: int, confidence: float | None) -> bool:
        asked.append(confidence)
        return True

    drafter = StagedDrafter(Follower(FakeModel(language(6))), [Asking(partly_right)])
    law = Sampler(PLAIN).distribution
    drafter.propose([ask([1, 2, 3], 8, GreedyDrafts(0), law=law, go_on=sure)])
    assert -1.0 not in asked and len(asked) > 8


def test_where_no_look_is_worth_it_nothing_is_read() -> None:
    model = FakeModel(language(6))
    drafter = StagedDrafter(Follower(model), [Guesses(always(1))])
    law, never = Sampler(PLAIN).distribution, lambda drafted, confidence: False
    (proposal,) = drafter.propose([ask([1, 2, 3], 8, GreedyDrafts(0), law=law, go_on=never)])
    assert len(proposal) == 0 and model.batches == []


def test_what_the_draft_model_teaches_is_what_it_said_where_it_said_it() -> None:
    taught: list[tuple[int, int]] = []

    class Learner(Guesses):
        learns = True

        def observe(self, key: int, seen: Sequence[Seen]) -> None:
            taught.extend((one.token, int(np.argmax(one.row))) for one in seen)

    _, _, proposal = greedy_chain(Learner(partly_right))
    assert taught == [*pairwise([3, *proposal.tokens])]


def test_a_new_generation_counts_anew() -> None:
    _, drafter, _ = greedy_chain(Guesses(always()))
    drafter.prepare(0, [1, 2, 3])
    drafter.read(0, [1, 2, 3])
    assert drafter.stages[0].rounds == 0


def test_the_draft_model_teaches_its_guesser() -> None:
    """A text said before is guessed; the target never showed it anything."""
    says = language(6)
    model = FakeModel(says, n_ctx=256)
    drafter = StagedDrafter(Follower(model), [RecycleDrafter(N_VOCAB)])
    law = Sampler(PLAIN).distribution
    wanted = ask([1, 2, 3], 8, GreedyDrafts(0), law=law)
    drafter.propose([wanted])
    before = len(model.batches)
    drafter.propose([wanted])
    assert len(model.batches) - before < before


def test_foreign_guesses_are_cut_off() -> None:
    _, drafter, _ = greedy_chain(Guesses(always(N_VOCAB + 5, 1)))
    assert drafter.stages[0].drafted == 0


def test_nothing_is_drafted_where_the_draft_has_no_room() -> None:
    model = FakeModel(language(1), n_ctx=16)
    drafter = StagedDrafter(Follower(model), [Guesses(always(1))])
    law = Sampler(PLAIN).distribution
    (proposal,) = drafter.propose([ask(list(range(12)), 8, GreedyDrafts(0), law=law)])
    assert len(proposal) == 0
    assert drafter.stages.get(0) is None


# --- in the engine


def engine_with(says: Language, rollback: Any = "free", **settings: Any) -> Engine:
    draft = FakeModel(near(says, 9, share=0.3), rollback=rollback, **settings)
    drafter = StagedDrafter(Follower(draft), [RecycleDrafter(N_VOCAB)])
    return Engine(FakeModel(says), [drafter])


@pytest.mark.parametrize("rollback", ["free", "checkpoint"])
@pytest.mark.parametrize("rule", ["coupled", "match"])
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), SamplingParams(top_k=6)])
def test_the_engine_says_the_same(rule: str, sampling: SamplingParams, rollback: Any) -> None:
    says, accepted = language(4), 0
    for seed in range(4):
        asked = request([1, 2, 3], rule, drafters=("staged",), sampling=sampling, seed=seed)
        engine = engine_with(says, rollback)
        outcome = run(engine, asked)
        assert outcome.tokens == expected(says, asked)[0]
        accepted += outcome.stats.accepted
    assert accepted > 0


@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_a_draft_decode_that_breaks_off_leaves_everything_consistent(when: Any) -> None:
    says = language(4)
    asked = request([1, 2, 3], drafters=("staged",))
    engine = engine_with(says, faults={3: Fault(EngineError, when)})
    live = engine.add(asked)
    with pytest.raises(EngineError, match="broken off"):
        for _ in range(20):
            engine.step()
    check(engine, [live])
    outcome = finish(engine, live)
    assert outcome.live.ids[3:] == expected(says, asked)[0]
