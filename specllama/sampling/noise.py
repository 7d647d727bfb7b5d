"""Where the randomness of a generation comes from: the kinds of chance that rules are paired with.

`SharedNoise` gives target and drafts the same Gumbel noise at a position, so that the text is a
function of the seed alone (drafter-invariant coupling, Daliri, Musco and Suresh 2024, arXiv
2408.07978). The others draw from an ordinary stream.
"""

import math

import numpy as np
from numpy.typing import NDArray

from specllama.sampling.distribution import Distribution, FloatArray, IntArray

_MASK = 2**64 - 1
# The multipliers of P. Evensen's 64-bit finaliser "moremur", and odd constants with balanced bits.
_MIX_FIRST, _MIX_SECOND = 0x3C79AC492BA7B653, 0x1C69B3F74AC4AE35
_SEED_STEP, _POSITION_STEP = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
# Ids handled at a time: the passes stay in the cache, and no call allocates megabytes.
_CHUNK = 1 << 15
# Laws up to this size take a logarithm of every element without asking which ones matter.
_FEW = 512
_VERY_FEW = 24


class SharedNoise:
    """Gumbel noise keyed by (seed, absolute position, token id); it has no state at all.

    `pick` is argmax(log p + g): a draw from p, since the Gumbel maximum has that law. Whoever draws
    at the same position with a similar law tends to draw the same token, and the target's own
    draw never depends on what a draft did. It offers no coin: a rule that tests a draft with
    a coin needs randomness independent of the draft's.
    """

    __slots__ = ("_key",)

    def __init__(self, seed: int) -> None:
        self._key = _mix(seed + _SEED_STEP & _MASK)

    def pick(self, law: Distribution, position: int) -> int:
        """The token with the largest log-probability plus noise; ties by lowest id."""
        return self.children(law, position, 1)[0]

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        """The `count` tokens with the largest log-probability plus noise, best first.

        This is a sample without replacement (Gumbel top-k, Kool et al. 2019) whose first element
        is what `pick` gives. With E exponential, -log E is Gumbel noise, so that the largest
        log p + g is the smallest E / p.
        """
        if len(law.ids) == 1:
            return [int(law.ids[0])]
        if len(law.ids) <= _VERY_FEW:
            return self._children_of_few(law, position, count)
        key = self._position_key(position)
        slices = [slice(start, start + _CHUNK) for start in range(0, len(law.ids), _CHUNK)]
        parts = [_contenders(law.ids[part], law.probs[part], key, count) for part in slices]
        ids = np.concatenate([part[0] for part in parts])
        return _smallest(ids, np.concatenate([part[1] for part in parts]), count)

    def _children_of_few(self, law: Distribution, position: int, count: int) -> list[int]:
        """The same in plain Python: after a decode, array calls are slow (see chain.py)."""
        key = int(self._position_key(position))
        scores = []
        for token, prob in zip(law.ids.tolist(), law.probs.tolist(), strict=True):
            uniform = ((_mix(key + token & _MASK) >> 12) + 0.5) * 2.0**-52
            scores.append((max(-math.log1p(-uniform), uniform) / prob, token))
        if count == 1:
            return [min(scores)[1]]
        return [token for _, token in sorted(scores)[:count]]

    def uniforms(self, ids: IntArray, position: int) -> FloatArray:
        """The noise itself: uniforms of the open interval (0, 1), float64 [n], keyed by id."""
        return _uniforms(ids, self._position_key(position))

    def _position_key(self, position: int) -> np.uint64:
        return np.uint64(_mix(self._key + position * _POSITION_STEP & _MASK))


class RandomStream:
    """A stream of random numbers: what a rule that tests drafts with coins needs.

    The same seed repeats a run only with the same drafts, since each draft uses up numbers.
    """

    __slots__ = ("_random",)

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def flip(self, probability: float) -> bool:
        """True with the given probability (clamped to 0..1)."""
        return self._random.random() < probability

    def pick(self, law: Distribution, position: int) -> int:
        """Draw a token; the position does not matter."""
        if len(law.ids) == 1:
            return int(law.ids[0])
        uniform = self._random.random()
        if len(law.ids) <= _VERY_FEW:
            return int(law.ids[_inverse_of_few(law.probs.tolist(), uniform)])
        return int(law.ids[_inverse(law.probs, uniform)])

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        """Draw up to `count` distinct tokens without replacement, in drawn order."""
        if count == 1 or len(law.ids) == 1:
            return [self.pick(law, position)]
        arrivals = self._random.standard_exponential(len(law.ids)) / law.probs
        return _smallest(law.ids, arrivals, count)


