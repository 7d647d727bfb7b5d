"""A suffix array over finished texts that finds the longest match of a text's end.

The texts lie in reverse, so what precedes a place is read forwards, and sorted places bring equal
contexts together (Manber and Myers 1990; prefix doubling after Larsson and Sadakane 2007, to a
depth of DEPTH tokens). Ids are big-endian: comparing bytes then compares ids.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

DEPTH = 32
"""Tokens of context that are compared; the longest match that can be found."""
BORDER = 0xFFFFFFFF
_SIZE = 4
_BLOCK = 256
_BEHIND_ALL = b"\xff" * (_SIZE * DEPTH + 1)


class SuffixIndex:
    """Texts that can be searched for the contexts of their tokens.

    Attributes:
        arrays: what `Arrays` holds of it:
            text: >u4 [n]; the texts in reverse, BORDER before, between and behind them.
            places: <u4 [m]; all places in `text` with a token that is not its text's last, sorted
                by the DEPTH tokens from there on.
    """

    def __init__(self, arrays: Mapping[str, NDArray[np.uint32]]) -> None:
        self.arrays = arrays
        self._text = arrays["text"].view(np.uint8).data
        self._places = arrays["places"].data
        # Most steps of a search then stay in a list that fits into the processor's cache.
        self._fences = [self._context(place) for place in arrays["places"][::_BLOCK].tolist()]

    @classmethod
    def build(cls, documents: Sequence[NDArray[np.uint32]]) -> SuffixIndex:
        """Index texts, oldest first; 1 million tokens take a second."""
        border = np.array([BORDER], np.uint32)
        parts = [part for document in documents for part in (border, document)]
        text = np.concatenate([*parts, border])[::-1].astype(">u4")
        return cls({"text": text, "places": _sorted_places(text)})

    def __len__(self) -> int:
        """How many tokens and borders it holds."""
        return len(self.arrays["text"])

    def documents(self) -> Iterator[NDArray[np.uint32]]:
        """The texts, oldest first."""
        text = self.arrays["text"][::-1].astype(np.uint32)
        borders = np.flatnonzero(text == BORDER)
        for before, behind in pairwise(borders):
            yield text[before + 1 : behind]

    def longest(self, key: bytes, least: int = 1) -> int:
        """The most tokens of a key that match anywhere; 0 if that is fewer than `least`."""
        places, prefix = self._places, key[: _SIZE * least]
        at = self._find(key)
        contexts = [
            self._context(places[n]) for n in range(max(0, at - 1), min(at + 1, len(places)))
        ]
        found = [_common(key, context) for context in contexts if context.startswith(prefix)]
        best = max(found, default=0)
        return best if best >= least else 0

    def matches(self, key: bytes, length: int, most: int) -> list[int]:
        """Places where the first `length` tokens of a key match: all, or `most` spread evenly."""
        prefix = key[: _SIZE * length]
        low = self._find(prefix)
        high = self._find(prefix + _BEHIND_ALL)
        count = min(most, high - low)
        return [self._places[low + number * (high - low) // count] for number in range(count)]

    def _find(self, key: bytes) -> int:
        """The first index in `places` whose context is not below a key."""
        block = bisect_left(self._fences, key)
        low, high = _BLOCK * max(0, block - 1), min(_BLOCK * block, len(self._places))
        return bisect_left(self._places, key, low, high, key=self._context)

    def _context(self, place: int) -> bytes:
        start = _SIZE * place
        return bytes(self._text[start : start + _SIZE * DEPTH])

    def following(self, place: int, count: int) -> Sequence[int]:
        """Up to `count` tokens that followed a place in its text."""
        start = max(0, place - count)
        raw = self._text[_SIZE * start : _SIZE * place]
        tokens = struct.unpack(f">{place - start}I", raw)[::-1]
        return tokens[: tokens.index(BORDER)] if BORDER in tokens else tokens


def search_key(ids: Sequence[int]) -> bytes:
    """The last DEPTH ids as an index compares them."""
    tail = ids[-DEPTH:]
    return struct.pack(f">{len(tail)}I", *reversed(tail))


def _common(first: bytes, second: bytes) -> int:
    """How many tokens two contexts have in common."""
    size = min(len(first), len(second))
    differing = int.from_bytes(first[:size], "big") ^ int.from_bytes(second[:size], "big")
    return (8 * size - differing.bit_length()) // (8 * _SIZE)


def _sorted_places(text: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Sort by 1, 2, 4, … tokens; of equals, the earlier place, which is the later text, first."""
    rank = text.astype(np.uint64)
    step = 1
    while step < DEPTH:
        behind = np.zeros_like(rank)
        behind[:-step] = rank[step:]
        keys = rank << np.uint64(32) | behind
        order = np.argsort(keys)
        keys = keys[order]
        new = np.concatenate([[False], keys[1:] != keys[:-1]])
        rank[order] = np.cumsum(new)
        step *= 2
    goes_on = np.zeros(len(text), bool)
    goes_on[1:] = (text[1:] != BORDER) & (text[:-1] != BORDER)
    order = np.argsort(rank, kind="stable")
    return order[goes_on[order]].astype("<u4")
