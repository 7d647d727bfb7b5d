"""Batches filled up to a size that is cheaper: nothing of it may show but the size."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafting.protocol import Want
from specllama.engine import engine as engine_module
from specllama.engine import propose as propose_module
from specllama.engine.engine import Engine
from specllama.machine import GraphsKept
from specllama.scheduling.account import Account
from specllama.scheduling.table import CostTable
from specllama.verification.types import Proposal
from tests.engine.clock import Clock
from tests.engine.fake_model import FakeModel, Language, language
from tests.engine.harness import Script, expected, request, right, run

WORDS = language(1)
STAIRS = CostTable(same={1: 0.010, 2: 0.030, 3: 0.031, 4: 0.020, 6: 0.1})
"""Kernels for four tokens are faster than those for two."""


def engine(words: Language, n_seq: int, n_slots: int = 1, **settings: Any) -> Engine:
    says = right(words)
    drafter = Script(lambda want: Proposal.chain(says(want.ids, 1) if want.limit else []))
    made = Engine(FakeModel(words, n_seq=n_seq, **settings), [drafter], n_slots=n_slots)
    made.scheduler.recall(STAIRS)
    return made


@pytest.mark.parametrize("n_seq", [1, 2, 4])
def test_the_text_stays_the_same(n_seq: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens are decoded as four, all in one sequence: another would make another graph."""
    made = engine(WORDS, n_seq)
    backend = made.backend
    assert isinstance(backend, FakeModel)
    decode, seen = backend.decode, set()

    def spy(tokens: Any, positions: Any, sequences: Any, *others: Any) -> Any:
        seen.update(sequences)
        return decode(tokens, positions, sequences, *others)

    monkeypatch.setattr(backend, "decode", spy)
    asked = request([1, 2, 3], drafters=("script",))
    outcome = run(made, asked)
    assert (outcome.tokens, outcome.reason) == expected(WORDS, asked)
    assert set(backend.batches[1:]) == {4}
    assert seen == {(0,)}


def test_a_sequence_is_not_filled_up_beyond_its_end() -> None:
    """Where each has its own part of the cells, though others have room."""
    made = engine(WORDS, 4)
    backend = made.backend
    assert isinstance(backend, FakeModel)
    backend.n_ctx_seq = 10
    asked = request([1, 2, 3], drafters=("script",), max_tokens=8, is_end=lambda token: False)
    assert run(made, asked).tokens == expected(WORDS, asked)[0]
    assert {2, 4} <= set(backend.batches[1:])


@pytest.mark.parametrize("limits", [{"n_batch": 3}, {"n_outputs": 3}, {"rollback": "checkpoint"}])
def test_never_more_than_a_decode_takes(limits: dict[str, Any]) -> None:
    """Nor where what a batch was filled up with could not be dropped again."""
    made = engine(WORDS, 4, **limits)
    asked = request([1, 2, 3], drafters=("script",))
    assert run(made, asked).tokens == expected(WORDS, asked)[0]
    backend = made.backend
    assert isinstance(backend, FakeModel)
    assert 4 not in backend.batches[1:]


def test_never_more_than_the_context_holds() -> None:
    made = engine(WORDS, 4, n_ctx=16)
    asked = request([1, 2, 3], drafters=("script",), max_tokens=None, is_end=lambda token: False)
    outcome = run(made, asked)
    assert outcome.reason == "context"
    assert outcome.tokens == expected(WORDS, asked, n_ctx=16)[0]


@pytest.mark.parametrize("n_idle", [8, 9, 10])
def test_never_more_than_others_leave_of_the_context(n_idle: int) -> None:
    """An idle slot stays while drafts fit beside it, though the filled-up batch does not."""
    made = engine(WORDS, 2, n_slots=2, n_ctx=24)
    run(made, request([9] * n_idle, drafters=(), max_tokens=1))
    asked = request([1, 2, 3], drafters=("script",), draft_max=1, max_tokens=16)
    assert run(made, asked).tokens == expected(WORDS, asked)[0]
    assert {2, 4} <= set(sizes(made))


