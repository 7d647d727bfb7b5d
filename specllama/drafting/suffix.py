"""Drafts what followed the last time: no model, next to no time.

Prompt lookup (Saxena 2023) with a suffix automaton for the longest match (SAM-Decoding, Hu et al.
2024) and a length in proportion to it (SuffixDecoding, Oliaro et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, takewhile

from specllama.drafting.automaton import SuffixAutomaton
from specllama.drafting.protocol import Drafter, Want
from specllama.verification.types import Proposal

MIN_MATCH = 3
FACTOR = 1.0


class SuffixDrafter(Drafter):
    """Proposes the continuation of the latest earlier occurrence of the longest repeated suffix.

    Args:
        is_end: tokens that end a turn; a draft ends before one, because what follows answers
            something else.
        min_match: no draft on a shorter match. On replayed prose a match of 2 tokens predicts the
            next one in 24 %, of 3 in 30 %, of 6 in 59 % of cases; on replayed code 42, 55 and 66 %.
        factor: tokens drafted per token matched. On the same texts 2 instead of 1 drafts 1.5 to
            1.9 times as much for at most 4 % fewer rounds.
    """

    name = "suffix"

    def __init__(
        self,
        is_end: Callable[[int], bool],
        *,
        min_match: int = MIN_MATCH,
        factor: float = FACTOR,
    ) -> None:
        self._is_end = is_end
        self._min_match = min_match
        self._factor = factor
        self._automata: dict[int, SuffixAutomaton] = {}
        self._runs: dict[int, _Runs] = {}

    def prepare(self, key: int, ids: Sequence[int]) -> None:
        """Read a prompt."""
        self._read(key, ids)

    def idea(self, key: int, ids: Sequence[int]) -> float:
        """No less than the length of the match, 0 where it is not long enough."""
        runs = self._runs.get(key)
        if runs is None:
            runs = self._runs[key] = _Runs(self._min_match)
        return runs.longest(ids)

    def _read(self, key: int, ids: Sequence[int]) -> SuffixAutomaton:
        automaton = self._automata.get(key)
        if automaton is None:
            automaton = self._automata[key] = SuffixAutomaton()
        automaton.extend(ids[len(automaton) :])
        return automaton

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        """Read each sequence's new tokens, then look its end up in the rest."""
        return [self._propose(want) for want in wants]

    def _propose(self, want: Want) -> Proposal:
        automaton = self._read(want.key, want.ids)
        if automaton.match_length < self._min_match:
            return Proposal()
        length = min(want.limit, int(self._factor * automaton.match_length))
        turn = takewhile(lambda token: not self._is_end(token), automaton.continuation())
        confidence = automaton.match_length / (1 + automaton.match_length)
        tokens: list[int] = []
        for token in islice(turn, length):
            if not want.go_on(len(tokens), confidence):
                break
            tokens.append(token)
        return Proposal.chain(tokens, source=self.name)

    def rewind(self, key: int, length: int) -> None:
        """Forget a sequence that changes in its past; reading 32,000 ids again takes 0.1 s."""
        if length < len(self._automata.get(key, ())):
            del self._automata[key]
        if key in self._runs and length < self._runs[key].length:
            del self._runs[key]

    def forget(self) -> None:
        """Forget all sequences."""
        self._automata.clear()
        self._runs.clear()


class _Runs:
    """All runs of `size` ids: whether the latest is new costs a tenth of keeping up an automaton.

    Attributes:
        length: ids read.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen: set[tuple[int, ...]] = set()
        self._n_known = 0  # of the latest runs in line
        self.length = 0

    def longest(self, ids: Sequence[int]) -> int:
        """Read on in ids that only grow; the most of the last that can have been there before."""
        for end in range(max(self.length + 1, self._size), len(ids) + 1):
            run = tuple(ids[end - self._size : end])
            self._n_known = self._n_known + 1 if run in self._seen else 0
            self._seen.add(run)
        self.length = len(ids)
        return self._size - 1 + self._n_known if self._n_known else 0
