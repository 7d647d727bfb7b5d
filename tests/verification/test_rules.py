"""Every rule leaves the target's law untouched: an identity over all random choices."""

from collections.abc import Callable

import pytest

from specllama.sampling.distribution import Distribution
from specllama.verification.block import block
from specllama.verification.match import match
from specllama.verification.rejection import rejection
from specllama.verification.types import ROOT, CoinChance, Proposal, Rows, Verdict, Verify

from .drafters import fixed, greedy, mixed, sampled, sampled_until_unlikely, tree
from .enumeration import (
    Drafter,
    GreedyTrace,
    Model,
    Tokens,
    Trace,
    distance,
    expected_tokens,
    law,
    law_of,
    one_round,
    round_distance,
)
from .models import KINDS, V, pair

EXACT = 1e-12
WRONG = 0.01

chain_rules = pytest.mark.parametrize("verify", [rejection, block, match])
every_kind = pytest.mark.parametrize("kind", KINDS)


@chain_rules
@every_kind
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_a_drawn_chain_keeps_the_law(verify: Verify[Trace], kind: str, length: int) -> None:
    seeds = range(4) if length < 4 else range(1)
    for seed in seeds:
        target, draft = pair(kind, seed)
        assert round_distance(verify, sampled(length), target, draft, length + 1) < EXACT


@chain_rules
@every_kind
@pytest.mark.parametrize("drafter", [greedy(3), fixed(0, 0, 0), fixed(2, 1), mixed(3), fixed()])
def test_deterministic_and_mixed_chains_keep_the_law(
    verify: Verify[Trace], kind: str, drafter: Drafter
) -> None:
    target, draft = pair(kind, 7)
    assert round_distance(verify, drafter, target, draft, 4) < EXACT


@every_kind
@pytest.mark.parametrize("trace", [Trace, GreedyTrace])
@pytest.mark.parametrize("branches", [(2,), (3, 1), (2, 2), (1, 2, 1)])
def test_a_tree_keeps_the_law(kind: str, trace: type[Trace], branches: tuple[int, ...]) -> None:
    target, draft = pair(kind, 3)
    length = len(branches) + 1
    assert round_distance(match, tree(*branches), target, draft, length, trace) < EXACT


@chain_rules
@every_kind
def test_lengths_decided_before_a_draw_keep_the_law(verify: Verify[Trace], kind: str) -> None:
    def unsure(law: Distribution) -> bool:
        return bool(law.probs.max() < 0.55)

    target, draft = pair(kind, 11)
    assert round_distance(verify, sampled(3, stop=unsure), target, draft, 4) < EXACT


@chain_rules
@every_kind
def test_stopping_behind_an_unlikely_token_that_is_kept_keeps_the_law(
    verify: Verify[Trace], kind: str
) -> None:
    target, draft = pair(kind, 12)
    drafter = sampled_until_unlikely(3, 0.45, keep=True)
    assert round_distance(verify, drafter, target, draft, 4) < EXACT


@chain_rules
@every_kind
def test_two_rounds_keep_the_law(verify: Verify[Trace], kind: str) -> None:
    """The second round's length depends on the first verdict, as with an adaptive scheduler."""
    target, draft = pair(kind, 5)

    def run(chance: Trace) -> Tokens:
        first, verdict = one_round(verify, sampled(2)(draft, chance, ()), target, chance, ())
        then = sampled(1 + len(verdict.path))(draft, chance, first)
        second, _ = one_round(verify, then, target, chance, first)
        return first + second

    assert distance(law_of(run), target, 5) < EXACT


@chain_rules
def test_a_stale_draft_keeps_the_law(verify: Verify[Trace]) -> None:
    """A drafter that lost track of the context costs acceptance only."""
    target, draft = pair("random", 6)

    def run(chance: Trace) -> Tokens:
        first, _ = one_round(verify, sampled(1)(draft, chance, ()), target, chance, ())
        stale = sampled(2)(draft, chance, first[:-1])
        second, _ = one_round(verify, stale, target, chance, first)
        return first + second

    assert distance(law_of(run), target, 4) < EXACT


# --- rules that look right and are not: the same harness has to catch each of them