GRAPHS = CostTable(
    same={n: 0.010 + 0.001 * n for n in (1, 2, 3, 4)},
    other={n: 0.012 + 0.001 * n for n in (1, 2, 3, 4)},
    second={n: 0.014 + 0.001 * n for n in (1, 2, 3, 4)},
)
"""Changing the size costs 2 ms and then 4 ms."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The engine's clock, which only decodes move."""
    clock = Clock()
    for module in (engine_module, propose_module):
        monkeypatch.setattr(module, "time", clock)
    return clock


def keeping(size: int, **settings: Any) -> Engine:
    """An engine that keeps a size while it drafts."""
    made = engine(WORDS, 4, **settings)
    known = made.scheduler
    known.recall(GRAPHS)
    known.begin(1)
    known.settle_size(lambda: 2.0 if known.kept.size == size else 1.0)
    return made


def sizes(made: Engine) -> list[int]:
    """Of all decodes behind the prompt."""
    backend = made.backend
    assert isinstance(backend, FakeModel)
    return backend.batches[1:]


def test_a_size_kept_for_other_requests_does_not_fill_up_fixed_lengths() -> None:
    made = keeping(4)
    account = Account(made.scheduler, 128)
    account.promised = 0.5
    assert made.scheduler.pays("script, greedy", "script", account)
    assert made.scheduler.padded(2) == 4
    asked = request([1, 2, 3], drafters=("script",), adaptive=False)
    assert run(made, asked).tokens == expected(WORDS, asked)[0]
    assert 2 in sizes(made) and 4 not in sizes(made)


def test_the_size_is_kept_to_the_last_token(clock: Clock) -> None:
    """It cannot be drafted, but at a size of its own it would cost two changes."""
    made = keeping(4, cost=lambda n: GRAPHS.same.get(n, 0.1), on_decode=clock.advance)
    asked = request([1, 2, 3], drafters=("script",), adaptive=True, is_end=lambda token: False)
    outcome = run(made, replace(asked, max_tokens=23))
    assert outcome.stats.drafted == 11, "one a round, but for the last token"
    assert outcome.stats.rounds == 12
    assert sizes(made) == [4] * 12
    assert 0.3 < outcome.live.account.promised < 1.0


def test_a_reply_that_drafts_nothing_is_decoded_at_its_own_size(clock: Clock) -> None:
    """The size is kept for who drafts."""
    made = keeping(4, cost=lambda n: GRAPHS.same.get(n, 0.1), on_decode=clock.advance)
    asked = request([1, 2, 3], drafters=("script",), adaptive=True, draft_max=0)
    run(made, asked)
    assert set(sizes(made)) == {1}


def test_a_drafter_that_has_too_much_to_read_keeps_no_size(clock: Clock) -> None:
    made = keeping(4, cost=lambda n: GRAPHS.same.get(n, 0.1), on_decode=clock.advance)
    endless = {"is_end": lambda token: False, "max_tokens": 20}
    live = made.add(request([1, 2, 3], drafters=(), **endless))
    while live.finish is None:
        made.step()
    made.drafters[0].reads = lambda n_tokens: None  # type: ignore[attr-defined]
    made.scheduler.costs.observe_catching_up(100, 10.0)
    outcome = run(made, request(live.ids, drafters=("script",), adaptive=True, **endless))
    assert outcome.stats.drafted == 0
    assert set(sizes(made)) == {1}


def test_plain_decoding_is_noticed() -> None:
    """So that the first draft behind it is known to change the size."""
    made = keeping(4)
    run(made, request([1, 2, 3], drafters=()))
    assert set(sizes(made)) == {1}
    assert (made.scheduler.costs.size, made.scheduler.costs.behind_prompt) == (1, False)
    assert made.scheduler.costs.change_s(1) == 0.0
    assert made.scheduler.costs.n_decodes == 0


