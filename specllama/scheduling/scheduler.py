"""How much to draft, and with what: drafting is an investment that is measured.

A proposal is worth its expected tokens per expected second, and none at all (plain decoding) is
always a candidate. Losses are bounded (`account.py`): a round drafts only so much as the budget
bears should all of it be refused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from specllama.drafting.shapes import FixedShape, PlannedShape, Shape, plan
from specllama.machine import GraphsKept
from specllama.results import SpecStats
from specllama.scheduling import outlook
from specllama.scheduling.acceptance import Acceptance, Step
from specllama.scheduling.account import Account
from specllama.scheduling.ahead import Ahead
from specllama.scheduling.costs import FEW_UNREAD, Costs
from specllama.scheduling.graphs import CHANGING
from specllama.scheduling.kept_size import KeptSize
from specllama.scheduling.outlook import Outlook
from specllama.scheduling.policy import Expectation
from specllama.scheduling.prices import RoundPrices
from specllama.scheduling.table import CostTable
from specllama.scheduling.typical import Typical
from specllama.verification.types import Proposal

_HICCUP = 2.0
_DRAG_WEIGHT = 0.05
_ASLEEP = 50.0
_FIRST_PROBE = 16
_LAST_PROBE = 512
_REST = 15
_SETTLED_IN = 16
_FIRST_TREE = (2, 2, 1)
_PLAN_AGE = 64
_PLAN_NODES = 24
_PLAN_DEPTH = 8
_TREE_WIDTH = 4
_OUTLOOK_AGE = 32
_OUTLOOK_CHANGE = 0.05
_OUTLOOK_TOKENS = 16
_MATERIAL = 0.1
_UNREAD_SHARE = 0.01


_Question = tuple[str, str, int, int]
"""Drafter, kind, depth and nodes (0: a chain)."""


@dataclass(frozen=True, slots=True)
class Bet:
    """What one sequence stakes in a round.

    Attributes:
        kind: of drafter and sampling, "" where nothing was drafted (see `Scheduler.acceptance`).
        expected: what its proposal is expected to give.
        confidences: see `policy.Policy`.
        draft_s: seconds its drafting is expected to take, None where that is not known.
        asked: the last drafter that was asked, "" for none.
    """

    kind: str = ""
    expected: Expectation = field(default_factory=Expectation)
    confidences: Sequence[float | None] = ()
    draft_s: float | None = 0.0
    asked: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """One sequence's part in a round, and what came of it."""

    account: Account
    stats: SpecStats
    bet: Bet
    n_drafted: int
    n_emitted: int


@dataclass(slots=True)
class _View:
    """An outlook, what a plain round took then, and how often first tokens were accepted."""

    found: Outlook
    plain_s: float
    first: float
    age: int = 0


@dataclass(slots=True)
class _Patience:
    """When a drafter that does not pay gets another try: ever more seldom."""

    idle: int = 0
    wait: int = _FIRST_PROBE

    def is_over(self, rounds: int, may: bool) -> bool:
        self.idle += rounds
        if self.idle < self.wait or not may:
            return False
        self.idle, self.wait = 0, min(2 * self.wait, _LAST_PROBE)
        return True


