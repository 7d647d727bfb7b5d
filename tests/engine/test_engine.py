"""The engine by its promises: what is drafted decides how fast a text comes, never what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from specllama.drafting.follower import Follower
from specllama.drafting.model import ModelDrafter
from specllama.drafting.protocol import Seen, Want
from specllama.drafting.suffix import SuffixDrafter
from specllama.engine.engine import Engine
from specllama.errors import ContextFull, EngineError, UsageError
from specllama.sampling.params import SamplingParams
from specllama.verification import RULES
from specllama.verification.types import Proposal
from tests.engine.fake_model import END, N_VOCAB, FakeModel, Fault, Language, Row, language, near
from tests.engine.harness import (
    GREEDY,
    PLAIN,
    Outcome,
    Script,
    check,
    expected,
    finish,
    request,
    right,
    run,
    watch_for,
)

PROMPT = (3, 1, 4, 1, 5)
ROLLBACKS = ("free", "checkpoint")
EXACT = ("coupled", "match")
TREES = [name for name, rule in RULES.items() if rule.shape == "tree"]


def ending_late(seed: int = 0, after: int = 40) -> Language:
    """A language whose end token is impossible in the first `after` tokens."""
    words = language(seed)

    def row(context: tuple[int, ...]) -> Any:
        logits = words(context).copy()
        logits[END] = -50.0 if len(context) < after else logits[END]
        return logits

    return row


WORDS = ending_late(after=60)
ORACLE = right(WORDS)


def wrong(oracle: Any) -> Any:
    """The same number of tokens, each another one than the target says."""
    return lambda ids, count: [(token + 1) % END for token in oracle(ids, count)]


def chain(tokens: Any, length: int = 99) -> Script:
    """Always a chain of `length` tokens, as far as the limit goes."""
    return Script(
        lambda want: Proposal.chain(tokens(want.ids, min(length, want.limit))),
    )


@dataclass
class Learner(Script):
    """Keeps what it is taught."""

    learns: bool = True
    tokens: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def observe(self, key: int, seen: Sequence[Seen]) -> None:
        self.tokens += [one.token for one in seen]
        self.rows += [one.row.copy() for one in seen]


def following(draft: FakeModel, *limits: Any, **settings: Any) -> ModelDrafter:
    """The model drafter over a fake."""
    return ModelDrafter(Follower(draft, *limits, **settings))


def engine_with(words: Language, *drafters: Any, **settings: Any) -> Engine:
    return Engine(FakeModel(words, **settings), drafters)


@pytest.fixture(params=ROLLBACKS)
def rollback(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(RULES))
def rule(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestScripts:
    """Drafters that are right or wrong by design, greedy, under every rule and both memories."""

    def outcome(self, drafter: Script, rule: str, rollback: str, **settings: Any) -> Outcome:
        asked = request(PROMPT, rule, **settings)
        outcome = run(engine_with(WORDS, drafter, rollback=rollback), asked)
        assert (outcome.tokens, outcome.reason) == expected(WORDS, asked)
        return outcome

    def test_always_right(self, rule: str, rollback: str) -> None:
        stats = self.outcome(chain(ORACLE, 3), rule, rollback, max_tokens=24).stats
        assert (stats.rounds, stats.accepted, stats.acceptance) == (6, 18, 1.0)

    def test_always_wrong(self, rule: str, rollback: str) -> None:
        outcome = self.outcome(chain(wrong(ORACLE), 3), rule, rollback, max_tokens=12)
        stats = outcome.stats
        assert (stats.rounds, stats.accepted) == (12, 0)
        assert stats.tested == 11  # one a round but the last, in which nothing is drafted
        assert all(event.source == "" for event in outcome.events)

    @pytest.mark.parametrize("good", [1, 2, 3])
    def test_right_for_some(self, rule: str, rollback: str, good: int) -> None:
        def tokens(ids: Sequence[int], count: int) -> list[int]:
            truth = ORACLE(ids, count)
            return truth[:good] + [(token + 1) % END for token in truth[good:]]

        stats = self.outcome(chain(tokens, 4), rule, rollback, max_tokens=5 * (good + 1)).stats
        assert stats.accepted == 5 * good
        depths = [(d.tested, d.accepted) for d in stats.by_depth]
        assert depths[:good] == [(5, 5)] * good
        assert depths[good][1] == 0

    def test_empty(self, rule: str, rollback: str) -> None:
        outcome = self.outcome(Script(lambda want: Proposal()), rule, rollback, max_tokens=7)
        assert outcome.stats.rounds == 7
        assert outcome.stats.by_source == {}

    def test_sources(self, rule: str, rollback: str) -> None:
        outcome = self.outcome(chain(ORACLE, 2), rule, rollback, max_tokens=6)
        assert [event.source for event in outcome.events] == ["script", "script", ""] * 2

    @pytest.mark.parametrize("length", [0, 3])
    def test_learners_see_all_that_is_said(self, rule: str, rollback: str, length: int) -> None:
        """Drafted or not, with the rows behind it; the last token has none yet."""
        learner = Learner(chain(ORACLE, length).says)
        tokens = self.outcome(learner, rule, rollback, max_tokens=9).tokens
        assert learner.tokens == [PROMPT[-1], *tokens[:-1]]
        ids = [*PROMPT, *tokens]
        for place, row in enumerate(learner.rows, start=len(PROMPT)):
            np.testing.assert_array_equal(row, WORDS(tuple(ids[:place])))

    def test_the_cache_is_used(self, rule: str) -> None:
        """A right chain costs one decode of its own length a round and nothing else."""
        engine = engine_with(WORDS, chain(ORACLE, 3))
        run(engine, request(PROMPT, rule, max_tokens=8))
        assert engine.backend.batches == [4, 4, 4]  # type: ignore[attr-defined]


def tree(params: SamplingParams, *, place: int, good: int = 2, width: int = 3) -> Script:
    """`width` branches of three tokens; the one at `place` is right for its first `good`."""
    oracle = right(WORDS, params)

    def says(want: Want) -> Proposal:
        if want.limit < 3 or want.nodes < 3 * width or want.branches < width - 1:
            return Proposal()
        true = oracle(want.ids, 3)
        branches = [[(true[0] + 1 + n) % END, 7, 7] for n in range(width - 1)]
        branches.insert(place, true[:good] + [(token + 1) % END for token in true[good:]])
        tokens = [token for branch in branches for token in branch]
        parents = [p for n in range(width) for p in (-1, 3 * n, 3 * n + 1)]
        return Proposal(tuple(tokens), tuple(parents), (None,) * (len(tokens) + 1))

    return Script(says)


@pytest.mark.parametrize("rollback", ROLLBACKS)
def test_a_refusal_costs_no_second_reading(rollback: Any) -> None:
    """Neither model reads its prompt again, also where the memory can only go back to a save."""
    target = FakeModel(WORDS, n_batch=40, rollback=rollback)
    draft = FakeModel(near(WORDS, 9, 1.0), n_batch=40, rollback=rollback)
    engine = Engine(target, [following(draft)])
    outcome = run(engine, request([n % END for n in range(30)], max_tokens=12, draft_max=3))
    assert outcome.stats.accepted < outcome.stats.tested
    for fake in (target, draft):
        assert fake.batches[0] == 29
        assert max(fake.batches[1:]) <= 5


class TestTrees:
    """Several branches, under the rules that can judge them."""

    @pytest.mark.parametrize("name", TREES)
    @pytest.mark.parametrize("place", [0, 1, 2])
    @pytest.mark.parametrize("good", [0, 1, 2, 3])
    @pytest.mark.parametrize("linear", [False, True])
    def test_any_branch(self, name: str, place: int, good: int, linear: bool) -> None:
        params = PLAIN if name == "coupled" else GREEDY
        asked = request(PROMPT, name, sampling=params, max_tokens=30)
        target = FakeModel(WORDS, n_seq=3)
        engine = Engine(target, [tree(params, place=place, good=good)], linear=linear)
        outcome = run(engine, asked)
        assert (outcome.tokens, outcome.reason) == expected(WORDS, asked)
        assert outcome.stats.acceptance is not None
        assert (outcome.stats.accepted > 0) == (good > 0)
        assert outcome.stats.by_depth[0].drafted == 3 * outcome.stats.by_depth[0].tested

    def test_accepted_branches_are_not_decoded_again(self) -> None:
        target = FakeModel(WORDS, n_seq=3)
        run(Engine(target, [tree(GREEDY, place=2, good=3)]), request(PROMPT, max_tokens=12))
        assert target.batches == [4, 10, 10, 10]

    def test_linear_caches_are_laid_as_plain_decoding_lays_them(self) -> None:
        """Accepted tokens of another branch come again, in front of the next drafts."""
        target = FakeModel(WORDS, n_seq=3)
        engine = Engine(target, [tree(GREEDY, place=2, good=3)], linear=True)
        run(engine, request(PROMPT, max_tokens=12))
        assert target.batches == [4, 10, 13, 13]

    def test_a_linear_cache_keeps_nothing_behind_what_is_dropped(self) -> None:
        """Of a tree that is not in depth-first order, the first leaf may be the second token."""

        def says(want: Want) -> Proposal:
            (token,) = ORACLE(want.ids, 1)
            return Proposal((token + 1, token, 7), (-1, -1, 0), (None,) * 4)

        target = FakeModel(WORDS, n_seq=2)
        engine = Engine(target, [Script(says)], linear=True)
        outcome = run(engine, request([1, 2], max_tokens=7, is_end=lambda token: False))
        assert outcome.stats.accepted == 3
        assert target.batches == [1, 4, 5, 5, 2]

    def test_no_room_for_branches(self) -> None:
        """A memory that cannot be cut, or too few ids: drafters are told to draft no trees."""
        for settings in ({"rollback": "checkpoint", "n_seq": 4}, {"n_seq": 2}):
            script = tree(GREEDY, place=1)
            outcome = run(engine_with(WORDS, script, **settings), request(PROMPT))
            assert script.limits
            assert outcome.stats.drafted == 0

    def test_too_many_leaves(self) -> None:
        def says(want: Want) -> Proposal:
            return Proposal((1, 2, 3), (-1, -1, -1), (None,) * 4)

        engine = engine_with(WORDS, Script(says), n_seq=2)
        live = engine.add(request(PROMPT))
        with pytest.raises(ValueError, match="3 leaves"):
            engine.step()
        check(engine, [live])

    @pytest.mark.parametrize("name", sorted(set(RULES) - set(TREES)))
    def test_chain_rules(self, name: str) -> None:
        """Drafters are told to draft no branches; a tree all the same is refused."""
        told: list[int] = []

        def says(want: Want) -> Proposal:
            told.append(want.branches)
            return Proposal((1, 2), (-1, -1), (None,) * 3)

        engine = engine_with(WORDS, Script(says), n_seq=4)
        live = engine.add(request(PROMPT, name))
        with pytest.raises(ValueError, match="chain"):
            engine.step()
        assert told == [0]
        check(engine, [live])


class TestEnd:
    """Where a reply ends: nothing behind the end is emitted, cached or counted."""

    @staticmethod
    def ends_at(place: int) -> Language:
        """Greedy text with END as token number `place` of the reply (from 0)."""
        words = ending_late(after=99)

        def row(context: tuple[int, ...]) -> Any:
            logits = words(context).copy()
            if len(context) == len(PROMPT) + place:
                logits[END] = 50.0
            return logits

        return row

    @pytest.mark.parametrize(
        ("place", "length", "rounds"),
        [
            (0, 4, 1),  # the first token, drafted
            (2, 4, 1),  # in the middle of a draft
            (3, 4, 1),  # the last drafted token
            (4, 4, 1),  # the bonus token
            (7, 4, 2),
        ],
    )
    def test_end_token(
        self, rule: str, rollback: str, place: int, length: int, rounds: int
    ) -> None:
        words = self.ends_at(place)
        asked = request(PROMPT, rule)
        engine = engine_with(words, chain(right(words), length), rollback=rollback)
        outcome = run(engine, asked)
        assert (outcome.tokens, outcome.reason) == expected(words, asked)
        assert (len(outcome.tokens), outcome.reason) == (place, "stop")
        assert outcome.stats.rounds == rounds
        assert outcome.stats.accepted == place + 1 - (rounds - 1) - (place == 4)

    def test_end_token_recovered(self, rule: str, rollback: str) -> None:
        words = self.ends_at(2)

        def tokens(ids: Sequence[int], count: int) -> list[int]:
            return [7 if token == END else token for token in right(words)(ids, count)]

        outcome = run(engine_with(words, chain(tokens), rollback=rollback), request(PROMPT, rule))
        assert (len(outcome.tokens), outcome.reason) == (2, "stop")
        assert (outcome.stats.rounds, outcome.stats.accepted, outcome.stats.tested) == (1, 2, 3)

    @pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 6])
    def test_stop_over_rounds(self, rule: str, rollback: str, length: int) -> None:
        """A stop of three tokens, at every place relative to the rounds."""
        words = ending_late(after=99)
        text = right(words)(PROMPT, 11)
        pattern = text[8:11]
        plain = request(PROMPT, rule, watch=watch_for(*pattern))
        tokens, _ = expected(words, plain)
        engine = engine_with(words, chain(right(words), length), rollback=rollback)
        outcome = run(engine, request(PROMPT, rule, watch=watch_for(*pattern)))
        assert (outcome.tokens, outcome.reason, outcome.dropped) == (tokens, "stop", 3)
        assert tokens == text[: len(tokens)]

    def test_stop_in_the_middle_of_a_draft(self, rule: str) -> None:
        words = ending_late(after=99)
        third = right(words)(PROMPT, 3)[2]
        engine = engine_with(words, chain(right(words), 6))
        outcome = run(engine, request(PROMPT, rule, watch=watch_for(third)))
        assert len(outcome.tokens) == 2
        assert (outcome.stats.accepted, outcome.stats.tested, outcome.stats.rounds) == (3, 3, 1)
        assert engine.backend.length(0) == len(PROMPT) + 1

    def test_stop_drops_the_whole_reply(self, rollback: str) -> None:
        words = ending_late(after=99)
        pattern = right(words)(PROMPT, 2)
        engine = engine_with(words, chain(right(words)), rollback=rollback)
        outcome = run(engine, request(PROMPT, watch=watch_for(*pattern)))
        assert outcome.tokens == []
        check(engine, [outcome.live])

    @pytest.mark.parametrize("limit", [0, 1, 2, 5, 6])
    def test_max_tokens(self, rule: str, rollback: str, limit: int) -> None:
        words = ending_late(after=99)
        script = chain(right(words), 4)
        outcome = run(
            engine_with(words, script, rollback=rollback), request(PROMPT, rule, max_tokens=limit)
        )
        assert (len(outcome.tokens), outcome.reason) == (limit, "length")
        assert outcome.stats.drafted == outcome.stats.accepted, "drafted more than may be emitted"

    @pytest.mark.parametrize("length", [0, 2, 6])
    @pytest.mark.parametrize("n_prompt", [1, 5, 20, 23, 24])
    def test_context_edge(self, rollback: str, length: int, n_prompt: int) -> None:
        """The last cell is used, and one token more is said than there are cells."""
        words = ending_late(after=99)
        prompt = right(words)([1], n_prompt)
        asked = request(prompt, max_tokens=None)
        engine = engine_with(words, chain(right(words), length), n_ctx=24, rollback=rollback)
        outcome = run(engine, asked)
        assert (outcome.tokens, outcome.reason) == expected(words, asked, n_ctx=24)
        assert outcome.reason == "context"
        assert len(outcome.live.ids) == 25
        assert engine.backend.length(0) == 24

    def test_prompt_too_long(self) -> None:
        engine = engine_with(language(0), n_ctx=8)
        with pytest.raises(ContextFull, match="9 tokens; the context takes 8"):
            engine.add(request([1] * 9))
        assert run(engine, request([1] * 8)).reason == "context"

    def test_empty_prompt(self) -> None:
        with pytest.raises(UsageError, match="empty"):
            engine_with(language(0)).add(request([]))


class TestPrompts:
    """Prompts of any length, and what a cache keeps from one turn to the next."""

    @pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 16, 17, 40])
    def test_any_length(self, length: int, rollback: str) -> None:
        prompt = [(7 * n) % END for n in range(length)]
        asked = request(prompt)
        engine = engine_with(WORDS, chain(right(WORDS)), rollback=rollback, n_batch=8)
        assert run(engine, asked).tokens == expected(WORDS, asked)[0]

    def test_progress(self) -> None:
        engine = engine_with(WORDS, n_batch=8)
        seen: list[tuple[int, int]] = []
        engine.add(request([1] * 20), lambda done, total: seen.append((done, total)))
        for _ in range(5):
            engine.step()
        assert seen == [(8, 19), (16, 19), (19, 19)]

    @pytest.mark.parametrize("drafted", [0, 3])
    def test_turns(self, rollback: str, drafted: int) -> None:
        """Longer, the same again, edited in the middle, shorter, and nothing in common."""
        engine = engine_with(WORDS, chain(right(WORDS), drafted), rollback=rollback)
        first = run(engine, request(PROMPT, max_tokens=9)).live.ids
        histories = [
            [*first, 2, 2],
            [*first, 2, 2],
            [*first[:7], 9, 9, 9],
            first[:6],
            first[:3],
            [8, 8, 8],
            first,
        ]
        held = list(first[:-1])
        for history in histories:
            asked = request(history, max_tokens=9)
            outcome = run(engine, asked)
            assert outcome.tokens == expected(WORDS, asked)[0]
            common = _common(held, history[:-1])
            assert outcome.live.n_cached <= common
            if rollback == "free":
                assert outcome.live.n_cached == common
            held = outcome.live.ids[:-1]

    def test_a_longer_turn_reads_only_what_is_new(self, rollback: str) -> None:
        """Also where the memory cannot be cut: an appended turn needs no cutting."""
        engine = engine_with(WORDS, chain(right(WORDS), 3), rollback=rollback)
        first = run(engine, request(PROMPT, max_tokens=8)).live.ids
        live = engine.add(request([*first, 2, 2]))
        assert live.n_cached == len(first) - 1

    @pytest.mark.parametrize("change", [Engine.hold, Engine.take_in])
    def test_drafters_are_told_that_a_slot_has_another_text(self, change: Any) -> None:
        """`Script` sees to it that ids do not change unless it is told."""
        engine = engine_with(WORDS, chain(ORACLE, 3))
        run(engine, request(PROMPT, max_tokens=9))
        other = [8, *PROMPT, 2]
        assert change(engine, other) == 0
        asked = request([*other, 5], max_tokens=9)
        assert run(engine, asked).tokens == expected(WORDS, asked)[0]

    def test_nothing_is_left_of_what_is_forgotten(self) -> None:
        target, draft = FakeModel(WORDS), FakeModel(WORDS)
        engine = Engine(target, [following(draft)])
        live = engine.add(request(PROMPT))
        engine.step()
        with pytest.raises(EngineError, match="still running"):
            engine.forget()
        engine.cancel(live)
        assert target.held == draft.held == {0}
        engine.forget()
        assert target.held == draft.held == set()


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


class TestModelDrafter:
    """The real draft model's bookkeeping, over a second table."""

    def engine(self, draft: Language, rollback: str = "free", **settings: Any) -> Engine:
        drafter = following(FakeModel(draft, rollback=rollback, **settings))
        return engine_with(WORDS, drafter, rollback=rollback, **settings)

    def test_a_draft_of_the_same_law_is_always_right(self, rule: str, rollback: str) -> None:
        asked = request(PROMPT, rule, max_tokens=24, draft_max=3)
        outcome = run(self.engine(WORDS, rollback), asked)
        assert outcome.stats.acceptance == 1.0
        assert outcome.stats.rounds == 6
        assert outcome.tokens == expected(WORDS, asked)[0]

    @pytest.mark.parametrize("name", ["coupled", "rejection", "block"])
    def test_also_when_it_samples(self, name: str, rollback: str) -> None:
        asked = request(PROMPT, name, sampling=PLAIN, draft_max=3)
        assert run(self.engine(WORDS, rollback), asked).stats.acceptance == 1.0

    @pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
    def test_any_draft(self, rule: str, rollback: str, share: float) -> None:
        asked = request(PROMPT, rule, max_tokens=30)
        outcome = run(self.engine(near(WORDS, 9, share), rollback), asked)
        assert outcome.tokens == expected(WORDS, asked)[0]

    def test_turns(self, rollback: str) -> None:
        engine = self.engine(WORDS, rollback)
        first = run(engine, request(PROMPT, max_tokens=9)).live.ids
        for history in ([*first, 2], [*first[:7], 9], first[:4], [8, 8, 8], first):
            asked = request(history, max_tokens=9, draft_max=3)
            outcome = run(engine, asked)
            assert outcome.tokens == expected(WORDS, asked)[0]
            assert outcome.stats.acceptance == 1.0, "the draft's cache holds something else"

    def test_rounds_without_it(self, rollback: str) -> None:
        """A turn that does not ask the draft leaves a gap that the next one fills."""
        engine = self.engine(WORDS, rollback)
        first = run(engine, request(PROMPT, max_tokens=9)).live.ids
        second = run(engine, request([*first, 2], max_tokens=20, drafters=())).live.ids
        outcome = run(engine, request([*second, 2], max_tokens=9))
        assert outcome.stats.acceptance == 1.0

    def test_a_smaller_context_than_the_targets(self) -> None:
        """Where the draft's context ends, plain decoding goes on."""
        drafter = following(FakeModel(WORDS, n_ctx=16))
        asked = request(PROMPT, max_tokens=None)
        outcome = run(engine_with(WORDS, drafter), asked)
        assert outcome.tokens == expected(WORDS, asked)[0]
        assert outcome.stats.accepted > 0

    def test_a_smaller_batch_than_the_targets(self, rollback: str) -> None:
        drafter = following(FakeModel(WORDS, n_batch=2, rollback=rollback))  # type: ignore[arg-type]
        engine = engine_with(WORDS, drafter, rollback=rollback)
        assert run(engine, request(range(12), max_tokens=12)).stats.acceptance == 1.0

    @pytest.mark.parametrize("name", ["coupled", "match", "rejection", "block"])
    @pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
    def test_foreign_ids_are_never_drafted(self, name: str, sampling: SamplingParams) -> None:
        """The draft has four ids more, and two that mean something else; it likes those best."""

        def liking(context: tuple[int, ...]) -> Any:
            row = language(3, N_VOCAB + 4)(context).copy()
            row[[2, 6, *range(N_VOCAB, N_VOCAB + 4)]] += 4.0
            return row

        drafter = following(FakeModel(liking, n_vocab=N_VOCAB + 4), N_VOCAB, never=(2, 6))
        drafted: list[int] = []
        propose = drafter.propose

        def spy(wants: Sequence[Want]) -> list[Proposal]:
            proposals = propose(wants)
            drafted.extend(token for proposal in proposals for token in proposal.tokens)
            return proposals

        drafter.propose = spy  # type: ignore[method-assign]
        asked = request(PROMPT, name, sampling=sampling, max_tokens=30)
        outcome = run(engine_with(WORDS, drafter), asked)
        assert drafted
        assert not {2, 6, *range(N_VOCAB, N_VOCAB + 4)} & set(drafted)
        if name in EXACT:
            assert outcome.tokens == expected(WORDS, asked)[0]

    def test_ids_the_draft_cannot_read(self) -> None:
        """A prompt with an id that the draft does not know is decoded plainly."""
        drafter = following(FakeModel(language(3, 10), n_vocab=10), 10)
        asked = request([3, 12, 4], max_tokens=12)
        outcome = run(engine_with(WORDS, drafter), asked)
        assert outcome.tokens == expected(WORDS, asked)[0]

    def test_p_min(self) -> None:
        engine = self.engine(near(WORDS, 9, 0.5))
        asked = request(PROMPT, sampling=PLAIN, draft_p_min=1.0, max_tokens=12)
        outcome = run(engine, asked)
        assert outcome.stats.drafted == 0
        assert outcome.tokens == expected(WORDS, asked)[0]

    def test_long_gaps_are_filled_in_chunks(self) -> None:
        engine = self.engine(WORDS, n_batch=4)
        second = run(engine, request(PROMPT, max_tokens=20, drafters=())).live.ids
        assert run(engine, request([*second, 2], max_tokens=9)).stats.acceptance == 1.0


