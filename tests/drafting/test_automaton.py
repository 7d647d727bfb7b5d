from __future__ import annotations

import time
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafting.automaton import BORDER, REACH, SuffixAutomaton

TEXTS = st.lists(st.integers(0, 3), max_size=REACH) | st.lists(st.integers(0, 1), max_size=REACH)
DOCUMENTS = st.lists(st.lists(st.integers(0, 2), max_size=20), min_size=1, max_size=4)


def longest_match(tokens: list[int]) -> tuple[int, int]:
    """Length of the longest suffix that occurs earlier and where its latest occurrence ends."""
    for length in range(len(tokens) - 1, 0, -1):
        suffix = tokens[-length:]
        if BORDER in suffix:
            continue
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == suffix:
                return length, end
    return 0, 0


def match(automaton: SuffixAutomaton) -> tuple[int, int]:
    return automaton.match_length, automaton.match_end if automaton.match_length else 0


@given(TEXTS)
def test_match_after_every_token_is_the_longest_and_latest(tokens: list[int]) -> None:
    automaton = SuffixAutomaton()
    for count, token in enumerate(tokens, 1):
        automaton.extend([token])
        assert match(automaton) == longest_match(tokens[:count])


@given(DOCUMENTS)
def test_matches_reach_into_earlier_documents_but_not_over_their_ends(
    documents: list[list[int]],
) -> None:
    automaton = SuffixAutomaton()
    flat: list[int] = []
    for number, document in enumerate(documents):
        if number:
            automaton.begin_document()
            flat.append(BORDER)
            assert match(automaton) == (0, 0)
        for token in document:
            automaton.extend([token])
            flat.append(token)
            assert match(automaton) == longest_match(flat)
    assert automaton.tokens == flat


@given(TEXTS, st.integers(0, 100))
def test_continuation_is_what_followed_and_then_repeats(tokens: list[int], count: int) -> None:
    automaton = SuffixAutomaton(tokens)
    length, end = longest_match(tokens)
    text = list(tokens)
    expected = []
    for place in range(end, end + count if length else end):
        expected.append(text[place])
        text.append(text[place])
    assert list(islice(automaton.continuation(), count)) == expected


@given(DOCUMENTS)
def test_continuation_ends_with_its_document(documents: list[list[int]]) -> None:
    automaton = SuffixAutomaton()
    for document in documents:
        automaton.extend(document)
        automaton.begin_document()
    automaton.extend(documents[0][:5])
    if not automaton.match_length:
        assert list(automaton.continuation()) == []
        return
    rest = automaton.tokens[automaton.match_end :]
    if BORDER in rest:
        assert list(automaton.continuation()) == rest[: rest.index(BORDER)]


@pytest.mark.parametrize("period", [1, 2, 7])
def test_a_long_loop_is_read_in_linear_time_and_goes_on(period: int) -> None:
    tokens = list(range(period)) * (20_000 // period)
    started = time.perf_counter()
    automaton = SuffixAutomaton(tokens)
    assert time.perf_counter() - started < 5  # 0.1 s; quadratic time would be 20 s
    assert match(automaton) == (len(tokens) - period, len(tokens) - period)
    assert list(islice(automaton.continuation(), 2 * period)) == list(range(period)) * 2


def test_as_many_suffixes_as_it_reaches_know_their_latest_occurrence() -> None:
    tokens = [*[5] * (REACH + 1), 9, 5]
    assert match(SuffixAutomaton(tokens)) == longest_match(tokens) == (1, REACH + 1)


@pytest.mark.parametrize("loop", [[5], [5, 6]])
def test_behind_a_long_loop_the_longest_match_is_still_found(loop: list[int]) -> None:
    """Beyond REACH an occurrence may be older, but it is one, and of the longest suffix."""
    tokens = [*loop * 300, 9, *loop * 20]
    automaton = SuffixAutomaton(tokens)
    length, end = match(automaton)
    assert length == len(loop) * 20
    assert tokens[end - length : end] == tokens[-length:]
    assert end < len(tokens)


def test_states_are_at_most_twice_the_tokens() -> None:
    automaton = SuffixAutomaton([1, *[2] * 500, 1, *[2] * 500])
    assert len(automaton) == 1002
    assert len(automaton._next) <= 2 * len(automaton)
