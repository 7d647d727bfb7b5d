"""The rules that change what the model says: caught by the harness, and never used unasked."""

from typing import get_args

import pytest

from specllama.errors import UsageError
from specllama.options import VerifyName
from specllama.sampling.distribution import Distribution
from specllama.verification import LENIENCE, LOSSY_RULES, RULES, choose_rule
from specllama.verification.lenient import lenient
from specllama.verification.rejection import rejection
from specllama.verification.types import ROOT, Proposal, Verdict
from specllama.verification.typical import typical

from .drafters import greedy, sampled
from .enumeration import GreedyTrace, Trace, completed, law, law_of, one_round, round_distance
from .models import pair
from .trees import Drawing, Way, law_of_round, models, regular

EXACT = 1e-12
WRONG = 0.01

every_lossy_rule = pytest.mark.parametrize("name", LOSSY_RULES)


def test_every_rule_can_be_named_and_no_name_is_in_both() -> None:
    assert {"auto"} | RULES.keys() | LOSSY_RULES.keys() == set(get_args(VerifyName))
    assert not RULES.keys() & LOSSY_RULES.keys()


def test_the_rules_say_what_they_are() -> None:
    assert all(rule.lossless and rule.guarantee.startswith("Exact") for rule in RULES.values())
    for rule in LOSSY_RULES.values():
        assert not rule.lossless
        assert rule.guarantee.startswith("Not exact:")
        assert rule.guarantee.endswith(".")
        assert ". " not in rule.guarantee


@every_lossy_rule
@pytest.mark.parametrize("seeded", [True, False])
def test_a_lossy_rule_has_to_be_wanted(name: str, seeded: bool) -> None:
    with pytest.raises(UsageError, match=f"{name} changes what the model says") as caught:
        choose_rule(name, seeded)
    assert "--lossy" in caught.value.hint
    assert choose_rule(name, seeded, lossy=True) is LOSSY_RULES[name]


@pytest.mark.parametrize("name", ["auto", *RULES])
def test_the_wish_changes_nothing_for_exact_rules(name: str) -> None:
    assert choose_rule(name, True, lossy=True) is choose_rule(name, True)


def test_an_unknown_name_lists_the_lossy_rules_too() -> None:
    with pytest.raises(UsageError, match=r"'fast'.*auto, coupled, .*typical, rejection-lenient"):
        choose_rule("fast", seeded=False, lossy=True)


# --- typical acceptance


def test_the_harness_catches_typical_acceptance() -> None:
    target, draft = pair("random", 1)
    assert round_distance(typical, greedy(2), target, draft, 3, GreedyTrace) > WRONG
    tree = law_of_round(Way(typical, GreedyTrace), Drawing(regular(2, 2)), *models("random", 1))
    assert len(tree) < 27  # some strings never come


def accepts(p: Distribution, token: int) -> bool:
    verdict = typical(Proposal.chain([token]), lambda node: p, Trace(), 0)
    assert verdict.tested == 1
    return verdict.path == (0,)


def test_a_token_is_typical_above_the_lower_of_two_bars() -> None:
    """0.3, and 0.09 e^-H: 0.0450 for an even law of two tokens, 0.0300 for one of three."""
    assert accepts(law([0.08, 0.92]), 0)
    assert not accepts(law([0.05, 0.95]), 0)  # 0.09 e^-0.199 = 0.0738
    assert accepts(law([0.5, 0.46, 0.04]), 2)  # 0.09 e^-0.833 = 0.0391
    assert not accepts(law([0.5, 0.465, 0.035]), 2)


def test_the_longest_typical_path_is_taken_and_of_equals_the_first() -> None:
    #        root -> 0, 1, 2;  1 -> 0;  2 -> 1
    proposal = Proposal((0, 1, 2, 0, 1), (ROOT, ROOT, ROOT, 1, 2), (None,) * 6)
    even = law([0.4, 0.3, 0.3])
    verdict = typical(proposal, lambda node: even, Trace(), 0)
    assert verdict == Verdict(path=(1, 3), token=0, tested=2)


def test_typical_acceptance_is_exact_at_temperature_zero() -> None:
    answers = {ROOT: 1, 1: 0, 3: 2}
    proposal = Proposal((0, 1, 2, 0), (ROOT, ROOT, 1, 1), (None,) * 5)
    verdict = typical(proposal, lambda node: Distribution.point(answers[node]), Trace(), 0)
    assert verdict == Verdict(path=(1, 3), token=2, tested=2)


# --- lenience


@pytest.mark.parametrize("seed", range(3))
def test_full_lenience_is_rejection_sampling(seed: int) -> None:
    target, draft = pair("random", seed)

    def law_by(rule):  # type: ignore[no-untyped-def]
        return law_of(
            lambda chance: one_round(rule, sampled(2)(draft, chance, ()), target, chance, ())[0]
        )

    assert law_by(lenient(1.0)) == pytest.approx(law_by(rejection), abs=EXACT)


def test_the_harness_catches_lenience() -> None:
    assert round_distance(lenient(LENIENCE), sampled(2), *pair("random", 1), 3) > WRONG


@pytest.mark.parametrize("kind", ["random", "zeros", "disjoint", "truncated"])
@pytest.mark.parametrize("lenience", [0.8, 0.25])
def test_no_token_comes_more_often_than_lenience_allows(kind: str, lenience: float) -> None:
    for seed in range(4):
        target, draft = pair(kind, seed)

        def run(chance: Trace, target=target, draft=draft):  # type: ignore[no-untyped-def]
            proposal = sampled(1)(draft, chance, ())
            return one_round(lenient(lenience), proposal, target, chance, ())[0]

        for (token,), probability in completed(law_of(run), target, 1).items():
            assert probability <= target(()).prob(token) / lenience + EXACT


@pytest.mark.parametrize("lenience", [0.0, -0.5, 1.01, float("nan")])
def test_lenience_outside_its_range_is_refused(lenience: float) -> None:
    with pytest.raises(ValueError, match="lenience"):
        lenient(lenience)


def test_a_tree_is_refused_by_lenient_rejection() -> None:
    proposal = Proposal((0, 1), (ROOT, ROOT), (None,) * 3)
    with pytest.raises(ValueError, match="chain"):
        lenient(0.5)(proposal, lambda node: law([0.5, 0.5]), Trace(), 0)