class TestFaults:
    """Whatever breaks a decode off, the next request works and says the right thing."""

    @pytest.mark.parametrize("error", [EngineError, KeyboardInterrupt])
    @pytest.mark.parametrize("when", ["before", "half", "after"])
    @pytest.mark.parametrize("who", ["target", "draft"])
    @pytest.mark.parametrize("branches", [False, True])
    def test_every_call(
        self, error: type[BaseException], when: Any, who: str, branches: bool, rollback: str
    ) -> None:
        for call in range(10):
            draft = FakeModel(near(WORDS, 5, 0.4), rollback=rollback, n_batch=4)  # type: ignore[arg-type]
            script = tree(PLAIN, place=1, width=2) if branches else None
            drafters = [script] if script else [following(draft)]
            target = FakeModel(WORDS, rollback=rollback, n_batch=8, n_seq=3)  # type: ignore[arg-type]
            engine = Engine(target, drafters)
            faulty = target if who == "target" else draft
            faulty.faults[call] = Fault(error, when)
            asked = request([*PROMPT, *PROMPT], sampling=PLAIN, max_tokens=8)
            try:
                live = engine.add(asked)
                finish(engine, live)
            except error:
                faulty.faults.clear()
                for alive in list(engine._live.values()):
                    check(engine, [alive])
                    self.goes_on(engine, alive)
            faulty.faults.clear()
            self.works(engine)

    def goes_on(self, engine: Engine, live: Any) -> None:
        """The broken round can be taken again."""
        while live.finish is None:
            engine.step()
            check(engine, [live])
        assert live.ids[live.n_prompt :] == expected(WORDS, live.request)[0]

    def works(self, engine: Engine) -> None:
        for history in ([*PROMPT, 2, 2], [*PROMPT, *PROMPT, 7]):
            again = request(history, sampling=PLAIN, max_tokens=5)
            assert run(engine, again).tokens == expected(WORDS, again)[0]

    @pytest.mark.parametrize("when", ["before", "half", "after"])
    @pytest.mark.parametrize("call", [0, 1, 2])
    def test_a_prompt_that_was_not_held(self, when: Any, call: int, rollback: str) -> None:
        engine = engine_with(WORDS, rollback=rollback, n_batch=4)
        engine.backend.faults[call] = Fault(KeyboardInterrupt, when)  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            engine.hold([*PROMPT, *PROMPT])
        self.works(engine)

    def test_a_prefix_that_was_not_shared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C behind the call that copies another slot's cells."""
        target = FakeModel(WORDS, n_seq=2, n_ctx=192)
        engine = Engine(target, n_slots=2)
        engine.add(request(PROMPT))
        engine.step()
        fork = target.fork

        def broken(source: int, seq: int) -> None:
            fork(source, seq)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(target, "fork", broken)
            engine.add(request([*PROMPT, 2]))
        assert target.held == {0}
        engine.cancel_all()
        self.works(engine)

    def test_a_drafter_that_raises(self, rollback: str) -> None:
        def says(want: Want) -> Proposal:
            raise RuntimeError("bug in a drafter")

        engine = engine_with(WORDS, Script(says), rollback=rollback)
        live = engine.add(request(PROMPT))
        with pytest.raises(RuntimeError):
            engine.step()
        check(engine, [live])
        engine.cancel(live)
        engine.drafters = []
        asked = request(PROMPT)
        assert run(engine, asked).tokens == expected(WORDS, asked)[0]

    def test_a_watch_that_raises(self, rollback: str) -> None:
        """Ctrl-C between two tokens of a round: the ids so far stay, and the caches fit them."""
        calls = 0

        def watch(token: int) -> None:
            nonlocal calls
            calls += 1
            if calls == 6:
                raise KeyboardInterrupt

        engine = engine_with(WORDS, chain(right(WORDS), 4), rollback=rollback)
        live = engine.add(request(PROMPT, watch=watch))
        engine.step()
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        check_prefix_only(engine, live)
        engine.cancel(live)
        asked = request([*live.ids, 2])
        assert run(engine, asked).tokens == expected(WORDS, asked)[0]


