"""Time of one tree round outside llama.cpp: propose, verify, commit, with models that take none.

"bookkeeping" gives drafter and rule laws that are there already; "with laws" computes each from its
row of logits with the sampling chain as well. All laws are one law with noise of their own, so that
drafts are accepted and refused about as between real models.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from measuring import median
from numpy.typing import NDArray

from specllama.drafting.follower import Follower
from specllama.drafting.protocol import Want
from specllama.drafting.shapes import FixedShape
from specllama.drafting.tree import TreeDrafter
from specllama.engine.request import Request
from specllama.engine.round import verify
from specllama.engine.sequence import Sequence as Live
from specllama.llama.cache import TokenCache
from specllama.sampling.chain import Sampler
from specllama.sampling.distribution import FEW, Distribution
from specllama.sampling.params import SamplingParams
from specllama.scheduling.account import Account
from specllama.scheduling.scheduler import Scheduler
from specllama.verification import RULES

SHAPE = FixedShape((2, 3, 4))
"""32 nodes, 9 of them (with the root) with children."""
BRANCHES = 23
ROUNDS = 200
N_LAWS = 64
WARM_UP = 20
SAMPLINGS = {
    "top-k 40": SamplingParams(temperature=1.0, top_k=40, top_p=1.0, min_p=0.0),
    "untruncated": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
}


@dataclass
class Instant:
    """A backend whose decodes take no time: row after row of a table, over and over."""

    rows: list[NDArray[np.float32]]
    n_ctx: int = 1 << 20
    n_ctx_seq: int = 1 << 20
    n_batch: int = 512
    n_seq: int = 1 + BRANCHES
    n_outputs: int = N_LAWS
    n_vocab: int = 0
    seconds: float = 0.0
    rollback: Literal["free", "checkpoint"] = "free"
    _next: int = field(default=0)

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
        meanwhile: None = None,
    ) -> list[NDArray[np.float32]]:
        """The next rows."""
        count = sum(outputs)
        first = 0 if self._next + count > len(self.rows) else self._next
        self._next = first + count
        return self.rows[first : self._next]

    def reaches(self, seq: int, length: int) -> bool:
        """Always."""
        return True

    def truncate(self, seq: int, length: int) -> bool:
        """Nothing to do."""
        return True

    def fork(self, source: int, target: int) -> None:
        """Nothing to do."""

    def adopt(self, source: int, target: int, start: int) -> None:
        """Nothing to do."""

    def drop(self, seq: int) -> None:
        """Nothing to do."""

    def length(self, seq: int) -> int:
        """No cell is kept."""
        return 0

    def save(self, seq: int) -> None:
        """Nothing to do."""

    def restore(self, seq: int, length: int) -> None:
        """Nothing to do."""


class Given:
    """Stands for a sampling chain: a row names a law that is there already.

    It is told as a new one each time, since a law remembers what was asked of it.
    """

    def __init__(self, laws: Sequence[Distribution]) -> None:
        self._laws = laws

    def distribution(
        self, row: NDArray[np.float32], history: Sequence[int], constraint: None = None
    ) -> Distribution:
        """The law whose number the row is."""
        law = self._laws[int(row[0])]
        return (
            Distribution.of_few(*law.lists) if len(law) <= FEW else Distribution(law.ids, law.probs)
        )


def logits(n_vocab: int, noise: float, seed: int) -> NDArray[np.float32]:
    """Rows of logits, float32 [N_LAWS, n_vocab]: a law of about 3 nats, each row with its noise."""
    rank = np.random.default_rng(0).permutation(n_vocab) + 1.0
    base = -1.5 * np.log(rank)
    own = np.random.default_rng(seed).normal(0.0, noise, (N_LAWS, n_vocab))
    return (base + own).astype(np.float32)


def measure(n_vocab: int) -> Iterator[dict[str, Any]]:
    """Per rule and truncation, median microseconds of each part of a round."""
    rows = logits(n_vocab, 0.5, 1), logits(n_vocab, 0.5, 2)
    for sampling_name, sampling in SAMPLINGS.items():
        for name, rule in RULES.items():
            if rule.shape == "tree":
                found: dict[str, Any] = {"rule": name, "truncation": sampling_name}
                for what, given in (("bookkeeping", True), ("with laws", False)):
                    found[what] = _round_times(name, sampling, rows, given=given)
                yield found


def _round_times(
    rule: str,
    sampling: SamplingParams,
    rows: tuple[NDArray[np.float32], NDArray[np.float32]],
    *,
    given: bool,
) -> dict[str, float]:
    draft, target = (_model(part, sampling, given=given) for part in rows)
    request = Request([1, 2, 3], sampling, RULES[rule], 1, is_end=lambda token: False)
    live = Live(0, request, Account(Scheduler()))
    live.sampler = target[1]
    cache, drafter = TokenCache(target[0]), TreeDrafter(Follower(draft[0]), first_branch=1)
    spare = range(1, 1 + BRANCHES)
    proposing, verifying, emitted = [], [], []
    for _ in range(WARM_UP + ROUNDS):
        want = _want(live, draft[1])
        started = time.perf_counter()
        (proposal,) = drafter.propose([want])
        proposed = time.perf_counter()
        (verified,), _ = verify(cache, [live], [proposal], spare, linear=False)
        verifying.append(1e6 * (time.perf_counter() - proposed))
        proposing.append(1e6 * (proposed - started))
        live.ids += verified.tokens
        emitted.append(len(verified.tokens))
    both = [p + v for p, v in zip(proposing, verifying, strict=True)]
    times = {"propose": proposing, "verify": verifying, "round": both}
    found = {name: median(part[WARM_UP:]) for name, part in times.items()}
    return found | {"tokens a round": round(sum(emitted) / len(emitted), 2)}


def _model(rows: NDArray[np.float32], sampling: SamplingParams, *, given: bool) -> tuple[Any, Any]:
    """A backend and what makes laws of its rows."""
    sampler = Sampler(sampling)
    if not given:
        return Instant(list(rows), n_vocab=rows.shape[1]), sampler
    laws = [sampler.distribution(row, ()) for row in rows]
    numbers = np.arange(N_LAWS, dtype=np.float32)[:, None]
    return Instant(list(numbers), n_vocab=rows.shape[1]), Given(laws)


def _want(live: Live, sampler: Any) -> Want:
    return Want(
        key=0,
        ids=live.ids,
        limit=len(SHAPE.widths),
        nodes=32,
        branches=BRANCHES,
        shape=SHAPE,
        law=sampler.distribution,
        chance=live.draft_chance,
        keeps_laws=live.keeps_laws,
        go_on=lambda drafted, confidence: True,
    )
