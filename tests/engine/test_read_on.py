"""A draft's device reads on while the scheduler chooses: nothing of it may show but the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from specllama.drafting.follower import Follower
from specllama.drafting.model import ModelDrafter
from specllama.drafting.protocol import Want
from specllama.engine import propose as propose_module
from specllama.engine.engine import Engine, Event
from specllama.engine.request import TokenEvent
from specllama.engine.sequence import Sequence as Live
from specllama.verification.types import Proposal
from tests.engine.fake_model import FakeModel, Fault, Language, near
from tests.engine.harness import (
    GREEDY,
    PLAIN,
    Script,
    check,
    expected,
    request,
    right,
    run,
)
from tests.engine.test_engine import ending_late

WORDS = ending_late(after=60)
DRAFT = near(WORDS, 7, 0.6)
PROMPT = (3, 1, 4, 1, 5)
N_CTX = 192


class Watched(ModelDrafter):
    """Counts the sequences that were read on, and the decodes that proposals took."""

    def __init__(self, fake: FakeModel, **settings: Any) -> None:
        super().__init__(Follower(fake, **settings))
        self.fake = fake
        self.n_read_on = 0
        self.decodes: list[int] = []
        self.asked = True

    def read_on(self, key: int, ids: Sequence[int], meanwhile: Callable[[], None]) -> None:
        before = len(self.fake.batches)
        done: list[int] = []

        def noted() -> None:
            done.append(1)
            meanwhile()

        super().read_on(key, ids, noted)
        assert done == [1]
        self.n_read_on += len(self.fake.batches) > before

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        before = len(self.fake.batches)
        proposals = super().propose(wants)
        self.decodes.append(len(self.fake.batches) - before)
        return proposals


def opened(*others: Any, draft: Language = DRAFT, later: bool = True, **more: Any) -> Any:
    """An engine whose draft's device works on its own, and the drafter."""
    settings = {"n_slots": 1, "rollback": "free"} | more
    n_slots = settings.pop("n_slots")
    fake = FakeModel(draft, N_CTX, n_seq=n_slots, answers_later=later, **settings)
    drafter = Watched(fake)
    target = FakeModel(WORDS, N_CTX, n_seq=n_slots, rollback=settings["rollback"])
    return Engine(target, [*others, drafter], n_slots=n_slots), drafter


def ids_of(events: Sequence[Event]) -> list[int]:
    return [event.id for event in events if isinstance(event, TokenEvent)]


def the_rest(engine: Engine, live: Live) -> list[int]:
    """What is said to the end, with the invariants after every round."""
    said: list[int] = []
    while live.finish is None:
        said += ids_of(engine.step())
        check(engine, [live])
    return said


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
@pytest.mark.parametrize("rollback", ["free", "checkpoint"])
def test_the_same_text_statistics_and_decodes(sampling: Any, rollback: Any) -> None:
    """But for the decodes that come before the question now."""
    asked = request(PROMPT, sampling=sampling, draft_max=3, max_tokens=40)
    engine, drafter = opened(rollback=rollback)
    plain_engine, plain = opened(later=False, rollback=rollback)
    outcome, usual = run(engine, asked), run(plain_engine, asked)
    assert outcome.tokens == usual.tokens == expected(WORDS, asked, N_CTX)[0]
    assert outcome.stats.accepted == usual.stats.accepted > 0
    assert outcome.stats.by_depth == usual.stats.by_depth
    assert drafter.fake.batches == plain.fake.batches
    assert (drafter.n_read_on, plain.n_read_on) == (len(drafter.decodes) - 1, 0)
    assert drafter.decodes[1:] == [n - 1 for n in plain.decodes[1:]]


def told(says: Callable[[Want], bool]) -> Script:
    """A free drafter that knows what comes next, and tells it now and then."""
    know = right(WORDS)

    def proposal(want: Want) -> Proposal:
        count = want.limit if says(want) else 0
        return Proposal.chain(know(want.ids, count))

    return Script(proposal, free=True)


def test_not_where_another_drafter_had_the_word() -> None:
    """In the round before: it most likely has it again."""
    engine, drafter = opened(told(lambda want: True))
    asked = request(PROMPT, draft_max=3, max_tokens=20, drafters=("script", "model"))
    assert run(engine, asked).tokens == expected(WORDS, asked, N_CTX)[0]
    assert drafter.n_read_on == 0


def test_a_drafter_that_is_not_asked_after_all() -> None:
    """What was read for nothing is not read again when it is wanted, and stays right."""
    engine, drafter = opened(told(lambda want: len(want.ids) % 4 == 0))
    asked = request(PROMPT, draft_max=3, max_tokens=40, drafters=("script", "model"))
    assert run(engine, asked).tokens == expected(WORDS, asked, N_CTX)[0]
    assert drafter.n_read_on > 0
    assert len(drafter.decodes) < drafter.n_read_on + 20


@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("call", [4, 7, 8, 12])
def test_broken_off(when: Any, call: int) -> None:
    """Also while something else is done: the text goes on as if nothing had been."""
    asked = request(PROMPT, draft_max=3, max_tokens=30)
    engine, drafter = opened()
    drafter.fake.faults[call] = Fault(KeyboardInterrupt, when)
    live = engine.add(asked)
    said: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        while live.finish is None:
            said += ids_of(engine.step())
    check(engine, [live])
    assert [*said, *the_rest(engine, live)] == expected(WORDS, asked, N_CTX)[0]


def test_choosing_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is at work then."""
    engine, drafter = opened()
    asked = request(PROMPT, draft_max=3, max_tokens=30)
    live = engine.add(asked)
    said = ids_of(engine.step())
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(propose_module._Goal, "__init__", interrupted)
        engine.step()
    assert drafter.fake.batches[-1] == 1  # it was
    check(engine, [live])
    assert [*said, *the_rest(engine, live)] == expected(WORDS, asked, N_CTX)[0]


def test_a_prompt_of_the_same_length_is_another_one() -> None:
    """What was read on for the reply before says nothing about it."""
    engine, _ = opened()
    first = engine.add(request(PROMPT, draft_max=3, max_tokens=30))
    engine.step()
    length = len(first.ids)
    engine.cancel(first)
    other = tuple(1 + (7 * n) % 9 for n in range(length))
    asked = request(other, draft_max=3, max_tokens=30)
    outcome = run(engine, asked)
    assert outcome.tokens == expected(WORDS, asked, N_CTX)[0]


def test_company_reads_in_one_batch_as_before() -> None:
    engine, drafter = opened(n_slots=2)
    for seed in (1, 2):
        engine.add(request((seed, *PROMPT), draft_max=2, max_tokens=12, seed=seed))
    for _ in range(3):
        engine.step()
    assert drafter.n_read_on == 0