def second_sample(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
    """Match, but the mismatch is thrown away and drawn again."""
    verdict = match(proposal, rows, chance, position)
    if len(verdict.path) == len(proposal):
        return verdict
    last = verdict.path[-1] if verdict.path else ROOT
    return Verdict(verdict.path, chance.pick(rows(last), position), verdict.tested)


def token_rule(accept: Callable[[float, CoinChance], bool], recover: bool = True) -> Verify[Trace]:
    """Rejection sampling with a broken test or without the residual."""

    def verify(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
        for node, token in enumerate(proposal.tokens):
            p, q = rows(node - 1), proposal.law(node - 1)
            assert q is not None
            if not accept(p.prob(token) / q.prob(token), chance):
                left = p.probs - q.at(p.ids)
                rest = Distribution.from_weights(p.ids, left.clip(0.0)) if recover else p
                return Verdict(tuple(range(node)), chance.pick(rest or p, position), node + 1)
        bonus = chance.pick(rows(len(proposal) - 1), position)
        return Verdict(tuple(range(len(proposal))), bonus, len(proposal))

    return verify


def hopeful_block(proposal: Proposal, rows: Rows, chance: CoinChance, position: int) -> Verdict:
    """Block verification whose residual forgets the probability of the path."""
    verdict = block(proposal, rows, chance, position)
    tau = len(verdict.path)
    if tau == len(proposal):
        return verdict
    p, q = rows(tau - 1), proposal.law(tau - 1)
    assert q is not None
    rest = Distribution.from_weights(p.ids, (p.probs - q.at(p.ids)).clip(0.0))
    return Verdict(verdict.path, chance.pick(rest or p, position), verdict.tested)


def fair(ratio: float, chance: CoinChance) -> bool:
    return chance.flip(ratio)


def without_a_coin(ratio: float, chance: CoinChance) -> bool:
    return ratio >= 1.0


MUTANTS: dict[str, tuple[Verify[Trace], Drafter, type[Trace]]] = {
    "second sample after a mismatch": (second_sample, greedy(2), Trace),
    "most probable draft tested with p/q": (rejection, sampled(2), GreedyTrace),
    "most probable draft tested as a block": (block, sampled(2), GreedyTrace),
    "rejection without a coin": (token_rule(without_a_coin), sampled(2), Trace),
    "no residual": (token_rule(fair, recover=False), sampled(2), Trace),
    "drawn token dropped": (rejection, sampled_until_unlikely(2, 0.45, keep=False), Trace),
    "block with the token residual": (hopeful_block, sampled(3), Trace),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_harness_catches_a_wrong_rule(name: str) -> None:
    verify, drafter, trace = MUTANTS[name]
    pairs = [pair("random", seed) for seed in range(12)]
    distances = [round_distance(verify, drafter, *models, 4, trace) for models in pairs]
    assert max(distances) > WRONG


def test_the_mutants_are_wrong_for_their_mutation_only() -> None:
    target, draft = pair("random", 2)
    assert round_distance(token_rule(fair), sampled(2), target, draft, 4) < EXACT


# --- what the rules promise beyond the law


@every_kind
@pytest.mark.parametrize("length", [1, 2, 3])
def test_block_emits_no_fewer_tokens_than_rejection(kind: str, length: int) -> None:
    for seed in range(3):
        target, draft = pair(kind, seed)
        by_token = expected_tokens(rejection, sampled(length), target, draft)
        by_block = expected_tokens(block, sampled(length), target, draft)
        assert by_block >= by_token - EXACT
        if length == 1:
            assert by_block == pytest.approx(by_token, abs=EXACT)


def test_block_emits_more_tokens_than_rejection_somewhere() -> None:
    target, draft = pair("random", 2)
    gain = expected_tokens(block, sampled(3), target, draft) - expected_tokens(
        rejection, sampled(3), target, draft
    )
    assert gain > 0.01


@pytest.mark.parametrize("verify", [rejection, block])
def test_acceptance_of_one_token_is_the_overlap_of_the_laws(verify: Verify[Trace]) -> None:
    p, q = law([0.5, 0.3, 0.2]), law([0.1, 0.3, 0.6])
    emitted = expected_tokens(verify, sampled(1), lambda _: p, lambda _: q)
    assert emitted == pytest.approx(1.0 + (0.1 + 0.3 + 0.2))


@pytest.mark.parametrize("verify", [rejection, block])
def test_equal_laws_accept_everything(verify: Verify[Trace]) -> None:
    target, draft = pair("equal", 1)
    assert expected_tokens(verify, sampled(3), target, draft) == pytest.approx(4.0, abs=EXACT)


class Asked:
    """Target laws that remember which nodes were asked for."""

    def __init__(self, model: Model, proposal: Proposal) -> None:
        self.nodes: list[int] = []
        self._model, self._proposal = model, proposal

    def __call__(self, node: int) -> Distribution:
        self.nodes.append(node)
        return self._model(self._proposal.tokens[: node + 1])


def always(token: int) -> Model:
    return lambda context: Distribution.point(token)


@chain_rules
def test_no_law_is_asked_for_behind_an_impossible_token(verify: Verify[Trace]) -> None:
    proposal = Proposal.chain([1, 0, 1, 1], [law([0.5, 0.5, 0.0])] * 4)
    rows = Asked(always(1), proposal)
    verdict = verify(proposal, rows, Trace(), 0)
    assert verdict == Verdict(path=(0,), token=1, tested=2)
    assert max(rows.nodes) == 0


@chain_rules
def test_no_law_is_computed_twice(verify: Verify[Trace]) -> None:
    target, draft = pair("near", 4)

    def run(chance: Trace) -> Tokens:
        proposal = sampled(3)(draft, chance, ())
        rows = Asked(target, proposal)
        verify(proposal, rows, chance, 0)
        assert len(rows.nodes) == len(set(rows.nodes))
        return ()

    assert law_of(run)[()] == pytest.approx(1.0)


@chain_rules
def test_full_acceptance_ends_with_a_bonus(verify: Verify[Trace]) -> None:
    proposal = Proposal.chain([1, 1], [law([0.0, 1.0])] * 2)
    rows = Asked(always(1), proposal)
    assert verify(proposal, rows, Trace(), 9) == Verdict(path=(0, 1), token=1, tested=2)


@chain_rules
def test_an_empty_proposal_is_plain_decoding(verify: Verify[Trace]) -> None:
    rows = Asked(always(2), Proposal())
    assert verify(Proposal(), rows, Trace(), 0) == Verdict(path=(), token=2, tested=0)
    assert rows.nodes == [ROOT]


def test_match_walks_down_a_tree() -> None:
    #        root -> 0, 1;  1 -> 2, 0
    proposal = Proposal((0, 1, 2, 0), (ROOT, ROOT, 1, 1), (None,) * 5)
    answers = {ROOT: 1, 1: 0, 3: 2}
    verdict = match(proposal, lambda node: Distribution.point(answers[node]), Trace(), 0)
    assert verdict == Verdict(path=(1, 3), token=2, tested=2)


def test_match_stops_at_the_first_token_outside_the_tree() -> None:
    proposal = Proposal((0, 1, 2, 0), (ROOT, ROOT, 1, 1), (None,) * 5)
    answers = {ROOT: 1, 1: 1}
    verdict = match(proposal, lambda node: Distribution.point(answers[node]), Trace(), 0)
    assert verdict == Verdict(path=(1,), token=1, tested=2)


@pytest.mark.parametrize("verify", [rejection, block])
def test_a_tree_is_refused_by_the_rules_for_chains(verify: Verify[Trace]) -> None:
    proposal = Proposal((0, 1), (ROOT, ROOT), (None,) * 3)
    with pytest.raises(ValueError, match="chain"):
        verify(proposal, always(0), Trace(), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("verify", [rejection, block])
def test_a_token_its_law_excludes_is_refused(verify: Verify[Trace]) -> None:
    proposal = Proposal.chain([0], [law([0.0, 1.0])])
    with pytest.raises(ValueError, match="no probability"):
        verify(proposal, lambda node: law([0.5, 0.5]), Trace(), 0)


def test_toy_models_cover_the_vocabulary() -> None:
    target, draft = pair("random", 0)
    assert len(target(()).ids) == len(draft(()).ids) == V
