"""Every rule for trees leaves the target's law untouched, over all draws of the tree as well."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from specllama.sampling.distribution import Distribution, residual
from specllama.sampling.noise import SharedNoise
from specllama.verification.block import block
from specllama.verification.greedy_one import greedy_one
from specllama.verification.match import match
from specllama.verification.recursive import with_replacement, without_replacement
from specllama.verification.rejection import rejection
from specllama.verification.spectr import division, spectr
from specllama.verification.traversal import traversal
from specllama.verification.types import ROOT, Proposal

from . import mutants
from .enumeration import GreedyTrace, Law, Model, Tokens, Trace, distance, law, law_of
from .models import KINDS
from .trees import (
    Drawing,
    GreedyPlusOneTrace,
    Growing,
    IndependentTrace,
    Ranks,
    Way,
    irregular,
    law_of_round,
    mean_length,
    models,
    ranked,
    regular,
    verdict_of,
)

EXACT = 1e-12
WRONG = 0.01

DISTINCT = {
    "match": Way(match),
    "match greedy": Way(match, GreedyTrace),
    "rrs": Way(without_replacement),
    "greedy-one": Way(greedy_one, GreedyPlusOneTrace),
    "traversal": Way(traversal),
}
REPEATING = {
    "rrs-iid": Way(with_replacement, IndependentTrace),
    "spectr": Way(spectr, IndependentTrace),
}
WAYS = DISTINCT | REPEATING
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
every_kind = pytest.mark.parametrize("kind", KINDS)


def off(way: Way, drawing: Drawing, kind: str, seed: int, length: int) -> float:
    """Total variation between one round, completed, and the target."""
    target, draft = models(kind, seed)
    return distance(law_of_round(way, drawing, target, draft), target, length)


@pytest.mark.parametrize("way", DISTINCT.values(), ids=DISTINCT.keys())
@every_kind
@pytest.mark.parametrize("widths", [(2, 2), (3, 1)])
def test_a_tree_of_distinct_siblings_keeps_the_law(
    way: Way, kind: str, widths: tuple[int, ...]
) -> None:
    assert off(way, Drawing(regular(*widths)), kind, 1, 3) < EXACT


@pytest.mark.parametrize("way", DISTINCT.values(), ids=DISTINCT.keys())
@pytest.mark.parametrize("kind", ["random", "zeros", "disjoint", "one-hot", "truncated"])
def test_a_deep_tree_of_distinct_siblings_keeps_the_law(way: Way, kind: str) -> None:
    assert off(way, Drawing(regular(2, 2, 1)), kind, 2, 4) < EXACT


@pytest.mark.parametrize("way", REPEATING.values(), ids=REPEATING.keys())
@every_kind
def test_two_independent_paths_keep_the_law(way: Way, kind: str) -> None:
    assert off(way, Drawing(regular(2, 1)), kind, 1, 3) < EXACT


@pytest.mark.parametrize("way", REPEATING.values(), ids=REPEATING.keys())
@every_kind
@pytest.mark.parametrize("widths", [(2, 2), (3, 1)])
def test_a_tree_of_repeating_siblings_keeps_the_law(
    way: Way, kind: str, widths: tuple[int, ...]
) -> None:
    """Siblings may be equal: they go on together, so that the next level has more of them."""
    for seed in (2, 3):
        assert off(way, Drawing(regular(*widths)), kind, seed, 3) < EXACT


DEEP = [("truncated", 3), ("disjoint", 3), ("one-hot", 3), ("zeros", 2)]


@pytest.mark.parametrize(
    ("name", "kind", "seed"),
    [
        *((name, *pair_) for name in REPEATING for pair_ in DEEP),
        ("rrs-iid", "random", 2),
        ("rrs-iid", "near", 2),
        pytest.param("spectr", "random", 2, marks=pytest.mark.slow),
    ],
)
def test_a_deep_tree_of_repeating_siblings_keeps_the_law(name: str, kind: str, seed: int) -> None:
    assert off(REPEATING[name], Drawing(regular(2, 2, 1)), kind, seed, 4) < EXACT


@every_way
@pytest.mark.parametrize("kind", ["zeros", "truncated", "equal"])
def test_arithmetic_on_arrays_keeps_the_law(
    way: Way, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These laws are small enough to be lists; long ones are arrays and go other ways."""
    for module in (Distribution, division):
        monkeypatch.setattr(sys.modules[module.__module__], "FEW", 0)
    assert off(way, Drawing(regular(2, 1)), kind, 1, 3) < EXACT


