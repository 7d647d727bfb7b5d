"""A live generation: its ids, its randomness, its statistics."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specllama.engine.request import Request
from specllama.results import FinishReason, SourceStats, SpecStats
from specllama.sampling.chain import Sampler
from specllama.sampling.distribution import Distribution
from specllama.sampling.noise import GreedyDrafts
from specllama.scheduling.scheduler import Account
from specllama.verification.types import Proposal


class Sequence:
    """One request on its way.

    Attributes:
        key: its slot: the sequence id in every cache.
        ids: prompt and emitted tokens; the last one is in no cache.
        n_prompt: how many of them are the prompt.
        chance, draft_chance: randomness of the rule, and of the drafts (greedy at temperature 0).
        keeps_laws: proposals have to carry the laws they were drawn from.
        n_cached: how many of those were still in the cache.
        finish: why it ended, None while it lives.
        dropped: latest tokens taken back because they belong to a stop string.
    """

    def __init__(self, key: int, request: Request, account: Account) -> None:
        self.key = key
        self.request = request
        self.account = account
        self.ids = list(request.ids)
        self.n_prompt = len(self.ids)
        self.chance = request.rule.chance(request.seed)
        self.sampler = Sampler(request.sampling)
        greedy = request.sampling.temperature == 0.0
        self.keeps_laws = request.rule.uses_law and not greedy
        self.draft_chance = GreedyDrafts(request.seed) if greedy else self.chance
        self._draft_sampler = (
            Sampler(replace(request.sampling, temperature=1.0)) if greedy else self.sampler
        )
        self.stats = SpecStats()
        self.n_cached = 0
        self.finish: FinishReason | None = None
        self.dropped = 0

    @property
    def n_emitted(self) -> int:
        """Tokens generated so far."""
        return len(self.ids) - self.n_prompt

    @property
    def n_left(self) -> int | None:
        """Tokens that may still be generated, None without a limit."""
        limit = self.request.max_tokens
        return None if limit is None else limit - self.n_emitted

    def law(self, row: NDArray[np.float32], path: Ids[int]) -> Distribution:
        """The sampling chain's law after the ids so far and a drafted path."""
        return self.sampler.distribution(row, self._window(path))

    def draft_law(self, row: NDArray[np.float32], path: Ids[int]) -> Distribution:
        """The law drafts come from: the target's chain, but ranked by probability where that is
        greedy, since one certain token would tell neither a confidence nor a second choice."""
        return self._draft_sampler.distribution(row, self._window(path))

    def _window(self, path: Ids[int]) -> Ids[int]:
        """The latest ids that the penalties look at; nothing is copied where they are off."""
        params = self.request.sampling
        if not params.penalises:
            return ()
        if params.repeat_last_n < 0:
            return [*self.ids, *path]
        return [*self.ids[-params.repeat_last_n :], *path]

    def count(self, proposal: Proposal, accepted: int, tested: int) -> None:
        """Add one round to the statistics; nothing behind the end of the reply counts."""
        self.stats.rounds += 1
        if not len(proposal):
            return
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
