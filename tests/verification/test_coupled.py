"""The coupled rule: with noise keyed by position the drafts cannot change the text at all."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
from scipy import stats

from specllama.sampling.chain import Sampler
from specllama.sampling.distribution import Distribution
from specllama.sampling.noise import SharedNoise
from specllama.sampling.params import SamplingParams
from specllama.verification import RULES
from specllama.verification.match import match
from specllama.verification.rejection import rejection
from specllama.verification.types import ROOT, Chance, Proposal

from .drafters import fixed, greedy, mixed, sampled, tree
from .enumeration import Law, Model, Tokens, law, one_round, total_variation
from .models import KINDS, V, pair

LENGTH = 3

Noise = Sequence[np.ndarray]


class FiniteNoise:
    """Keyed noise of a finite space: `vectors[position]` holds the exponentials of all tokens."""

    def __init__(self, vectors: Noise) -> None:
        self.vectors = vectors

    def scores(self, law: Distribution, position: int) -> np.ndarray:
        return self.vectors[position % len(self.vectors)][law.ids] / law.probs

    def pick(self, law: Distribution, position: int) -> int:
        return int(law.ids[np.argmin(self.scores(law, position))])

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        return [int(t) for t in law.ids[np.argsort(self.scores(law, position))][:count]]


class SequentialNoise(FiniteNoise):
    """The classic mistake: the same vectors, used up one after the other by whoever draws."""

    used = 0

    def scores(self, law: Distribution, position: int) -> np.ndarray:
        self.used += 1
        return super().scores(law, self.used - 1)


def noise_space(seed: int, positions: int, vectors: int) -> list[Noise]:
    """All equally likely assignments of one of `vectors` noise vectors to each position."""
    random = np.random.default_rng(seed)
    each = [random.exponential(size=(vectors, V)) for _ in range(positions)]
    return [list(choice) for choice in product(*each)]


AnyDrafter = Callable[[Model, Model, Chance, Tokens], Proposal]


def emitted(
    target: Model, draft: Model, drafter: AnyDrafter, chance: Chance, length: int
) -> Tokens:
    """Rounds until `length` tokens are out."""
    tokens: Tokens = ()
    while len(tokens) < length:
        proposal = drafter(target, draft, chance, tokens)
        tokens += one_round(match, proposal, target, chance, tokens)[0]
    return tokens[:length]


def honest(drafter: Callable[[Model, Chance, Tokens], Proposal]) -> AnyDrafter:
    return lambda target, draft, chance, tokens: drafter(draft, chance, tokens)


def oracle(target: Model, draft: Model, chance: Chance, tokens: Tokens) -> Proposal:
    """Reads the noise and drafts the target's own draws, so long as they are even."""
    ahead: list[int] = []
    while len(ahead) < 2:
        token = chance.pick(target(tokens + tuple(ahead)), len(tokens) + len(ahead))
        if token % 2:
            break
        ahead.append(token)
    return Proposal.chain(ahead)


def saboteur(target: Model, draft: Model, chance: Chance, tokens: Tokens) -> Proposal:
    """Reads the noise and drafts everything but the target's draw."""
    own = chance.pick(target(tokens), len(tokens))
    others = tuple(t for t in range(V) if t != own)
    return Proposal(others, (ROOT,) * len(others), (None,) * (len(others) + 1))


def peeking(target: Model, draft: Model, chance: Chance, tokens: Tokens) -> Proposal:
    """Drafts nothing if the noise of the position favours token 0, else two tokens."""
    uniform = Distribution(np.arange(V), np.full(V, 1.0 / V))
    if chance.pick(uniform, len(tokens)) == 0:
        return Proposal()
    return sampled(2)(draft, chance, tokens)  # type: ignore[arg-type]


DRAFTERS: dict[str, AnyDrafter] = {
    "none": honest(fixed()),
    "constant": honest(fixed(1, 1, 1)),
    "greedy": honest(greedy(2)),
    "drawn": honest(sampled(3)),
    "mixed": honest(mixed(3)),
    "tree": honest(tree(2, 2)),
    "wide tree": honest(tree(3, 1)),
    "deep tree": honest(tree(2, 2, 1)),
    "oracle": oracle,
    "saboteur": saboteur,
    "peeking": peeking,
}

every_drafter = pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS.keys())


def law_over(space: list[Noise], emit: Callable[[FiniteNoise], Tokens], kind: type) -> Law:
    law: Law = {}
    for vectors in space:
        tokens = emit(kind(vectors))
        law[tokens] = law.get(tokens, 0.0) + 1.0 / len(space)
    return law


def plain(target: Model, space: list[Noise]) -> Law:
    nothing = DRAFTERS["none"]
    return law_over(space, lambda c: emitted(target, target, nothing, c, LENGTH), FiniteNoise)


@every_drafter
@pytest.mark.parametrize("kind", KINDS)
def test_no_drafter_changes_the_law_over_a_finite_noise_space(
    drafter: AnyDrafter, kind: str
) -> None:
    target, draft = pair(kind, 1)
    space = noise_space(2, positions=LENGTH + 2, vectors=3)
    law = law_over(space, lambda c: emitted(target, draft, drafter, c, LENGTH), FiniteNoise)
    assert total_variation(law, plain(target, space)) < 1e-12