@pytest.mark.parametrize("name", ["rrs", "greedy-one", "traversal"])
def test_a_draw_of_the_whole_tree_is_a_draw_on_demand(name: str) -> None:
    """What the other tests rest on: draws that no rule looks at do not change the law."""
    way, (target, draft) = WAYS[name], models("random", 4)
    drawing = Drawing(regular(2, 2))

    def run(chance: Trace) -> Tokens:
        whole = Growing(drawing, draft, chance, ()).drawn()
        return verdict_of(way, whole, target, chance)[0]

    whole = law_of(run, way.trace)
    on_demand = law_of_round(way, drawing, target, draft)
    assert whole == pytest.approx(on_demand, abs=EXACT)


# --- trees of all shapes


def undrawn(ranks: Ranks) -> bool:
    return True


def below_the_root(ranks: Ranks) -> bool:
    return len(ranks) == 1


def at_the_root(ranks: Ranks) -> bool:
    return len(ranks) == 0


SHAPES = {
    "only the first goes on": Drawing(irregular({(): 2, (0,): 2, (0, 0): 1})),
    "only the last goes on": Drawing(irregular({(): 2, (1,): 2, (1, 1): 1})),
    "unlike widths": Drawing(irregular({(): 2, (0,): 1, (1,): 2})),
    "deterministic": Drawing(regular(2, 2, 1), undrawn),
    "deterministic below": Drawing(regular(2, 2), below_the_root),
    "deterministic above": Drawing(regular(2, 2), at_the_root),
    "a chain": Drawing(regular(1, 1, 1)),
    "nothing": Drawing(regular()),
}


