"""Schedulers that know a machine, for the tests of this folder."""

from __future__ import annotations

from specllama.results import SpecStats
from specllama.scheduling.acceptance import Acceptance, Step
from specllama.scheduling.account import Account
from specllama.scheduling.costs import Costs
from specllama.scheduling.outlook import Outlook
from specllama.scheduling.scheduler import Bet, Scheduler, Share
from specllama.scheduling.table import CostTable

FIRST_S, SECOND_S = 0.0013, 0.0047
"""What the first and the second decode of another size cost more, as on an H100."""
H100 = {
    1: 3.031, 2: 3.279, 3: 3.738, 4: 4.163, 5: 4.753, 6: 5.106, 7: 5.53, 8: 6.036, 9: 6.845,
    10: 7.053, 12: 7.177, 16: 7.288, 20: 8.016, 24: 8.128, 32: 8.895,
}  # fmt: skip
H100 = {n: ms / 1000 for n, ms in H100.items()}


def seen(costs: Costs, n_tokens: int, seconds: float, times: int = 2) -> None:
    """A size counts from its second measurement on."""
    for _ in range(times):
        costs.observe_target(n_tokens, seconds)


def observe(
    acceptance: Acceptance, drafted: int, accepted: int, tested: int, confidences: list[float]
) -> None:
    """A chain of which `tested` tokens were judged and the first `accepted` kept."""
    steps = [Step(0 if depth < accepted else None, 1) for depth in range(tested)]
    acceptance.observe(steps, confidences, n_nodes=drafted)


def scheduler(one: float, many: float, accepted: int, draft_s: float = 0.0) -> Scheduler:
    """One that has seen 100 rounds of 8 drafted tokens, `accepted` of them kept."""
    scheduler = Scheduler()
    seen(scheduler.costs, 1, one)
    seen(scheduler.costs, 9, many)
    scheduler.costs.observe_draft("model", 1, draft_s)
    for _ in range(100):
        observe(scheduler.acceptance("model"), 8, accepted, min(8, accepted + 1), [])
    return scheduler


def prompted(known: Scheduler) -> None:
    """A reply begins."""
    known.costs.observe_reading(10, 0.02)
    known.begin(1)


def chain(known: Scheduler, limit: int = 8) -> Outlook:
    """What chains of the draft model promise."""
    return known.chain_outlook("model", "model, greedy", limit)


def graphs(
    same: dict[int, float] = H100,
    *,
    first: float = FIRST_S,
    second: float = SECOND_S,
    good: int = 0,
) -> Scheduler:
    """A device that replays graphs; of each four drafted tokens more, `good` were accepted."""
    known = Scheduler()
    other, captured = ({n: s + extra for n, s in same.items()} for extra in (first, second))
    draft = {"model": {1: 0.0002, 8: 0.0016}}
    known.recall(CostTable(same=dict(same), other=other, second=captured, draft=draft))
    known.begin(1)
    for _ in range(100):
        observe(known.acceptance("model"), good + 1, good, good + 1, [])
    return known


def trying(known: Scheduler) -> int:
    """The size that drafting would keep."""
    return known.kept.size


def pays(known: Scheduler) -> bool:
    """Whether a new reply may draft with the model."""
    account = Account(known, 128)
    account.promised = 0.5
    return known.pays("model, greedy", "model", account)


def share(account: Account, n_drafted: int, n_emitted: int) -> Share:
    """A sequence's part in a round."""
    return Share(account, SpecStats(), Bet("model, greedy"), n_drafted, n_emitted)
