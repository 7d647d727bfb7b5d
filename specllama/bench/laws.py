"""Whether something that samples follows a law: the exact law of first texts, and a test of it.

The law of a reply's first tokens is enumerated from the target's own logits; no rule, drafter or
engine of this project takes part, so that it judges them as it judges others.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from specllama.sampling.distribution import Distribution

MIN_EXPECTED = 5.0
"""Cells that expect fewer are put together (Cochran 1954)."""

Key = TypeVar("Key", bound=Hashable)
Law = Callable[[tuple[int, ...]], Distribution]
"""The law of the next token after a prompt and these tokens."""


def chi_square(found: Counter[Key], law: Mapping[Key, float]) -> float:
    """The p-value of Pearson's chi-square test of counts against a law; needs scipy.

    A cell that the law does not know is impossible under it: the p-value is 0. So few counts that
    all cells are put together say nothing: it is 1.
    """
    from scipy.stats import chisquare

    if not found.keys() <= law.keys():
        return 0.0
    n = found.total()
    large = [key for key in law if n * law[key] >= MIN_EXPECTED]
    seen = [found[key] for key in large]
    wanted = [n * law[key] for key in large]
    rest = n - sum(wanted)
    if rest > 1e-6 * n:
        seen.append(n - sum(seen))
        wanted.append(rest)
    return float(chisquare(seen, wanted).pvalue) if len(seen) > 1 else 1.0


def paths(law: Law, depth: int) -> dict[tuple[int, ...], float]:
    """The probability of every sequence of `depth` tokens."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(depth):
        found = {
            (*path, int(token)): share * float(p)
            for path, share in found.items()
            for token, p in zip(law(path).ids, law(path).probs, strict=True)
        }
    return found


def texts(
    law: Mapping[tuple[int, ...], float], text: Callable[[Sequence[int]], str]
) -> dict[str, float]:
    """The same law by text, for those who tell no ids.

    Raises:
        ValueError: a text begins another one, so that a longer reply does not tell them apart.
    """
    found: dict[str, float] = {}
    for path, share in law.items():
        found[text(path)] = found.get(text(path), 0.0) + share
    ordered = sorted(found)
    if any(after.startswith(text) for text, after in itertools.pairwise(ordered)):
        raise ValueError("One of the texts begins another one.")
    return found


def beginning(reply: str, law: Mapping[str, float]) -> str:
    """Which of a law's texts a reply begins with; the reply itself where it is none of them."""
    return next((text for text in law if reply.startswith(text)), reply)
