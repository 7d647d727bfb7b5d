"""Any order of turns, rounds, cancellations and broken calls, over one engine."""

from __future__ import annotations

from typing import Any, Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specllama.drafting.follower import Follower
from specllama.drafting.model import ModelDrafter
from specllama.drafting.suffix import SuffixDrafter
from specllama.engine.engine import Engine
from specllama.engine.request import EndEvent
from specllama.errors import EngineError
from tests.engine.fake_model import END, N_VOCAB, FakeModel, Fault, language, near
from tests.engine.harness import GREEDY, PLAIN, check, expected, go_ahead, request

N_CTX = 200
N_SLOTS = 2

faults = st.builds(
    Fault,
    st.sampled_from([EngineError, KeyboardInterrupt]),
    st.sampled_from(["before", "half", "after"]),
)


class Sessions(RuleBasedStateMachine):
    """Two slots; every reply that ends is compared with plain decoding."""

    @initialize(
        seed=st.integers(0, 20),
        share=st.sampled_from([0.0, 0.4, 1.0]),
        rollback=st.sampled_from(["free", "checkpoint"]),
        branches=st.sampled_from([0, 2]),
        linear=st.booleans(),
        n_batch=st.integers(4, 12),
        ahead=st.sampled_from([None, 1, 4, 9]),
    )
    def open(
        self,
        seed: int,
        share: float,
        rollback: Literal["free", "checkpoint"],
        branches: int,
        linear: bool,
        n_batch: int,
        ahead: int | None,
    ) -> None:
        self.words = language(seed)
        self.draft = FakeModel(
            near(self.words, 7, share), N_CTX, n_batch, n_seq=N_SLOTS, rollback=rollback
        )
        self.target = FakeModel(
            self.words, N_CTX, n_batch, n_seq=N_SLOTS + branches, rollback=rollback
        )
        drafters = [
            SuffixDrafter(lambda token: token == END, min_match=1),
            ModelDrafter(Follower(self.draft)),
        ]
        self.engine = Engine(self.target, drafters, n_slots=N_SLOTS, linear=linear)
        go_ahead(self.engine, ahead)
        self.lives: list[Any] = []
        self.histories: list[list[int]] = [[1, 2, 3]]

    @precondition(lambda self: len(self.lives) < N_SLOTS)
    @rule(
        data=st.data(),
        tail=st.lists(st.integers(0, N_VOCAB - 1), max_size=4),
        greedy=st.booleans(),
        adaptive=st.booleans(),
        drafters=st.sampled_from([("model",), ("suffix",), ("model", "suffix"), ()]),
        limit=st.sampled_from([0, 1, 5, 12]),
    )
    def add(
        self,
        data: st.DataObject,
        tail: list[int],
        greedy: bool,
        adaptive: bool,
        drafters: tuple[str, ...],
        limit: int,
    ) -> None:
        """A new turn: an old history, whole or cut anywhere, and something after it."""
        history = data.draw(st.sampled_from(self.histories))
        prompt = history[: data.draw(st.integers(0, len(history)))] + tail
        if not prompt or len(prompt) > N_CTX // 3:
            return
        asked = request(
            prompt,
            sampling=GREEDY if greedy else PLAIN,
            max_tokens=limit,
            adaptive=adaptive,
            drafters=drafters,
            draft_max=5,
        )
        try:
            self.lives.append(self.engine.add(asked))
        except (EngineError, KeyboardInterrupt):
            assert len(self.engine._live) == len(self.lives), "a dead slot"

    @rule(rounds=st.integers(1, 3))
    def step(self, rounds: int) -> None:
        for _ in range(rounds):
            try:
                events = self.engine.step()
            except (EngineError, KeyboardInterrupt):
                return
            ended = {event.key for event in events if isinstance(event, EndEvent)}
            for live in [live for live in self.lives if live.key in ended]:
                self.end(live)

    def end(self, live: Any) -> None:
        self.lives.remove(live)
        self.histories = [*self.histories[-5:], list(live.ids)]
        reply = live.ids[live.n_prompt :]
        assert (reply, live.finish) == expected(self.words, live.request, N_CTX)

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.lives))
        self.engine.cancel(live)
        self.lives.remove(live)
        self.histories = [*self.histories[-5:], list(live.ids)]

    @rule(after=st.integers(0, 3), fault=faults, in_draft=st.booleans())
    def break_a_call(self, after: int, fault: Fault, in_draft: bool) -> None:
        fake = self.draft if in_draft else self.target
        fake.faults[len(fake.batches) + after] = fault

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "engine"):
            check(self.engine, self.lives)
            for live in self.lives:
                reply = live.ids[live.n_prompt :]
                assert reply == expected(self.words, live.request, N_CTX)[0][: len(reply)]


TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    derandomize=True,
)
