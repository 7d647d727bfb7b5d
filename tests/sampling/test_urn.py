"""Urns: over a grid of uniforms every place comes as often as its weight says, to one draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specllama.sampling.distribution import FEW, Distribution
from specllama.sampling.urn import urn

N_DRAWS = 20_000
SIZES = [2, FEW, FEW + 1, 700, 5000]


def peaked(size: int) -> Distribution:
    """A few tokens have nearly everything."""
    weights = 1.0 / np.random.default_rng(size).permutation(np.arange(1.0, size + 1)) ** 2
    return Distribution(np.arange(size) * 3, weights / weights.sum())


def flat(size: int) -> Distribution:
    """All have the same."""
    return Distribution(np.arange(size), np.full(size, 1.0 / size))


def gappy(size: int) -> Distribution:
    """What is left of a law: every second token has nothing."""
    weights = peaked(size).probs * (np.arange(size) % 2)
    return Distribution(np.arange(size), weights / weights.sum())


def sure(size: int) -> Distribution:
    """One token has everything."""
    return Distribution(np.arange(size), (np.arange(size) == size // 2).astype(float))


Kind = Callable[[int], Distribution]
LAWS: list[Kind] = [peaked, flat, gappy, sure]


def counts(law: Distribution, taken: list[int]) -> tuple[Any, set[int]]:
    """How often each place is drawn over a grid of uniforms; what the extremes draw."""
    left = urn(law)
    for place in taken:
        left.take_out(place)
    grid = (np.arange(N_DRAWS) + 0.5) / N_DRAWS
    places = [left.draw(uniform) for uniform in (0.0, *grid.tolist(), 1.0 - 2.0**-53)]
    return np.bincount(places[1:-1], minlength=len(law)), {places[0], places[-1]}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", LAWS)
def test_places_come_as_often_as_their_weights_say(kind: Kind, size: int) -> None:
    law = kind(size)
    found, ends = counts(law, [])
    assert np.abs(found - N_DRAWS * law.probs).max() <= 1.0 + 1e-6
    assert all(law.probs[place] > 0.0 for place in ends)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [peaked, flat, gappy])
@pytest.mark.parametrize("which", ["large", "small", "both"])
def test_what_was_taken_out_leaves_its_share_to_the_others(
    kind: Kind, size: int, which: str
) -> None:
    law = kind(size)
    falling = np.argsort(-law.probs, kind="stable").tolist()
    n_some = len(falling) // 4
    taken = {"large": falling[:n_some], "small": falling[size - n_some :]}
    taken["both"] = taken["large"] + taken["small"]
    rest = law.without(*(law.id_at(place) for place in taken[which][:60]))
    assert rest is not None
    found, ends = counts(law, taken[which][:60])
    assert np.abs(found - N_DRAWS * rest.at(law.ids)).max() <= 1.0 + 1e-6
    assert not ends & set(taken[which][:60])


@pytest.mark.parametrize("size", [3, FEW + 1, 700])
@pytest.mark.parametrize("kind", LAWS)
def test_empty_when_all_is_taken_out(kind: Kind, size: int) -> None:
    law = kind(size)
    left = urn(law)
    last = int(law.probs.argmax())
    for place in range(size):
        if place != last:
            left.take_out(place)
    assert left.has_any
    assert [left.draw(uniform) for uniform in (0.0, 0.5, 1.0 - 2.0**-53)] == [last] * 3
    left.take_out(last)
    assert not left.has_any
