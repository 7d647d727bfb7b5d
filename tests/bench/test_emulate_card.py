"""scripts/emulate_card.py: what a card's decodes take, and a clock that passes only so much."""

from __future__ import annotations

import sys
import time

import emulate_card
import pytest
from emulate_card import BACK_MS, CHANGE_MS, MS, Card, Clock


def test_changing_the_size_costs_twice() -> None:
    card = Card("8b", sized=False)
    first, second = CHANGE_MS["8b"]
    for size in (1, 3, 1):
        usual = MS["8b"].get(size)
        taken = [1000 * card.seconds(size, 40 + n) for n in range(4)]
        assert taken == pytest.approx([usual + first, usual + second, usual, usual])


def test_a_graph_of_each_size_is_captured_once() -> None:
    card = Card("8b", sized=True)
    (first, second), back = CHANGE_MS["8b"], BACK_MS["8b"]
    taken = [1000 * card.seconds(n, 40) - MS["8b"][n] for n in (1, 1, 1, 3, 3, 3, 1, 1, 3)]
    assert taken == pytest.approx([first, second, 0, first, second, 0, back, 0, back], abs=1e-9)
    card.forget()
    assert 1000 * card.seconds(3, 40) - MS["8b"][3] == pytest.approx(first)


@pytest.mark.parametrize("sized", [True, False])
def test_more_cells_are_another_graph_and_prompts_are_none(sized: bool) -> None:
    card = Card("8b", sized)
    for position in range(3):
        card.seconds(1, position)
    assert 1000 * card.seconds(300, 200) < MS["8b"][512]
    back = BACK_MS["8b"] if sized else 0.0
    assert 1000 * card.seconds(1, 255) == pytest.approx(MS["8b"][1] + back)
    assert 1000 * card.seconds(1, 256) == pytest.approx(MS["8b"][1] + CHANGE_MS["8b"][0])


@pytest.mark.parametrize(
    ("seconds", "sized", "is_kept"), [(9.0, False, True), (11.0, False, False), (99.0, True, True)]
)
def test_graphs_are_forgotten_after_a_while(seconds: float, sized: bool, is_kept: bool) -> None:
    """But not those that are touched meanwhile."""
    card = Card("8b", sized)
    for place in range(3):
        card.rest(0.0)
        card.seconds(1, place)
    card.rest(seconds)
    assert (1000 * card.seconds(1, 3) == pytest.approx(MS["8b"][1])) == is_kept


def test_the_clock_passes_what_it_is_told() -> None:
    clock = Clock(0.0)
    assert clock.wait(2.0) == 2.0
    assert clock.wait(1.0) == 0.0
    assert clock() == 2.0, "Python takes no time at all here"


def test_what_is_skipped_takes_no_time_though_it_looks_at_the_clock() -> None:
    clock = Clock(1.0)

    def work() -> int:
        time.sleep(0.2)
        assert clock() >= 0.2
        return 7

    assert clock.skip(work) == 7
    assert 0.0 < clock() < 0.2


def test_help_says_that_prompts_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["emulate_card.py", "--help"])
    with pytest.raises(SystemExit):
        emulate_card._arguments()
    told = " ".join(capsys.readouterr().out.split())
    assert "how many of the built-in prompts each arm is asked" in told
    assert "(default: 12)" in told


def test_no_prompts_are_too_few(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["emulate_card.py", "--prompts", "0"])
    with pytest.raises(SystemExit):
        emulate_card._arguments()
    assert "0 is not a whole number of at least 1" in capsys.readouterr().err
