"""What a text may say next: a constraint, its states along a text, and the tokens it leaves.

A constrained law is the chain's law over a row in which every forbidden token has -inf: the mask
comes before bias, penalties and truncation, which is llama.cpp's order with the grammar first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specllama.errors import EngineError, UsageError
from specllama.sampling.distribution import IntArray

Path = tuple[int, ...]


class Constraint(Protocol):
    """The state of a constraint after some tokens; it never changes, so states can be shared."""

    def allowed(self, ids: IntArray) -> NDArray[np.bool_]:
        """Whether each token may come next, bool [len(ids)]."""

    def every(self) -> IntArray:
        """All tokens that may come next, int64, rising."""

    def after(self, token: int) -> Constraint | None:
        """The state after a token; None where it is forbidden."""


class NothingAllowed(UsageError):
    """The constraint leaves no token of a row, or `logit_bias` forbids all that it leaves."""

    def __init__(self, *, by_bias: bool = False) -> None:
        if by_bias:
            super().__init__("No token can follow here: logit_bias forbids all that could.")
            return
        super().__init__(
            "No token can follow here: the grammar allows none of the vocabulary.",
            "Check that the grammar can be continued at every place.",
        )


class States:
    """The states of a constraint along one sequence and along the paths drafted behind it.

    Args:
        start: the state before the reply.
        n_prompt: where the reply starts; the constraint does not see the prompt.
    """

    def __init__(self, start: Constraint, n_prompt: int) -> None:
        self._here = start
        self._length = n_prompt
        self._below: dict[Path, Constraint | None] = {}

    def at(self, ids: Sequence[int], path: Sequence[int]) -> Constraint | None:
        """The state after a sequence and a path behind it; None behind a forbidden token.

        Args:
            ids: prompt and reply; from call to call they only grow.

        Raises:
            EngineError: the reply itself holds a forbidden token.
        """
        if len(ids) > self._length:
            self._advance(tuple(ids[self._length :]))
        return self._find(tuple(path))

    def _advance(self, said: Path) -> None:
        """Take up new tokens of the reply; states of paths that go on from there are kept."""
        here = self._find(said)
        if here is None:
            raise EngineError("The reply holds a token that its grammar forbids.")
        n_said = len(said)
        self._below = {
            path[n_said:]: state
            for path, state in self._below.items()
            if len(path) > n_said and path[:n_said] == said
        }
        self._here = here
        self._length += n_said

    def _find(self, path: Path) -> Constraint | None:
        if not path:
            return self._here
        if path not in self._below:
            above = self._find(path[:-1])
            self._below[path] = above.after(path[-1]) if above is not None else None
        return self._below[path]
