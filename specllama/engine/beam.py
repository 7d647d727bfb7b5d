"""Speculative beam search: the hypotheses of plain beam search in fewer target batches.

A step of beam search needs the target's logits after every live beam. A drafter proposes the tree
of beams that it expects; one target batch evaluates the live beams and the tree; then exact steps
are taken as long as all live beams are among what was evaluated. A wrong tree costs time, never
another hypothesis: every step is taken on the target's own rows.

The search is that of Sutskever et al. 2014 with the usual length penalty: the W best continuations
that do not end live on, those of the W best that do end are finished, and a finished hypothesis
has the score (sum of log-probabilities) / (tokens, the end token included) ** length_penalty.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.beams import Beam, BeamDrafter, Size, Ways, draft_beams
from specllama.errors import EngineError
from specllama.llama.branches import Branches, Node
from specllama.llama.cache import Backend
from specllama.results import FinishReason
from specllama.sampling.chain import top_logprobs
from specllama.scheduling.beam_depth import Batch, Depth, FewestBatches

Observe = Callable[[int, NDArray[np.float32]], None]
"""Called with a token and the target's logits after it."""

_WIDER = 3
# From 64 queries on llama.cpp's attention on CPUs takes another path, whose sums differ.
_LARGEST = 63
_ENDS = 4


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A continuation of the prompt.

    Attributes:
        tokens: without the end token.
        score: what hypotheses are ranked by.
        logprob: sum of the tokens' log-probabilities, in nats, that of the end token included.
    """

    tokens: tuple[int, ...]
    score: float
    logprob: float
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """How a search goes.

    Attributes:
        width: live beams.
        max_tokens: the most tokens of a hypothesis, an end token included.
        length_penalty: above 0 favours longer hypotheses, below 0 shorter ones.
        early_stopping: stop at `width` finished hypotheses; otherwise when, besides, no live beam
            has a better score now than the worst of them.
        draft_max: the most levels of a tree.
        max_batch: the most tokens of a batch, where live beams alone do not need more; None for
            what the backend takes.
    """

    width: int
    max_tokens: int
    length_penalty: float = 1.0
    early_stopping: bool = False
    draft_max: int = 16
    max_batch: int | None = None


class BeamSearch:
    """One search.

    Args:
        branches: the target's cache, which holds the prompt but for its last token.
        last: that token.
        is_end: whether a token ends a hypothesis.
        depth: chooses the levels of trees; None drafts for the fewest batches.
        observe: is shown what the target says after each token.
        at_limit: why hypotheses end at `max_tokens`.

    Attributes:
        batches, steps: of the target so far.
        drafted, used: nodes of trees that were evaluated, and those of them that were live beams.
    """

    def __init__(
        self,
        backend: Backend,
        branches: Branches,
        last: int,
        settings: BeamSettings,
        is_end: Callable[[int], bool],
        *,
        drafter: BeamDrafter | None = None,
        depth: Depth | None = None,
        observe: Observe | None = None,
        at_limit: FinishReason = "length",
    ) -> None:
        self._backend = backend
        self._branches = branches
        self._settings = settings
        self._is_end = is_end
        self._drafter = drafter
        self._depth = depth or FewestBatches()
        self._observe = observe
        self._at_limit: FinishReason = at_limit
        self._live: list[Beam] = [(Node.root(last), 0.0)]
        self._finished: list[Hypothesis] = []
        self._rows: dict[Node, NDArray[np.float32]] = {}
        self._known: dict[Node, Ways] = {}
        self._drafted: set[Node] = set()
        self._full = False
        self.batches = self.steps = self.drafted = self.used = 0

    @property
    def over(self) -> bool:
        """Whether no further step is needed, or possible."""
        at_limit = self._full or self.steps >= self._settings.max_tokens
        return at_limit or not self._live or self._is_decided()

    def _is_decided(self) -> bool:
        """Whether the finished hypotheses are those that count."""
        if len(self._finished) < self._settings.width:
            return False
        best = max((score for _, score in self._live), default=-math.inf)
        hope = best / self.steps**self._settings.length_penalty
        return self._settings.early_stopping or self._finished[-1].score >= hope

    def advance(self) -> None:
        """One batch of the target, and every step that it allows."""
        before, started, drafting = self.steps, self._backend.seconds, self._seconds_drafting()
        n_tokens = self._evaluate()
        while not self.over and all(self._is_evaluated(node) for node, _ in self._live):
            self._step()
        if n_tokens:
            self._depth.observe(
                Batch(
                    n_tokens=n_tokens,
                    seconds=self._backend.seconds - started,
                    levels=max((node.depth for node in self._drafted), default=before) - before,
                    used=self.steps - before - 1,
                    draft_s=self._seconds_drafting() - drafting,
                    over=self.over,
                )
            )

    def _seconds_drafting(self) -> float:
        return self._drafter.seconds if self._drafter is not None else 0.0

    def results(self, count: int) -> list[Hypothesis]:
        """The best hypotheses, best first; live beams count unless the search was decided."""
        found = list(self._finished)
        if not self._is_decided():
            reason: FinishReason = "context" if self._full else self._at_limit
            found += [self._hypothesis(node, score, None, reason) for node, score in self._live]
        return sorted(found, key=lambda one: -one.score)[:count]

    def _is_evaluated(self, node: Node) -> bool:
        return node in self._rows or node in self._known

    def _evaluate(self) -> int:
        """Decode the live beams that were not foreseen, and a tree below all of them.

        Returns:
            The size of the batch, 0 where there was no room for one.
        """
        nodes = [node for node, _ in self._live]
        self._known = {node: self._ways(node) for node in nodes if self._is_evaluated(node)}
        self._rows = {}
        self._branches.keep(nodes)
        missing = [node for node in nodes if node not in self._known]
        if not self._branches.make_room(len(missing)):
            self._full = True
            return 0
        tree = self._draft(len(missing))
        rows = self._branches.decode([*missing, *tree])
        self.batches += 1
        self.drafted += len(tree)
        self._drafted = set(tree)
        self._rows = dict(zip([*missing, *tree], rows, strict=True))
        if self._observe is not None:
            for node, row in self._rows.items():
                self._observe(node.token, row)
        return len(self._rows)

    def _draft(self, n_missing: int) -> list[Node]:
        """A tree below the live beams, as large as the batch, the cache and the limit allow."""
        for node, _ in self._live:
            node.children.clear()
        if self._drafter is None:
            return []
        width = _WIDER * self._settings.width
        deepest = min(self._settings.draft_max, self._settings.max_tokens - self.steps - 1)
        depth = self._depth.choose(n_missing, width, deepest)
        leaves = self._branches.n_free - n_missing
        most = min(self._backend.n_batch, self._backend.n_outputs, _LARGEST)
        nodes = max(0, min(most, self._settings.max_batch or most) - n_missing)
        while nodes > 0 and not self._branches.make_room(n_missing + nodes):
            nodes //= 2
        size = Size(width, depth, nodes, leaves)
        return draft_beams(self._drafter, self._live, self._is_end, size)

    def _ways(self, node: Node) -> Ways:
        """The continuations of a node that a step can need: the best `width` that do not end, and
        whatever is as good."""
        if node not in self._known:
            row, count = self._rows[node], self._settings.width + _ENDS
            while True:
                ways = top_logprobs(row, min(count, len(row)))
                going_on = sum(not self._is_end(token) for token, _ in ways)
                if going_on >= self._settings.width or count >= len(row):
                    break
                count *= 2
            if not math.isfinite(ways[0][1]):
                raise EngineError(
                    "The target's logits are not finite.",
                    "The model file is damaged, or the device computes it wrongly.",
                )
            self._known[node] = [way for way in ways if way[1] > -math.inf]
        return self._known[node]

    def _step(self) -> None:
        """The next beams: an exact step of beam search."""
        width = self._settings.width
        options = sorted(
            (-(score + logp), place, token)
            for place, (node, score) in enumerate(self._live)
            for token, logp in self._ways(node)
        )
        live: list[Beam] = []
        for rank, (cost, place, token) in enumerate(options):
            parent = self._live[place][0]
            if self._is_end(token):
                if rank < width:
                    self._finish(parent, -cost, token)
            elif len(live) < width:
                live.append((parent.child(token), -cost))
        for node, _ in self._live:
            self.used += node in self._drafted
            node.children.clear()
        self._live = live
        self.steps += 1

    def _finish(self, parent: Node, logprob: float, token: int) -> None:
        self._finished.append(self._hypothesis(parent, logprob, token, "stop"))
        self._finished.sort(key=lambda one: -one.score)
        del self._finished[self._settings.width :]

    def _hypothesis(
        self, node: Node, logprob: float, end: int | None, reason: FinishReason
    ) -> Hypothesis:
        length = node.depth + (end is not None)
        score = logprob / length**self._settings.length_penalty if length else logprob
        return Hypothesis(tuple(node.path()), score, logprob, reason)