class GreedyDrafts(RandomStream):
    """A stream for the target's draws, while drafts are the most probable tokens."""

    __slots__ = ()

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        """The `count` most probable tokens, most probable first."""
        return law.top(count)


class IndependentDrafts(RandomStream):
    """A stream whose siblings are independent draws, so that one may come twice."""

    __slots__ = ()

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        """`count` tokens drawn with replacement; one where the law leaves no choice."""
        if len(law.ids) == 1:
            count = 1
        return [self.pick(law, position) for _ in range(count)]


class GreedyPlusOne(RandomStream):
    """A stream whose siblings are the most probable tokens and one drawn from the others."""

    __slots__ = ()

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        """The `count` - 1 most probable tokens, then one drawn from the rest, if there is any."""
        tokens = law.top(count - 1) if count > 1 else []
        rest: Distribution | None = law
        for token in tokens:
            rest = rest and rest.without(token)
        return tokens if rest is None else [*tokens, self.pick(rest, position)]


def _contenders(
    ids: IntArray, probs: FloatArray, key: np.uint64, count: int
) -> tuple[IntArray, FloatArray]:
    """Ids and scores E / p that hold at least the `count` smallest scores, ids rising."""
    uniforms = _uniforms(ids, key)
    if len(ids) > _FEW:
        # E >= u, so the `count` smallest u / p bound the scores worth a logarithm
        floors = uniforms / probs
        first = _lowest(floors, count)
        near = np.flatnonzero(floors <= (_exponential(uniforms[first]) / probs[first]).max())
        ids, probs, uniforms = ids[near], probs[near], uniforms[near]
    return ids, _exponential(uniforms) / probs


def _uniforms(ids: IntArray, key: np.uint64) -> FloatArray:
    """Uniforms of the open interval (0, 1): the top 52 bits of a hash of key + id, plus a half.

    A 53rd bit would make the addition of the half round, at worst to 1.
    """
    bits = _mixed(ids.view(np.uint64) + key)
    bits >>= np.uint64(12)
    uniforms = bits.view(np.int64).astype(np.float64)
    uniforms += 0.5
    uniforms *= 2.0**-52
    return uniforms


def _smallest(ids: IntArray, scores: FloatArray, count: int) -> list[int]:
    """The ids of the `count` smallest scores, smallest first, ties by lowest id."""
    if count == 1:
        return [int(ids[np.argmin(scores)])]
    chosen = _lowest(scores, count)
    order = chosen[np.argsort(scores[chosen], kind="stable")][:count]
    return [int(token) for token in ids[order]]


def _lowest(scores: FloatArray, count: int) -> IntArray:
    """Positions, rising, of every score not above the `count`-th smallest."""
    if count >= len(scores):
        return np.arange(len(scores))
    edge = scores.min() if count == 1 else np.partition(scores, count - 1)[count - 1]
    return np.flatnonzero(scores <= edge)


def _inverse(probs: FloatArray, uniform: float) -> int:
    """The position where the running sum of `probs` passes `uniform` of its total."""
    blocks = np.add.reduceat(probs, np.arange(0, len(probs), _FEW))
    reached = np.cumsum(blocks)
    aim = uniform * reached[-1]
    block = min(int(np.searchsorted(reached, aim, "right")), len(blocks) - 1)
    aim -= reached[block] - blocks[block]
    inside = probs[block * _FEW : (block + 1) * _FEW]
    place = int(np.searchsorted(np.cumsum(inside), aim, "right"))
    return block * _FEW + min(place, len(inside) - 1)


def _inverse_of_few(probs: list[float], uniform: float) -> int:
    """The same in plain Python."""
    aim = uniform * math.fsum(probs)
    for place, prob in enumerate(probs):
        aim -= prob
        if aim < 0.0:
            return place
    return len(probs) - 1


def _exponential(uniforms: FloatArray) -> FloatArray:
    """Standard exponentials, never below their uniforms (a rounded logarithm might be)."""
    return np.maximum(-np.log1p(-uniforms), uniforms)


def _mix(bits: int) -> int:
    bits = (bits ^ bits >> 27) * _MIX_FIRST & _MASK
    bits = (bits ^ bits >> 33) * _MIX_SECOND & _MASK
    return bits ^ bits >> 27


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`_mix` of every element, in place."""
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_MIX_FIRST)
    bits ^= bits >> np.uint64(33)
    bits *= np.uint64(_MIX_SECOND)
    bits ^= bits >> np.uint64(27)
    return bits
