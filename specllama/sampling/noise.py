"""Where the randomness of a generation comes from: the kinds of chance that rules are paired with.

`SharedNoise` gives target and drafts the same Gumbel noise at a position, so that the text is a
function of the seed alone (drafter-invariant coupling, Daliri, Musco and Suresh 2024, arXiv
2408.07978). The others draw from an ordinary stream.
"""

import math

import numpy as np
from numpy.typing import NDArray

from specllama.sampling import columns
from specllama.sampling.distribution import FEW, Distribution, FloatArray, IntArray
from specllama.sampling.urn import Urn, urn

_MASK = 2**64 - 1
# The multipliers of P. Evensen's 64-bit finaliser "moremur", and odd constants with balanced bits.
_MIX_FIRST, _MIX_SECOND = 0x3C79AC492BA7B653, 0x1C69B3F74AC4AE35
# The finaliser's numbers as arrays: a Python number or a numpy scalar is made one at every use.
_FIRST, _SECOND = np.array(_MIX_FIRST, np.uint64), np.array(_MIX_SECOND, np.uint64)
_BY_27, _BY_33, _BY_37 = (np.array(bits, np.uint64) for bits in (27, 33, 37))
_SEED_STEP, _POSITION_STEP = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
# Ids hashed at a time, so that the passes stay in the cache, and the length of a table's rows.
_CHUNK, _ROW = 1 << 14, 1 << 12
# Columns looked into first, and their numbers, for each token wanted: nearly always enough.
_FIRST_COLUMNS, _FIRST_PLACES = 16, 4
# Floors of uniforms are the top 27 bits of their hashes.
_FLOOR_UNITS = 2.0**27
# Noise that is kept: numbers of whole vocabularies, and positions of a few tokens each.
_KEPT_NUMBERS = 1 << 19
_KEPT_POSITIONS = 64
_AHEAD = 64

# Unfinished hashes of the ids of a law, and for each of their columns a floor of the uniforms.
_Hashes = tuple[NDArray[np.uint64], FloatArray]


class SharedNoise:
    """Gumbel noise keyed by (seed, absolute position, token id); it has no state at all.

    `pick` is argmax(log p + g): a draw from p, since the Gumbel maximum has that law. Whoever draws
    at the same position with a similar law tends to draw the same token, and the target's own
    draw never depends on what a draft did. It offers no coin: a rule that tests a draft with
    a coin needs randomness independent of the draft's.
    """

    __slots__ = ("_few", "_key", "_whole")

    def __init__(self, seed: int) -> None:
        self._key = _mix(seed + _SEED_STEP & _MASK)
        # what was computed lately, by position: a draft's noise is the target's, and its siblings'
        self._few: dict[int, dict[int, float]] = {}
        self._whole: dict[int, _Hashes] = {}

    @property
    def place(self) -> int:
        """Nothing is ever used up."""
        return 0

    def go_back(self, place: int) -> None:
        """Whatever was drawn comes again anyway."""

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
        return self._children_of_many(law, position, min(count, len(law)))

    def _children_of_many(self, law: Distribution, position: int, count: int) -> list[int]:
        """Only the columns whose scores can be low are looked into, and only such scores there."""
        ids, probs = law.ids, law.probs
        key = self._position_key(position)
        hashes, floors = self._hashes(ids, position)
        # E >= u, so that no score of a column is below its lowest floor over its largest p
        floors = floors / columns.maxima(probs)
        n_columns, n_places = _FIRST_COLUMNS * count, _FIRST_PLACES * count
        while True:
            chosen, next_column = _least(floors, n_columns)
            places = columns.places(chosen, len(ids))
            chosen, next_place = _least((hashes[places] >> _BY_37) / probs[places], n_places)
            places = places[chosen]
            scores = [
                (_exponential(_uniform(key + token)) / prob, token)
                for token, prob in zip(ids[places].tolist(), probs[places].tolist(), strict=True)
            ]
            best = sorted(scores)[:count]
            if best[-1][0] * _FLOOR_UNITS < min(next_column, next_place):
                return [token for _, token in best]
            n_columns, n_places = 4 * n_columns, 4 * n_places

    def _children_of_few(self, law: Distribution, position: int, count: int) -> list[int]:
        """The same in plain Python, in one loop: each function called takes memory's time."""
        ids, probs = law.lists
        known, key = self._known(position), self._position_key(position)
        scores = []
        for place, token in enumerate(ids):
            found = known.get(token)
            if found is None:
                bits = key + token & _MASK  # `_mix`, and what `_uniform` makes of it
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
        key = self._position_key(position)
        return np.array([_uniform(key + token) for token in ids.tolist()])

    def _hashes(self, ids: IntArray, position: int) -> _Hashes:
        """Kept where the ids are a whole vocabulary."""
        key = self._position_key(position)
        if int(ids[-1]) != len(ids) - 1:
            return _with_floors(_hashes(ids, key))
        kept = self._whole.get(position)
        if kept is None or len(kept[0]) != len(ids):
            while self._whole and (len(self._whole) + 1) * len(ids) > _KEPT_NUMBERS:
                del self._whole[next(iter(self._whole))]
            kept = self._whole[position] = _with_floors(_hashes_from_0(len(ids), key))
        return kept

    def _position_key(self, position: int) -> int:
        return _mix(self._key + position * _POSITION_STEP & _MASK)


