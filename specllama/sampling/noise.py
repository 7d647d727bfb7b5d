"""Where the randomness of a generation comes from: the kinds of chance that rules are paired with.

`SharedNoise` gives target and drafts the same Gumbel noise at a position, so that the text is a
function of the seed alone (drafter-invariant coupling, Daliri, Musco and Suresh 2024, arXiv
2408.07978). The others draw from an ordinary stream.
"""

import math

import numpy as np
from numpy.typing import NDArray

from specllama.sampling.columns import Columns
from specllama.sampling.distribution import FEW, Distribution, FloatArray, IntArray
from specllama.sampling.urn import Urn, urn

_MASK = 2**64 - 1
# The multipliers of P. Evensen's 64-bit finaliser "moremur", and odd constants with balanced bits.
_MIX_FIRST, _MIX_SECOND = 0x3C79AC492BA7B653, 0x1C69B3F74AC4AE35
# The finaliser's numbers as arrays: a Python number or a numpy scalar is made one at every use.
_FIRST, _SECOND = np.array(_MIX_FIRST, np.uint64), np.array(_MIX_SECOND, np.uint64)
_BY_27, _BY_33, _BY_12 = (np.array(bits, np.uint64) for bits in (27, 33, 12))
_ONE_BITS, _ALMOST_ONE = np.array(1.0).view(np.uint64), np.array(1.0 - 2.0**-53)
_SEED_STEP, _POSITION_STEP = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
# Ids hashed at a time: the passes stay in the cache, and no call allocates megabytes.
_CHUNK = 1 << 14
# Noise that is kept: numbers of whole vocabularies, and positions of a few tokens each.
_KEPT_NUMBERS = 1 << 19
_KEPT_POSITIONS = 64
_AHEAD = 64


class SharedNoise:
    """Gumbel noise keyed by (seed, absolute position, token id); it has no state at all.

    `pick` is argmax(log p + g): a draw from p, since the Gumbel maximum has that law. Whoever draws
    at the same position with a similar law tends to draw the same token, and the target's own
    draw never depends on what a draft did. It offers no coin: a rule that tests a draft with
    a coin needs randomness independent of the draft's.
    """

    __slots__ = ("_few", "_key", "_scratch", "_whole")

    def __init__(self, seed: int) -> None:
        self._key = _mix(seed + _SEED_STEP & _MASK)
        # what was computed lately, by position: a draft's noise is the target's, and its siblings'
        self._few: dict[int, dict[int, float]] = {}
        self._whole: dict[int, FloatArray] = {}
        self._scratch = np.empty(0)

    def pick(self, law: Distribution, position: int) -> int:
        """The token with the largest log-probability plus noise; ties by lowest id."""
        return self.children(law, position, 1)[0]

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        """The `count` tokens with the largest log-probability plus noise, best first.

        This is a sample without replacement (Gumbel top-k, Kool et al. 2019) whose first element
        is what `pick` gives. With E exponential, -log E is Gumbel noise, so that the largest
        log p + g is the smallest E / p.
        """
        if len(law) == 1:
            return law.lists[0][:]
        if len(law) <= FEW:
            return self._children_of_few(law, position, count)
        ids, probs = law.ids, law.probs
        uniforms = self.uniforms(ids, position)
        # E >= u, so that floors u / p are below the scores, and few places can have small ones
        floors = Columns(np.divide(uniforms, probs, out=self._room(len(ids))))
        first = floors.some_low(count).tolist()
        bound = max([_exponential(float(uniforms[at])) / float(probs[at]) for at in first])
        near = floors.not_above(bound)
        scores = [
            _exponential(uniform) / prob
            for uniform, prob in zip(uniforms[near].tolist(), probs[near].tolist(), strict=True)
        ]
        order = sorted(range(len(scores)), key=scores.__getitem__)
        return [int(ids[near[place]]) for place in order[:count]]

    def _room(self, count: int) -> FloatArray:
        """Where results of that length may be written: fresh memory costs more than a pass."""
        if len(self._scratch) < count:
            self._scratch = np.empty(count)
        return self._scratch[:count]

    def _children_of_few(self, law: Distribution, position: int, count: int) -> list[int]:
        """The same in plain Python, in one loop: each function called takes memory's time."""
        ids, probs = law.lists
        known, key = self._known(position), self._position_key(position)
        scores = []
        for place, token in enumerate(ids):
            found = known.get(token)
            if found is None:
                bits = key + token & _MASK  # `_mix`, and what `_uniforms` makes of it
                bits = (bits ^ bits >> 27) * _MIX_FIRST & _MASK
                bits = (bits ^ bits >> 33) * _MIX_SECOND & _MASK
                uniform = (((bits ^ bits >> 27) >> 12) + 0.5) * 2.0**-52
                found = known[token] = _exponential(uniform)
            scores.append(found / probs[place])
        if count == 1:
            return [ids[scores.index(min(scores))]]
        order = sorted(range(len(ids)), key=scores.__getitem__)
        return [ids[place] for place in order[:count]]

    def _known(self, position: int) -> dict[int, float]:
        """The exponentials of some tokens at a position."""
        known = self._few.get(position)
        if known is None:
            if len(self._few) == _KEPT_POSITIONS:
                del self._few[next(iter(self._few))]
            known = self._few[position] = {}
        return known

    def uniforms(self, ids: IntArray, position: int) -> FloatArray:
        """The noise itself: uniforms of the open interval (0, 1), float64 [n], keyed by id."""
        if int(ids[0]) != 0 or int(ids[-1]) != len(ids) - 1:
            return _uniforms(ids, np.uint64(self._position_key(position)))
        kept = self._whole.get(position)
        if kept is None or len(kept) < len(ids):
            kept = _uniforms(ids, np.uint64(self._position_key(position)))
            kept.setflags(write=False)
            while self._whole and (len(self._whole) + 1) * len(ids) > _KEPT_NUMBERS:
                del self._whole[next(iter(self._whole))]
            self._whole[position] = kept
        return kept[: len(ids)]

    def _position_key(self, position: int) -> int:
        return _mix(self._key + position * _POSITION_STEP & _MASK)