@every_way
@pytest.mark.parametrize("drawing", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("kind", ["zeros", "truncated"])
def test_any_shape_keeps_the_law(way: Way, drawing: Drawing, kind: str) -> None:
    assert off(way, drawing, kind, 5, 4) < EXACT


@every_way
def test_a_width_chosen_from_the_law_before_the_draw_keeps_the_law(way: Way) -> None:
    target, draft = models("random", 6)

    def run(chance: Trace) -> Tokens:
        sure = draft(()).probs.max() > 0.5
        growing = Growing(Drawing(regular(1 if sure else 2, 1)), draft, chance, ())
        return verdict_of(way, growing, target, chance)[0]

    assert distance(law_of(run, way.trace), target, 3) < EXACT


@every_way
def test_a_shape_that_depends_on_earlier_draws_keeps_the_law(way: Way) -> None:
    """As where the room for nodes runs out: what was drawn first decides how much comes later."""
    target, draft = models("random", 7)

    def run(chance: Trace) -> Tokens:
        first = Growing(Drawing(regular(2, 2)), draft, chance, ())
        tokens = [first.tokens[child] for child in first.children(ROOT)]
        first._drawing = Drawing(irregular({(): 2, (0,): 2 if 0 in tokens else 0, (1,): 1}))
        return verdict_of(way, first, target, chance)[0]

    assert distance(law_of(run, way.trace), target, 3) < EXACT


@pytest.mark.parametrize("way", REPEATING.values(), ids=REPEATING.keys())
def test_equal_siblings_may_come_with_unlike_laws(way: Way) -> None:
    """Equal nodes are decoded apart, and a batch need not give the same bits in each place."""
    p = law([0.4, 0.4, 0.2])  # a refusal of the first leaves two tokens of it
    laws = [law([0.1, 0.2, 0.7]), law([0.5, 0.0, 0.5])]

    def run(chance: Trace) -> Tokens:
        drawn = [chance.pick(q, 1) for q in laws]
        proposal = Proposal(
            (0, 0, *drawn), (ROOT, ROOT, 0, 1), (Distribution.point(0), *laws, None, None)
        )
        return verdict_of(way, proposal, lambda path: p if path else Distribution.point(0), chance)[
            0
        ]

    assert distance(law_of(run), lambda path: p if path else Distribution.point(0), 3) < EXACT


# --- on a chain every rule is one that is known


@pytest.mark.parametrize("seed", range(3))
def test_traversal_of_a_chain_is_block_verification(seed: int) -> None:
    chain, pair_ = Drawing(regular(1, 1, 1)), models("random", seed)
    expected = law_of_round(Way(as_chain(block)), chain, *pair_)
    assert law_of_round(WAYS["traversal"], chain, *pair_) == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("name", ["rrs", "rrs-iid", "spectr", "greedy-one"])
def test_one_sibling_a_level_is_rejection_sampling(name: str) -> None:
    chain, pair_ = Drawing(regular(1, 1)), models("random", 1)
    expected = law_of_round(Way(as_chain(rejection)), chain, *pair_)
    assert law_of_round(WAYS[name], chain, *pair_) == pytest.approx(expected, abs=EXACT)


def as_chain(rule):  # type: ignore[no-untyped-def]
    """A rule for chains over a tree that is one; it reads the whole proposal."""

    def verify(proposal: Growing, rows, chance: Trace, position: int):  # type: ignore[no-untyped-def]
        return rule(proposal.drawn(), rows, chance, position)

    return verify


# --- coupled trees: not one law but one text


class Consumed(SharedNoise):
    """The classic mistake: noise that is used up by whoever draws."""

    used = 0

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        self.used += 1
        return super().children(law, self.used, count)


def texts(noise: Callable[[int], SharedNoise], widths: tuple[int, ...]) -> list[bool]:
    """Per seed, whether a round over a tree says what plain decoding says."""
    target, draft = models("near", 8)
    same = []
    for seed in range(100):
        chance = noise(seed)
        drawing = Drawing(regular(*widths))
        proposal = Growing(drawing, draft, chance, ()).drawn()  # type: ignore[arg-type]
        text, _ = verdict_of(Way(match), proposal, target, chance)  # type: ignore[arg-type]
        plain, again = noise(seed), ()
        while len(again) < len(text):
            again = (*again, plain.pick(target(again), len(again)))
        same.append(text == again)
    return same


@pytest.mark.parametrize("widths", [(2, 2), (3, 1), (2, 2, 1)])
def test_coupled_trees_say_what_plain_decoding_says(widths: tuple[int, ...]) -> None:
    assert all(texts(SharedNoise, widths))
    assert not all(texts(Consumed, widths))


# --- rules that look right and are not: the same harness has to catch each of them


@dataclass(frozen=True)
class Mutant:
    way: Way
    drawing: Drawing


def mutant(way: Way, *widths: int, order: tuple[int, ...] = (0, 1)) -> Mutant:
    return Mutant(way, Drawing(regular(*widths), order=ranked(order)))


INDEPENDENT, ONE_DRAWN = IndependentTrace, GreedyPlusOneTrace
MUTANTS = {
    "match: mismatch drawn again": mutant(Way(mutants.drawn_again, GreedyTrace), 2, 1),
    "rrs: siblings in another order": mutant(WAYS["rrs"], 2, 1, order=(1, 0)),
    "rrs: not renormalised": mutant(Way(mutants.by(mutants.one_law_for_all)), 2, 1),
    "rrs: most probable siblings": mutant(Way(without_replacement, GreedyTrace), 2, 1),
    "rrs-iid: nothing subtracted": mutant(
        Way(mutants.by(mutants.nothing_subtracted), INDEPENDENT), 2, 1
    ),
    "rrs-iid: distinct siblings": mutant(Way(with_replacement), 2, 1),
    "spectr: no division": mutant(Way(mutants.by(mutants.nothing_subtracted), INDEPENDENT), 2, 1),
    "spectr: residual of one draft": mutant(
        Way(mutants.by(mutants.token_residual), INDEPENDENT), 2, 1
    ),
    "spectr: distinct siblings": mutant(Way(spectr), 2, 1),
    "greedy-one: greedy ones with p/q": mutant(Way(without_replacement, ONE_DRAWN), 2, 1),
    "greedy-one: drawn one with p/q": mutant(
        Way(mutants.by(mutants.drawn_from_all), ONE_DRAWN), 2, 1
    ),
    "traversal: path not scaled": mutant(Way(mutants.unscaled_traversal), 2, 2),
    "traversal: path not updated": mutant(Way(mutants.stale_traversal), 2, 2),
    "traversal: siblings in another order": mutant(WAYS["traversal"], 2, 1, order=(1, 0)),
    "traversal: most probable siblings": mutant(Way(traversal, GreedyTrace), 2, 1),
}


@pytest.mark.parametrize("wrong", MUTANTS.values(), ids=MUTANTS.keys())
def test_the_harness_catches_a_wrong_rule(wrong: Mutant) -> None:
    assert any(off(wrong.way, wrong.drawing, "random", seed, 3) > WRONG for seed in range(4))


# --- what the rules promise beyond the law


def emitted(way: Way, kind: str, seed: int, *widths: int) -> float:
    return mean_length(law_of_round(way, Drawing(regular(*widths)), *models(kind, seed)))


ORDERS = [("rrs-iid", "spectr"), ("rrs-iid", "rrs"), ("rrs", "traversal"), ("rrs", "greedy-one")]


@pytest.mark.parametrize(("less", "more"), ORDERS)
@every_kind
def test_one_level_is_ordered_as_the_papers_say(less: str, more: str, kind: str) -> None:
    for seed in range(4):
        weaker, stronger = emitted(WAYS[less], kind, seed, 2), emitted(WAYS[more], kind, seed, 2)
        # spectr's bisection stops a little above the solution
        assert stronger > weaker - 1e-6


@pytest.mark.parametrize(("less", "more"), ORDERS[:2] + ORDERS[3:])
def test_one_level_gains_somewhere(less: str, more: str) -> None:
    gains = [
        emitted(WAYS[more], "random", seed, 2) - emitted(WAYS[less], "random", seed, 2)
        for seed in range(6)
    ]
    assert max(gains) > 0.02


@every_kind
@pytest.mark.parametrize("widths", [(2, 1), (2, 2)])
def test_traversal_emits_no_fewer_tokens_than_recursive_rejection(
    kind: str, widths: tuple[int, ...]
) -> None:
    for seed in range(2):
        top_down = emitted(WAYS["rrs"], kind, seed, *widths)
        assert emitted(WAYS["traversal"], kind, seed, *widths) > top_down - EXACT


def test_traversal_emits_more_tokens_somewhere() -> None:
    assert emitted(WAYS["traversal"], "random", 0, 2, 2) > 0.05 + emitted(
        WAYS["rrs"], "random", 0, 2, 2
    )


@pytest.mark.parametrize(
    ("weaker", "rule", "drawing"),
    [
        (
            Way(mutants.by(mutants.greedy_first), ONE_DRAWN),
            WAYS["greedy-one"],
            Drawing(regular(2, 1)),
        ),
        (Way(mutants.forgetful(spectr), INDEPENDENT), WAYS["spectr"], Drawing(regular(2, 1))),
        (
            Way(mutants.forgetful(with_replacement), INDEPENDENT),
            WAYS["rrs-iid"],
            Drawing(regular(2, 1)),
        ),
    ],
    ids=[
        "greedy siblings first",
        "spectr without equal siblings",
        "rrs-iid without equal siblings",
    ],
)
def test_a_weaker_choice_is_exact_too_but_emits_less(
    weaker: Way, rule: Way, drawing: Drawing
) -> None:
    """Neither is a mistake that a test of the law could find; only the length tells."""
    gain = 0.0
    for seed in (0, 3):
        assert off(weaker, drawing, "random", seed, 3) < EXACT
        pair_ = models("random", seed)
        less = mean_length(law_of_round(weaker, drawing, *pair_))
        gain = max(gain, mean_length(law_of_round(rule, drawing, *pair_)) - less)
    assert gain > 0.005


@pytest.mark.parametrize("seed", range(3))
def test_greedy_and_one_reach_their_bound(seed: int) -> None:
    """Hu et al.: p of the greedy tokens, and the overlap of p and q' outside them."""
    target, draft = models("random", seed)
    p, q = target(()), draft(())
    greedy = q.top(1)[0]
    rest = q.without(greedy)
    assert rest is not None
    overlap = sum(min(p.prob(t), rest.prob(t)) for t in rest.ids.tolist())
    expected = 1.0 + p.prob(greedy) + overlap
    assert emitted(WAYS["greedy-one"], "random", seed, 2) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [2, 3])
