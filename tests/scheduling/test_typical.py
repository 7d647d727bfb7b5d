"""What something usually takes: hiccups do not count, drift does."""

from __future__ import annotations

import math

import pytest

from specllama.scheduling.typical import Typical


def after(*times: float) -> Typical:
    found = Typical()
    for seconds in times:
        found.observe(seconds)
    return found


def test_nothing_is_typical_before_anything_was_seen() -> None:
    assert (Typical().value, Typical().count) == (0.0, 0)


@pytest.mark.parametrize(
    ("times", "value"),
    [
        ((3.0,), 3.0),
        ((5.0, 3.0), 3.0),
        ((3.0, 3.1, 9.0, 3.2, 9.5), 3.2),
        ((1.0, 1.0, 1.0, 2.0, 2.0, 2.0), 2.0),
    ],
)
def test_the_lower_median_of_the_latest_five(times: tuple[float, ...], value: float) -> None:
    assert after(*times).value == value


@pytest.mark.parametrize("odd", [0.0, -1.0, math.nan, math.inf])
def test_what_no_clock_shows_is_dropped(odd: float) -> None:
    found = after(2.0, 2.0)
    assert not found.observe(odd)
    assert (found.value, found.count) == (2.0, 2)


@pytest.mark.parametrize("factor", [25.0, 1 / 25.0])
def test_a_leap_counts_when_it_is_confirmed(factor: float) -> None:
    found = after(2.0, 2.0)
    assert not found.observe(2.0 * factor)
    assert found.observe(2.0 * factor)
    assert found.latest == 2.0 * factor


def test_a_usual_time_after_a_hiccup_denies_it() -> None:
    found = after(2.0, 2.0)
    for _ in range(3):
        assert not found.observe(50.0)
        assert found.observe(2.0)
    assert (found.value, found.count) == (2.0, 5)


def test_a_cap_holds_for_all_that_was_seen() -> None:
    found = after(4.0, 5.0, 6.0)
    found.cap(3.0)
    found.observe(9.0)
    assert (found.value, found.latest) == (3.0, 9.0)
