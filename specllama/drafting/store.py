"""Drafts from past answers, kept on disk: repeated work gets faster by itself.

SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975): the longest context that a past answer
shares with the present, as many tokens as it matched, and a tree by how often each went on how.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from specllama.drafting.answers import DEFAULT_CAP, Answers
from specllama.drafting.growth import Growth, Ways
from specllama.drafting.protocol import Drafter, Want
from specllama.drafting.suffix_index import search_key
from specllama.hub.fingerprint import fingerprint_of
from specllama.hub.paths import data_dir
from specllama.verification.types import Proposal

MIN_MATCH = 4
FACTOR = 1.0
LEAST = 0.2
NODES = 16
_OCCURRENCES = 8

Runs = tuple[int, list[Sequence[int]]]
"""A depth, and the continuations of the matched contexts that agree so far."""


def root() -> Path:
    """Where the answers of all models are."""
    return data_dir() / "answers"


def open_store(model: Path, cap: int = DEFAULT_CAP) -> Answers:
    """The store of a model: of its file's name and its vocabulary.

    Raises:
        NotAModel: the file is no complete GGUF file.
    """
    fingerprint = fingerprint_of(model)
    return Answers(folder_of(model, fingerprint), fingerprint, cap)


def folder_of(model: Path, fingerprint: str) -> Path:
    """The folder of a model's answers; it need not exist."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model.stem)
    return root() / f"{name}-{fingerprint[:12]}"


class StoreDrafter(Drafter):
    """Proposes what followed in past answers.

    Args:
        answers: the store.
        is_end: tokens that end a turn; a draft ends before one.
        min_match: no draft on a shorter match.
        factor: tokens drafted in a row per token matched.
        least: draft a token if at least this share of the occurrences went on that way.
        nodes: the most nodes of a tree.
    """

    name = "store"

    def __init__(
        self,
        answers: Answers,
        is_end: Callable[[int], bool],
        *,
        min_match: int = MIN_MATCH,
        factor: float = FACTOR,
        least: float = LEAST,
        nodes: int = NODES,
    ) -> None:
        self._answers = answers
        self._min_match = min_match
        self._factor = factor
        self._growth = Growth(self.name, _ways, is_end, least, nodes)

    @property
    def warnings(self) -> list[str]:
        """What is wrong with the store, one sentence or two each."""
        return self._answers.warnings

    def remember(self, ids: Sequence[int]) -> None:
        """Keep a finished answer, with the end of its prompt in front."""
        self._answers.remember(ids)

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        """Look the end of each sequence up."""
        return [self._propose(want) for want in wants]

    def _propose(self, want: Want) -> Proposal:
        key = search_key(want.ids)
        latest_first = self._answers.indexes[::-1]
        matched = {index: index.longest(key, self._min_match) for index in latest_first}
        length = max(matched.values(), default=0)
        if not length:
            return Proposal()
        limit = min(want.limit, int(self._factor * length))
        runs: list[Sequence[int]] = []
        for index in (index for index in latest_first if matched[index] == length):
            places = index.matches(key, length, _OCCURRENCES - len(runs))
            runs += [index.following(place, limit) for place in sorted(places)]
            if len(runs) == _OCCURRENCES:
                break
        return self._growth.propose(want, (0, runs), limit)


def _ways(place: Runs) -> Ways[Runs]:
    """How the runs go on, most frequent first; of equals, the latest answer's."""
    depth, runs = place
    if len(runs) == 1:
        (run,) = runs
        return [(run[depth], 1.0, (depth + 1, runs))] if depth < len(run) else []
    by_token: dict[int, list[Sequence[int]]] = {}
    for run in runs:
        if depth < len(run):
            by_token.setdefault(run[depth], []).append(run)
    ways = [
        (token, len(agreeing) / len(runs), (depth + 1, agreeing))
        for token, agreeing in by_token.items()
    ]
    return sorted(ways, key=lambda way: -way[1])