def test_rho_solves_the_papers_equation(seed: int, count: int) -> None:
    target, draft = models("random", seed)
    p, q = target(()), draft(())
    rho = division(p, [q] * count)
    beta = sum(min(q.prob(t), p.prob(t) / rho) for t in p.ids.tolist())
    assert 1.0 - (1.0 - beta) ** count == pytest.approx(rho * beta, abs=1e-3)


@pytest.mark.parametrize("size", [2, 3, 20, 300])
def test_rho_accepts_no_token_too_often_and_hardly_less_than_it_may(size: int) -> None:
    random = np.random.default_rng(size)
    for count in [2, 3, 8] * 40:
        weights = random.dirichlet(np.full(size, random.choice([0.1, 1.0])), 2) + 1e-12
        p, q = (law(list(row)) for row in weights)

        def accepted(rho: float, p=p, q=q, count=count) -> tuple[float, float]:  # type: ignore[no-untyped-def]
            """The share of levels, and the most it may be."""
            beta = float(np.minimum(q.probs, p.probs / rho).sum())
            return 1.0 - (1.0 - beta) ** count, rho * beta

        low, high = 1.0, float(count)
        while high - low > 1e-9:
            middle = (low + high) / 2
            share, most = accepted(middle)
            low, high = (middle, high) if share > most else (low, middle)
        share, most = accepted(division(p, [q] * count))
        assert share <= most + 1e-12
        assert share > accepted(high)[0] - 1e-3


