"""Laws of first tokens by hand, and the test that tells right from wrong."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from specllama.bench.laws import beginning, chi_square, paths, texts
from specllama.sampling.distribution import Distribution

LAW = {"a": 0.5, "b": 0.3, "c": 0.19, "d": 0.01}


def after(path: tuple[int, ...]) -> Distribution:
    """Token 7 or 8, then the other one for certain half of the time."""
    probs = [0.25, 0.75] if not path else [0.5, 0.5]
    return Distribution(np.array([7, 8]), np.array(probs))


def test_paths_multiply() -> None:
    assert paths(after, 0) == {(): 1.0}
    assert paths(after, 2) == {(7, 7): 0.125, (7, 8): 0.125, (8, 7): 0.375, (8, 8): 0.375}


def test_equal_texts_are_one() -> None:
    law = texts({(1, 2): 0.25, (3,): 0.25, (4,): 0.5}, lambda ids: "x" if 4 not in ids else "y")
    assert law == {"x": 0.5, "y": 0.5}


def test_texts_that_begin_each_other_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match="begins another"):
        texts({(1,): 0.5, (2,): 0.5}, lambda ids: " cat" * ids[0])


def test_a_longer_reply_is_told_by_its_beginning() -> None:
    assert beginning("b and more", LAW) == "b"
    assert beginning("zebra", LAW) == "zebra"


def test_counts_as_expected_pass_and_others_do_not() -> None:
    assert chi_square(Counter(a=50, b=31, c=18, d=1), LAW) > 0.9
    assert chi_square(Counter(a=80, b=15, c=5), LAW) < 1e-6


def test_a_law_is_judged_as_often_as_it_should_be() -> None:
    """Under the law itself, p-values below 5 % come about 5 % of the time."""
    random = np.random.default_rng(3)
    draws = random.choice(list(LAW), p=list(LAW.values()), size=(400, 300))
    low = sum(chi_square(Counter(row.tolist()), LAW) < 0.05 for row in draws)
    assert 6 <= low <= 38


def test_the_impossible_is_wrong_at_once() -> None:
    assert chi_square(Counter(a=50, b=30, c=19, z=1), LAW) == 0.0


def test_rare_cells_are_put_together() -> None:
    """One count where 0.01 is expected would say nothing on its own."""
    rare = {"a": 0.999} | {str(n): 1e-5 for n in range(100)}
    assert chi_square(Counter(a=1000, **{"3": 1}), rare) > 0.1


def test_a_few_counts_say_nothing() -> None:
    assert chi_square(Counter(a=4), LAW) == 1.0
