"""Rules by name."""

from typing import get_args

import pytest

from specllama.errors import UsageError
from specllama.options import VerifyName
from specllama.sampling.distribution import Distribution
from specllama.verification import LOSSY_RULES, RULES, choose_rule
from specllama.verification.types import Proposal

from .enumeration import law


def test_every_name_of_the_options_is_a_rule() -> None:
    assert {"auto", *RULES, *LOSSY_RULES} == set(get_args(VerifyName))


def test_auto_is_coupled_with_a_seed_and_block_without() -> None:
    assert choose_rule("auto", seeded=True).name == "coupled"
    assert choose_rule("auto", seeded=False).name == "block"


def test_auto_judges_trees_where_it_has_to() -> None:
    assert choose_rule("auto", seeded=True, trees=True).shape == "tree"
    assert choose_rule("auto", seeded=False, trees=True).shape == "tree"
    assert choose_rule("block", seeded=False, trees=True).name == "block"


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("seeded", [True, False])
def test_a_named_rule_is_taken_as_it_is(name: str, seeded: bool) -> None:
    assert choose_rule(name, seeded).name == name


def test_an_unknown_name_is_a_usage_error_that_lists_the_rules() -> None:
    with pytest.raises(UsageError, match=r"'fast'.*auto, coupled, match, rejection, block"):
        choose_rule("fast", seeded=False)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_rule_runs_with_its_own_chance(rule) -> None:  # type: ignore[no-untyped-def]
    p = law([0.2, 0.5, 0.3])
    chance = rule.chance(2**64 - 1)
    drawn = chance.children(p, 0, 1)
    proposal = Proposal.chain(drawn, [p] if rule.uses_law else None)
    verdict = rule.verify(proposal, lambda node: p, chance, 0)
    assert verdict.tested == 1
    assert verdict.token in (0, 1, 2)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_the_same_seed_decides_the_same(rule) -> None:  # type: ignore[no-untyped-def]
    def decide() -> list[object]:
        chance = rule.chance(5)
        p, q = law([0.2, 0.5, 0.3]), law([0.4, 0.4, 0.2])
        verdicts: list[object] = []
        for position in range(20):
            proposal = Proposal.chain(chance.children(q, position, 1), [q])
            verdicts.append(rule.verify(proposal, lambda node: p, chance, position))
        return verdicts

    assert decide() == decide()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_temperature_zero_is_the_targets_argmax(rule) -> None:  # type: ignore[no-untyped-def]
    """At temperature 0 every rule emits the point of each law and nothing else."""
    points = {-1: 2, 0: 0, 1: 1}
    chance = rule.chance(0)
    proposal = Proposal.chain([2, 1], [Distribution.point(2), Distribution.point(1)])
    verdict = rule.verify(proposal, lambda node: Distribution.point(points[node]), chance, 0)
    assert (verdict.path, verdict.token, verdict.tested) == ((0,), 0, 2)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_the_guarantee_is_one_sentence(rule) -> None:  # type: ignore[no-untyped-def]
    assert rule.guarantee.endswith(".")
    assert rule.guarantee.count(". ") == 0


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_no_text_is_promised_where_batches_are_rounded_otherwise(rule) -> None:  # type: ignore[no-untyped-def]
    assert rule.promise(exact=True) == rule.guarantee
    rounded = rule.promise(exact=False)
    assert ("rounding" in rounded) == (rule.name in ("coupled", "match"))
    assert rounded.endswith(".")
    assert rounded.count(".") == 1