def test_one_draft_needs_no_division() -> None:
    assert division(law([0.5, 0.5]), [law([0.9, 0.1])]) == 1.0


@pytest.mark.parametrize("name", ["rrs", "rrs-iid", "spectr", "greedy-one", "traversal"])
def test_equal_laws_accept_everything(name: str) -> None:
    assert emitted(WAYS[name], "equal", 1, 2, 1) == pytest.approx(3.0, abs=1e-6)


def test_acceptance_of_two_distinct_drafts_is_the_overlap_and_then_that_of_the_rest() -> None:
    """One level written out: min(p, q) first, then the residual against q without the refused."""
    p, q = law([0.6, 0.3, 0.1]), law([0.2, 0.3, 0.5])
    left = residual(p, q)
    assert left is not None
    # only token 2 is ever refused, with 0.5 - 0.1; the second draft comes from (0.4, 0.6, 0)
    expected = 0.6 + 0.4 * min(left.prob(0), 0.4)
    way, drawing = WAYS["rrs"], Drawing(regular(2))
    assert mean_length(law_of_round(way, drawing, always(p), always(q))) == pytest.approx(
        1.0 + expected
    )


def always(distribution: Distribution) -> Model:
    return lambda context: distribution


# --- what is asked for, and what is refused


@every_way
def test_no_law_is_computed_twice_nor_for_nodes_nobody_reaches(way: Way) -> None:
    target, draft = models("random", 3)

    def run(chance: Trace) -> Tokens:
        asked: list[Tokens] = []

        def recorded(path: Tokens) -> Distribution:
            asked.append(path)
            return target(path)

        drawing = Drawing(regular(2, 1))
        text, _ = verdict_of(way, Growing(drawing, draft, chance, ()), recorded, chance)
        assert len(asked) == len(set(asked))
        return text

    assert sum(law_of(run, way.trace).values()) == pytest.approx(1.0)