def check_prefix_only(engine: Engine, live: Any) -> None:
    held = engine.backend.tokens(live.key)  # type: ignore[attr-defined]
    assert held == tuple(live.ids[: len(held)])
    assert len(held) < len(live.ids)


class TestCancel:
    @pytest.mark.parametrize("rounds", [0, 1, 3])
    def test_between_rounds(self, rollback: str, rounds: int) -> None:
        engine = engine_with(WORDS, chain(right(WORDS), 3), rollback=rollback)
        live = engine.add(request(PROMPT))
        for _ in range(rounds):
            engine.step()
        engine.cancel(live)
        assert (live.finish, live.n_emitted) == ("cancelled", 4 * rounds)
        assert engine.step() == []
        check(engine, [live])
        asked = request([*live.ids, 2])
        outcome = run(engine, asked)
        assert outcome.live.n_cached == (len(live.ids) - 1 if rounds else 0)
        assert outcome.tokens == expected(WORDS, asked)[0]

    def test_twice(self) -> None:
        engine = engine_with(WORDS)
        live = engine.add(request(PROMPT))
        engine.cancel(live)
        engine.cancel(live, "stop")
        assert live.finish == "cancelled"

    def test_slots(self) -> None:
        engine = engine_with(WORDS)
        live = engine.add(request(PROMPT))
        with pytest.raises(UsageError, match="busy"):
            engine.add(request(PROMPT))
        engine.cancel(live)
        engine.add(request(PROMPT))


