"""The index against a search through all texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafting.suffix_index import DEPTH, SuffixIndex, search_key

TEXT = st.lists(st.integers(0, 2), max_size=60)
TEXTS = st.lists(TEXT, max_size=5)


def build(texts: Sequence[Sequence[int]]) -> SuffixIndex:
    return SuffixIndex.build([np.array(text, np.uint32) for text in texts])


def common(text: Sequence[int], ids: Sequence[int]) -> int:
    """Length of the longest common suffix, as far as an index looks."""
    length = 0
    while length < min(len(text), len(ids), DEPTH) and text[-1 - length] == ids[-1 - length]:
        length += 1
    return length


def brute_force(texts: Sequence[Sequence[int]], ids: Sequence[int]) -> tuple[int, list[list[int]]]:
    """The longest match that goes on, and what followed all matches of that length."""
    found = [(common(t[:n], ids), list(t[n:])) for t in texts for n in range(1, len(t))]
    best = max((length for length, _ in found), default=0)
    return best, sorted(rest for length, rest in found if length == best)


@given(TEXTS, TEXT)
def test_finds_what_a_search_finds(texts: list[list[int]], ids: list[int]) -> None:
    index, key = build(texts), search_key(ids)
    length = index.longest(key)
    best, rests = brute_force(texts, ids)
    assert length == best
    assert index.longest(key, best + 1) == 0
    if best:
        places = index.matches(key, length, 1000)
        assert sorted(list(index.following(place, 60)) for place in places) == rests
        few = index.matches(key, length, 2)
        assert len(set(few)) == min(2, len(places))
        assert set(few) <= set(places)


def test_matches_longer_than_the_depth() -> None:
    text = [number % 7 for number in range(100)] + [8, 9]
    index = build([text, text[:-1]])
    key = search_key(text[:100])
    length = index.longest(key)
    assert length == DEPTH
    found = [list(index.following(place, 3)) for place in index.matches(key, length, 99)]
    assert [8, 9] in found
    assert [8] in found


@given(TEXTS)
def test_gives_its_texts_back(texts: list[list[int]]) -> None:
    assert [list(text) for text in build(texts).documents()] == texts


def test_ids_are_compared_as_numbers() -> None:
    """Little-endian bytes would sort 256 before 1."""
    index = build([[number, 7] for number in (1, 256, 65_536, 100_000, 2)])
    for number in (1, 2, 256, 65_536, 100_000):
        assert index.longest(search_key([number])) == 1
    assert index.longest(search_key([257])) == 0


def test_many_blocks() -> None:
    texts = [[number // 50, number % 50, 7] for number in range(2000)]
    index = build(texts)
    for number in range(0, 2000, 37):
        key = search_key([number // 50, number % 50])
        assert index.longest(key) == 2
        (place,) = index.matches(key, 2, 99)
        assert list(index.following(place, 5)) == [7]
    key = search_key([7])
    assert index.longest(search_key([3])) == 1
    assert len(index.matches(search_key([3]), 1, 9999)) == 40 + 50
    assert index.longest(key) == 1