@every_way
def test_no_law_is_asked_for_behind_an_impossible_token(way: Way) -> None:
    #        root -> 0, 1;  0 -> 2;  1 -> 2
    q = law([0.5, 0.5, 0.0])
    point = Distribution.point
    proposal = Proposal((0, 1, 2, 2), (ROOT, ROOT, 0, 1), (q, point(2), point(2), None, None))
    answers: dict[Tokens, Distribution] = {(): point(1), (1,): point(0)}
    text, verdict = verdict_of(way, proposal, answers.__getitem__, way.trace())
    assert (text, verdict.path, verdict.tested) == ((1, 0), (1,), 2)


@every_way
def test_a_fully_accepted_path_ends_with_a_bonus(way: Way) -> None:
    point = Distribution.point
    proposal = Proposal((1, 1), (ROOT, 0), (point(1), point(1), None))
    text, verdict = verdict_of(way, proposal, always(point(1)), way.trace())
    assert (text, verdict.path, verdict.tested) == ((1, 1, 1), (0, 1), 2)


@every_way
def test_an_empty_proposal_is_plain_decoding(way: Way) -> None:
    text, verdict = verdict_of(way, Proposal(), always(Distribution.point(2)), way.trace())
    assert (text, verdict.path, verdict.tested) == ((2,), (), 0)


@pytest.mark.parametrize("laws", [None, [law([0.5, 0.5])] * 3000], ids=["copied", "drawn"])
@every_way
def test_a_chain_may_be_longer_than_pythons_stack(
    way: Way, laws: list[Distribution] | None
) -> None:
    """A predicted text is drafted in runs as long as `draft_max` allows."""
    chain = Proposal.chain([0] * 3000, laws)
    verdict = way.verify(chain, lambda node: Distribution.point(0), way.trace(), 0)
    assert (verdict.path, verdict.token, verdict.tested) == (tuple(range(3000)), 0, 3000)


def laws_of_siblings(tokens: Tokens, q: Distribution) -> Proposal:
    return Proposal(tokens, (ROOT,) * len(tokens), (q, *(None for _ in tokens)))


@pytest.mark.parametrize("name", ["rrs", "rrs-iid", "spectr", "greedy-one", "traversal"])
def test_a_token_its_law_excludes_is_refused(name: str) -> None:
    way = WAYS[name]
    proposal = laws_of_siblings((0,), law([0.0, 0.6, 0.4]))
    with pytest.raises(ValueError, match="no probability"):
        verdict_of(way, proposal, always(law([0.2, 0.4, 0.4])), way.trace())


@pytest.mark.parametrize("name", ["rrs", "greedy-one", "traversal"])
def test_a_sibling_drawn_twice_is_refused_where_they_are_distinct(name: str) -> None:
    way = WAYS[name]
    proposal = laws_of_siblings((0, 0), law([0.2, 0.5, 0.3]))
    with pytest.raises(ValueError, match="no probability"):
        verdict_of(way, proposal, always(law([0.1, 0.6, 0.3])), way.trace())


@pytest.mark.parametrize("name", ["rrs", "greedy-one", "traversal"])
def test_more_siblings_than_a_law_has_tokens_are_refused(name: str) -> None:
    way = WAYS[name]
    proposal = laws_of_siblings((0, 1), Distribution.point(0))
    with pytest.raises(ValueError, match="run out"):
        verdict_of(way, proposal, always(law([0.0, 0.6, 0.4])), way.trace())


def test_laws_cover_the_strings_they_emit() -> None:
    found: Law = law_of_round(WAYS["rrs"], Drawing(regular(2, 2)), *models("random", 0))
    assert sum(found.values()) == pytest.approx(1.0)
    assert {len(tokens) for tokens in found} == {1, 2, 3}
