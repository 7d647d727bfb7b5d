"""From one row of logits to the law a token is drawn from.

The steps, their order and their formulas are those of llama.cpp's default chain
(src/llama-sampler.cpp, common/sampling.cpp; `min_keep` 1): logit bias, penalties, top-k, typical-p,
top-p, min-p, temperature. Truncation therefore works on temperature-1 probabilities. Two deliberate
differences: ties go to the lowest id (llama.cpp leaves them to its sort), and temperature 0 is the
argmax after bias and penalties, whatever typical-p would have removed.

The usual settings (a small top-k) have a way of their own, `few.py`.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specllama.sampling.constraint import Constraint, NothingAllowed
from specllama.sampling.distribution import FEW, Distribution, IntArray
from specllama.sampling.few import COLDEST, LawOfFew, best, count_to
from specllama.sampling.params import SamplingParams
from specllama.sampling.rows import Row, all_ids, at_least_largest, check_finite, largest

_FIRST_PREFIX = 256
_PIECE = 1 << 14
# How many of the largest logits a constraint is asked about before it lists what it allows.
_ASKED = (64, 512)


class Sampler:
    """The sampling chain of one request; it keeps no state between calls."""

    __slots__ = ("_adjusts", "_bias", "_bias_ids", "_few", "_forbids", "_params")

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), np.float32)
        self._forbids = -math.inf in params.logit_bias.values()
        self._adjusts = params.penalises or len(self._bias_ids) > 0
        few = 0 < params.top_k <= FEW and params.temperature > 0.0 and params.typical_p >= 1.0
        self._few = LawOfFew(params) if few else None

    def distribution(
        self, logits: Row, history: Sequence[int], constraint: Constraint | None = None
    ) -> Distribution:
        """The law of the next token.

        Args:
            logits: float32 [n_vocab], one row; neither changed nor kept.
            history: all ids before the position, prompt included.
            constraint: what may be said there; all other tokens have no logit (-inf).

        Raises:
            EngineError: the row holds NaN or infinity.
            NothingAllowed: every token is forbidden.
        """
        row = self._adjusted(logits, history) if self._adjusts else logits
        if constraint is None:
            return self._law(None, row)
        check_finite(float(row.max()))
        ids = _permitted(row, constraint, self._params)
        values = row[ids]
        self._check_left(values)
        return self._law(ids, values)

    def best(self, logits: Row, history: Sequence[int]) -> tuple[int, float]:
        """The most probable token, and about its probability at temperature 1.

        Args:
            logits, history: as in `distribution`.

        Raises:
            EngineError: the row holds NaN or infinity.
            NothingAllowed: every token is forbidden.
        """
        row = self._adjusted(logits, history) if self._adjusts else logits
        return best(row)

    def _law(self, ids: IntArray | None, values: Row) -> Distribution:
        """The law over some tokens (ids rising; None: all) and their adjusted logits."""
        params = self._params
        if self._few is not None and params.top_k < len(values):
            return self._few.of(ids, values)
        if params.temperature == 0.0:
            best = int(values.argmax())
            check_finite(float(values[best]))
            return Distribution.point(best if ids is None else int(ids[best]))
        if 0 < params.top_k < len(values):
            found = largest(values, params.top_k)
            ids, values = found if ids is None else ids[found], values[found]
        elif ids is None:
            ids = all_ids(len(values))
        top = np.float32(values.max())
        check_finite(float(top))
        kept = self._truncated(values, top)
        if kept is not None:
            ids, values = ids[kept], values[kept]
            top = np.float32(values.max())
        law = Distribution.from_weights(ids, _weights(values, top, params.temperature))
        assert law is not None  # the largest weight is 1
        return law

    def _adjusted(self, logits: Row, history: Sequence[int]) -> Row:
        """A copy of the row after bias and penalties.

        Ids outside the row are passed over: a draft's row may be padded to another length.
        """
        params = self._params
        row = logits.copy()
        inside = self._bias_ids < len(row)
        row[self._bias_ids[inside]] += self._bias[inside]
        self._check_left(row)
        if params.penalises:
            _penalise(row, history, params)
        return row

    def _check_left(self, values: Row) -> None:
        if self._forbids and values.max() == -math.inf:
            raise NothingAllowed(by_bias=True)

    def _truncated(self, values: Row, top: np.float32) -> IntArray | None:
        """Positions that typical-p, top-p and min-p leave; None when they leave all."""
        params = self._params
        if params.typical_p >= 1.0:
            return _nucleus(values, top, params.top_p, params.min_p)
        typical = _typical(values, top, params.typical_p)
        rest = values[typical]
        kept = _nucleus(rest, np.float32(rest.max()), params.top_p, params.min_p)
        return typical if kept is None else typical[kept]


def logprob(logits: Row, token: int) -> float:
    """Natural log-probability of one token under the softmax of a raw row, float32 [n_vocab]."""
    return float(logits[token]) - _log_total(logits)


def top_logprobs(logits: Row, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` (at least 1) most probable tokens of a raw row and their `logprob`, falling."""
    total = _log_total(logits)
    found = largest(logits, count)
    falling = found[np.argsort(-logits[found], kind="stable")]
    return tuple((int(token), float(logits[token]) - total) for token in falling)


def _log_total(logits: Row) -> float:
    """log of the sum of exp(logits)."""
    top = np.maximum.reduce(logits)
    total = 0.0
    # in pieces that stay in the first cache; float32 sums of a piece err by about 1e-7
    for start in range(0, len(logits), _PIECE):
        piece = logits[start : start + _PIECE] - top
        total += float(np.add.reduce(np.exp(piece, out=piece)))
    return float(top) + math.log(total)