class RandomStream:
    """A stream of random numbers: what a rule that tests drafts with coins needs.

    The same seed repeats a run only with the same drafts, since each draft uses up numbers.
    """

    __slots__ = ("_ahead", "_n_made", "_random", "_seed", "_urn", "_urn_of")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._n_made = 0
        # uniforms to come, the next one last: the generator makes many in the time of a few
        self._ahead: list[float] = []
        # of the law drawn from last, for siblings that are independent draws
        self._urn: Urn | None = None
        self._urn_of: Distribution | None = None

    def _uniform(self) -> float:
        if not self._ahead:
            self._make_more()
        return self._ahead.pop()

    def _make_more(self) -> None:
        self._ahead = self._random.random(_AHEAD)[::-1].tolist()
        self._n_made += _AHEAD

    @property
    def place(self) -> int:
        """How many numbers were used up."""
        return self._n_made - len(self._ahead)

    def go_back(self, place: int) -> None:
        """To where so many had been used up: those after them come again."""
        self._random = np.random.default_rng(self._seed)
        self._n_made = 0
        while self._n_made <= place:
            self._make_more()
        del self._ahead[self._n_made - place :]

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


def _uniform(bits: int) -> float:
    """A uniform of the open interval (0, 1): the top 52 bits of a hash, plus a half.

    A 53rd bit would make the addition of the half round, at worst to 1.
    """
    return ((_mix(bits & _MASK) >> 12) + 0.5) * 2.0**-52


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


def _least(values: FloatArray, count: int) -> tuple[IntArray, float]:
    """The places of the `count` smallest values, and the smallest of the others."""
    if count >= len(values):
        return np.arange(len(values)), math.inf
    order = values.argpartition(count)
    return order[:count], float(values[order[count]])


def _with_floors(hashes: NDArray[np.uint64]) -> _Hashes:
    return hashes, (columns.minima(hashes) >> _BY_37).astype(np.float64)


def _hashes(ids: IntArray, key: int) -> NDArray[np.uint64]:
    """`_mix` of key + id, but for its last step, which leaves the top 27 bits alone."""
    hashes = np.empty(len(ids), np.uint64)
    for start in range(0, len(ids), _CHUNK):
        part = hashes[start : start + _CHUNK]
        np.add(ids[start : start + _CHUNK].view(np.uint64), np.array(key, np.uint64), out=part)
        part ^= part >> _BY_27
        part *= _FIRST
        _second_half(part)
    return hashes


def _hashes_from_0(count: int, key: int) -> NDArray[np.uint64]:
    """`_hashes` of the ids below `count`.

    While key + id keeps its bits above the lowest 27, the first half of the hash is the sum of what
    becomes of its higher and of its lowest bits, so that all rows of a table are alike.
    """
    before, above = key % _ROW, key >> 27
    n_rows = -(-(before + count) // _ROW)
    if (key - before + n_rows * _ROW - 1) >> 27 != above:
        return _hashes(np.arange(count), key)
    low = above % _ROW
    rows = np.arange(n_rows, dtype=np.uint64) * _ROW + np.array(key - before, np.uint64)
    rows ^= np.array(above - low, np.uint64)
    row = np.arange(_ROW, dtype=np.uint64) ^ np.array(low, np.uint64)
    hashes = np.add.outer(rows * _FIRST, row * _FIRST)
    for start in range(0, n_rows, _CHUNK // _ROW):
        _second_half(hashes[start : start + _CHUNK // _ROW])
    found: NDArray[np.uint64] = hashes.ravel()[before : before + count]
    return found


def _second_half(bits: NDArray[np.uint64]) -> None:
    bits ^= bits >> _BY_33
    bits *= _SECOND
