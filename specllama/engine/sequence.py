"""A live generation: its ids, its randomness, its statistics."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.protocol import Drafter
from specllama.engine.request import Request
from specllama.llama.cache import Progress
from specllama.results import FinishReason, SourceStats, SpecStats
from specllama.sampling.chain import Sampler
from specllama.sampling.constraint import Constraint, NothingAllowed, States
from specllama.sampling.distribution import Distribution
from specllama.sampling.noise import GreedyDrafts
from specllama.sampling.params import SamplingParams
from specllama.scheduling.acceptance import Acceptance
from specllama.scheduling.account import Account
from specllama.verification.types import Proposal

_MOST_SIBLINGS = 32  # as many as there are sequence ids for


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that a drafter expected at a place, the likeliest first.

    Attributes:
        acceptance: of that drafter; it learns what became of them.
        confidence: in the first one, None where the drafter did not say.
    """

    place: int
    tokens: Ids[int]
    acceptance: Acceptance
    confidence: float | None


class Sequence:
    """One request on its way.

    Attributes:
        key: its slot: the sequence id in every cache.
        ids: prompt and emitted tokens; the last one is in no cache.
        n_prompt: how many of them are the prompt.
        n_cached: how many of these were still in the cache.
        read_s: seconds spent on reading the others.
        drafters: those of the engine that may draft for it.
        dull: by drafter, how strong an idea has to be to be heard (`Drafter.idea`).
        guesses: of free drafters, for the next token, which were not verified.
        chance, draft_chance: randomness of the rule, and of the drafts (greedy at temperature 0).
        draft_best: see `drafting.protocol.Want.best`.
        keeps_laws: proposals have to carry the laws they were drawn from.
        finish: why it ended, None while it lives.
        dropped: latest tokens taken back because they belong to a stop string.
    """

    def __init__(
        self,
        key: int,
        request: Request,
        account: Account,
        drafters: Ids[Drafter] = (),
        on_prompt: Progress | None = None,
    ) -> None:
        self._on_prompt = on_prompt
        self.key = key
        self.request = request
        self.account = account
        self.drafters = drafters
        self.dull: dict[str, float] = {}
        self.guesses: list[Guess] = []
        self.ids = list(request.ids)
        self.n_prompt = len(self.ids)
        self.chance = request.rule.chance(request.seed)
        self.sampler = Sampler(request.sampling)
        greedy = request.sampling.temperature == 0.0
        self.keeps_laws = request.rule.uses_law and not greedy
        self.draft_chance = GreedyDrafts(request.seed) if greedy else self.chance
        self.draft_best = self._draft_best if greedy and request.constraint is None else None
        self._penalises = request.sampling.penalises
        self._draft_sampler = Sampler(_ranked(request.sampling)) if greedy else self.sampler
        self._states = (
            None if request.constraint is None else States(request.constraint, self.n_prompt)
        )
        self.stats = SpecStats()
        self.n_cached = 0
        self.read_s = 0.0
        self.finish: FinishReason | None = None
        self.dropped = 0

    @property
    def n_emitted(self) -> int:
        """Tokens generated so far."""
        return len(self.ids) - self.n_prompt

    def was_read(self, length: int, seconds: float) -> None:
        """The caches hold so many ids; tell of the prompt's progress."""
        self.read_s += seconds
        if self._on_prompt is not None and not self.n_emitted:
            self._on_prompt(length - self.n_cached, self.n_prompt - 1 - self.n_cached)

    @property
    def n_left(self) -> int | None:
        """Tokens that may still be generated, None without a limit."""
        limit = self.request.max_tokens
        return None if limit is None else limit - self.n_emitted

    def law(self, row: NDArray[np.float32], path: Ids[int]) -> Distribution:
        """The sampling chain's law after the ids so far and a drafted path."""
        return self.sampler.distribution(row, self._window(path), self._constraint(path))

    def draft_law(self, row: NDArray[np.float32], path: Ids[int]) -> Distribution | None:
        """The law drafts come from: the target's chain, but ranked by probability where that is
        greedy, since one certain token would tell neither a confidence nor a second choice.

        None where the constraint allows no token of the row, which may lack some of the target's.
        """
        try:
            constraint = self._constraint(path)
            return self._draft_sampler.distribution(row, self._window(path), constraint)
        except NothingAllowed:
            return None

    def _draft_best(self, row: NDArray[np.float32], path: Ids[int]) -> tuple[int, float]:
        return self.sampler.best(row, self._window(path))

    def _constraint(self, path: Ids[int]) -> Constraint | None:
        if self._states is None:
            return None
        state = self._states.at(self.ids, path)
        if state is None:
            raise NothingAllowed
        return state

    def permitted(self, proposal: Proposal) -> Proposal:
        """A proposal without its forbidden nodes and what is below them.

        A token with the law it was drawn from is never forbidden, since such a law is masked too.
        """
        if self._states is None or not len(proposal):
            return proposal
        path = proposal.path
        return proposal.only(
            [n for n in range(len(proposal)) if self._states.at(self.ids, path(n)) is not None]
        )

    def _window(self, path: Ids[int]) -> Ids[int]:
        """The latest ids that the penalties look at; nothing is copied where they are off."""
        if not self._penalises:
            return ()
        params = self.request.sampling
        if params.repeat_last_n < 0:
            return [*self.ids, *path]
        return [*self.ids[-params.repeat_last_n :], *path]

    def count(self, proposal: Proposal, accepted: int, tested: int) -> None:
        """Add one round to the statistics; nothing behind the end of the reply counts."""
        self.stats.rounds += 1
        if not len(proposal):
            return
        self.stats.drafts += 1
        source = self.stats.by_source.setdefault(proposal.source, SourceStats())
        for total in (self.stats, source):
            total.drafted += len(proposal)
            total.tested += tested
            total.accepted += accepted
        self._count_depths(proposal, accepted, tested)

    def _count_depths(self, proposal: Proposal, accepted: int, tested: int) -> None:
        depths = proposal.depths()
        by_depth = self.stats.by_depth
        by_depth += [SourceStats() for _ in range(max(depths) - len(by_depth))]
        for depth in depths:
            by_depth[depth - 1].drafted += 1
        for depth in range(tested):
            by_depth[depth].tested += 1
            by_depth[depth].accepted += depth < accepted


def _ranked(params: SamplingParams) -> SamplingParams:
    """For greedy drafts: the best tokens with their probabilities, as many as siblings may be."""
    return replace(
        params, temperature=1.0, top_k=_MOST_SIBLINGS, top_p=1.0, min_p=0.0, typical_p=1.0
    )
