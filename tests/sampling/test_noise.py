"""The kinds of chance: are the numbers as random, and as repeatable, as the rules assume?

All seeds are fixed, so that a p-value below the limit is a finding and not bad luck.
"""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from specllama.sampling.distribution import FEW, Distribution
from specllama.sampling.noise import (
    GreedyDrafts,
    GreedyPlusOne,
    IndependentDrafts,
    RandomStream,
    SharedNoise,
)

SEEDS = [0, 1, 2, 41, 2**32, 2**63, 2**64 - 2, 2**64 - 1]
LIMIT = 1e-4


def law(*probabilities: float) -> Distribution:
    return Distribution(np.arange(len(probabilities)), np.array(probabilities))


SKEWED = law(0.5, 0.25, 0.15, 0.07, 0.03)


def chi_square(tokens: list[int], expected: Distribution) -> float:
    counts = np.bincount(tokens, minlength=len(expected.ids))
    return float(stats.chisquare(counts, len(tokens) * expected.probs).pvalue)


def independent(first: np.ndarray, second: np.ndarray) -> float:
    """p-value of a 16 x 16 table of two uniform samples against independence and uniformity."""
    cells = np.histogram2d(first, second, bins=16, range=[[0, 1], [0, 1]])[0]
    return float(stats.chisquare(cells.ravel()).pvalue)


# --- shared noise: the numbers


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("position", [0, 1, 4096])
def test_noise_is_uniform(seed: int, position: int) -> None:
    uniforms = SharedNoise(seed).uniforms(np.arange(100_000), position)
    assert uniforms.min() > 0.0
    assert uniforms.max() < 1.0
    assert stats.kstest(uniforms, "uniform").pvalue > LIMIT
    assert stats.kstest(uniforms * 1024 % 1.0, "uniform").pvalue > LIMIT


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_uniform_along_the_positions_of_one_token(seed: int) -> None:
    noise, token = SharedNoise(seed), np.array([17])
    uniforms = np.array([noise.uniforms(token, position)[0] for position in range(5000)])
    assert stats.kstest(uniforms, "uniform").pvalue > LIMIT
    assert independent(uniforms[:-1], uniforms[1:]) > LIMIT


@pytest.mark.parametrize("token", [0, 1, 50_000])
def test_noise_is_uniform_along_the_seeds(token: int) -> None:
    ids = np.array([token])
    uniforms = np.array([SharedNoise(seed).uniforms(ids, 3)[0] for seed in range(5000)])
    assert stats.kstest(uniforms, "uniform").pvalue > LIMIT
    assert independent(uniforms[:-1], uniforms[1:]) > LIMIT


IDS = np.arange(60_000)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lag", [1, 2, 64, 1024])
def test_ids_are_independent(seed: int, lag: int) -> None:
    uniforms = SharedNoise(seed).uniforms(IDS, 5)
    assert independent(uniforms[:-lag], uniforms[lag:]) > LIMIT


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("step", [1, 2, 1000, 2**20])
def test_positions_are_independent(seed: int, step: int) -> None:
    noise = SharedNoise(seed)
    here, there = noise.uniforms(IDS, 7), noise.uniforms(IDS, 7 + step)
    assert independent(here, there) > LIMIT
    # nor is one position the other moved along by an id
    assert independent(here[1:], there[:-1]) > LIMIT
    assert independent(here[:-1], there[1:]) > LIMIT


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("step", [1, 2, 2**31, 2**63])
def test_neighbouring_seeds_are_independent(seed: int, step: int) -> None:
    here = SharedNoise(seed).uniforms(IDS, 7)
    there = SharedNoise((seed + step) % 2**64).uniforms(IDS, 7)
    assert independent(here, there) > LIMIT


def test_every_key_bit_changes_half_of_the_noise_bits() -> None:
    """Avalanche: one bit of seed, position or id flips each of the top 40 bits half of the time."""
    random = np.random.default_rng(0)

    def bits(seed: int, position: int, token: int) -> int:
        return int(SharedNoise(seed).uniforms(np.array([token]), position)[0] * 2**40)

    flips = np.zeros(40)
    trials = 0
    for _ in range(40):
        seed = int(random.integers(2**63))
        position, token = int(random.integers(2**17)), int(random.integers(2**18))
        base = bits(seed, position, token)
        changed = [bits(seed ^ 1 << b, position, token) for b in range(64)]
        changed += [bits(seed, position ^ 1 << b, token) for b in range(17)]
        changed += [bits(seed, position, token ^ 1 << b) for b in range(18)]
        for other in changed:
            flips += [(base ^ other) >> b & 1 for b in range(40)]
            trials += 1
    # five standard deviations around one half
    assert np.abs(flips / trials - 0.5).max() < 2.5 / np.sqrt(trials)