@pytest.mark.parametrize(("alive", "kept"), [(True, 1), (False, 0)])
def test_graphs_are_lost_while_nobody_asks(alive: bool, kept: int) -> None:
    """llama.cpp drops those of a device that nothing used for ten seconds."""
    model = FakeModel(WORDS, n_seq=1)
    made = Engine(model)
    asked = request([1, 2, 3], max_tokens=2, is_end=lambda token: False)
    run(made, asked)
    assert made.scheduler.costs.size == 1
    model.graphs_alive = alive
    made.add(asked)
    assert made.scheduler.costs.size == kept


@pytest.mark.parametrize("kept_graphs", ["sized", "latest", "none"])
@pytest.mark.parametrize("drafters", [("script",), ()])
def test_another_block_of_cells_is_another_graph(
    drafters: tuple[str, ...], kept_graphs: GraphsKept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where cells are attended to in blocks of 256: plain decoding captures its graph anew, too."""
    made = engine(WORDS, 1, n_ctx=600, kept_graphs=kept_graphs)
    replays = kept_graphs != "none"
    cells: list[int] = []
    device = made.scheduler.costs._graphs
    enter = device.enter

    def spy(block: int) -> None:
        cells.append(made.cache.n_cells)
        enter(block)

    monkeypatch.setattr(device, "enter", spy)
    endless = {"max_tokens": 16, "is_end": lambda token: False, "drafters": drafters}
    run(made, request([1] * 250, **endless))
    assert len(cells) == replays
    if replays and not drafters:
        assert cells == [256], "the next decode is the first that reaches beyond"
    if replays and drafters:
        assert 256 - 3 <= cells[0] <= 256, "a decode of four reaches beyond earlier"
    run(made, request([2] * 20, **endless))
    assert len(cells) == 2 * replays, "and back"


def test_of_several_slots_nobody_knows_the_block() -> None:
    blocks = []
    for n_slots in (1, 2):
        made = Engine(FakeModel(WORDS, n_seq=2, n_ctx=600), [], n_slots=n_slots)
        run(made, request([1] * 250, max_tokens=16, is_end=lambda token: False, drafters=()))
        blocks.append(made.scheduler.costs._graphs.block)
    assert blocks == [1, 0]


LARGE = CostTable(
    how="calibrated",
    same={1: 0.0153, 2: 0.0166, 3: 0.0190, 4: 0.0220},
    other={1: 0.0183, 2: 0.0196, 3: 0.0220, 4: 0.0250},
    second={1: 0.0305, 2: 0.0318, 3: 0.0342, 4: 0.0372},
    back={1: 0.0171, 2: 0.0184, 3: 0.0208, 4: 0.0238},
    draft={"script": {1: 0.0006, 2: 0.0012}},
)
"""A large model on a card: capturing a graph takes as long as a token."""


@dataclass
class Card:
    """What its decodes take; the second of a size captures its graph, and drops others or not."""

    kept: GraphsKept = "latest"
    size: int = 0
    made: dict[int, int] = field(default_factory=dict)

    def __call__(self, n_tokens: int) -> float:
        moved, self.size = n_tokens != self.size, n_tokens
        if moved and self.kept == "latest":
            self.made.clear()
        count = self.made[n_tokens] = self.made.get(n_tokens, 0) + 1
        extra = {1: 0.0030, 2: 0.0152}.get(count, 0.0)
        return LARGE.same[n_tokens] + extra + (0.0018 if moved and count > 1 else 0.0)


def plain_s(n_tokens: int) -> float:
    """What so many tokens take without drafts where no graph is there."""
    card = Card()
    return sum(card(1) for _ in range(n_tokens))


def drafted(
    clock: Clock, right_in: list[bool], kept: GraphsKept = "latest"
) -> tuple[Engine, list[tuple[int, float]]]:
    """A reply that finds no graph; drafts are right in these rounds, then always.

    Returns:
        The engine, and per round the tokens so far and their seconds.
    """
    says, rounds = right(WORDS), iter(right_in)

    def draft(want: Want) -> Proposal:
        tokens: list[int] = []
        good = next(rounds, True)
        while len(tokens) < want.limit and want.go_on(len(tokens), None):
            clock.advance(0.0006)
            (token,) = says([*want.ids, *tokens], 1)
            tokens.append(token if good else (token + 1) % 8)
        return Proposal.chain(tokens)

    model = FakeModel(
        WORDS, n_seq=1, n_ctx=400, cost=Card(kept), on_decode=clock.advance, kept_graphs=kept
    )
    made = Engine(model, [Script(draft)])
    known = made.scheduler
    known.recall(LARGE)
    known.begin(1)
    known.settle_size(lambda: 2.0 if known.kept.size == 3 else 1.0)
    start = clock.now
    settings = {"adaptive": True, "max_tokens": 96, "is_end": lambda token: False}
    live = made.add(request([1], drafters=("script",), draft_max=2, **settings))
    told = []
    while live.finish is None:
        made.step()
        told.append((live.n_emitted, clock.now - start))
    return made, told


@pytest.mark.parametrize(("n_left", "size"), [(2, 1), (12, 2)])
def test_a_size_is_not_changed_for_the_few_tokens_that_are_left(
    clock: Clock, n_left: int, size: int
) -> None:
    made = engine(WORDS, 1, cost=Card(), on_decode=clock.advance)
    known = made.scheduler
    known.recall(LARGE)
    known.begin(1)
    known.settle_size(lambda: 2.0 if known.kept.size == 2 else 1.0)
    asked = request([1, 2, 3], drafters=("script",), adaptive=True, is_end=lambda token: False)
    live = made.add(replace(asked, max_tokens=10 + n_left))
    live.account.book(1.0, 0.0)
    while live.n_left != n_left:
        made.step()
    assert set(sizes(made)) == {1}
    live.account.book(0.0, 2.0)
    made.step()
    assert sizes(made)[-1] == size


def test_sizes_take_turns_until_the_budget_bears_a_capture(clock: Clock) -> None:
    """Instead of going back to plain decoding, which would capture a graph of its own."""
    gaining, refused = (drafted(clock, first)[0].backend for first in ([True], [False]))
    assert isinstance(gaining, FakeModel) and isinstance(refused, FakeModel)
    assert gaining.batches == [3] * 32, "what the first round gained bears it"
    assert refused.batches[:4] == [3, 2, 3, 3]
    assert set(refused.batches[4:]) == {3}


@given(st.lists(st.booleans(), max_size=40), st.sampled_from(["latest", "sized"]))
def test_the_budget_holds_where_no_graph_is_there(right_in: list[bool], kept: GraphsKept) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (engine_module, propose_module):
            patch.setattr(module, "time", clock)
        _, told = drafted(clock, right_in, kept)
    for n_tokens, seconds in told:
        assert seconds <= 1.02 * plain_s(n_tokens) + 0.02


def test_where_graphs_are_kept_refused_drafts_are_soon_made_good(clock: Clock) -> None:
    """Going back costs little more than nothing then, and the budget bears more tries."""
    plain: dict[GraphsKept, int] = {}
    kinds: tuple[GraphsKept, ...] = ("latest", "sized")
    for kept in kinds:
        made, _ = drafted(clock, [True] * 32 + [False] * 3, kept)
        model = made.backend
        assert isinstance(model, FakeModel)
        endless = {"max_tokens": 96, "is_end": lambda token: False}
        run(made, request([2], drafters=(), **endless))
        n_before = len(model.batches)
        run(made, request([3], drafters=("script",), adaptive=True, draft_max=2, **endless))
        plain[kept] = model.batches[n_before:].count(1)
    assert plain["sized"] < 20 < 90 < plain["latest"]