class RandomStream:
    """A stream of random numbers: what a rule that tests drafts with coins needs.

    The same seed repeats a run only with the same drafts, since each draft uses up numbers.
    """

    __slots__ = ("_ahead", "_random", "_urn", "_urn_of")

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        # uniforms to come, the next one last: the generator makes many in the time of a few
        self._ahead: list[float] = []
        # of the law drawn from last, for siblings that are independent draws
        self._urn: Urn | None = None
        self._urn_of: Distribution | None = None

    def _uniform(self) -> float:
        if not self._ahead:
            self._ahead = self._random.random(_AHEAD)[::-1].tolist()
        return self._ahead.pop()

    def flip(self, probability: float) -> bool:
        """True with the given probability (clamped to 0..1)."""
        return self._uniform() < probability

    def pick(self, law: Distribution, position: int) -> int:
        """Draw a token; the position does not matter."""
        if len(law) == 1:
            return law.id_at(0)
        if self._urn is None or self._urn_of is not law:
            self._urn, self._urn_of = urn(law), law
        return law.id_at(self._urn.draw(self._uniform()))

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        """Draw up to `count` distinct tokens without replacement, in drawn order."""
        if count == 1 or len(law) == 1:
            return [self.pick(law, position)]
        left = urn(law)
        tokens: list[int] = []
        for _ in range(min(count, len(law)) - 1):
            place = left.draw(self._uniform())
            left.take_out(place)
            tokens.append(law.id_at(place))
        return [*tokens, law.id_at(left.draw(self._uniform()))]


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
        if len(law) == 1:
            count = 1
        return [self.pick(law, position) for _ in range(count)]


class GreedyPlusOne(RandomStream):
    """A stream whose siblings are the most probable tokens and one drawn from the others."""

    __slots__ = ()

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        """The `count` - 1 most probable tokens, then one drawn from the rest, if there is any."""
        tokens = law.top(count - 1) if count > 1 else []
        if len(law) <= FEW:
            rest = law.without(*tokens)
            return tokens if rest is None else [*tokens, self.pick(rest, position)]
        left = urn(law)
        for token in tokens:
            left.take_out(law.place(token))
        return [*tokens, law.id_at(left.draw(self._uniform()))] if left.has_any else tokens


def _uniforms(ids: IntArray, key: np.uint64) -> FloatArray:
    """Uniforms of the open interval (0, 1): the top 52 bits of a hash of key + id, plus a half.

    A 53rd bit would make the addition of the half round, at worst to 1.
    """
    uniforms = np.empty(len(ids))
    for start in range(0, len(ids), _CHUNK):
        part = uniforms[start : start + _CHUNK]
        bits = part.view(np.uint64)
        np.add(ids[start : start + _CHUNK].view(np.uint64), key, out=bits)
        _mix_all(bits)
        # as the fraction of a number in [1, 2), from which 1 - 2**-53 is taken away exactly
        bits >>= _BY_12
        bits |= _ONE_BITS
        part -= _ALMOST_ONE
    return uniforms


def _exponential(uniform: float) -> float:
    """A standard exponential, never below its uniform (a rounded logarithm might be).

    Always by the same logarithm: numpy's may differ in the last bit, and who asks first may not
    change a draw.
    """
    found = -math.log1p(-uniform)
    return found if found > uniform else uniform


def _mix(bits: int) -> int:
    bits = (bits ^ bits >> 27) * _MIX_FIRST & _MASK
    bits = (bits ^ bits >> 33) * _MIX_SECOND & _MASK
    return bits ^ bits >> 27


def _mix_all(bits: NDArray[np.uint64]) -> None:
    """`_mix` of every element, in place."""
    shifted = bits >> _BY_27
    bits ^= shifted
    bits *= _FIRST
    np.right_shift(bits, _BY_33, out=shifted)
    bits ^= shifted
    bits *= _SECOND
    np.right_shift(bits, _BY_27, out=shifted)
    bits ^= shifted
