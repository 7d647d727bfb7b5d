"""A suffix array over finished texts that finds the longest match of a text's end.

The texts lie in reverse, so what precedes a place is read forwards, and sorted places bring equal
contexts together (Manber and Myers 1990; prefix doubling after Larsson and Sadakane 2007, to a
depth of DEPTH tokens). Ids are big-endian: comparing bytes then compares ids.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

DEPTH = 32
"""Tokens of context that are compared; the longest match that can be found."""
BORDER = 0xFFFFFFFF
_SIZE = 4


class SuffixIndex:
    """Texts that can be searched for the contexts of their tokens.

    Attributes:
        arrays: what `Arrays` holds of it:
            text: >u4 [n]; the texts in reverse, BORDER before, between and behind them.
            places: <u4 [m]; all places in `text` with a token that is not its text's last, sorted
                by the DEPTH tokens from there on.
            tokens, starts: <u4 [k], [k + 1]; the different tokens at `places`, rising, and where in
                `places` each begins.
    """

    def __init__(self, arrays: Mapping[str, NDArray[np.uint32]]) -> None:
        self.arrays = arrays
        self._text = arrays["text"].view(np.uint8).data
        self._places = arrays["places"].data
        self._tokens = arrays["tokens"].data
        self._starts = arrays["starts"].data

    @classmethod
    def build(cls, documents: Sequence[NDArray[np.uint32]]) -> SuffixIndex:
        """Index texts, oldest first; 1 million tokens take a second."""
        border = np.array([BORDER], np.uint32)
        parts = [part for document in documents for part in (border, document)]
        text = np.concatenate([*parts, border])[::-1].astype(">u4")
        places = _sorted_places(text)
        tokens, starts = np.unique(text[places], return_index=True)
        ends = np.append(starts, len(places)).astype("<u4")
        return cls({"text": text, "places": places, "tokens": tokens.astype("<u4"), "starts": ends})

    def __len__(self) -> int:
        """How many tokens and borders it holds."""
        return len(self.arrays["text"])

    def documents(self) -> Iterator[NDArray[np.uint32]]:
        """The texts, oldest first."""
        text = self.arrays["text"][::-1].astype(np.uint32)
        borders = np.flatnonzero(text == BORDER)
        for before, behind in pairwise(borders):
            yield text[before + 1 : behind]

    def longest(self, key: bytes, least: int = 1) -> tuple[int, int]:
        """The most tokens of a key that match anywhere, and where in `places` that is.

        Args:
            least: a match of fewer tokens (at least 1) is none: 0.
        """
        low, high = self._span(key)
        places, text = self._places, self._text
        width = DEPTH * _SIZE
        at = bisect_left(
            places,
            key,
            low,
            high,
            key=lambda place: bytes(text[_SIZE * place : _SIZE * place + width]),
        )
        best, where = 0, at
        for near in range(max(low, at - 1), min(at + 1, high)):
            start = _SIZE * places[near]
            if text[start : start + _SIZE * least] == key[: _SIZE * least]:
                length = _common(key, bytes(text[start : start + width]))
                if length > best:
                    best, where = length, near
        return best, where

    def matches(self, key: bytes, length: int, where: int, most: int) -> list[int]:
        """Places where the first `length` tokens of a key match: all, or `most` spread evenly.

        Args:
            where: the index in `places` of one of them, as `longest` found it.
        """
        places, text = self._places, self._text
        width = length * _SIZE
        prefix = key[:width]

        def context(place: int) -> bytes:
            return bytes(text[_SIZE * place : _SIZE * place + width])

        low, high = self._span(key)
        low = bisect_left(places, prefix, low, where, key=context)
        high = bisect_right(places, prefix, where, high, key=context)
        count = min(most, high - low)
        return [places[low + number * (high - low) // count] for number in range(count)]

    def _span(self, key: bytes) -> tuple[int, int]:
        """The part of `places` with the key's first token, the latest of the context."""
        if not key:
            return 0, 0
        token = int.from_bytes(key[:_SIZE], "big")
        row = bisect_left(self._tokens, token)
        if row == len(self._tokens) or self._tokens[row] != token:
            return 0, 0
        return self._starts[row], self._starts[row + 1]

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