def test_noise_belongs_to_the_id_and_not_to_its_place_in_a_law() -> None:
    noise = SharedNoise(3)
    all_of_them = noise.uniforms(np.arange(100_000), 9)
    some = np.array([0, 5, 40_000, 99_999])
    np.testing.assert_array_equal(noise.uniforms(some, 9), all_of_them[some])


def test_noise_does_not_change_between_versions() -> None:
    """A seed is a promise to repeat a text: these numbers stay."""
    found = SharedNoise(42).uniforms(np.array([0, 1, 49_151]), 7)
    assert found.tolist() == [0.927073019490206, 0.8600429538022384, 0.05483381309412805]


# --- shared noise: the draws


@pytest.mark.parametrize("seed", SEEDS)
def test_picks_have_the_law_along_positions(seed: int) -> None:
    noise = SharedNoise(seed)
    assert chi_square([noise.pick(SKEWED, position) for position in range(8000)], SKEWED) > LIMIT


@pytest.mark.parametrize("position", [0, 1, 999])
def test_picks_have_the_law_along_seeds(position: int) -> None:
    tokens = [SharedNoise(seed).pick(SKEWED, position) for seed in range(8000)]
    assert chi_square(tokens, SKEWED) > LIMIT


def big_law(size: int, seed: int, power: float = 1.0, *, whole: bool = False) -> Distribution:
    """The smaller the power, the fewer tokens have nearly everything."""
    weights = np.random.default_rng(seed).pareto(power, size) + 1e-6
    ids = np.arange(size) if whole else np.arange(size) * 3 + 1
    return Distribution(ids, weights / weights.sum())


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 50.0])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("size", [2, 511, 512, 513, 5000, 40_000])
def test_draws_are_the_smallest_exponentials_over_probabilities(
    size: int, whole: bool, power: float
) -> None:
    """The short cuts for long laws change nothing."""
    for seed in range(5):
        law, noise = big_law(size, seed, power, whole=whole), SharedNoise(seed)
        scores = -np.log1p(-noise.uniforms(law.ids, seed)) / law.probs
        best_first = law.ids[np.argsort(scores)].tolist()
        assert noise.pick(law, seed) == best_first[0]
        for count in (1, 2, 7, size, size + 5):
            assert noise.children(law, seed, count) == best_first[:count]


def test_a_vocabulary_may_cross_a_carry_of_its_hash() -> None:
    """The short cut for whole vocabularies holds while id and key do not carry into bit 27."""
    noise, size = SharedNoise(0), 5000
    law = big_law(size, 0, whole=True)
    carries = [p for p in range(50_000) if noise._position_key(p) % 2**27 > 2**27 - size]
    assert carries
    for position in carries:
        scores = -np.log1p(-noise.uniforms(law.ids, position)) / law.probs
        assert noise.children(law, position, 3) == law.ids[np.argsort(scores)[:3]].tolist()


def test_picks_from_a_long_law_have_that_law() -> None:
    law = big_law(3000, 0)
    noise = SharedNoise(8)
    heavy = law.top(15)
    drawn = Counter(noise.pick(law, position) for position in range(6000))
    observed = [drawn[token] for token in heavy]
    expected = [6000 * law.prob(token) for token in heavy]
    observed.append(6000 - sum(observed))
    expected.append(6000 - sum(expected))
    assert min(expected) > 5
    assert stats.chisquare(observed, expected).pvalue > LIMIT


# --- all kinds


def ordered_pairs(pairs: list[tuple[int, ...]], law: Distribution) -> float:
    """p-value of pairs against drawing twice without replacement."""
    p = law.probs
    counts = Counter(pairs)
    keys = list(permutations(range(len(p)), 2))
    expected = [len(pairs) * p[a] * p[b] / (1.0 - p[a]) for a, b in keys]
    return float(stats.chisquare([counts[key] for key in keys], expected).pvalue)


def test_children_of_shared_noise_are_drawn_without_replacement() -> None:
    noise = SharedNoise(11)
    pairs = [tuple(noise.children(SKEWED, position, 2)) for position in range(8000)]
    assert ordered_pairs(pairs, SKEWED) > LIMIT


def test_children_of_a_stream_are_drawn_without_replacement() -> None:
    stream = RandomStream(11)
    pairs = [tuple(stream.children(SKEWED, 0, 2)) for _ in range(8000)]
    assert ordered_pairs(pairs, SKEWED) > LIMIT


