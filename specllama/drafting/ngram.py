"""Drafts with an n-gram model trained before, and what the conversation says over and over.

The trigram of staged decoding (Spector and Re 2023, arXiv 2308.04623), with modified Kneser-Ney
smoothing (ngram_train.py). The conversation's own n-grams are a layer above the file: a context's
latest continuations are observations, and the law below is their prior (MacKay and Bauman Peto
1995).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Protocol

from specllama.drafting.growth import Growth, Ways
from specllama.drafting.protocol import Drafter, Want
from specllama.verification.types import Proposal

LEAST = 0.2
NODES = 8
_LENGTHS = (2, 3)
_REMEMBERED = 8
_UNDONE = 512
"""So many of the latest ids can be unlearned one by one: drafts shown to a guesser, a reply."""

_PRIOR = 2.0
"""How many observations the law below is worth. With a file of 0.5 million tokens of Python and
Markdown, other such files replay at 1.40 and 1.24 tokens a round with 1.07 and 0.75 drafted; a
prior of 1 drafts as much for 1.38 and 1.23 (LEAST 0.3)."""

Law = list[tuple[int, float]]
Tail = tuple[int, ...]


class NgramModel(Protocol):
    """What the drafter needs of a model; `ngram_file.NgramFile` is one."""

    def after(self, context: Sequence[int]) -> Law:
        """The likeliest tokens after a context (latest last) with their probabilities."""


class NgramDrafter(Drafter):
    """Proposes what an n-gram model and the sequence's own n-grams hold likely.

    Args:
        model: the static layer.
        is_end: tokens that end a turn; a draft ends before one.
        least: draft a token if the path down to it is at least this probable.
        nodes: the most nodes of a tree.
    """

    name = "ngram"

    def __init__(
        self,
        model: NgramModel,
        is_end: Callable[[int], bool],
        *,
        least: float = LEAST,
        nodes: int = NODES,
    ) -> None:
        self._model = model
        self._is_end = is_end
        self._least = least
        self._nodes = nodes
        self._recent: dict[int, _Recent] = {}

    def prepare(self, key: int, ids: Sequence[int]) -> None:
        """Read a prompt."""
        self._recent.setdefault(key, _Recent()).read(ids)

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        """Read each sequence's new tokens, then draft from its last ones."""
        return [self._propose(want) for want in wants]

    def _propose(self, want: Want) -> Proposal:
        recent = self._recent.setdefault(want.key, _Recent())
        recent.read(want.ids)
        growth = Growth(self.name, self._ways(recent), self._is_end, self._least, self._nodes)
        return growth.propose(want, tuple(want.ids[-_LENGTHS[-1] :]), want.limit)

    def _ways(self, recent: _Recent) -> Callable[[Tail], Ways[Tail]]:
        def ways(tail: Tail) -> Ways[Tail]:
            rest = tail[1 - _LENGTHS[-1] :]
            return [
                (token, prob, (*rest, token))
                for token, prob in recent.update(tail, self._model.after(tail))
            ]

        return ways

    def rewind(self, key: int, length: int) -> None:
        """Unlearn the ids behind the first `length`; far back, forget the sequence instead."""
        if key in self._recent and not self._recent[key].rewind(length):
            del self._recent[key]

    def forget(self) -> None:
        """Forget all sequences."""
        self._recent.clear()


class _Recent:
    """The latest continuations of each context of one sequence.

    Attributes:
        n_read: how many of the sequence's ids are known.
    """

    def __init__(self) -> None:
        self.n_read = 0
        self._followers: dict[Tail, Tail] = {}
        # per id, newest last: what its contexts were followed by before it
        self._before: deque[list[tuple[Tail, Tail]]] = deque(maxlen=_UNDONE)

    def read(self, ids: Sequence[int]) -> None:
        """Learn the ids behind the known ones."""
        followers = self._followers
        for place in range(self.n_read, len(ids)):
            changed = []
            for length in _LENGTHS:
                if length <= place:
                    context = tuple(ids[place - length : place])
                    before = followers.get(context, ())
                    followers[context] = (ids[place], *before[: _REMEMBERED - 1])
                    changed.append((context, before))
            self._before.append(changed)
        self.n_read = len(ids)

    def rewind(self, length: int) -> bool:
        """Unlearn what is behind the first `length` ids; False where that is too long ago."""
        surplus = max(0, self.n_read - length)
        if surplus > len(self._before):
            return False
        for _ in range(surplus):
            for context, before in self._before.pop():
                if before:
                    self._followers[context] = before
                else:
                    del self._followers[context]
        self.n_read -= surplus
        return True

    def update(self, tail: Tail, law: Law) -> Law:
        """A law, given what followed the tail in this sequence; likeliest first.

        For each length, the mean of a Dirichlet law whose prior is the law of the length below.
        """
        probs: dict[int, float] | None = None
        for length in _LENGTHS:
            observed = self._followers.get(tail[-length:])
            if observed is None:
                continue
            share = 1 / (_PRIOR + len(observed))
            prior = law if probs is None else probs.items()
            probs = {token: _PRIOR * share * prob for token, prob in prior}
            for token in observed:
                probs[token] = probs.get(token, 0.0) + share
        if probs is None:
            return law
        return sorted(probs.items(), key=itemgetter(1), reverse=True)
