"""What a sequence may lose, and what it has lost."""

from __future__ import annotations

import math

import pytest

from specllama.scheduling.account import (
    _RISKED_SHARE,
    _STAKED_SHARE,
    BUDGET_S,
    BUDGET_SHARE,
    Account,
)
from specllama.scheduling.scheduler import Scheduler
from specllama.scheduling.table import CostTable
from tests.scheduling.machines import FIRST_S, H100, SECOND_S, graphs, scheduler, seen, share


class TestAccount:
    def settle(self, account: Account, seconds: float, n_emitted: int) -> None:
        """A round of one sequence that drafted one token."""
        self.known.begin(1)
        self.known.observe_batch(2, seconds)
        self.known.settle(seconds, 0.0, [share(account, 1, n_emitted)])

    @pytest.fixture(autouse=True)
    def machine(self) -> None:
        self.known = scheduler(0.01, 0.01, 8)

    def test_spends_its_budget_and_stops(self) -> None:
        account = Account(self.known)
        assert account.may_draft
        self.settle(account, 0.05, 1)
        assert not account.may_draft
        for _ in range(200):
            self.known.settle(0.01, 0.0, [share(account, 0, 1)])
        assert account.may_draft, "the share grows with what is said"

    def test_gains_are_kept(self) -> None:
        account = Account(self.known)
        self.settle(account, 0.01, 9)
        self.settle(account, 0.05, 1)
        assert account.may_draft

    def test_a_hiccup_counts_as_two_rounds(self) -> None:
        seen(self.known.costs, 2, 0.01)
        account = Account(self.known)
        self.settle(account, 1.0, 1)
        assert account.slack_s == pytest.approx(0.0054, abs=0.0005)

    @pytest.mark.parametrize("seconds", [3600.0, -3600.0, 0.0])
    def test_a_clock_that_jumps_ruins_nobody(self, seconds: float) -> None:
        account = Account(self.known)
        for _ in range(3):
            self.settle(account, 0.01, 2)
        before = account.slack_s
        self.settle(account, seconds, 2)
        assert abs(account.slack_s - before) < 0.05

    def test_plain_rounds_lose_nothing_but_the_looking(self) -> None:
        account = Account(self.known)
        before = account.slack_s
        for _ in range(10):
            self.known.settle(0.05, 0.001, [share(account, 0, 1)])
        assert account.slack_s - before == pytest.approx(10 * (0.02 * 0.01 - 0.001))

    def test_a_pause_while_it_looks_counts_as_two_looks(self) -> None:
        """Such as a collection of Python's garbage; what drafting itself took counts whole."""
        for _ in range(3):
            self.known.settle(0.01, 0.001, [share(Account(self.known), 0, 1)])
        for drafting_s in (0.0, 0.004):
            account = Account(self.known)
            before = account.slack_s
            self.known.begin(1)
            self.known.observe_draft("model", 1, drafting_s, 1)
            self.known.settle(0.03, 0.013 + drafting_s, [share(account, 0, 1)])
            lost = 2 * 0.001 + drafting_s - BUDGET_SHARE * 0.01
            assert before - account.slack_s == pytest.approx(lost)

    def test_long_replies_bear_more_from_the_start(self) -> None:
        """Up to the 15 ms that the budget gives, however long."""
        most = BUDGET_SHARE * 0.01 + BUDGET_S - 0.005
        short = int(most / (_RISKED_SHARE * 0.01))  # tokens of which a share is less than that
        slack = [Account(self.known, n).slack_s for n in (short // 2, short, 128, 4096, None)]
        shares = [_RISKED_SHARE * n * 0.01 for n in (short // 2, short)]
        assert slack == pytest.approx([*shares, most, most, most])
        assert most == pytest.approx(0.0152)

    def test_the_first_round_behind_a_prompt_changes_sizes_anyway(self) -> None:
        """Plain decoding does it too: it neither keeps from drafting nor counts as a loss."""
        known = Scheduler()
        sizes = {1: 0.003, 2: 0.0031, 3: 0.0032}
        known.recall(CostTable(same=sizes, other={n: s + 0.002 for n, s in sizes.items()}))
        account = Account(known, 12)
        known.costs.observe_reading(10, 0.02)
        known.begin(1)
        assert known.affordable(account, "", 1, 1) == 1
        known.observe_batch(2, 0.0051)
        known.settle(0.0051, 0.0, [share(account, 1, 1)])
        assert account.slack_s == pytest.approx(_RISKED_SHARE * 12 * 0.003 - 0.0001)
        known.begin(1)
        known.observe_batch(1, 0.005)
        known.begin(1)
        assert known.affordable(account, "", 1, 1) == 0, "there and back is dear now"

    @pytest.mark.parametrize("before", [1, 4])
    def test_a_reply_is_credited_what_plain_decoding_pays_for_its_size(self, before: int) -> None:
        """Behind a prompt the first decode finds no graph; where drafts were before, the second
        captures one, which keeping their size does not."""
        known = graphs()
        for _ in range(3):
            known.begin(1)
            known.observe_batch(before, H100[before])
        known.costs.observe_reading(10, 0.02)
        account, seconds, gains = Account(known, 128), H100[4], []
        due = [FIRST_S, SECOND_S if before == 4 else 0.0, 0.0]
        for extra in (FIRST_S, SECOND_S if before == 1 else 0.0, 0.0):
            known.begin(1)
            known.observe_batch(4, seconds + extra)
            lost = account._lost
            known.settle(seconds + extra, 0.0, [share(account, 3, 1)])
            gains.append(lost - account._lost + seconds + extra - H100[1])
        assert gains == pytest.approx(due)

    def test_plain_rounds_behind_a_prompt_lose_nothing(self) -> None:
        known = graphs()
        known.observe_batch(4, H100[4])
        known.costs.observe_reading(10, 0.02)
        account = Account(known, 128)
        for extra in (FIRST_S, SECOND_S, 0.0):
            known.begin(1)
            known.observe_batch(1, H100[1] + extra)
            known.settle(H100[1] + extra, 0.0, [share(account, 0, 1)])
        assert account._lost == pytest.approx(0.0)

    def test_going_back_is_a_loss(self) -> None:
        known = graphs()
        for _ in range(3):
            known.begin(1)
            known.observe_batch(4, H100[4])
        account = Account(known, 128)
        for extra in (FIRST_S, SECOND_S, 0.0):
            known.begin(1)
            known.observe_batch(1, H100[1] + extra)
            known.settle(H100[1] + extra, 0.0, [share(account, 0, 1)])
        assert account._lost == pytest.approx(FIRST_S + SECOND_S)

    def test_the_way_back_is_counted_before_going(self) -> None:
        known = graphs()
        for _ in range(3):
            known.begin(1)
            known.observe_batch(1, H100[1])
        assert known.worst_among_s(1, 2) == pytest.approx(H100[2] + FIRST_S + FIRST_S + SECOND_S)
        assert known.worst_among_s(1, 1) == pytest.approx(H100[1])
        known.begin(1)
        known.observe_batch(2, H100[2] + FIRST_S)
        known.begin(1)
        assert known.worst_among_s(1, 2) == pytest.approx(H100[2] + SECOND_S + FIRST_S + SECOND_S)
        known.observe_batch(2, H100[2] + SECOND_S)
        known.begin(1)
        assert known.worst_among_s(1, 2) == pytest.approx(H100[2] + FIRST_S + SECOND_S)

    @pytest.mark.parametrize(
        ("promised", "stake"),
        [
            (-1.0, _RISKED_SHARE),
            (0.0, _RISKED_SHARE),
            (0.9 * _RISKED_SHARE / _STAKED_SHARE, _RISKED_SHARE),
            (1.2 * _RISKED_SHARE / _STAKED_SHARE, 1.2 * _RISKED_SHARE),
            (0.2, _STAKED_SHARE * 0.2),
        ],
    )
    def test_the_stake_follows_the_promise(self, promised: float, stake: float) -> None:
        known = graphs()
        account = Account(known, 40)
        account.promised = promised
        assert account.slack_s == pytest.approx(stake * 40 * H100[1])

    @pytest.mark.parametrize("device", ["graphs", "none"])
    def test_whatever_is_promised_the_budget_stays(self, device: str) -> None:
        known = graphs() if device == "graphs" else scheduler(0.01, 0.01, 8)
        account, left = Account(known, 4096), 0.001 if device == "graphs" else 0.005
        account.promised = 0.99
        for n_tokens in range(1, 300):
            budget = 0.02 * n_tokens * known.plain_s + 0.02
            assert account.slack_s == pytest.approx(budget - left)
            account.book(known.plain_s, known.plain_s)

    def test_drafts_no_more_than_it_can_lose(self) -> None:
        """At 5 ms a token and 9 % of 22 of them in hand: six refused ones of 1.5 ms are borne."""
        known = Scheduler()
        known.recall(CostTable(same={n: 0.0035 + 0.0015 * n for n in range(1, 9)}))
        account = Account(known, 22)
        assert known.affordable(account, "", 8, 8) == 6
        known.costs.observe_draft("model", 1, 0.004)
        assert known.affordable(account, "model", 8, 8) == 1
        for _ in range(120):
            known.settle(0.005, 0.0, [share(account, 0, 1)])
        assert known.affordable(account, "", 8, 8) == 8

    def test_what_the_draft_has_to_read_first_counts(self) -> None:
        """A few tokens are part of a look; the others cost what reading the prompt told."""
        known = Scheduler()
        known.recall(CostTable(same={n: 0.0035 + 0.0015 * n for n in range(1, 9)}))
        known.costs.observe_draft("model", 1, 0.0005)
        account = Account(known, 22)
        assert known.affordable(account, "model", 8, 8, 8) == 4
        assert known.affordable(account, "model", 8, 8, 48) == 3, "a hundredth of a token each"
        for n_tokens in (7, 100):
            known.costs.observe_catching_up(n_tokens, 0.0001 * n_tokens if n_tokens > 8 else 9.0)
        assert known.affordable(account, "model", 8, 8, 48) == 2
        assert not known.pays("model, greedy", "model", account, 400)
        assert known.pays("model, greedy", "model", account, 8)

    def test_an_unknown_draft_is_taken_to_cost_a_quarter_of_a_token_each(self) -> None:
        known = Scheduler()
        known.recall(CostTable(same=dict.fromkeys(range(1, 9), 0.01)))
        account = Account(known, 1000)
        slack = account.slack_s
        assert 0.0125 <= slack < 0.0175
        assert known.affordable(account, "unknown", 8, 8) == int(slack / 0.0025)

    def test_in_company_it_costs_each_as_much(self) -> None:
        known = Scheduler()
        known.recall(CostTable(same=dict.fromkeys(range(1, 33), 0.01)))
        borne = []
        for n_live in (1, 3):
            known.begin(n_live)
            account = Account(known, 1000)
            borne.append(known.affordable(account, "unknown", 8, 8) / account.slack_s)
        assert borne[1] == pytest.approx(borne[0], rel=0.2)

    def test_more_is_borne_of_a_draft_that_proves_cheap(self) -> None:
        known = Scheduler()
        known.recall(CostTable(same=dict.fromkeys(range(1, 9), 0.01)))
        account = Account(known, 1000)
        known.begin(1)
        assert known.affordable(account, "new", 8, 8) < 8
        known.costs.observe_draft("new", 1, 0.0001)
        known.begin(1)
        assert known.affordable(account, "new", 8, 8) == 8

    @pytest.mark.parametrize("seconds", [math.nan, math.inf])
    def test_a_time_that_is_none_is_not_booked(self, seconds: float) -> None:
        account = Account(self.known, 100)
        before = account.slack_s
        account.book(seconds, 0.01)
        assert account.slack_s == before

    def test_nothing_is_risked_before_a_plain_decode(self) -> None:
        assert not Account(Scheduler()).may_draft
