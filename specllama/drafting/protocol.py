"""What a drafter is asked and what it answers. A new drafter is one file with a `Drafter` in it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.shapes import Shape
from specllama.llama.cache import Backend
from specllama.results import SpecStats
from specllama.sampling.distribution import Distribution
from specllama.verification.types import Chance, Proposal


@dataclass(frozen=True, slots=True)
class Want:
    """One live sequence that wants a proposal.

    Attributes:
        key: the sequence, the same from round to round.
        ids: all its ids, prompt and reply; between `rewind`s they only grow.
        limit: the most tokens to draft in a row (at least 1).
        nodes, branches: the most nodes of a tree, and the most leaves beside its first.
        shape: how trees of a draft model grow.
        law: (logits row, drafted path) -> the law to draw from, None where nothing can be drawn.
        chance: draws children from a law as the verification rule needs them.
        keeps_laws: the rule reads the laws, so the proposal has to carry them; otherwise drafts
            may be chosen and dropped at will.
        go_on: asked with (tokens drafted so far, probability of the best next token) before that
            token is drawn, and with (tokens drafted so far, None) before work that would show
            that probability; False ends the chain. Never drop a token that was drawn: that
            biases every rule that reads laws.
        best: (logits row, drafted path) -> the most probable token and about its probability, where
            drafts are greedy: most of a law is not needed then. None where they are drawn.
    """

    key: int
    ids: Sequence[int]
    limit: int
    nodes: int
    branches: int
    shape: Shape
    law: Callable[[NDArray[np.float32], Sequence[int]], Distribution | None]
    chance: Chance
    keeps_laws: bool
    go_on: Callable[[int, float | None], bool]
    best: Callable[[NDArray[np.float32], Sequence[int]], tuple[int, float]] | None = None

    @property
    def position(self) -> int:
        """Absolute position of the first drafted token."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Seen:
    """One position the target has judged: a token that stays, and the logits after it.

    Attributes:
        row: float32 [n_vocab], a view.
    """

    token: int
    row: NDArray[np.float32]


class Drafter(ABC):
    """Whatever guesses: only `propose` has to be written.

    Attributes:
        name: for statistics and options.
        free: proposing costs next to nothing, so it may be asked before its use is decided.
        trees: it proposes trees of its own size; `go_on` does not steer it.
        learns: wants `observe` after every round.
        runs_ahead: can draft while the target is at work (`go_ahead`).
    """

    name: str
    free: bool = True
    trees: bool = False
    learns: bool = False
    runs_ahead: bool = False

    @property
    def backend(self) -> Backend | None:
        """The context of a draft model, None without one; drafters may share it."""
        return None

    @abstractmethod
    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        """A proposal per want, in order; an empty one where there is nothing to say."""

    def idea(self, key: int, ids: Sequence[int]) -> float:
        """How much speaks at most for what `propose` would say, 0 for nothing.

        Free drafters are asked this before each proposal, and while others rest, when one whose
        last idea came to nothing is heard again when there is more, or if this is infinite.
        """
        return math.inf

    def unread(self, key: int, ids: Sequence[int]) -> int:
        """How many of the ids a draft model has to read before it can propose."""
        return 0

    def ready(self, key: int, ids: Sequence[int]) -> int:
        """How many tokens the next proposal would begin with that were drafted ahead."""
        return 0

    def go_ahead(self, proposals: Mapping[int, Sequence[int]], count: int) -> int:
        """Draft behind proposals while the target verifies them, for the case that all is accepted.

        Args:
            proposals: by sequence, the tokens in a row that are being verified.
            count: the most tokens behind each.

        Returns:
            How many positions were looked at, one after the other.
        """
        return 0

    def prepare(self, key: int, ids: Sequence[int]) -> None:
        """A new sequence with this prompt, before its first round."""

    def read(self, key: int, ids: Sequence[int]) -> None:
        """So much of a prompt is being read by now: drafters with a model read along."""

    def observe(self, key: int, seen: Sequence[Seen]) -> None:
        """What the target said in the round just verified; the rows are views for this call."""

    def inner_stats(self, key: int) -> SpecStats | None:
        """Statistics of a speculation inside this drafter, None where there is none."""
        return None

    def rewind(self, key: int, length: int) -> None:
        """The ids of a sequence behind the first `length` are no longer what they were."""

    def forget(self) -> None:
        """Remember nothing of what was said so far (what is kept on disk stays)."""
