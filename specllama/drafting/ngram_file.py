"""The file of an n-gram model: for every stored context, the tokens most likely to follow.

Contexts form a trie that is read backwards, latest token first. Level 1 has a row for each token of
the vocabulary; the rows of level m that lengthen row r of level m - 1 by an earlier token lie at
`child[r]` to `child[r + 1]`, sorted by that token. What may follow row r lies at `next[r]` to
`next[r + 1]` of `token` and `prob` (in units of 1/65535), likeliest first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.arrays import Arrays, Kind, read_arrays, write_arrays
from specllama.errors import ModelError

KIND = Kind(
    magic=b"SPECNGRM",
    version=1,
    what="an n-gram file",
    remedy="Build it again: specllama ngram build TEXT… -m MODEL -o FILE",
)
_UNITS = 65535


@dataclass(frozen=True, slots=True)
class Level:
    """The contexts of one length.

    Attributes:
        first: uint32 [n], the earliest token of each context; empty on level 1.
        child: uint32 [n + 1], see the module; empty on the last level.
        next: uint32 [n + 1].
        token: uint32 [next[n]].
        prob: uint16 [next[n]].
    """

    first: NDArray[np.uint32]
    child: NDArray[np.uint32]
    next: NDArray[np.uint32]
    token: NDArray[np.uint32]
    prob: NDArray[np.uint16]


def units(probs: NDArray[Any]) -> NDArray[np.uint16]:
    """Probabilities as the file stores them."""
    result: NDArray[np.uint16] = np.rint(probs * _UNITS).astype(np.uint16)
    return result


@dataclass(frozen=True, slots=True)
class Facts:
    """What a file says about itself.

    Attributes:
        fingerprint: of the vocabulary, see `hub.fingerprint`.
        model: the model whose vocabulary it is, for people.
        order: the longest n-gram.
        n_vocab: tokens of the vocabulary.
        n_tokens: tokens of the text it was trained on.
        min_count: longer contexts seen less often are left out.
        contexts, ngrams: stored, by length of the context.
        n_bytes: of the file.
    """

    fingerprint: str
    model: str
    order: int
    n_vocab: int
    n_tokens: int
    min_count: int
    contexts: tuple[int, ...]
    ngrams: tuple[int, ...]
    n_bytes: int


class NgramFile:
    """An open n-gram file; a look-up reads a few dozen numbers of it.

    Attributes:
        facts: what it says about itself.
    """

    def __init__(self, found: Arrays) -> None:
        fields, arrays = found.fields, found.arrays
        names = range(1, fields["order"])
        self.facts = Facts(
            **fields,
            contexts=tuple(len(arrays[f"next{m}"]) - 1 for m in names),
            ngrams=tuple(len(arrays[f"token{m}"]) for m in names),
            n_bytes=found.n_bytes,
        )
        # A memoryview gives Python numbers in a fifth of the time that an array takes.
        self._levels = [tuple(arrays[f"{name}{m}"].data for name in Level.__slots__) for m in names]

    @classmethod
    def open(cls, path: Path, fingerprint: str | None = None) -> Self:
        """Map a file.

        Args:
            fingerprint: of the vocabulary it has to be made for; None: any.

        Raises:
            ModelError: it cannot be read, is no n-gram file, damaged, or made for another
                vocabulary; names it.
        """
        found = read_arrays(path, KIND)
        if fingerprint is not None and found.fields["fingerprint"] != fingerprint:
            raise ModelError(
                f"{path} was built for {found.fields['model']}, whose vocabulary is another one.",
                "Build one for this model: specllama ngram build TEXT… -m MODEL -o FILE",
            )
        try:
            opened = cls(found)
        except TypeError as error:  # facts of another making
            raise ModelError(f"{path} is damaged.", KIND.remedy) from error
        if not opened._levels:
            raise ModelError(f"{path} holds no n-grams.", KIND.remedy)
        return opened

    def after(self, context: Sequence[int]) -> list[tuple[int, float]]:
        """What may follow: the law of the longest suffix of `context` that is stored.

        Args:
            context: at least one id, the latest last.
        """
        row = context[-1]
        _, child, following, tokens, probs = self._levels[0]
        if not 0 <= row < len(following) - 1:
            return []
        for token, level in zip(context[-2::-1], self._levels[1:], strict=False):
            first = level[0]
            low, high = child[row], child[row + 1]
            place = bisect_left(first, token, low, high)
            if place == high or first[place] != token:
                break
            row = place
            _, child, following, tokens, probs = level
        span = slice(following[row], following[row + 1])
        return [
            (token, share / _UNITS)
            for token, share in zip(tokens[span].tolist(), probs[span].tolist(), strict=True)
        ]


def save(path: Path, levels: Sequence[Level], fields: dict[str, Any]) -> None:
    """Write a model; `fields` are those of `Facts` but for what the arrays say.

    Raises:
        OSError: it cannot be written.
    """
    arrays = {
        f"{name}{m}": getattr(level, name)
        for m, level in enumerate(levels, start=1)
        for name in Level.__slots__
    }
    write_arrays(path, KIND, fields, arrays)