class TestManySequences:
    """Two conversations share the batches and nothing else."""

    def test_each_gets_its_own_text(self, rollback: str) -> None:
        draft = FakeModel(near(WORDS, 5, 0.4), n_seq=3, n_ctx=192, rollback=rollback)  # type: ignore[arg-type]
        target = FakeModel(WORDS, n_seq=3, n_ctx=192, rollback=rollback)  # type: ignore[arg-type]
        engine = Engine(target, [following(draft)], n_slots=3)
        asked = [
            request([n, *PROMPT], sampling=PLAIN, seed=n, max_tokens=8 + 5 * n) for n in range(3)
        ]
        lives = [engine.add(one) for one in asked]
        while any(live.finish is None for live in lives):
            engine.step()
            check(engine, lives)
        for live, one in zip(lives, asked, strict=True):
            assert live.ids[live.n_prompt :] == expected(WORDS, one, 192)[0]
            assert live.stats.accepted > 0

    def test_trees_side_by_side(self) -> None:
        target = FakeModel(WORDS, n_seq=6, n_ctx=192, n_batch=16)
        engine = Engine(target, [tree(PLAIN, place=1, width=2)], n_slots=2)
        asked = [request([n, *PROMPT], sampling=PLAIN, max_tokens=20) for n in range(2)]
        lives = [engine.add(one) for one in asked]
        while any(live.finish is None for live in lives):
            engine.step()
            check(engine, lives)
        for live, one in zip(lives, asked, strict=True):
            assert live.ids[live.n_prompt :] == expected(WORDS, one, 192)[0]

    @pytest.mark.parametrize("n_lives", [1, 2])
    def test_no_more_logits_than_there_is_room_for(self, n_lives: int) -> None:
        target = FakeModel(WORDS, n_outputs=4, n_seq=n_lives)
        engine = Engine(target, [chain(ORACLE)], n_slots=n_lives)
        asked = request(PROMPT)
        lives = [engine.add(asked) for _ in range(n_lives)]
        while any(live.finish is None for live in lives):
            engine.step()
        assert [live.ids[live.n_prompt :] for live in lives] == [
            expected(WORDS, asked)[0]
        ] * n_lives
        assert max(target.batches[1:]) == 4

    def test_those_that_fit_into_a_decode_share_it(self) -> None:
        target = FakeModel(WORDS, n_seq=3, n_ctx=192)
        engine = Engine(target, [chain(ORACLE, 3)], n_slots=3, max_batch=8)
        for n in range(3):
            engine.add(request([n], max_tokens=4))
        engine.step()
        assert target.batches == [8, 4]

    def test_a_new_turn_takes_the_slot_that_knows_it(self) -> None:
        target = FakeModel(WORDS, n_seq=2, n_ctx=192)
        engine = Engine(target, n_slots=2)
        lives = [engine.add(request([n, *PROMPT], max_tokens=4)) for n in range(2)]
        while engine.step():
            pass
        again = engine.add(request([*lives[1].ids, 2]))
        assert (again.key, again.n_cached) == (lives[1].key, len(lives[1].ids) - 1)


class TestAutomatic:
    """The scheduler's own choices, which must not show in the text either."""

    @pytest.mark.parametrize("sampling", [GREEDY, PLAIN, SamplingParams()])
    def test_both_drafters(self, rollback: str, sampling: SamplingParams) -> None:
        draft = FakeModel(near(WORDS, 5, 0.3), rollback=rollback)  # type: ignore[arg-type]
        drafters = [SuffixDrafter(lambda token: token == END, min_match=1), following(draft)]
        engine = engine_with(WORDS, *drafters, rollback=rollback)
        prompt = [*PROMPT, *PROMPT]
        for turn in range(4):
            asked = request(prompt, sampling=sampling, max_tokens=10, adaptive=True, seed=turn)
            outcome = run(engine, asked)
            assert outcome.tokens == expected(WORDS, asked)[0]
            prompt = [*outcome.live.ids, turn]

    def test_max_batch(self) -> None:
        """Exact mode: no verify batch is larger than it may be."""
        target = FakeModel(WORDS)
        engine = Engine(target, [chain(right(WORDS))], max_batch=5)
        run(engine, request(PROMPT, draft_max=16))
        assert max(target.batches) == 5