@pytest.mark.parametrize("kind", [RandomStream, GreedyDrafts])
@pytest.mark.parametrize("seed", SEEDS)
def test_picks_of_a_stream_have_the_law(kind: type[RandomStream], seed: int) -> None:
    stream = kind(seed)
    assert chi_square([stream.pick(SKEWED, 0) for _ in range(8000)], SKEWED) > LIMIT


def test_single_children_of_a_stream_have_the_law() -> None:
    stream = RandomStream(1)
    assert chi_square([stream.children(SKEWED, 0, 1)[0] for _ in range(8000)], SKEWED) > LIMIT


@pytest.mark.parametrize("size", [511, 512, 513, 1024, 1500])
def test_a_stream_picks_from_long_laws(size: int) -> None:
    """Uneven blocks of the running sum, with a heavy token at each end."""
    weights = np.ones(size)
    weights[[0, -1]] = size
    law = Distribution(np.arange(size) + 5, weights / weights.sum())
    stream = RandomStream(2)
    tokens = np.array([stream.pick(law, 0) for _ in range(6000)]) - 5
    groups = np.where(tokens == 0, 0, np.where(tokens == size - 1, 3, 1 + (tokens > size // 2)))
    middle = size // 2
    expected = np.array([size, middle, size - 2 - middle, size]) / weights.sum()
    assert stats.chisquare(np.bincount(groups, minlength=4), 6000 * expected).pvalue > LIMIT
    assert len(set(tokens.tolist())) > size // 2


@pytest.mark.parametrize("kind", [RandomStream, GreedyDrafts, IndependentDrafts, SharedNoise])
@pytest.mark.parametrize("n_before", [0, 1, 63, 64, 65, 200])
def test_going_back_repeats_what_came(kind: type[RandomStream], n_before: int) -> None:
    chance = kind(9)

    def draws(first: int, count: int) -> list[int]:
        return [chance.pick(SKEWED, position) for position in range(first, first + count)]

    draws(0, n_before)
    place = chance.place
    after = draws(n_before, 90)
    chance.go_back(place)
    assert draws(n_before, 90) == after


def test_flips_have_their_probability_and_sure_ones_are_sure() -> None:
    stream = RandomStream(4)
    heads = sum(stream.flip(0.3) for _ in range(8000))
    assert stats.binomtest(heads, 8000, 0.3).pvalue > LIMIT
    assert all(stream.flip(1.0) and stream.flip(1.5) for _ in range(1000))
    assert not any(stream.flip(0.0) or stream.flip(-0.5) for _ in range(1000))


def test_greedy_drafts_are_the_most_probable_tokens() -> None:
    chance = GreedyDrafts(0)
    assert chance.children(law(0.2, 0.5, 0.3), 0, 2) == [1, 2]
    assert chance.children(law(0.2, 0.5, 0.3), 0, 9) == [1, 2, 0]


@pytest.mark.parametrize("chance", [SharedNoise(1), RandomStream(1), GreedyDrafts(1)])
@pytest.mark.parametrize("count", [1, 3])
def test_a_certain_token_is_drawn(chance: SharedNoise | RandomStream, count: int) -> None:
    point = Distribution.point(77)
    assert chance.pick(point, 5) == 77
    assert chance.children(point, 5, count) == [77]


@pytest.mark.parametrize("kind", [SharedNoise, RandomStream, GreedyDrafts])
def test_children_are_distinct_and_at_most_all(
    kind: type[SharedNoise] | type[RandomStream],
) -> None:
    chance = kind(3)
    for count in (1, 2, 5, 9):
        children = chance.children(SKEWED, 0, count)
        assert len(children) == len(set(children)) == min(count, 5)


@pytest.mark.parametrize("kind", [RandomStream, GreedyDrafts])
def test_a_stream_repeats_with_its_seed(kind: type[RandomStream]) -> None:
    def draws(seed: int) -> list[int]:
        stream = kind(seed)
        return [stream.pick(SKEWED, 0) for _ in range(50)]

    assert draws(2**64 - 1) == draws(2**64 - 1)
    assert draws(0) != draws(1)


@pytest.mark.parametrize("size", [FEW, FEW + 1, 5000])
def test_one_more_than_the_greedy_drafts_comes_from_the_rest(size: int) -> None:
    law = big_law(size, 1)
    greedy = law.top(3)
    rest = law.without(*greedy)
    assert rest is not None
    for seed in range(50):
        drafts = GreedyPlusOne(seed).children(law, 0, 4)
        assert drafts == [*greedy, RandomStream(seed).pick(rest, 0)]
        assert drafts[-1] not in greedy
    assert GreedyPlusOne(0).children(law, 0, size + 1) == law.top(size)