def _permitted(row: Row, constraint: Constraint, params: SamplingParams) -> IntArray:
    """Allowed ids, rising, that give the same law as all of them.

    Asking about a whole vocabulary is what costs (SmolLM2: 20 to 36 ms for 49,152 tokens, 0.1 ms
    for 64). So the largest values are asked about first; where they do not settle the law, few
    tokens are allowed as a rule, and listing those is cheap (`Constraint.every`).

    Raises:
        NothingAllowed: no id of the row is.
    """
    for size in _ASKED:
        if size >= len(row):
            break
        asked = largest(row, size)
        found = asked[constraint.allowed(asked)]
        if len(found) and _settles(row[found], float(row[asked].min()), len(row) - size, params):
            return found
    every = constraint.every()
    every = every[: int(every.searchsorted(len(row)))]
    if not len(every):
        raise NothingAllowed
    return every


def _settles(values: Row, bound: float, n_more: int, params: SamplingParams) -> bool:
    """Whether some largest values decide what the chain keeps.

    Args:
        bound, n_more: no other value is above `bound`, and there are at most so many.
    """
    if params.temperature == 0.0:
        return True
    if params.top_k > 0:
        n_more = min(n_more, params.top_k - len(values))
        if n_more <= 0:
            return True
    top = float(values.max())
    least = float(np.float32(top) + np.float32(math.log(params.min_p))) if params.min_p else bound
    if params.typical_p < 1.0 or bound >= least:
        return False
    n_likely = int((values >= least).sum())
    if n_likely == 1 or params.top_p >= 1.0:
        return True
    # top-p keeps more the more mass there is: what the others may have at most must not matter
    weights = [math.exp(value - top) for value in sorted(values.tolist(), reverse=True)]
    known = math.fsum(weights)
    most = known + n_more * math.exp(bound - top)
    kept = [count_to(weights, params.top_p * mass) for mass in (known, most)]
    return min(kept[0], n_likely) == min(kept[1], n_likely)


def _penalise(row: Row, history: Sequence[int], params: SamplingParams) -> None:
    """Apply the repetition penalties to the ids of the window, in place."""
    window = history if params.repeat_last_n < 0 else history[-params.repeat_last_n :]
    seen = Counter(window)
    ids = np.fromiter(seen.keys(), np.int64, len(seen))
    counts = np.fromiter(seen.values(), np.float32, len(seen))
    inside = ids < len(row)
    ids, counts = ids[inside], counts[inside]
    repeat = np.float32(params.repeat_penalty)
    logits = row[ids]
    # dividing a negative logit would reward it, hence the product
    logits = np.where(logits <= 0.0, logits * repeat, logits / repeat)
    frequency, presence = np.float32(params.frequency_penalty), np.float32(params.presence_penalty)
    row[ids] = logits - (counts * frequency + presence)


def _weights(values: Row, top: np.float32, temperature: float) -> NDArray[np.floating]:
    """exp((values - top) / temperature): float64 for few values, float32 for a whole row."""
    few = len(values) <= _FIRST_PREFIX
    with np.errstate(over="ignore"):
        shifted = values.astype(np.float64) - top if few else values - top
        if temperature != 1.0:
            shifted /= max(temperature, COLDEST)
    weights: NDArray[np.floating] = np.exp(shifted, out=shifted)
    return weights


def _nucleus(values: Row, top: np.float32, top_p: float, min_p: float) -> IntArray | None:
    """Positions that top-p, then min-p leave, rising; None for all of them.

    Both keep a prefix of the falling order, so the cheap min-p cut may come first as long as
    top-p measures its mass against the total before that cut.
    """
    if top_p >= 1.0 and min_p <= 0.0:
        return None
    likely = None
    if min_p > 0.0:
        likely = np.flatnonzero(values >= top + np.float32(math.log(min_p)))
    if top_p >= 1.0:
        return likely
    weights = _weights(values, top, 1.0)
    mass = top_p * float(weights.sum(dtype=np.float64))
    if likely is None:
        return _prefix(values, weights, mass)
    return likely[_prefix(values[likely], weights[likely], mass)]


def _typical(values: Row, top: np.float32, typical_p: float) -> IntArray:
    """Positions that locally typical sampling leaves (Meister et al. 2023), rising.

    Tokens enter by how near their surprise is to the entropy, until their mass *exceeds* p.
    """
    # the floor keeps a forbidden token's -inf out of the sums; its weight is 0 either way
    shifted = np.maximum(values - top, np.float32(-1e4))
    weights = np.exp(shifted)
    total = float(weights.sum(dtype=np.float64))
    mean = float((weights * shifted).sum(dtype=np.float64)) / total
    # surprise - entropy = (log total - shifted) - (log total - mean)
    distance = np.abs(shifted - np.float32(mean))
    return _prefix(-distance, weights, math.nextafter(typical_p * total, math.inf))


def _prefix(keys: NDArray[np.floating], weights: NDArray[np.floating], mass: float) -> IntArray:
    """Positions, rising, of the fewest largest keys whose weights sum to at least `mass`."""
    size = _FIRST_PREFIX
    while True:
        found = at_least_largest(keys, size)
        likely = keys[found]
        falling = np.argsort(-likely, kind="stable")  # of equals the lowest, as in the end
        reached = np.cumsum(weights[found][falling], dtype=np.float64)
        if reached[-1] >= mass or len(found) == len(keys):
            break
        size *= 8
    count = int(np.searchsorted(reached, mass)) + 1
    kept: IntArray = found[largest(likely, count)]
    return kept
