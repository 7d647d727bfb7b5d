"""Where the randomness of a generation comes from: the kinds of chance that rules are paired with.

`SharedNoise` gives target and drafts the same Gumbel noise at a position, so that the text is a
function of the seed alone (drafter-invariant coupling, Daliri, Musco and Suresh 2024, arXiv
2408.07978). The others draw from an ordinary stream.
"""

import numpy as np
from numpy.typing import NDArray

from specllama.sampling.distribution import Distribution, FloatArray, IntArray

_MASK = 2**64 - 1
# The multipliers of the 64-bit finaliser "moremur" (P. Evensen), and odd constants with balanced
# bits that keep the three coordinates of the key apart.
_MIX_FIRST, _MIX_SECOND = 0x3C79AC492BA7B653, 0x1C69B3F74AC4AE35
_SEED_STEP, _POSITION_STEP, _TOKEN_STEP = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F


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
        if len(law.ids) == 1:
            return int(law.ids[0])
        return int(law.ids[np.argmin(self.exponentials(law.ids, position) / law.probs)])

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        """The `count` tokens with the largest log-probability plus noise, best first.

        This is a sample without replacement (Gumbel top-k, Kool et al. 2019) whose first element
        is what `pick` would give.
        """
        if count == 1 or len(law.ids) == 1:
            return [self.pick(law, position)]
        return _smallest(law.ids, self.exponentials(law.ids, position) / law.probs, count)

    def exponentials(self, ids: IntArray, position: int) -> FloatArray:
        """Independent standard exponentials of the ids, float64 [n], all above 0.

        With E exponential, -log E is Gumbel: argmax(log p - log E) is argmin(E / p).
        """
        uniforms: FloatArray = self.uniforms(ids, position)
        np.log(uniforms, out=uniforms)
        return np.negative(uniforms, out=uniforms)

    def uniforms(self, ids: IntArray, position: int) -> FloatArray:
        """Independent uniforms of the open interval (0, 1), float64 [n]."""
        key = np.uint64(_mix(self._key + position * _POSITION_STEP & _MASK))
        bits = ids.astype(np.uint64)
        bits *= np.uint64(_TOKEN_STEP)
        bits += key
        _mix_in_place(bits)
        # 52 bits, not 53: adding a half stays exact, so that 1 is never reached
        bits >>= np.uint64(12)
        uniforms = bits.astype(np.float64)
        uniforms += 0.5
        uniforms *= 2.0**-52
        return uniforms


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
        reached = np.cumsum(law.probs)
        place = int(np.searchsorted(reached, self._random.random() * reached[-1], "right"))
        return int(law.ids[min(place, len(law.ids) - 1)])

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


def _smallest(ids: IntArray, scores: FloatArray, count: int) -> list[int]:
    """The ids of the `count` smallest scores, smallest first, ties by lowest id."""
    chosen = np.arange(len(ids))
    if count < len(ids):
        chosen = np.flatnonzero(scores <= np.partition(scores, count - 1)[count - 1])
    order = chosen[np.argsort(scores[chosen], kind="stable")][:count]
    return [int(token) for token in ids[order]]


def _mix(bits: int) -> int:
    bits = (bits ^ bits >> 27) * _MIX_FIRST & _MASK
    bits = (bits ^ bits >> 33) * _MIX_SECOND & _MASK
    return bits ^ bits >> 27


def _mix_in_place(bits: NDArray[np.uint64]) -> None:
    """`_mix` of every element."""
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_MIX_FIRST)
    bits ^= bits >> np.uint64(33)
    bits *= np.uint64(_MIX_SECOND)
    bits ^= bits >> np.uint64(27)
