"""Many sequences over one engine: whoever joins or leaves, each says what it says alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specllama.drafting.follower import Follower
from specllama.drafting.model import ModelDrafter
from specllama.drafting.staged import StagedDrafter
from specllama.drafting.suffix import SuffixDrafter
from specllama.drafting.tree import TreeDrafter
from specllama.engine.engine import Engine
from specllama.engine.request import EndEvent, Request, TokenEvent
from specllama.engine.sequence import Sequence as Live
from specllama.errors import EngineError
from specllama.sampling.constraint import NothingAllowed
from specllama.sampling.params import SamplingParams
from tests.engine.fake_model import END, N_VOCAB, FakeModel, Fault, language, near
from tests.engine.harness import PLAIN, check, expected, go_ahead, request, right, watch_for
from tests.engine.test_engine import chain, ending_late, following

WORDS = ending_late(after=90)
SYSTEM = [7, 7, 2, 9, 4, 1, 8, 3]


def step(engine: Engine) -> dict[int, int]:
    """One round: how many tokens each slot emitted."""
    emitted: dict[int, int] = {}
    for event in engine.step():
        if isinstance(event, TokenEvent):
            emitted[event.key] = emitted.get(event.key, 0) + 1
    return emitted


def run_all(engine: Engine, lives: list[Live], rounds: int = 500) -> None:
    for _ in range(rounds):
        if all(live.finish is not None for live in lives):
            return
        engine.step()
        check(engine, lives)
    raise AssertionError("no end")


def reply(live: Live) -> list[int]:
    return live.ids[live.n_prompt :]


@dataclass(frozen=True)
class Dying:
    """A constraint that allows anything for some tokens, then nothing."""

    left: int

    def every(self) -> np.ndarray:
        return np.arange(N_VOCAB if self.left else 0)

    def allowed(self, ids: np.ndarray) -> np.ndarray:
        return np.isin(ids, self.every())

    def after(self, token: int) -> Dying | None:
        return Dying(self.left - 1) if self.left else None


class TestSharedPrefixes:
    def test_a_system_prompt_is_read_once(self) -> None:
        """By both models, while the one that read it is still alive."""
        target = FakeModel(WORDS, n_seq=3, n_ctx=192)
        draft = FakeModel(near(WORDS, 5, 0.4), n_seq=3, n_ctx=192)
        engine = Engine(target, [following(draft)], n_slots=3)
        asked = [request([*SYSTEM, n, 5], max_tokens=12) for n in range(3)]
        lives = []
        for one in asked:
            lives.append(engine.add(one))
            engine.step()
        assert [live.n_cached for live in lives] == [0, len(SYSTEM), len(SYSTEM)]
        read = [cell for cell in target.cells if cell.position < len(SYSTEM)]
        assert len(read) == len(SYSTEM)
        assert len([cell for cell in draft.cells if cell.position < len(SYSTEM)]) == len(SYSTEM)
        run_all(engine, lives)
        assert [reply(live) for live in lives] == [expected(WORDS, one, 192)[0] for one in asked]

    def test_prompts_that_come_together_are_read_once(self) -> None:
        target = FakeModel(WORDS, n_seq=3, n_ctx=192)
        draft = FakeModel(near(WORDS, 5, 0.4), n_seq=3, n_ctx=192)
        engine = Engine(target, [following(draft)], n_slots=3)
        lives = [engine.add(request([*SYSTEM, n, 5], max_tokens=12)) for n in range(3)]
        engine.step()
        assert [live.n_cached for live in lives] == [0, len(SYSTEM), len(SYSTEM)]
        for fake in (target, draft):
            read = [cell for cell in fake.cells if cell.position < len(SYSTEM)]
            assert len(read) == len(SYSTEM)
        run_all(engine, lives)
        for live in lives:
            assert reply(live) == expected(WORDS, live.request, 192)[0]

    def test_a_prompt_that_is_held_shares_what_another_slot_has(self) -> None:
        target = FakeModel(WORDS, n_seq=2, n_ctx=192)
        engine = Engine(target, n_slots=2)
        engine.add(request([*SYSTEM, 1], max_tokens=3))
        engine.step()
        target.batches.clear()
        seen: list[tuple[int, int]] = []
        assert engine.hold([*SYSTEM, 2, 5, 5], lambda *done: seen.append(done)) == 1
        assert target.batches == [2]
        assert seen == [(2, 2)]

    def test_cells_are_counted_once(self) -> None:
        target = FakeModel(WORDS, n_seq=2, n_ctx=192)
        engine = Engine(target, n_slots=2)
        for n in range(2):
            engine.add(request([*SYSTEM, n], max_tokens=3))
        while engine.step():
            assert engine.cache.n_cells == len(target.cells)

    def test_another_conversation_keeps_its_slot(self) -> None:
        """A prompt that shares little takes the slot that was idle for longest."""
        engine = Engine(FakeModel(WORDS, n_seq=2, n_ctx=192), n_slots=2)
        lives = [engine.add(request([*SYSTEM, n] * 2, max_tokens=4)) for n in range(2)]
        run_all(engine, lives)
        stranger = engine.add(request([*SYSTEM, 3, 3], max_tokens=2))
        assert stranger.key == lives[0].key
        run_all(engine, [stranger])
        again = engine.add(request([*lives[1].ids, 2], max_tokens=2))
        assert (again.key, again.n_cached) == (lives[1].key, len(lives[1].ids) - 1)

    def test_an_edited_turn_takes_its_own_slot(self) -> None:
        engine = Engine(FakeModel(WORDS, n_seq=2, n_ctx=192), n_slots=2)
        lives = [engine.add(request([n, *SYSTEM, n], max_tokens=2)) for n in range(2)]
        run_all(engine, lives)
        edited = engine.add(request([1, *SYSTEM, 5, 5], max_tokens=2))
        assert (edited.key, edited.n_cached) == (lives[1].key, 1 + len(SYSTEM))


class TestLongPrompts:
    def engine(self) -> Engine:
        target = FakeModel(WORDS, n_seq=2, n_ctx=800, n_batch=128)
        return Engine(target, [chain(right(WORDS), 2)], n_slots=2)

    def test_the_others_stream_on(self) -> None:
        engine = self.engine()
        first = engine.add(request([1, 2, 3], max_tokens=40, is_end=lambda token: False))
        engine.step()
        long = engine.add(request([5] * 300, max_tokens=3))
        rounds = 0
        while not long.n_emitted:
            assert step(engine)[first.key] == 3
            rounds += 1
        assert rounds > 2
        assert max(engine.backend.batches) <= 128  # type: ignore[attr-defined]
        run_all(engine, [first, long])
        assert reply(long) == expected(WORDS, long.request, 800)[0]

    def test_a_chunk_is_bounded_while_others_wait(self) -> None:
        """By its time, as far as that is known; nothing is held back where nobody waits."""
        engine = self.engine()
        first = engine.add(request([1, 2, 3], max_tokens=40, is_end=lambda token: False))
        engine.step()
        for _ in range(5):
            engine.scheduler.costs.observe_reading(100, 1.0)
        long = engine.add(request([5] * 300, max_tokens=3))
        engine.step()
        assert engine.cache.length(long.key) == 32
        engine.cancel(first)
        engine.step()
        assert engine.cache.length(long.key) == 32 + 128

    def test_a_short_prompt_has_its_first_token_in_the_next_round(self) -> None:
        engine = self.engine()
        first = engine.add(request([1, 2, 3], max_tokens=40))
        engine.step()
        short = engine.add(request([4] * 20, max_tokens=3))
        assert step(engine).keys() == {first.key, short.key}

    def test_cancelled_while_it_is_read(self) -> None:
        engine = self.engine()
        long = engine.add(request([5] * 300, max_tokens=3))
        engine.step()
        engine.cancel(long)
        again = engine.add(request([5] * 300, max_tokens=3))
        assert again.n_cached == 128
        run_all(engine, [again])
        assert reply(again) == expected(WORDS, again.request, 800)[0]


class TestAFullCache:
    def test_idle_slots_are_emptied_first_the_oldest_before_others(self) -> None:
        engine = Engine(FakeModel(WORDS, n_seq=4, n_ctx=64), n_slots=4)
        for n in range(3):
            run_all(engine, [engine.add(request([n] * 15, max_tokens=3))])
        fourth = engine.add(request([3] * 20, max_tokens=3))
        run_all(engine, [fourth])
        assert reply(fourth) == expected(WORDS, fourth.request)[0]
        assert [engine.cache.length(slot) > 0 for slot in range(4)] == [False, True, True, True]

    def test_idle_slots_give_way_to_drafts(self) -> None:
        engine = Engine(FakeModel(WORDS, n_seq=2, n_ctx=64), [chain(right(WORDS))], n_slots=2)
        run_all(engine, [engine.add(request([1] * 25, max_tokens=5, drafters=()))])
        live = engine.add(request([2] * 20, max_tokens=21, draft_max=6))
        run_all(engine, [live])
        assert (live.stats.rounds, live.stats.drafted) == (3, 18)
        assert [engine.cache.length(slot) > 0 for slot in range(2)] == [False, True]

    def test_a_prompt_is_not_held_at_the_expense_of_who_is_alive(self) -> None:
        engine = Engine(FakeModel(WORDS, n_seq=2, n_ctx=32), n_slots=2)
        live = engine.add(request([1] * 20, max_tokens=5))
        engine.step()
        with pytest.raises(EngineError, match="no room"):
            engine.hold([2] * 20)
        run_all(engine, [live])
        assert reply(live) == expected(WORDS, live.request)[0]

    def test_the_younger_gives_way_and_goes_on_later(self) -> None:
        target = FakeModel(WORDS, n_seq=2, n_ctx=64)
        draft = FakeModel(near(WORDS, 5, 0.4), n_seq=2, n_ctx=64)
        engine = Engine(target, [following(draft)], n_slots=2)
        asked = [request([n, *SYSTEM], max_tokens=40) for n in range(2)]
        lives = [engine.add(one) for one in asked]
        waited = False
        while any(live.finish is None for live in lives):
            emitted = step(engine)
            waited |= lives[1].finish is None and lives[1].key not in emitted
            assert lives[0].finish is not None or lives[0].key in emitted, "the elder waits"
        assert waited
        assert [reply(live) for live in lives] == [expected(WORDS, one)[0] for one in asked]
        assert len(lives[0].ids) + len(lives[1].ids) > 64

    def test_what_is_read_again_was_not_cached(self) -> None:
        """One that gave way takes its reply from the other, who says the same."""
        engine = Engine(FakeModel(WORDS, n_seq=2, n_ctx=64), n_slots=2)
        asked = request([1, 2, 3, 4], max_tokens=45)
        lives = [engine.add(asked) for _ in range(2)]
        shared = 0
        while any(live.finish is None for live in lives):
            step(engine)
            shared += engine.cache.n_cells < sum(engine.cache.length(slot) for slot in range(2)) - 4
        assert shared, "nobody gave way"
        assert [reply(live) for live in lives] == [expected(WORDS, asked)[0]] * 2
        assert all(live.n_cached < live.n_prompt for live in lives)

    def test_a_limit_of_its_own_for_each(self) -> None:
        engine = Engine(FakeModel(WORDS, n_seq=2, n_ctx=64), n_slots=2, n_ctx=24)
        live = engine.add(request([1, 2, 3], max_tokens=None))
        run_all(engine, [live])
        assert (live.finish, len(live.ids)) == ("context", 25)


class TestEachOnItsOwn:
    def test_acceptance_is_the_same_in_every_slot(self) -> None:
        """A draft that says what the target says is right in slot 3 as in slot 0."""
        draft = FakeModel(WORDS, n_seq=4, n_ctx=256, n_batch=32)
        target = FakeModel(WORDS, n_seq=4, n_ctx=256, n_batch=32)
        engine = Engine(target, [following(draft)], n_slots=4)
        lives = [engine.add(request([n, 3, n], max_tokens=25 - n, draft_max=4)) for n in range(4)]
        run_all(engine, lives)
        assert [live.stats.acceptance for live in lives] == [1.0] * 4
        assert {live.stats.rounds for live in lives} == {5}

    def test_own_settings(self) -> None:
        engine = Engine(FakeModel(WORDS, n_seq=3, n_ctx=192), [chain(right(WORDS), 4)], n_slots=3)
        wide = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.3)
        asked = [
            request([1, 2], sampling=wide, seed=5, draft_max=2),
            request([1, 2], "match", sampling=PLAIN, seed=6, drafters=()),
            request([1, 2], draft_max=6, max_tokens=30, watch=None),
        ]
        pattern = expected(WORDS, asked[2], 192)[0][5:7]
        asked[2] = replace(asked[2], watch=watch_for(*pattern))
        known = [expected(WORDS, replace(one), 192) for one in asked[:2]]
        lives = [engine.add(one) for one in asked]
        run_all(engine, lives)
        assert [(reply(live), live.finish) for live in lives[:2]] == known
        assert lives[2].finish == "stop"
        assert len(reply(lives[2])) <= 5

    def test_decodes_are_no_wider_than_exact_mode_allows(self) -> None:
        target = FakeModel(WORDS, n_seq=4, n_ctx=256)
        engine = Engine(target, [chain(right(WORDS), 4)], n_slots=4, max_batch=7, linear=True)
        asked = [request([n, *SYSTEM], max_tokens=20) for n in range(4)]
        lives = [engine.add(one) for one in asked]
        run_all(engine, lives)
        assert max(target.batches) <= 7
        assert [reply(live) for live in lives] == [expected(WORDS, one, 256)[0] for one in asked]

    def test_what_was_said_before_a_broken_decode_is_not_lost(self) -> None:
        """Of two decodes of a round, the second breaks off."""
        target = FakeModel(WORDS, n_seq=2, n_ctx=256)
        engine = Engine(target, [chain(right(WORDS), 4)], n_slots=2, max_batch=7)
        lives = [engine.add(request([n, 4], max_tokens=20)) for n in range(2)]
        events = [event for event in engine.step() if isinstance(event, TokenEvent)]
        target.faults[len(target.batches) + 1] = Fault(EngineError)
        with pytest.raises(EngineError):
            engine.step()
        check(engine, lives)
        while any(live.finish is None for live in lives):
            events += [event for event in engine.step() if isinstance(event, TokenEvent)]
        for live in lives:
            assert [event.id for event in events if event.key == live.key] == reply(live)
            assert reply(live) == expected(WORDS, live.request, 256)[0]

    @pytest.mark.parametrize("rule", ["match", "rejection", "coupled"])
    def test_a_round_that_another_broke_is_drawn_again(self, rule: str) -> None:
        """Of two in a decode the second may say nothing more, once the first has drawn."""

        def texts(*asked: Request) -> list[int]:
            draft = FakeModel(near(WORDS, 5, 0.3), n_seq=2, n_ctx=192)
            engine = Engine(FakeModel(WORDS, n_seq=2, n_ctx=192), [following(draft)], n_slots=2)
            lives = [engine.add(one) for one in asked]
            broken = 0
            while lives[0].finish is None:
                try:
                    engine.step()
                except NothingAllowed:
                    broken += 1
                    engine.cancel(lives[1])
            assert broken == len(asked) - 1
            return reply(lives[0])

        first = request([1, 2], rule, sampling=PLAIN, draft_max=3, max_tokens=20)
        second = request([3, 4], rule, sampling=PLAIN, draft_max=3, constraint=Dying(3))
        assert texts(first, second) == texts(first)

    def test_one_can_be_stepped_alone(self) -> None:
        engine = Engine(FakeModel(WORDS, n_seq=2, n_ctx=192), n_slots=2)
        lives = [engine.add(request([n, 4], max_tokens=20)) for n in range(2)]
        engine.step([lives[1]])
        assert [live.n_emitted for live in lives] == [0, 1]


@dataclass
class Seen:
    """What a consumer saw of one sequence."""

    live: Live
    tokens: list[int] = field(default_factory=list)
    ended: EndEvent | None = None


sampling = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.just(0.0),
    repeat_penalty=st.sampled_from([1.0, 1.4]),
)


class Company(RuleBasedStateMachine):
    """Random arrivals, lengths, cancellations, faults and settings; the cache may be small."""

    @initialize(
        seed=st.integers(0, 20),
        share=st.sampled_from([0.0, 0.4, 1.0]),
        rollback=st.sampled_from(["free", "free", "checkpoint"]),
        cells=st.sampled_from([70, 100, 400]),
        n_slots=st.integers(1, 4),
        branches=st.sampled_from([0, 0, 3]),
        max_batch=st.sampled_from([None, 4, 7]),
        linear=st.booleans(),
        n_batch=st.integers(4, 16),
        ahead=st.sampled_from([None, 1, 4, 9]),
    )
    def open(
        self,
        seed: int,
        share: float,
        rollback: Any,
        cells: int,
        n_slots: int,
        branches: int,
        max_batch: int | None,
        linear: bool,
        n_batch: int,
        ahead: int | None,
    ) -> None:
        self.n_ctx = 64
        self.words = language(seed)
        n_seq = n_slots + branches
        draft = FakeModel(
            near(self.words, 7, share), cells, n_batch, n_seq=n_seq, rollback=rollback
        )
        self.target = FakeModel(self.words, cells, n_batch, n_seq=n_seq, rollback=rollback)
        follower = Follower(draft)
        suffix = SuffixDrafter(lambda token: token == END, min_match=1)
        drafters = [suffix, ModelDrafter(follower), StagedDrafter(follower, [])]
        if branches and rollback == "free":
            drafters.append(TreeDrafter(follower, first_branch=n_slots))
        self.engine = Engine(
            self.target,
            drafters,
            n_slots=n_slots,
            n_ctx=self.n_ctx,
            max_batch=max_batch,
            linear=linear,
        )
        go_ahead(self.engine, ahead)
        self.n_slots = n_slots
        self.draft = draft
        self.seen: dict[int, Seen] = {}
        self.histories: list[list[int]] = [[1, 2, 3], [*SYSTEM, 5]]

    @precondition(lambda self: len(self.seen) < self.n_slots)
    @rule(
        data=st.data(),
        tail=st.lists(st.integers(0, N_VOCAB - 1), max_size=30),
        params=sampling,
        seed=st.integers(0, 3),
        adaptive=st.booleans(),
        drafters=st.sampled_from(
            [("model",), ("suffix",), ("model", "suffix"), ("staged",), ("tree",), ()]
        ),
        limit=st.sampled_from([0, 1, 5, 20, None]),
        draft_max=st.integers(0, 6),
    )
    def arrive(
        self,
        data: st.DataObject,
        tail: list[int],
        params: SamplingParams,
        seed: int,
        adaptive: bool,
        drafters: tuple[str, ...],
        limit: int | None,
        draft_max: int,
    ) -> None:
        history = data.draw(st.sampled_from(self.histories))
        prompt = (history[: data.draw(st.integers(0, len(history)))] + tail)[: self.n_ctx]
        if not prompt:
            return
        asked = request(
            prompt,
            sampling=params,
            seed=seed,
            max_tokens=limit,
            adaptive=adaptive,
            drafters=drafters,
            draft_max=draft_max,
        )
        live = self.engine.add(asked)
        self.seen[live.key] = Seen(live)

    @rule(rounds=st.integers(1, 4))
    def step(self, rounds: int) -> None:
        for _ in range(rounds):
            try:
                events = self.engine.step()
            except EngineError:
                continue
            for event in events:
                seen = self.seen[event.key]
                if isinstance(event, EndEvent):
                    seen.ended = event
                    self.leave(event.key)
                else:
                    seen.tokens.append(event.id)

    def leave(self, key: int) -> None:
        seen = self.seen.pop(key)
        asked = seen.live.request
        assert seen.ended is not None
        assert (seen.tokens, seen.ended.reason) == expected(self.words, asked, self.n_ctx)
        self.histories = [*self.histories[-6:], list(seen.live.ids)]

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.seen)))
        live = self.seen.pop(key).live
        self.engine.cancel(live)
        self.histories = [*self.histories[-6:], list(live.ids)]

    @rule(after=st.integers(0, 3), in_draft=st.booleans())
    def break_a_decode(self, after: int, in_draft: bool) -> None:
        fake = self.draft if in_draft else self.target
        fake.faults[len(fake.batches) + after] = Fault(EngineError, "half")

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "engine"):
            lives = [seen.live for seen in self.seen.values()]
            for live in lives:
                own = expected(self.words, live.request, self.n_ctx)[0]
                assert reply(live) == own[: live.n_emitted]
            assert self.engine.cache.n_cells == len(self.target.cells)
            held = self.target.held
            assert all(
                self.engine.cache.length(slot) == len(self.target.tokens(slot)) for slot in held
            )

    def teardown(self) -> None:
        """Whatever is alive comes to its end."""
        if not hasattr(self, "engine"):
            return
        self.target.faults.clear()
        self.draft.faults.clear()
        for _ in range(600):
            if not self.seen:
                return
            self.step(1)
        raise AssertionError("somebody waits for ever")


TestCompany = Company.TestCase
TestCompany.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    derandomize=True,
)
