"""How deep the trees of a beam search are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specllama.scheduling.beam_depth import Batch, FewestBatches, LeastTime
from specllama.scheduling.costs import Costs

LEVEL = 12
BATCH = Batch(n_tokens=4, seconds=0.01, levels=0, used=0, draft_s=0.0, over=False)


def costs(a_token: float) -> Costs:
    """A batch costs 10 ms and so much for each token."""
    known = Costs()
    for _ in range(5):
        for n_tokens in (1, 4, 16, 28, 40, 64):
            known.observe_target(n_tokens, 0.010 + a_token * n_tokens)
    return known


def after(known: Costs, a_token: float, used: int, rounds: int = 30) -> list[int]:
    """What is chosen while the first `used` levels always hit and the next never does."""
    depth, chosen = LeastTime(known), []
    for _ in range(rounds):
        levels = depth.choose(4, LEVEL, 16)
        n_tokens = 4 + levels * LEVEL
        depth.observe(
            replace(
                BATCH, n_tokens=n_tokens, seconds=0.010 + a_token * n_tokens, levels=levels,
                used=min(used, levels), draft_s=0.001 * levels,
            )
        )  # fmt: skip
        chosen.append(levels)
    return chosen


def test_the_fewest_batches_take_one_level_more_than_was_of_use() -> None:
    depth = FewestBatches()
    assert depth.choose(4, LEVEL, 16) == 2
    for used, expected in [(2, 4), (4, 6), (0, 2), (30, 16)]:
        depth.observe(replace(BATCH, levels=used, used=used))
        assert depth.choose(4, LEVEL, 16) == expected
    assert depth.choose(4, LEVEL, 1) == 1


@pytest.mark.parametrize("used", [1, 3, 5])
def test_where_tokens_are_cheap_the_tree_is_as_deep_as_it_is_good(used: int) -> None:
    assert set(after(costs(1e-5), 1e-5, used)[-5:]) == {used}


def test_where_tokens_are_dear_nothing_is_drafted_but_for_probes() -> None:
    chosen = after(costs(2e-3), 2e-3, 5, rounds=60)
    assert sum(map(bool, chosen)) <= 4
    assert max(chosen) <= 1 and 1 in chosen


def test_a_draft_that_is_always_wrong_is_given_up() -> None:
    assert sum(map(bool, after(costs(1e-3), 1e-3, 0, rounds=60)[10:])) <= 4


@pytest.mark.parametrize(("over", "levels"), [(True, 16), (False, 1)])
def test_a_level_that_the_end_of_the_search_cut_off_was_not_refused(
    over: bool, levels: int
) -> None:
    depth = LeastTime(costs(1e-5))
    for _ in range(30):
        depth.observe(replace(BATCH, levels=3, used=1, draft_s=0.003, over=over))
    assert depth.choose(4, LEVEL, 16) == levels


def test_the_draft_has_a_price_too() -> None:
    depth = LeastTime(costs(1e-5))
    assert depth.choose(4, LEVEL, 16) > 0
    for _ in range(10):
        depth.observe(replace(BATCH, levels=2, used=1, draft_s=0.2))
    assert depth.choose(4, LEVEL, 16) == 0


def test_before_anything_is_known_something_is_tried() -> None:
    assert LeastTime(Costs()).choose(4, LEVEL, 16) == 2
