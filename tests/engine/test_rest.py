"""Where drafting does not pay, most rounds are plain: nothing of it may show but the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from specllama.drafting.protocol import Drafter, Want
from specllama.drafting.suffix import SuffixDrafter
from specllama.drafting.text import TextDrafter
from specllama.engine import engine as engine_module
from specllama.engine import propose as propose_module
from specllama.engine.engine import Engine
from specllama.engine.sequence import Sequence as Live
from specllama.sampling.params import SamplingParams
from specllama.scheduling import scheduler as scheduler_module
from specllama.scheduling.table import CostTable
from specllama.verification.types import Proposal
from tests.engine.clock import Clock
from tests.engine.fake_model import FakeModel, Fault, Language, Row, language
from tests.engine.harness import GREEDY, PLAIN, Script, check, expected, finish, request, right

N_VOCAB = 400
N_CTX = 512
DRAFT_S = 0.0008
COPIES = 60
"""Where the text begins to repeat itself."""
REST = 15
FIRST_CALM = 16
"""The first round (from 0) that may be followed by rest: the 16 before it taught what is plain."""


def cost(n_tokens: int) -> float:
    """Free drafts pay; a drafted token that takes DRAFT_S does not, be it right or wrong."""
    return 0.001 + 0.0003 * (n_tokens - 1)


def flat(n_tokens: int) -> float:
    """A machine on which all drafts that are right pay."""
    return 0.001


def words(context: tuple[int, ...]) -> Row:
    """Says nothing twice behind a prompt that begins with 0; behind 1, it copies from COPIES on."""
    row = language(0, 1)(()).repeat(N_VOCAB)
    place = len(context)
    row[place - 50 if context[0] == 1 and place >= COPIES else place] += 30.0
    return row


@pytest.fixture(autouse=True)
def fine(clock: Clock) -> None:
    """Looking at the clock takes next to nothing, so that calm rounds lose next to nothing."""
    clock.tick = 2.0**-24


@pytest.fixture
def weighed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sequences each round that asked anybody was for."""
    calls: list[int] = []
    propose = propose_module.propose

    def spy(lives: Sequence[Live], *others: Any) -> Any:
        calls.append(len(lives))
        return propose(lives, *others)

    monkeypatch.setattr(engine_module, "propose", spy)
    return calls


class Ideas(Script):
    """A drafter whose ideas are as strong as it is told."""

    strength: float = 0

    def idea(self, key: int, ids: Sequence[int]) -> float:
        return self.strength


def costly(clock: Clock, says: Language = words, seconds: float = DRAFT_S) -> Script:
    """A drafter that is always right, at a price."""
    oracle = right(says)

    def draft(want: Want) -> Proposal:
        tokens: list[int] = []
        while len(tokens) < want.limit and want.go_on(len(tokens), None):
            clock.advance(seconds)
            tokens += oracle([*want.ids, *tokens], 1)
        return Proposal.chain(tokens)

    return Script(draft)


def engine(
    clock: Clock, *drafters: Drafter, n_slots: int = 1, draft_s: float = DRAFT_S, **settings: Any
) -> Engine:
    """One that knows what everything costs."""
    price = settings.get("cost", cost)
    defaults = {"language": words, "n_vocab": N_VOCAB, "n_ctx": N_CTX, "cost": price}
    target = FakeModel(**defaults | settings, n_seq=n_slots, on_decode=clock.advance)
    made = Engine(target, drafters, n_slots=n_slots)
    draft = {n: n * draft_s for n in (1, 16)}
    same = {n: price(n) for n in range(1, 17)}
    made.scheduler.recall(CostTable(how="calibrated", same=same, draft={"script": draft}))
    return made


def ask(ids: Sequence[int], **settings: Any) -> Any:
    defaults: dict[str, Any] = {
        "adaptive": True,
        "max_tokens": 200,
        "is_end": lambda token: False,
        "drafters": ("script", "suffix", "text"),
    }
    return request(ids, **defaults | settings)