def test_noise_consumed_in_sequence_is_caught() -> None:
    target, draft = pair("random", 1)
    space = noise_space(2, positions=LENGTH + 2, vectors=3)
    law = law_over(space, lambda c: emitted(target, draft, peeking, c, LENGTH), SequentialNoise)
    assert total_variation(law, plain(target, space)) > 0.01


class NoiseWithCoin(SharedNoise):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._coins = np.random.default_rng(seed)

    def flip(self, probability: float) -> bool:
        return self._coins.random() < probability


def test_shared_noise_would_break_a_rule_that_flips_coins() -> None:
    """Why `SharedNoise` has no `flip`: rejection needs draws independent of the drafts."""
    target, draft = law([0.0, 0.6, 0.4]), law([0.4, 0.5, 0.1])
    runs = 4000
    counts = np.zeros(3)
    for seed in range(runs):
        chance = NoiseWithCoin(seed)
        proposal = Proposal.chain(chance.children(draft, 0, 1), [draft])
        counts[one_round(rejection, proposal, lambda _: target, chance, ())[0][0]] += 1
    assert stats.chisquare(counts[1:], runs * target.probs).pvalue < 1e-6
    assert not hasattr(SharedNoise(0), "flip")


@every_drafter
@pytest.mark.parametrize("kind", ["random", "near", "zeros", "truncated"])
def test_the_text_depends_on_the_seed_alone(drafter: AnyDrafter, kind: str) -> None:
    rule = RULES["coupled"]
    for seed in range(60):
        target, draft = pair(kind, seed % 5)
        chance = rule.chance(seed)
        alone = emitted(target, draft, DRAFTERS["none"], rule.chance(seed), 8)
        assert emitted(target, draft, drafter, chance, 8) == alone


def test_thousands_of_seeds_repeat_the_text_with_random_drafters() -> None:
    target, draft = pair("near", 9)
    names = list(DRAFTERS)
    random = np.random.default_rng(1)
    for seed in random.integers(0, 2**64, 2000, dtype=np.uint64):
        noise = SharedNoise(int(seed))
        drafter = DRAFTERS[names[random.integers(len(names))]]
        alone = emitted(target, draft, DRAFTERS["none"], noise, 5)
        assert emitted(target, draft, drafter, noise, 5) == alone


@pytest.mark.parametrize("name", ["constant", "greedy", "tree", "wide tree"])
def test_match_repeats_the_text_with_any_deterministic_draft(name: str) -> None:
    """What its guarantee says: each emitted token takes one number of the stream, drafts none."""
    rule = RULES["match"]
    for seed in range(100):
        target, draft = pair("near", seed % 5)
        alone = emitted(target, draft, DRAFTERS["none"], rule.chance(seed), 8)
        assert emitted(target, draft, DRAFTERS[name], rule.chance(seed), 8) == alone


def test_noise_consumed_in_sequence_fails_string_equality() -> None:
    target, draft = pair("random", 1)
    space = noise_space(2, positions=LENGTH + 2, vectors=2)
    drafter = DRAFTERS["drawn"]
    differing = [
        vectors
        for vectors in space
        if emitted(target, draft, drafter, SequentialNoise(vectors), LENGTH)
        != emitted(target, draft, DRAFTERS["none"], SequentialNoise(vectors), LENGTH)
    ]
    assert differing


def test_the_text_has_the_targets_law_over_seeds() -> None:
    """Chi-square over all strings of three tokens: positions are independent too."""
    target, draft = pair("random", 4)
    runs = 4000
    counts = dict.fromkeys(product(range(V), repeat=3), 0)
    for seed in range(runs):
        counts[emitted(target, draft, DRAFTERS["drawn"], SharedNoise(seed), 3)] += 1
    expected = {
        string: runs * np.prod([target(string[:i]).prob(string[i]) for i in range(3)])
        for string in counts
    }
    rare = [s for s, n in expected.items() if n < 5]
    kept = [s for s in counts if s not in rare]
    observed = [counts[s] for s in kept] + ([sum(counts[s] for s in rare)] if rare else [])
    wanted = [expected[s] for s in kept] + ([sum(expected[s] for s in rare)] if rare else [])
    assert stats.chisquare(observed, wanted).pvalue > 1e-4


def test_a_near_draft_is_accepted_nearly_always_and_an_equal_one_always() -> None:
    """Coupling, not only exactness: a draft drawn with the same noise agrees with the target."""
    random = np.random.default_rng(0)
    sampler = Sampler(SamplingParams(top_k=0, top_p=1.0, min_p=0.0, temperature=1.0))
    agreed, overlap = 0, 0.0
    for position in range(2000):
        row = random.normal(0.0, 2.0, 400).astype(np.float32)
        near = row + random.normal(0.0, 0.25, 400).astype(np.float32)
        p, q = sampler.distribution(row, []), sampler.distribution(near, [])
        noise = SharedNoise(7)
        assert noise.children(p, position, 1) == [noise.pick(p, position)]
        agreed += noise.pick(p, position) == noise.pick(q, position)
        overlap += float(np.minimum(p.probs, q.at(p.ids)).sum())
    # (1 - TV) / (1 + TV) is Daliri et al.'s bound
    distance = 1.0 - overlap / 2000
    assert agreed / 2000 > (1.0 - distance) / (1.0 + distance)
    assert agreed / 2000 < 1.0
