"""The order of runs, empty caches, equal seeds, and what a run records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from time import sleep
from typing import Any

import pytest

from specllama.bench import metrics
from specllama.bench.prompts import Prompt
from specllama.bench.runner import Arm, Hooks, Session, measure, when_made
from specllama.errors import UsageError
from specllama.options import GenerationParams
from tests.bench.fakes import DRAFTING, PLAIN, BenchDecoder, make_run
from tests.cli.fakes import Reply

A, B = Prompt("a", "chat", "One"), Prompt("b", "list", "Two", "a b c")


def session(decoder: BenchDecoder, *prompts: Prompt, **settings: Any) -> Session:
    return Session({"target": decoder}, prompts or (A,), max_tokens=8, **settings)  # type: ignore[dict-item]


def test_arms_take_turns_there_and_back() -> None:
    decoder = BenchDecoder()
    runs = list(measure(session(decoder, A, B), [PLAIN, DRAFTING], 2))
    order = [(run.prompt.id, run.arm.name, run.repetition) for run in runs]
    assert order == [
        (prompt, *turn)
        for prompt in "ab"
        for turn in [("plain", 1), ("drafting", 1), ("drafting", 2), ("plain", 2)]
    ]


@pytest.mark.parametrize("repetitions", [1, 3])
def test_no_arm_is_the_first_on_every_prompt(repetitions: int) -> None:
    runs = list(measure(session(BenchDecoder(), A, B), [PLAIN, DRAFTING], repetitions))
    first = [run.arm.name for run in runs[::2]]
    assert first == ["plain", "drafting"] * repetitions


def test_every_run_starts_from_empty_caches() -> None:
    decoder = BenchDecoder()
    list(measure(session(decoder), [PLAIN, DRAFTING], 1))
    assert decoder.log == ["forget", "plain", "forget", "drafting"]


def test_all_arms_have_the_same_seed_on_a_prompt_and_a_fresh_conversation() -> None:
    decoder = BenchDecoder()
    list(measure(session(decoder, A, B, seed=7, system="Be brief."), [PLAIN, DRAFTING], 1))
    said = [("system", "Be brief."), ("user", "One")], [("system", "Be brief."), ("user", B.text)]
    assert [chat for chat, _ in decoder.chats] == [said[0], said[0], said[1], said[1]]
    assert [params.seed for _, params in decoder.chats] == [7, 7, 8, 8]
    assert {params.max_tokens for _, params in decoder.chats} == {8}


def test_the_largest_seed_wraps() -> None:
    decoder = BenchDecoder()
    list(measure(session(decoder, A, B, seed=2**64 - 1), [PLAIN], 1))
    assert [params.seed for _, params in decoder.chats] == [2**64 - 1, 0]


def test_times_are_when_tokens_came() -> None:
    decoder = BenchDecoder(plain=Reply(delay=0.02))
    (run,) = measure(session(decoder), [PLAIN], 1)
    assert len(run.times) == 4 and run.own == (True,) * 4
    assert all(later - at >= 0.02 for at, later in zip(run.times, run.times[1:], strict=False))
    assert run.seconds >= run.times[-1] >= 0.08


def test_drafted_tokens_are_not_the_targets_own() -> None:
    (run,) = measure(session(BenchDecoder()), [DRAFTING], 1)
    assert run.own == (True, False, False, True)


def test_tokens_that_come_one_by_one_keep_their_times() -> None:
    given = [1.0, 1.5, 1.500001, 2.25]
    assert when_made(given, [True, False, True, True], 0.25) == given
    assert when_made([], [], 0.25) == []


def test_rounds_that_are_given_out_together_share_the_wait() -> None:
    """Four rounds of which three were held back: the second has two tokens."""
    given = [1.0, 4.0, 4.000001, 4.000002, 4.000003]
    made = when_made(given, [True, False, True, True, True], 1.0)
    assert made == pytest.approx([1.0, 2.0, 2.0, 3.0, 4.0], abs=1e-5)


def test_a_first_round_that_was_held_back_came_when_the_engine_says() -> None:
    made = when_made([3.0, 3.0, 3.0, 4.0], [True, True, True, False], 1.0)
    assert made == pytest.approx([1.0, 2.0, 3.0, 4.0])


def test_a_reply_that_is_held_back_as_a_whole_has_ordinary_rounds() -> None:
    class Held(BenchDecoder):
        """Gives its four tokens out together; its engine had the first one after 0.18 s."""

        def _start(self, *given: Any) -> Any:
            stream = super()._start(*given)
            events = list(stream)
            sleep(0.3)
            stream._events = (event for event in events)
            return stream

    (run,) = measure(session(Held()), [PLAIN], 1)
    first, *others = run.times
    assert first == pytest.approx(0.18) and others[-1] >= 0.3
    assert metrics.round_seconds(run) == pytest.approx([(others[-1] - first) / 3] * 3)


def test_a_cancelled_run_is_dropped_and_ends_it() -> None:
    streams: list[Any] = []
    decoder = BenchDecoder()

    def cancel_third(stream: Any) -> None:
        streams.append(stream)
        if len(streams) == 3:
            stream.cancel()

    runs = measure(session(decoder, hooks=Hooks(stream=cancel_third)), [PLAIN, DRAFTING], 2)
    assert [run.arm.name for run in islice(runs, 2)] == ["plain", "drafting"]
    with pytest.raises(KeyboardInterrupt):
        next(runs)


def test_the_warm_up_leaves_out_what_cannot_run() -> None:
    class Choosy(BenchDecoder):
        def _start(self, prompt: Any, words: int, params: GenerationParams, on_prompt: Any) -> Any:
            if params.draft_max == 9:
                raise UsageError("Nine is too many.")
            return super()._start(prompt, words, params, on_prompt)

    nine = replace(DRAFTING, name="nine", params=GenerationParams(draft_max=9))
    arms, notes = session(Choosy()).warm_up([PLAIN, nine, DRAFTING])
    assert arms == [PLAIN, DRAFTING]
    assert notes == ["nine is left out: Nine is too many."]


def test_without_its_baseline_there_is_nothing_to_measure() -> None:
    base = replace(PLAIN, params=GenerationParams())
    decoder = BenchDecoder(drafting=Reply(error=UsageError("Broken.")))
    with pytest.raises(UsageError, match="Broken"):
        session(decoder).warm_up([base, DRAFTING])


def test_prompts_that_leave_no_room_for_the_reply_are_found() -> None:
    long = Prompt("long", "chat", "word " * 20)
    assert session(BenchDecoder(n_ctx=20), A, long).too_long() == [long]


def test_replies_without_a_limit_go_on_until_their_end() -> None:
    decoder = BenchDecoder(n_ctx=3)
    endless = Session({"target": decoder}, (A, B), max_tokens=None)  # type: ignore[dict-item]
    (run,) = measure(replace(endless, prompts=(A,)), [PLAIN], 1)
    assert decoder.chats[0][1].max_tokens is None and len(run.generation.tokens) == 4
    assert endless.too_long() == [B]  # four words, and no room for any reply


def test_done_is_told_of_each_run() -> None:
    told: list[tuple[str, str]] = []
    note: Callable[[Arm, Prompt], None] = lambda arm, prompt: told.append((arm.name, prompt.id))  # noqa: E731
    list(measure(session(BenchDecoder(), A, B, hooks=Hooks(done=note)), [PLAIN], 1))
    assert told == [("plain", "a"), ("plain", "b")]


def test_a_run_as_data_can_be_measured_again() -> None:
    data = make_run(DRAFTING, blocks=[(1, 1.0), (3, 2.1234567)]).to_dict()
    assert data["arm"] == "drafting" and data["kind"] == "chat" and data["repetition"] == 1
    assert data["times"] == [1.0, 2.123457, 2.123457, 2.123457]
    assert data["own"] == [True, False, False, True]
