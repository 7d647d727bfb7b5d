"""When nobody need be weighed: after a round in which nothing paid, for fifteen more."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from specllama.results import SpecStats
from specllama.scheduling.account import Account
from specllama.scheduling.scheduler import Bet, Scheduler, Share
from specllama.scheduling.table import CostTable
from tests.scheduling.machines import graphs

PLAIN_S = 0.01
REST = 15


def settled(n_live: int = 1) -> Scheduler:
    """One that has seen sixteen plain decodes: the next round is the first that may be calm."""
    known = Scheduler()
    for _ in range(16):
        known.begin(n_live)
        known.observe_batch(n_live, PLAIN_S, n_live)
    return known


def weigh(
    known: Scheduler,
    accounts: list[Account] | None = None,
    *,
    drafted: int = 0,
    during: Callable[[], object] = lambda: None,
) -> None:
    """A round in which drafters are weighed."""
    accounts = accounts or [Account(known)]
    n_live = len(accounts)
    known.begin(n_live)
    during()
    known.observe_batch(n_live + drafted, PLAIN_S, n_live)
    shares = [Share(account, SpecStats(), Bet(), drafted, 1) for account in accounts]
    known.settle(PLAIN_S, 0.0, shares)


def rest(known: Scheduler, accounts: list[Account] | None = None) -> int:
    """Rest as long as it may; the rounds that took."""
    accounts = accounts or [Account(known)]
    rounds = 0
    while known.rests(len(accounts)) and rounds < 2 * REST:
        known.costs.pass_by(len(accounts))
        known.rested(accounts)
        rounds += 1
    return rounds


def test_fifteen_rounds_again_and_again() -> None:
    known = settled()
    assert not known.rests(1), "nothing is calm before a round was weighed"
    for _ in range(3):
        weigh(known)
        assert rest(known) == REST


def test_not_before_plain_decoding_is_known_well() -> None:
    known = Scheduler()
    known.recall(CostTable(same={1: PLAIN_S, 2: 2 * PLAIN_S}))
    rests = []
    for _ in range(18):
        weigh(known)
        rests.append(rest(known))
    assert rests == [0] * 16 + [REST] * 2


def test_another_number_of_sequences_is_another_matter() -> None:
    known = settled(2)
    accounts = [Account(known) for _ in range(2)]
    weigh(known, accounts)
    assert [known.rests(n) for n in (1, 2, 3)] == [False, True, False]


def test_behind_a_prompt_is_another_matter() -> None:
    known = settled()
    weigh(known)
    assert known.rests(1)
    known.costs.observe_reading(10, 0.01)
    assert not known.rests(1)


def test_a_reply_begins_with_weighing() -> None:
    """Also where nothing of its prompt has to be read."""
    known = settled()
    weigh(known)
    known.open_account(None)
    assert not known.rests(1)


def test_a_table_recalled_meanwhile_ends_it() -> None:
    known = settled()
    weigh(known)
    known.recall(CostTable(same={1: PLAIN_S}))
    assert not known.rests(1)


def test_a_round_that_drafts_ends_it() -> None:
    """A free drafter had an idea in the middle of a rest."""
    known = settled()
    weigh(known)
    assert known.rests(1)
    weigh(known, drafted=1)
    assert not known.rests(1)
    weigh(known)
    assert rest(known) == REST


def test_one_of_two_that_drafts_keeps_both_from_resting() -> None:
    known = settled(2)
    known.begin(2)
    shares = [Share(Account(known), SpecStats(), Bet(), drafted, 1) for drafted in (0, 1)]
    known.settle(PLAIN_S, 0.0, shares)
    assert not known.rests(2)


def test_a_drafter_that_was_asked_and_said_nothing_is_asked_again() -> None:
    """It may know when it is sure."""
    known = settled()
    weigh(known, during=lambda: known.observe_draft("model", 1, 0.001, 1))
    assert not known.rests(1)
    weigh(known)
    assert known.rests(1)


def test_nobody_rests_while_drafting_pays() -> None:
    known = settled()
    weigh(known, during=lambda: known.pays("model, greedy", "model", Account(known)))
    assert not known.rests(1)
    weigh(known)
    assert known.rests(1)


def test_want_of_room_is_no_want_of_gain() -> None:
    known = settled()
    weigh(known, during=known.stay)
    assert not known.rests(1)
    weigh(known)
    assert known.rests(1)


def test_plain_decoding_that_was_only_measured_says_nothing() -> None:
    """A round without drafts because the yardstick of drafts that pay was stale."""
    known = settled()
    while not known.costs.stale(1):
        weigh(known, drafted=3)
    assert not Account(known).may_draft
    weigh(known)
    assert not known.rests(1)
    assert Account(known).may_draft, "drafts go on at once"


def test_going_back_to_plain_decodes_comes_first() -> None:
    """Two decodes still pay for the change of size, and are booked as such."""
    known = graphs()
    for _ in range(20):
        weigh(known, drafted=3)
    rests = []
    for _ in range(3):
        weigh(known)
        rests.append(known.rests(1))
    assert rests == [False, False, True]


@pytest.mark.parametrize("n_live", [1, 2])
def test_the_budget_grows_with_the_rounds(n_live: int) -> None:
    known = settled(n_live)
    accounts = [Account(known, 4096) for _ in range(n_live)]
    weigh(known, accounts)
    before = [account.slack_s for account in accounts]
    assert rest(known, accounts) == REST
    grown = [account.slack_s - s for account, s in zip(accounts, before, strict=True)]
    assert grown == pytest.approx([0.02 * REST * PLAIN_S / n_live] * n_live)


def test_rounds_of_rest_count_for_patience() -> None:
    """A try after 16 rounds and 32, 64, 128 more, each no later than a rest is long."""
    known, tries = settled(), [0]
    number = 0
    while len(tries) < 5:
        number += 1
        due: list[bool] = []
        weigh(known, during=lambda: due.append(known.probe_due("model, greedy")))  # noqa: B023
        if due[0]:
            tries.append(number)
        number += rest(known)
    gaps = [after - before for before, after in pairwise(tries)]
    assert gaps == pytest.approx([16, 32, 64, 128], abs=REST)
    assert all(gap >= least for gap, least in zip(gaps, (16, 32, 64, 128), strict=True))


def test_rounds_of_rest_count_once() -> None:
    """Where no rest follows, one round is one round again."""
    known = settled()
    weigh(known)
    rest(known)
    weigh(known, drafted=1)
    known.begin(1)
    due = [known.probe_due("model, greedy") for _ in range(16)]
    assert due == [False] * 15 + [True]