class Scheduler(RoundPrices):
    """What one engine has learned about costs and acceptance.

    What a sequence gains by a draft model is judged as if all live ones did the same: then the
    round's batch grows by as many tokens for each of them. Free drafters have ideas for some, for
    whom the others wait.

    Args:
        max_batch: the most tokens of a target decode; a round of more takes several.
        kept_graphs: see `Costs`.

    Attributes:
        ahead: what is drafted while the target is at work.
        kept: the size of decodes that drafting keeps.
    """

    def __init__(self, max_batch: int = 1 << 30, *, kept_graphs: GraphsKept = "latest") -> None:
        super().__init__(max_batch, kept_graphs=kept_graphs)
        self._begin_with({})
        self._overhead = Typical()
        self._drag = 1.0
        self._drafting_s = 0.0
        self._drafts: Counter[str] = Counter()
        self._expected_s: float | None = 0.0
        self._paying = self._overran = False
        self._rest = self._rested = 0
        self._may_rest = self._resting = False

    def _begin_with(self, known: Mapping[str, dict[str, list[float]]]) -> None:
        """Know no more of the drafters than this, by kind: other models may bear their names."""
        self._known = known
        self._acceptance: dict[str, Acceptance] = {}
        self._patience: dict[str, _Patience] = {}
        self._plans: dict[tuple[str, int], tuple[int, Shape]] = {}
        self._outlooks: dict[_Question, _View] = {}
        self.kept = KeptSize(self)
        self.ahead = Ahead(self)

    def begin(self, n_live: int, *, resting: bool = False) -> None:
        """A round of so many sequences starts.

        Args:
            resting: in the midst of a rest; what some of them do in it does not end that.
        """
        self._price(n_live)
        self._resting = resting
        if not self.age:
            self._drafts.clear()
        self._drafting_s, self._expected_s = 0.0, 0.0
        self._paying = self._overran = False
        self._may_rest = self.knows_plain and self.costs.n_decodes >= _SETTLED_IN

    def rests(self, n_live: int) -> bool:
        """Whether nothing paid a few rounds ago: what costs need not be weighed in this one."""
        return self._rest > 0 and n_live == self.n_live and not self.costs.behind_prompt

    def rested(self, accounts: Sequence[Account]) -> None:
        """So many sequences decoded plainly without being asked."""
        self._rest -= 1
        self._rested += 1
        self.costs.n_decodes += 1
        own = self.plain_s / len(accounts)
        for account in accounts:
            account.book(own, own)

    def open_account(self, n_tokens: int | None) -> Account:
        """A reply begins: what is usual counts more now than what was seen of late.

        What drafting promises is looked at anew: where it did not pay, nobody asked for long.

        Args:
            n_tokens: the most that it will emit, None where nobody said.
        """
        for acceptance in self._acceptance.values():
            acceptance.fade()
        self._outlooks.clear()
        self._rest = 0
        return Account(self, n_tokens)

    def recall(self, table: CostTable) -> None:
        """Start from what earlier sessions measured."""
        self.costs = Costs(table, kept_graphs=self._kept_graphs)
        self._begin_with(table.acceptance)
        self._forget_prices()

    @property
    def changed(self) -> bool:
        """Whether there is something to keep that was not recalled."""
        return self.costs.changed or any(
            abs(now.at_depth(0) - next(iter(self._known.get(which, {}).get("depths", ())), -1.0))
            > _MATERIAL
            for which, now in self._acceptance.items()
        )

    def table(self) -> CostTable:
        """What is known now, for later sessions."""
        table = self.costs.table()
        now = {which: acceptance.known() for which, acceptance in self._acceptance.items()}
        table.acceptance = {**self._known, **now}
        return table

    # what this round costs

    def size_for(self, n_tokens: int) -> int:
        """The size of this round's decode: plain rounds are filled up only while drafting pays."""
        return self.padded(n_tokens) if self._paying or n_tokens > self.plain_size else n_tokens

    def undrafted_s(self) -> float:
        """Seconds of this round for a sequence that drafts nothing in it."""
        return self.batch_s(1) if self._paying else self.plain_s

    def affordable(
        self,
        account: Account,
        name: str,
        nodes: int,
        depth: int,
        n_unread: int = 0,
        *,
        n_drafting: int | None = None,
    ) -> int:
        """The most tokens a sequence may draft if all of them should be refused.

        Args:
            name: of a drafter that costs, "" for a free one.
            nodes: the most tokens, `depth` of them in a row.
            n_unread: what the drafter has to read before.
            n_drafting: how many sequences do the same; None: all.
        """
        among = n_drafting or self.n_live
        slack = account.slack_s * self.n_live + self.plain_s
        if n_unread:
            slack -= self.costs.catching_up_s(n_unread, _UNREAD_SHARE * self.plain_s)

        def dear(n: int) -> bool:
            draft_s = self._dear_draft_s(name, min(n, depth)) if name else 0.0
            return self.worst_among_s(among, 1 + n) + draft_s > slack

        if not dear(nodes):
            return nodes
        return bisect_left(range(1, nodes + 1), True, key=dear)

    # what drafting promises

    @property
    def asking_s(self) -> float:
        """What a round that may draft takes beside its decodes: choosing, booking, learning."""
        return self._overhead.value

    def _asked_s(self, n_tokens: int) -> float:
        """Seconds of such a round's decodes, and of that."""
        return self.asking_s + self.batch_s(n_tokens)

    def acceptance(self, name: str, temperature: float = 0.0) -> Acceptance:
        """The estimates of a drafter, for greedy, usual and wild sampling apart."""
        return self._of_kind(kind(name, temperature))

    def _of_kind(self, which: str) -> Acceptance:
        if which not in self._acceptance:
            self._acceptance[which] = Acceptance(self._known.get(which))
        return self._acceptance[which]

    def chain_outlook(self, name: str, which: str, limit: int) -> Outlook:
        """What chains of a drafter promise; looked at anew now and then."""
        limit = self.kept.longest(min(limit, _OUTLOOK_TOKENS))
        return self._cached((name, which, limit, 0), lambda: self._chain(name, which, limit))

    def _chain(self, name: str, which: str, limit: int) -> Outlook:
        batch = [self._asked_s(1 + n) for n in range(limit + 1)]
        paid = 1.0 - self.ahead.ready_share(name)
        draft = [paid * self.draft_s(name, n) for n in range(limit + 1)]
        return outlook.chain(self._of_kind(which), batch, draft)

    def tree_outlook(self, name: str, which: str, nodes: int, depth: int) -> Outlook:
        """What trees of a draft model promise."""
        return self._cached(
            (name, which, depth, nodes), lambda: self._tree(name, which, nodes, depth)
        )

    def _tree(self, name: str, which: str, nodes: int, depth: int) -> Outlook:
        batch = [self._asked_s(1 + n) for n in range(min(nodes, _PLAN_NODES) + 1)]
        levels = [self.draft_s(name, n) for n in range(min(depth, _PLAN_DEPTH) + 1)]
        return outlook.tree(self._of_kind(which), batch, levels, width=_TREE_WIDTH)

    def _cached(self, key: _Question, look: Callable[[], Outlook]) -> Outlook:
        """Looked at anew now and then, and when the draft proves better or worse.

        In between, it is as fast against plain decoding as it was.
        """
        now, first = self.plain_s, self._of_kind(key[1]).at_depth(0)
        view = self._outlooks.get(key)
        if view is None or view.age >= _OUTLOOK_AGE or abs(first - view.first) > _OUTLOOK_CHANGE:
            with self._settled(self.kept.size):
                view = self._outlooks[key] = _View(look(), now, first)
        view.age += 1
        if now == view.plain_s:
            return view.found
        found = view.found
        return Outlook(found.tokens, found.seconds * now / view.plain_s, found.drafted)

    def settle_size(self, best_rate: Callable[[], float]) -> None:
        """Choose which size of decodes to keep while drafting, see `KeptSize.settle`.

        Args:
            best_rate: of drafting, at the size being tried.
        """

        def rate() -> float:
            self._outlooks.clear()
            return best_rate()

        self.kept.settle(rate)

    def planned_shape(self, name: str, which: str, nodes: int, depth: int) -> Shape:
        """The tree that pays best by the measurements so far; planned anew now and then."""
        if not self.costs.measured(self.plain_size):
            return FixedShape(_FIRST_TREE)
        age, shape = self._plans.get((which, self.n_live), (0, None))
        if shape is None or age >= _PLAN_AGE:
            # a round that goes over to the kept size has a price of its own, below 0 perhaps
            with self._settled(self.kept.size):
                topology = plan(
                    self._of_kind(which).by_rank(),
                    min(nodes, _PLAN_NODES),
                    min(depth, _PLAN_DEPTH),
                    lambda n: self._asked_s(n) if n > 1 else self.batch_s(n),
                    self.draft_s(name, 1),
                )
            age, shape = 0, PlannedShape(topology or ((),))
        self._plans[which, self.n_live] = (age + 1, shape)
        return shape

    def probe_due(self, which: str, *, may: bool = True) -> bool:
        """Whether a drafter that does not pay gets another try; what is known is doubted then.

        Where changing the size of decodes costs, that is at the beginning of a reply.

        Args:
            may: the budget bears it; the try is due all the same, and taken when it does.
        """
        may = may and (not self.age or not self.costs.switch_s)
        if not self._patience.setdefault(which, _Patience()).is_over(1 + self._rested, may):
            return False
        self._of_kind(which).doubt()
        return True

    def pays(self, which: str, name: str, account: Account, n_unread: int = 0) -> bool:
        """A drafter pays: keep its size, unless the budget does not bear a first token.

        It is tried soon when it stops to pay.
        """
        self._patience.pop(which, None)
        before = self._here.kept
        for size in self.kept.candidates():
            self._keep(size)
            if self.affordable(account, name, 1, 1, n_unread):
                self._paying = True
                return True
        self._keep(before)
        return False

    def stay(self) -> None:
        """Nobody can draft in this round, and not for want of gain: keep the size all the same."""
        self._may_rest = False
        if self.costs.switch_s and self.costs.size == self.kept.size:
            self._paying = True
            self._keep(self.kept.size)

    # what came of it

    def observe_batch(self, n_tokens: int, seconds: float, n_lives: int = 1) -> None:
        """One target decode, with everything that is done to verify it."""
        self._expect(n_tokens)
        self.costs.observe_target(n_tokens, seconds, n_lives)

    def _expect(self, n_tokens: int) -> None:
        """Add a decode to what this round is expected to take, if such a one was measured."""
        costs = self.costs
        costs.comes_next(n_tokens)
        if self._expected_s is not None:
            expected = costs.target_s(n_tokens) + costs.change_s(n_tokens)
            self._expected_s = self._expected_s + expected if costs.measured(n_tokens) else None

    def observe_draft(
        self, name: str, n_looks: int, seconds: float, n_lives: int, n_unread: int = 0
    ) -> None:
        """What a drafter took to look at so many positions of each sequence.

        Behind a prompt its model changes the size of its decodes, too, which says little of later
        ones, and so does the time of a model that had much to read: they count only where they are
        shorter than what is known.

        Args:
            n_unread: what it had to read before, the most of any sequence.
        """
        self._drafting_s += seconds
        self._drafts[name] += n_looks > 0
        known = self.costs.draft_s(name, n_looks, n_lives)
        lags = n_unread > FEW_UNREAD
        usual = not lags and (self._is_settled(name) or not known)
        if usual or seconds < known:
            self.costs.observe_draft(name, n_looks, seconds, n_lives)
        elif lags:
            self.costs.observe_catching_up(n_unread - FEW_UNREAD, seconds - known)

    def _is_settled(self, name: str) -> bool:
        """Whether a drafter has drafted often enough behind the prompt to take its usual time."""
        n_dear = CHANGING if self._kept_graphs != "none" else 0
        return self.age > 0 and self._drafts[name] > n_dear

    def overran(self, n_tokens: int) -> None:
        """Drafting ahead took longer than the decode of so many tokens: its own is not known."""
        self.ahead.overran()
        self._expect(n_tokens)
        self._overran = True
        self.costs.pass_by(n_tokens)

    def learn(
        self,
        bet: Bet,
        stats: SpecStats,
        steps: Sequence[Step],
        proposal: Proposal,
        path: Sequence[int],
    ) -> None:
        """What the target said about a proposal."""
        if not bet.kind:
            return
        for step, chance in zip(steps, bet.expected.chances, strict=False):
            stats.predict(chance, step.rank is not None)
        acceptance = self._of_kind(bet.kind)
        acceptance.observe(steps, bet.confidences, n_nodes=len(proposal))
        if proposal.values:
            acceptance.observe_values(proposal.values, path)

    def settle(self, seconds: float, propose_s: float, shares: Sequence[Share]) -> None:
        """Book one round of all live sequences.

        Each bears its part of a plain round; what the round took beyond that is shared by who
        drafted. Without drafts, a round takes what plain decoding takes, but for the looking, and
        for going back to the size of plain decodes. A hiccup of the machine, which would have hit
        plain decoding as well, counts as no more than twice the usual time.

        Args:
            seconds: of the round, `propose_s` of them before its first decode.
        """
        self._compare(seconds, shares)
        self._overhead.observe(propose_s - self._drafting_s)
        self._settle_in(shares)
        if not self.costs.measured(self.plain_size):
            return
        plain = self.plain_s
        n_drafted = sum(share.n_drafted for share in shares)
        due = self._due_s
        believed = min(seconds, self._usual_s(shares))
        extra = believed - plain - due
        if not (n_drafted or self._paying or self.costs.is_changing):
            asking_s = min(propose_s - self._drafting_s, _HICCUP * self.asking_s)
            extra = min(asking_s + self._drafting_s, believed)
        for share in shares:
            part = share.n_drafted / n_drafted if n_drafted else 1 / len(shares)
            own = plain / len(shares)
            share.account.book(own + part * max(extra, -plain - due), share.n_emitted * own)

    def _settle_in(self, shares: Sequence[Share]) -> None:
        """Where nobody drafted for want of gain, the next rounds will hardly be different."""
        if self._resting:
            self._rest, self._rested = self._rest - 1, 0
            return
        busy = self._paying or self._drafting_s or self.costs.is_changing
        calm = self._may_rest and not busy and not any(share.n_drafted for share in shares)
        self._rest, self._rested = (_REST if calm else 0), 0

    def _usual_s(self, shares: Sequence[Share]) -> float:
        """What a round of these may take and be believed."""
        n_tokens = sum(1 + share.n_drafted for share in shares)
        if not self._expected_s:
            return _ASLEEP * n_tokens * self.plain_s
        return _HICCUP * (self._expected_s + max(share.bet.draft_s or 0.0 for share in shares))

    def _compare(self, seconds: float, shares: Sequence[Share]) -> None:
        """Note prediction and measurement, in equal parts.

        Costs are medians; how much longer rounds take in the mean, hiccups and all, is learned.
        """
        if self._overran or not self._expected_s:
            return
        if any(share.bet.draft_s is None for share in shares):
            return
        if not 0.0 < seconds < _ASLEEP * sum(share.n_emitted for share in shares) * self.plain_s:
            return  # the clock was set, or the machine slept
        drafting = max(share.bet.draft_s or 0.0 for share in shares)
        usual_s = self._expected_s + drafting + self.asking_s
        predicted_s = usual_s * self._drag
        self._drag += _DRAG_WEIGHT * (min(seconds / usual_s, _HICCUP) - self._drag)
        for share in shares:
            forecast = share.stats.forecast
            forecast.rounds += 1
            forecast.tokens += share.bet.expected.tokens
            forecast.seconds += predicted_s / len(shares)
            forecast.measured_tokens += share.n_emitted
            forecast.measured_s += seconds / len(shares)


def kind(name: str, temperature: float) -> str:
    """Which estimates of a drafter count: those of greedy, usual or wild sampling."""
    if temperature == 0.0:
        return f"{name}, greedy"
    return f"{name}, sampled" if temperature <= 1.0 else f"{name}, sampled wildly"
