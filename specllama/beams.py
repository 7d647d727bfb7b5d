"""Beam search as text: a prompt's tokens in, hypotheses out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.beams import BeamDrafter, ModelBeams, RecycledBeams
from specllama.drafting.follower import Follower
from specllama.drafting.protocol import Seen
from specllama.drafting.recycle import RecycleDrafter
from specllama.engine import beam
from specllama.engine.engine import Engine
from specllama.errors import UsageError
from specllama.llama.branches import Branches
from specllama.llama.cache import Progress
from specllama.options import BeamParams
from specllama.results import BeamResult, BeamStats, FinishReason, Hypothesis, Usage
from specllama.scheduling.beam_depth import FewestBatches, LeastTime
from specllama.text.stream import TextStream
from specllama.text.vocabulary import Vocabulary

OnStep = Callable[[int], None]
"""Called with the steps taken so far; an exception out of it ends the search."""


@dataclass(frozen=True, slots=True)
class BeamSearcher:
    """Searches with the models of one decoder, whose engine must be idle.

    Attributes:
        follower: the draft model's cache, None without one.
        recycle: what the target thought of before.
    """

    engine: Engine
    vocabulary: Vocabulary
    follower: Follower | None
    recycle: RecycleDrafter

    def search(
        self,
        ids: Sequence[int],
        params: BeamParams,
        *,
        at_start: bool,
        on_prompt: Progress | None = None,
        on_step: OnStep | None = None,
    ) -> BeamResult:
        """Find the best continuations of a prompt. See `SpeculativeDecoder.beam_search`."""
        self._check(params)
        started = time.perf_counter()
        key = self.engine.hold(ids, on_prompt)
        branches = Branches(self.engine.cache, key, self.engine.spare, in_order=True)
        drafter = self._drafter(params.drafter, key, ids)
        search = self._begin(ids, params, branches, drafter)
        try:
            while not search.over:
                search.advance()
                if on_step is not None:
                    on_step(search.steps)
        finally:
            branches.close()
            if drafter is not None:
                drafter.close()
        found = [
            self._as_text(one, at_start) for one in search.results(params.n_best or params.width)
        ]
        return BeamResult(
            hypotheses=found,
            usage=Usage(len(ids), sum(len(one.tokens) for one in found)),
            stats=BeamStats(
                steps=search.steps,
                batches=search.batches,
                draft_batches=drafter.batches if drafter is not None else 0,
                drafted=search.drafted,
                used=search.used,
            ),
            wall_s=time.perf_counter() - started,
        )

    def _check(self, params: BeamParams) -> None:
        backend = self.engine.backend
        if backend.rollback != "free":
            raise UsageError("This model's memory cannot branch: it has no beam search.")
        # every live beam may have a path of its own while the next ones are begun
        n_ids = max(0, len(self.engine.spare) - 1)
        most = min(n_ids // 2, backend.n_batch, backend.n_outputs)
        if params.width > most:
            hint = "" if most else "With --exact there is none on GPUs or for several slots."
            raise UsageError(f"{params.width} beams; there is room for {most}.", hint)
        if params.drafter == "model" and self.follower is None:
            raise UsageError(
                "There is no draft model with the target's vocabulary.",
                "Give one (--translate is no help to beams), or another drafter.",
            )

    def _drafter(self, name: str, key: int, ids: Sequence[int]) -> BeamDrafter | None:
        if name == "none":
            return None
        if self.follower is None or name == "recycle":
            return RecycledBeams(self.recycle)
        spare = range(self.engine.spare.start, self.follower.backend.n_seq)
        return ModelBeams(self.follower, key, ids, spare)

    def _begin(
        self,
        ids: Sequence[int],
        params: BeamParams,
        branches: Branches,
        drafter: BeamDrafter | None,
    ) -> beam.BeamSearch:
        room = self.engine.n_ctx - len(ids) + 1
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        at_limit: FinishReason = "length" if limit == params.max_tokens else "context"
        return beam.BeamSearch(
            self.engine.backend,
            branches,
            ids[-1],
            beam.BeamSettings(
                width=params.width,
                max_tokens=limit,
                length_penalty=params.length_penalty,
                early_stopping=params.early_stopping,
                draft_max=params.draft_max,
                max_batch=self.engine.max_batch,
            ),
            self.vocabulary.is_eog,
            drafter=drafter,
            depth=LeastTime(self.engine.scheduler.costs) if params.adaptive else FewestBatches(),
            observe=self._observe if isinstance(drafter, RecycledBeams) else None,
            at_limit=at_limit,
        )

    def _observe(self, token: int, row: NDArray[np.float32]) -> None:
        self.recycle.observe(0, [Seen(token, row)])

    def _as_text(self, found: beam.Hypothesis, at_start: bool) -> Hypothesis:
        text = TextStream(self.vocabulary, (), at_start=at_start)
        pieces = [text.push(token).text for token in found.tokens]
        return Hypothesis(
            text="".join(pieces) + text.finish(),
            tokens=list(found.tokens),
            score=found.score,
            logprob=found.logprob,
            finish_reason=found.reason,
        )
