from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafting.protocol import Drafter
from specllama.drafting.suffix import SuffixDrafter
from tests.drafting.test_automaton import longest_match
from tests.drafting.wants import grown, want

END = 9
IDS = st.lists(st.sampled_from([0, 1, 2, END]), min_size=1, max_size=50)


def drafter(min_match: int = 2, factor: float = 1.0) -> Drafter:
    return SuffixDrafter(lambda token: token == END, min_match=min_match, factor=factor)


def draft(
    ids: Sequence[int], limit: int = 16, min_match: int = 2, factor: float = 1.0
) -> list[int]:
    (proposal,) = drafter(min_match, factor).propose([want(ids, limit)])
    return list(proposal.tokens)


def brute_force(ids: list[int], limit: int, min_match: int, factor: float) -> list[int]:
    length, end = longest_match(ids)
    if length < min_match:
        return []
    text, tokens = list(ids), []
    for place in range(end, end + min(limit, int(factor * length))):
        if text[place] == END:
            break
        tokens.append(text[place])
        text.append(text[place])
    return tokens


@given(IDS, st.integers(1, 20), st.integers(1, 4), st.sampled_from([0.5, 1.0, 2.0]))
def test_drafts_what_a_search_finds(ids: list[int], limit: int, least: int, factor: float) -> None:
    assert draft(ids, limit, least, factor) == brute_force(ids, limit, least, factor)


@given(st.lists(st.tuples(st.integers(0, 30), IDS), min_size=1, max_size=6))
def test_drafts_the_same_after_any_growth_and_rewinds(turns: list[tuple[int, list[int]]]) -> None:
    lookup = drafter()
    for ids in grown(lookup, turns):
        (proposal,) = lookup.propose([want(ids)])
        assert list(proposal.tokens) == draft(ids)


@given(st.lists(st.tuples(st.integers(0, 30), IDS), min_size=1, max_size=6), st.integers(1, 4))
def test_an_idea_is_no_weaker_than_the_match(
    turns: list[tuple[int, list[int]]], least: int
) -> None:
    """Whether it was asked before or not; asking changes nothing of what it proposes."""
    lookup = drafter(least)
    for ids in grown(lookup, turns):
        match, idea = longest_match(ids)[0], lookup.idea(0, ids)
        assert (match <= idea) if match >= least else not idea
        if len(ids) % 2:
            (proposal,) = lookup.propose([want(ids)])
            assert list(proposal.tokens) == draft(ids, min_match=least)


def test_the_idea_is_there_with_the_token_that_makes_it() -> None:
    lookup = drafter()
    lookup.prepare(0, [1, 2, 3])
    ideas = [lookup.idea(0, [1, 2, 3, 1, 2, 3, 4][:length]) for length in range(3, 8)]
    assert ideas == [0, 0, 2, 3, 0]
    assert not lookup.idea(1, [1, 2])
    (proposal,) = lookup.propose([want([1, 2, 3, 1, 2, 4, 1, 2])])
    assert list(proposal.tokens) == [4, 1]


@pytest.mark.parametrize(
    ("ids", "limit", "tokens"),
    [
        ([1, 2, 3, 4, 5, 6, 7], 8, []),
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], 8, [4, 5, 6]),
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], 2, [4, 5]),
        ([1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 3], 8, [5, 0, 1, 2]),
        ([1, 2, 3, 4, END, 6, 1, 2, 3], 8, [4]),
        ([1, 2, 3, END, 5, 6, 1, 2, 3], 8, []),
        ([1, 2, 1, 2, 1, 2], 8, [1, 2, 1, 2]),
        ([7, 7, 7, 7], 8, [7, 7, 7]),
        ([1, 2, 5, 1], 8, []),
    ],
)
def test_table(ids: list[int], limit: int, tokens: list[int]) -> None:
    assert draft(ids, limit) == tokens


def test_proposals_are_chains_chosen_without_a_law() -> None:
    (proposal,) = drafter().propose([want([1, 2, 3, 4, 1, 2])])
    assert proposal.source == "suffix"
    assert proposal.parents == (-1, 0)
    assert proposal.laws == (None, None, None)


def test_sequences_do_not_see_each_other() -> None:
    lookup = drafter()
    first, second = [1, 2, 3, 1, 2], [1, 2, 4, 1, 2]
    proposals = lookup.propose([want(first, key=0), want(second, key=1), want([1, 2], key=2)])
    assert [list(p.tokens) for p in proposals] == [[3, 1], [4, 1], []]
    lookup.rewind(1, 0)
    proposals = lookup.propose([want(first, key=0), want([8, 1, 2], key=1)])
    assert [list(p.tokens) for p in proposals] == [[3, 1], []]


def test_the_scheduler_ends_a_chain() -> None:
    asked: list[tuple[int, float | None]] = []

    def two(drafted: int, confidence: float | None) -> bool:
        asked.append((drafted, confidence))
        return drafted < 2

    (proposal,) = drafter().propose([want([1, 2, 3, 4, 1, 2, 3, 4], go_on=two)])
    assert list(proposal.tokens) == [1, 2]
    assert asked == [(0, 0.8), (1, 0.8), (2, 0.8)]


def test_close_forgets_everything() -> None:
    lookup = drafter()
    assert lookup.idea(0, [1, 2, 3, 1, 2])
    lookup.propose([want([1, 2, 3, 1, 2])])
    lookup.forget()
    (proposal,) = lookup.propose([want([8, 1, 2])])
    assert len(proposal) == 0
    assert not lookup.idea(0, [8, 1, 2])


def test_a_round_at_32k_tokens_takes_microseconds() -> None:
    lookup = drafter()
    ids = [(place * place) % 4099 for place in range(32_000)]
    lookup.propose([want(ids)])
    seconds = []
    for token in ids[:300]:
        ids.append(token)
        started = time.perf_counter()
        lookup.propose([want(ids)])
        seconds.append(time.perf_counter() - started)
    # 15 µs on an idle machine; a scan of the ids would take milliseconds.
    assert median(seconds) < 500e-6