def steps(made: Engine, live: Live, weighed: list[int], count: int) -> list[bool]:
    """Of so many rounds, whether anybody was asked."""
    found = []
    for _ in range(count):
        before = len(weighed)
        made.step()
        check(made, [live])
        found.append(len(weighed) > before)
    return found


def resting(made: Engine, weighed: list[int], **settings: Any) -> Live:
    """A reply in the middle of a rest."""
    live = made.add(ask([0, 1, 2], **settings))
    assert steps(made, live, weighed, FIRST_CALM + 6)[-5:] == [False] * 5
    return live


def resting_beside(clock: Clock, weighed: list[int]) -> tuple[Engine, Ideas, Live]:
    """A reply in the middle of a rest, and a free drafter that has nothing to say yet."""
    ideas = Ideas(lambda want: Proposal(), name="text", free=True)
    made = engine(clock, costly(clock), ideas)
    return made, ideas, resting(made, weighed)


def suffix() -> SuffixDrafter:
    return SuffixDrafter(lambda token: False, min_match=2)


class TestRest:
    def test_one_round_in_sixteen_asks(self, clock: Clock, weighed: list[int]) -> None:
        """A try is due after 16 rounds and after 32 more, though few of them were weighed."""
        made = engine(clock, costly(clock))
        live, drafted, asked = made.add(ask([0, 1, 2], max_tokens=120)), [], []
        for _ in range(FIRST_CALM + 5 * (1 + REST)):
            before = live.stats.drafted
            asked += steps(made, live, weighed, 1)
            drafted.append(live.stats.drafted - before)
        tries = [number for number, count in enumerate(drafted) if count]
        assert tries[:2] == [15, 48], "one round late at most"
        calm = [True, *[False] * REST]
        assert asked[:FIRST_CALM] == [True] * FIRST_CALM
        # behind the second try, which is no calm round, nobody rests
        assert asked[FIRST_CALM:] == [*calm * 2, True, *calm * 2, *calm[:-1]]

    def test_counts_and_texts_as_ever(self, clock: Clock, weighed: list[int]) -> None:
        made = engine(clock, costly(clock))
        asked = ask([0, 1, 2], max_tokens=120)
        outcome = finish(made, made.add(asked))
        assert outcome.tokens == expected(words, asked, N_CTX)[0]
        stats = outcome.stats
        assert stats.rounds + stats.accepted == 120
        assert len(weighed) < stats.rounds / 2

    def test_the_budget_grows_as_without(
        self, clock: Clock, weighed: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slack, n_asked = [], []
        for rest in (REST, 0):
            monkeypatch.setattr(scheduler_module, "_REST", rest)
            made = engine(clock, costly(clock))
            weighed.clear()
            live = made.add(ask([0, 1, 2], max_tokens=None))
            while live.stats.rounds < 300:
                made.step()
            slack.append(live.account.slack_s)
            n_asked.append(len(weighed))
        assert n_asked[0] < 60 and n_asked[1] == 300
        assert slack[0] == pytest.approx(slack[1], abs=0.1 * 0.001 * REST)

    def test_it_grows_for_each_of_several(self, clock: Clock, weighed: list[int]) -> None:
        made = engine(clock, costly(clock), n_slots=2)
        lives = [made.add(ask([0, 1, 2])) for _ in range(2)]
        steps(made, lives[0], weighed, FIRST_CALM + 1)
        before = [live.account._plain for live in lives]
        assert steps(made, lives[0], weighed, REST) == [False] * REST
        grown = [live.account._plain - s for live, s in zip(lives, before, strict=True)]
        assert grown == pytest.approx([REST * cost(2) / 2] * 2, rel=0.01)

    @pytest.mark.parametrize("sampling", [GREEDY, PLAIN, SamplingParams()])
    @pytest.mark.parametrize("rollback", ["free", "checkpoint"])
    def test_the_text_is_the_same(
        self, clock: Clock, weighed: list[int], sampling: SamplingParams, rollback: str
    ) -> None:
        says = language(4)
        asked = ask([1, 2, 3], sampling=sampling, max_tokens=100, seed=7)
        short = SuffixDrafter(lambda token: False, min_match=5)
        drafter = costly(clock, says)
        made = engine(clock, drafter, short, language=says, n_vocab=16, rollback=rollback)
        outcome = finish(made, made.add(asked))
        assert outcome.tokens == expected(says, asked, N_CTX)[0]
        assert len(weighed) < outcome.stats.rounds - REST, "it rested"

    def test_a_broken_round_changes_nothing(self, clock: Clock, weighed: list[int]) -> None:
        made = engine(clock, costly(clock))
        live = resting(made, weighed, max_tokens=60)
        backend: Any = made.backend
        backend.faults[len(backend.batches)] = Fault(KeyboardInterrupt, "half")
        with pytest.raises(KeyboardInterrupt):
            made.step()
        check(made, [live])
        while live.finish is None:
            made.step()
        assert live.ids[3:] == expected(words, live.request, N_CTX)[0]
        assert live.stats.rounds + live.stats.accepted == 60


class TestEnds:
    """What may be worth drafting is asked all the same."""

    @pytest.mark.parametrize("new", [(), (7,), (7, 8, 9)])
    def test_a_reply_begins(self, clock: Clock, weighed: list[int], new: tuple[int, ...]) -> None:
        """Also where all of its prompt is in the cache, so that nothing is read."""
        made = engine(clock, costly(clock))
        live = resting(made, weighed)
        made.cancel(live)
        again = made.add(ask([*live.ids, *new]))
        assert (again.n_cached == len(again.ids) - 1) == (not new)
        assert steps(made, again, weighed, 2) == [True, False]

    def test_more_sequences_or_fewer(self, clock: Clock, weighed: list[int]) -> None:
        made = engine(clock, costly(clock), n_slots=2)
        first = resting(made, weighed)
        second = made.add(ask([0, 1, 2]))
        assert steps(made, second, weighed, 1) == [True]
        assert weighed[-1] == 2
        assert steps(made, second, weighed, 4)[-3:] == [False] * 3
        made.cancel(first)
        assert steps(made, second, weighed, 2) == [True, False]
        assert weighed[-1] == 1

    @pytest.mark.parametrize("n_slots", [1, 2])
    def test_a_copy_is_found_at_once(self, clock: Clock, weighed: list[int], n_slots: int) -> None:
        """Be it one sequence's only."""
        made = engine(clock, costly(clock), suffix(), n_slots=n_slots)
        lives = [made.add(ask([first, 1, 2])) for first in (1, 0)[:n_slots]]
        live = lives[0]
        while len(live.ids) < COPIES + 2:  # the last two are the first two of a copy
            flags = steps(made, live, weighed, 1)
        assert flags == [False]
        assert "suffix" not in live.stats.by_source
        assert steps(made, live, weighed, 1) == [True]
        assert live.stats.by_source["suffix"].accepted > 0

    def test_a_drafter_that_was_not_wanted_wakes_nobody(
        self, clock: Clock, weighed: list[int]
    ) -> None:
        made = engine(clock, costly(clock), suffix())
        live = made.add(ask([1, 1, 2], drafters=("script",)))
        while len(live.ids) < COPIES + 2:
            steps(made, live, weighed, 1)
        assert steps(made, live, weighed, 1 + REST).count(True) == 1

    def test_a_predicted_text_is_followed_at_once(self, clock: Clock, weighed: list[int]) -> None:
        text = TextDrafter()
        made = engine(clock, costly(clock), text)
        live = resting(made, weighed)
        text.predict(live.key, range(3, 100))
        assert steps(made, live, weighed, 1) == [True]
        assert live.stats.by_source["text"].accepted > 0

    def test_any_free_drafter_is_asked(self, clock: Clock, weighed: list[int]) -> None:
        """One that does not say whether it has an idea may have one in every round."""
        oracle, silent = right(words), Script(lambda want: Proposal(), name="text", free=True)
        made = engine(clock, costly(clock), silent)
        live = made.add(ask([0, 1, 2]))
        assert all(steps(made, live, weighed, FIRST_CALM + 20))
        silent.says = lambda want: Proposal.chain(oracle(want.ids, 1))
        steps(made, live, weighed, 1)
        assert live.stats.by_source["text"].accepted == 1

    def test_an_idea_that_came_to_nothing_is_heard_again_when_it_is_stronger(
        self, clock: Clock, weighed: list[int]
    ) -> None:
        """Until something was drafted: then the weakest is heard again."""
        made, ideas, live = resting_beside(clock, weighed)
        heard = []
        for ideas.strength in (2, 2, 1, 3, 3, 0, 4):
            heard += steps(made, live, weighed, 1)
        assert heard == [True, False, False, True, False, False, True]
        oracle = right(words)
        ideas.says = lambda want: Proposal.chain(oracle(want.ids, 1))
        ideas.strength = 5
        assert steps(made, live, weighed, 1) == [True]
        assert live.stats.by_source["text"].accepted == 1
        ideas.strength = 0
        assert steps(made, live, weighed, 2) == [False, False], "the rest goes on"
        ideas.strength = 1
        assert steps(made, live, weighed, 1) == [True]

    def test_an_idea_that_nobody_can_afford_is_not_heard(
        self, clock: Clock, weighed: list[int]
    ) -> None:
        made, ideas, live = resting_beside(clock, weighed)
        live.account.book(1.0, 0.0)
        ideas.strength = 9
        assert steps(made, live, weighed, 3) == [False] * 3
        live.account.book(0.0, 1.0)
        assert steps(made, live, weighed, 1) == [True]

    @pytest.mark.parametrize("adaptive", [True, False])
    def test_a_free_drafter_without_an_idea_is_not_put_the_question(
        self, clock: Clock, adaptive: bool
    ) -> None:
        asked: list[int] = []

        def says(want: Want) -> Proposal:
            asked.append(len(want.ids))
            return Proposal()

        ideas = Ideas(says, name="text", free=True)
        made = engine(clock, ideas)
        live = made.add(ask([0, 1, 2], adaptive=adaptive))
        for ideas.strength in (0, 1, 0, 2):
            made.step()
        assert asked == [live.n_prompt + 1, live.n_prompt + 3]

    def test_fixed_lengths_are_always_drafted(self, clock: Clock, weighed: list[int]) -> None:
        """A drafter that said nothing, in no time, for long: it may still say something."""
        clock.tick = 0.0
        oracle, silent = right(words), Script(lambda want: Proposal())
        made = engine(clock, silent)
        live = made.add(ask([0, 1, 2], adaptive=False))
        assert all(steps(made, live, weighed, 40))
        silent.says = lambda want: Proposal.chain(oracle(want.ids, 1))
        steps(made, live, weighed, 1)
        assert live.stats.accepted == 1

    def test_nobody_else_rests_beside_a_fixed_length(
        self, clock: Clock, weighed: list[int]
    ) -> None:
        clock.tick = 0.0
        made = engine(clock, Script(lambda want: Proposal()), n_slots=2)
        live = made.add(ask([0, 1, 2]))
        made.add(ask([0, 1, 2], adaptive=False))
        assert all(steps(made, live, weighed, 40))

    def test_who_never_drafts_keeps_nobody_from_resting(
        self, clock: Clock, weighed: list[int]
    ) -> None:
        made = engine(clock, costly(clock), n_slots=2)
        live = made.add(ask([0, 1, 2]))
        made.add(ask([0, 1, 2], adaptive=False, drafters=()))
        assert steps(made, live, weighed, 60).count(True) < 30


def test_nobody_rests_while_drafting_pays(clock: Clock, weighed: list[int]) -> None:
    """Rounds without drafts in between, which measure plain decoding, are no rest either."""
    made = engine(clock, costly(clock, seconds=0.0001), draft_s=0.0001, cost=flat)
    live = made.add(ask([0, 1, 2], draft_max=2, max_tokens=None))
    drafted = []
    for _ in range(70):
        before = live.stats.drafted
        assert steps(made, live, weighed, 1) == [True]
        drafted.append(live.stats.drafted - before)
    plain = [number for number, count in enumerate(drafted) if not count]
    assert 1 <= len(plain) <= 5
    assert plain[-1] > FIRST_CALM
