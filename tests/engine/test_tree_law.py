"""Trees of a draft model through the whole engine: every outcome of every draw, added up.

As test_law.py, for the rules that judge trees and for every shape of tree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specllama.drafting.follower import Follower
from specllama.drafting.recycle import RecycleDrafter
from specllama.drafting.shapes import FixedShape, PlannedShape, Shape, ValueShape
from specllama.drafting.staged_tree import StagedTreeDrafter
from specllama.drafting.tree import TreeDrafter
from specllama.engine.engine import Engine
from specllama.sampling.params import SamplingParams
from tests.engine.fake_model import FakeModel, language, near
from tests.engine.harness import PLAIN, expected, request, run
from tests.engine.test_law import PENALISED, V, asked, engine_law, target_law
from tests.verification.enumeration import GreedyTrace, Trace, total_variation
from tests.verification.trees import GreedyPlusOneTrace, IndependentTrace

EXACT = 1e-12
# Independent siblings make so many outcomes that their laws are cut to two tokens.
NARROW = replace(PENALISED, top_k=2)
SAMPLED: dict[str, type[Trace]] = {
    "rrs": Trace,
    "rrs-iid": IndependentTrace,
    "spectr": IndependentTrace,
    "greedy-one": GreedyPlusOneTrace,
    "traversal": Trace,
}
SHAPES: dict[str, Shape | None] = {
    "fixed": FixedShape((2, 1)),
    "planned": PlannedShape((((),), ())),
    "by the scheduler": None,
}


def tree_engine(share: float = 0.5, *, linear: bool = False, staged: bool = False) -> Engine:
    words = language(4, V, spread=1.0)
    draft = FakeModel(near(words, 5, share, V), n_ctx=128, n_vocab=V, n_seq=8)
    follower = Follower(draft)
    drafter = (
        StagedTreeDrafter(follower, 1, [RecycleDrafter(V)]) if staged else TreeDrafter(follower, 1)
    )
    return Engine(FakeModel(words, n_vocab=V, n_seq=4), [drafter], linear=linear)


def distance(
    rule: str, sampling: SamplingParams, shape: Shape | None, trace: type[Trace], make: Any
) -> float:
    """Of three emitted tokens from the target's law; trees have two levels at most."""
    wanted = replace(
        asked(rule, sampling, 3, 1 if shape is None else 2),
        drafters=("tree", "staged-tree"),
        shape=shape,
    )
    found = engine_law(wanted, make, trace)
    assert sum(found.values()) == pytest.approx(1.0, abs=EXACT)
    return total_variation(found, target_law(language(4, V, spread=1.0), sampling, 3))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("rule", SAMPLED)
def test_drawn_trees(rule: str, shape: Shape | None) -> None:
    sampling = NARROW if SAMPLED[rule] is IndependentTrace else PENALISED
    assert distance(rule, sampling, shape, SAMPLED[rule], tree_engine) < EXACT


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("rule", SAMPLED)
def test_one_wide_level_untruncated(rule: str, linear: bool) -> None:
    """Branches beside the first are kept or read again: the law is the same."""

    def make() -> Engine:
        return tree_engine(linear=linear)

    assert distance(rule, PLAIN, FixedShape((2,)), SAMPLED[rule], make) < EXACT


@pytest.mark.parametrize("rule", SAMPLED)
def test_trees_that_were_read_ahead(rule: str) -> None:
    def make() -> Engine:
        return tree_engine(staged=True)

    sampling = NARROW if SAMPLED[rule] is IndependentTrace else PENALISED
    assert distance(rule, sampling, FixedShape((2, 1)), SAMPLED[rule], make) < EXACT


@pytest.mark.parametrize("shape", [*SHAPES.values(), ValueShape(3, 2, 2)], ids=[*SHAPES, "value"])
def test_deterministic_trees(shape: Shape | None) -> None:
    assert distance("match", PENALISED, shape, GreedyTrace, tree_engine) < EXACT


def test_a_wrong_law_is_seen() -> None:
    """The instrument itself: drawn without replacement, judged as independent."""

    def make() -> Engine:
        return tree_engine(share=1.0)

    assert distance("rrs-iid", PLAIN, FixedShape((2,)), Trace, make) > 1e-3


@pytest.mark.parametrize("shape", [*SHAPES.values(), ValueShape(8, 3, 3)], ids=[*SHAPES, "value"])
@pytest.mark.parametrize("temperature", [0.7, 1.2])
def test_coupled_trees_change_no_text(shape: Shape | None, temperature: float) -> None:
    words, accepted = language(4), 0
    draft = near(words, 5, 0.4)
    sampling = SamplingParams(temperature=temperature, top_k=8)
    for seed in range(8):
        drafter = TreeDrafter(Follower(FakeModel(draft, n_ctx=128, n_seq=12)), 1)
        engine = Engine(FakeModel(words, n_seq=8), [drafter])
        wanted = request([1, 2], drafters=("tree",), sampling=sampling, seed=seed, shape=shape)
        outcome = run(engine, wanted)
        assert outcome.tokens == expected(words, wanted)[0]
        accepted += outcome.stats.accepted
    assert accepted > 8


@pytest.mark.parametrize("rule", SAMPLED)
def test_a_shape_that_looks_at_tokens_is_refused(rule: str) -> None:
    wanted = request(
        [1, 0], rule, drafters=("tree",), sampling=PLAIN, shape=ValueShape(4, 2, 2), max_tokens=4
    )
    engine = tree_engine()
    engine.add(wanted)
    with pytest.raises(ValueError, match="shape chosen before the draws"):
        for _ in range(4):
            engine.step()


def test_the_laws_in_use_are_not_points() -> None:
    """Nothing above would be a test of drawn trees if truncation left one token."""
    law = target_law(language(4, V, spread=1.0), PENALISED, 1)
    assert len(law) > 1
