from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.errors import UsageError
from specllama.text.stop import LONGEST_STOP, StopMatcher

LETTERS = st.text("ab🦙", max_size=30)
STOPS = st.lists(st.text("ab🦙", min_size=1, max_size=5), max_size=4)
PARTS = st.lists(st.text("ab🦙", max_size=4), max_size=12)


def run(stops: list[str], parts: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops)
    released = []
    for part in parts:
        text, stopped = matcher.push(part)
        released.append(text)
        if stopped:
            return released, True
    return [*released, matcher.finish()], False


def naive(stops: list[str], text: str) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(STOPS, PARTS)
def test_cuts_where_a_search_of_the_whole_text_does(stops: list[str], parts: list[str]) -> None:
    released, stopped = run(stops, parts)
    assert ("".join(released), stopped) == naive(stops, "".join(parts))


@given(STOPS, LETTERS)
def test_holds_back_just_what_may_become_a_stop_string(stops: list[str], text: str) -> None:
    if naive(stops, text)[1]:
        return
    held = max(
        (n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0
    )
    assert StopMatcher(stops).push(text) == (text[: len(text) - held], False)


@pytest.mark.parametrize(
    ("stops", "parts", "released"),
    [
        ([], ["any", "thing"], ["any", "thing", ""]),
        (["User:"], ["Hi\nUs", "er", ": no"], ["Hi\n", "", ""]),
        (["User:"], ["Us", "ual"], ["", "Usual", ""]),
        (["User:"], ["a Us"], ["a ", "Us"]),
        (["aab"], ["aaab"], ["a"]),
        (["abc", "b"], ["ab"], ["a"]),
        (["abc", "b"], ["abc"], ["a"]),
        (["b", "ab"], ["cab"], ["c"]),
        (["stop"], ["stop"], [""]),
    ],
)
def test_table(stops: list[str], parts: list[str], released: list[str]) -> None:
    assert run(stops, parts)[0] == released


def test_takes_a_new_text_after_a_stop_and_after_the_end() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("a EN") == ("a ", False)
    assert matcher.finish() == "EN"
    assert matcher.push("D END") == ("D ", True)
    assert matcher.push("ND") == ("ND", False)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError):
        StopMatcher(["a", ""])


def test_one_that_is_too_long_is_refused() -> None:
    assert StopMatcher(["x" * LONGEST_STOP]).stops
    with pytest.raises(UsageError, match="1000 characters"):
        StopMatcher(["x" * LONGEST_STOP + "x"])
