"""Trains n-gram models: modified Kneser-Ney with interpolation.

Chen and Goodman, "An empirical study of smoothing techniques for language modeling" (1999),
section 3 and equations 20 to 26. Whole arrays at a time: n-grams get dense ids by sorting, those of
one length after those of the length below, so that an n-gram's suffix and context are indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.ngram_file import Level, save, units

WAYS = 4
"""How many tokens a context keeps."""
LEAST = 1 / 64
"""Tokens less likely than this are not kept: no draft would use them."""
MIN_COUNT = 2
_FALLBACK = (0.5, 1.0, 1.5)

Ints = NDArray[np.int32] | NDArray[np.int64]
Floats = NDArray[np.float64]
OnShare = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class _Grams:
    """All n-grams of one length; the index is the id, ordered by (suffix, first token).

    Attributes:
        suffix, first: the id of the n-gram without its first token, and that token.
        context, last: the id of the n-gram without its last token, and that token.
        seen: how often it occurs.
        count: what its probability is estimated from: `seen` for the longest, else how many
            different tokens (or the beginning of a text) stand before it.
    """

    suffix: Ints
    first: Ints
    context: Ints
    last: Ints
    seen: Ints
    count: Ints


def build(
    path: Path,
    documents: Sequence[NDArray[np.uint32]],
    *,
    fingerprint: str,
    model: str,
    n_vocab: int,
    order: int = 4,
    min_count: int = MIN_COUNT,
    on_share: OnShare = lambda share: None,
) -> None:
    """Train a model and write its file; the arguments are those of `train` and of `Facts`.

    Raises:
        OSError: it cannot be written.
    """
    levels = train(documents, n_vocab, order=order, min_count=min_count, on_share=on_share)
    fields = {
        "fingerprint": fingerprint,
        "model": model,
        "order": order,
        "n_vocab": n_vocab,
        "n_tokens": sum(map(len, documents)),
        "min_count": min_count,
    }
    save(path, levels, fields)


def train(
    documents: Sequence[NDArray[np.uint32]],
    n_vocab: int,
    *,
    order: int = 4,
    min_count: int = MIN_COUNT,
    on_share: OnShare = lambda share: None,
) -> list[Level]:
    """The levels of an n-gram file; takes some 65 bytes of memory a token of text.

    Args:
        documents: ids below `n_vocab`; no n-gram spans two documents.
        order: the longest n-gram, from 2 on.
        min_count: contexts of two tokens and more are stored if they go on at least this often.
        on_share: called with how much is done, 0..1.
    """
    grams = _count(documents, n_vocab, order, on_share)
    probs = _unigrams(grams[0].count, n_vocab)
    rows = np.zeros(1, np.int64)
    ways = _Ways.of(np.zeros(n_vocab, np.int64), np.arange(n_vocab), probs, 1)
    kept_before = np.ones(1, bool)
    levels: list[Level] = []
    for length in range(1, order):
        table, contexts = grams[length], grams[length - 1]
        fixed, weight = _interpolation(table, len(contexts.count))
        probs = fixed + weight[table.context] * probs[table.suffix]
        goes_on = np.bincount(table.context, table.seen, len(contexts.count))
        kept = goes_on >= min_count if length > 1 else np.ones(n_vocab, bool)
        rows = np.cumsum(kept_before) - 1
        parents = rows[contexts.suffix[kept]]
        ways = _likeliest(table, kept, probs, weight, parents, ways)
        if levels:
            levels[-1] = _with_children(levels[-1], parents)
        first = contexts.first[kept] if length > 1 else contexts.first[:0]
        levels.append(ways.level(first))
        kept_before = kept
        on_share(0.5 + 0.5 * length / (order - 1))
    return levels


def _count(
    documents: Sequence[NDArray[np.uint32]], n_vocab: int, order: int, on_share: OnShare
) -> list[_Grams]:
    """The n-grams of length 1 to `order`."""
    starts = np.cumsum([0, *(len(document) for document in documents)])[:-1]
    text = np.concatenate([np.zeros(0, np.uint32), *documents])
    # ids[i]: the id of the n-gram that ends at i, -1 where it would begin before its document
    ids = text.astype(np.int32)
    grams = [_single_tokens(text, n_vocab)]
    begins = [_at(ids, starts)]
    for length in range(2, order + 1):
        table, ids = _lengthen(text, ids, starts, length, n_vocab)
        grams.append(table)
        begins.append(_at(ids, starts + length - 1))
        on_share(0.5 * (length - 1) / (order - 1))
    return [*map(_with_left_contexts, grams, grams[1:], begins), grams[-1]]


def _at(ids: NDArray[np.int32], places: Ints) -> Ints:
    """The different n-grams that end at places, where there are any."""
    found = np.unique(ids[places[places < len(ids)]])
    return found[found >= 0]


def _single_tokens(text: NDArray[np.uint32], n_vocab: int) -> _Grams:
    tokens = np.arange(n_vocab)
    none = np.zeros(n_vocab, np.int64)
    seen = np.bincount(text, minlength=n_vocab)
    return _Grams(suffix=none, first=tokens, context=none, last=tokens, seen=seen, count=seen)


def _lengthen(
    text: NDArray[np.uint32], ids: NDArray[np.int32], starts: Ints, length: int, n_vocab: int
) -> tuple[_Grams, NDArray[np.int32]]:
    """The n-grams of one more token, and the id of the one that ends at each place."""
    whole = ids >= 0
    short = starts[:, None] + np.arange(length - 1)
    whole[short[short < len(text)]] = False
    ends = np.flatnonzero(whole)
    keys = ids[ends].astype(np.int64) * n_vocab + text[ends - length + 1]
    order = np.argsort(keys)
    keys = keys[order]
    new = np.diff(keys, prepend=-1) != 0
    longer = np.full(len(text), -1, np.int32)
    longer[ends[order]] = np.cumsum(new) - 1
    place = ends[order[new]]
    seen = np.diff(np.append(np.flatnonzero(new), len(keys))).astype(np.int32)
    table = _Grams(
        suffix=(keys[new] // n_vocab).astype(np.int32),
        first=(keys[new] % n_vocab).astype(np.int32),
        context=ids[place - 1],
        last=text[place].astype(np.int32),
        seen=seen,
        count=seen,
    )
    return table, longer


def _with_left_contexts(grams: _Grams, longer: _Grams, at_start: Ints) -> _Grams:
    """Kneser-Ney's counts: different tokens before an n-gram; a text's beginning is one more."""
    count = np.bincount(longer.suffix, minlength=len(grams.count))
    count[at_start] += 1
    return replace(grams, count=count.astype(np.int32))


def _discounts(counts: Ints) -> Floats:
    """What n-grams of count 0, 1, 2 and more lose (equation 26).

    Texts too small or too regular to tell (no n-gram of some count) get fixed ones.
    """
    n1, n2, n3, n4 = np.bincount(np.minimum(counts, 5), minlength=6)[1:5].astype(float)
    if min(n1, n2, n3, n4) == 0:
        return np.array([0.0, *_FALLBACK])
    share = n1 / (n1 + 2 * n2)
    found = [1 - 2 * share * n2 / n1, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3]
    return np.array([0.0, *np.clip(found, 0.0, [1.0, 2.0, 3.0])])


def _unigrams(counts: Ints, n_vocab: int) -> Floats:
    """Interpolated with the uniform law."""
    total = max(1, int(counts.sum()))
    lost = _discounts(counts)[np.minimum(counts, 3)]
    left_over = lost.sum() / total if counts.any() else 1.0
    result: Floats = (counts - lost) / total + left_over / n_vocab
    return result


def _interpolation(table: _Grams, n_contexts: int) -> tuple[Floats, Floats]:
    """Each n-gram's own part of its probability; each context's weight of the shorter one."""
    lost = _discounts(table.count)[np.minimum(table.count, 3)]
    total = np.bincount(table.context, table.count, n_contexts)
    weight = np.bincount(table.context, lost, n_contexts) / np.maximum(total, 1)
    return (table.count - lost) / total[table.context], weight


@dataclass(frozen=True, slots=True)
class _Ways:
    """The likeliest tokens of contexts: those of context r at `start[r]` to `start[r + 1]`."""

    start: Ints
    token: Ints
    prob: Floats

    @classmethod
    def of(cls, row: Ints, token: Ints, prob: Floats, n_rows: int) -> _Ways:
        """The best WAYS of each row; a token given twice has its greater probability."""
        kept = prob >= LEAST
        row, token, prob = row[kept], token[kept], prob[kept]
        order = np.lexsort((-prob, token, row))
        row, token, prob = row[order], token[order], prob[order]
        new = (np.diff(row, prepend=-1) != 0) | (np.diff(token, prepend=-1) != 0)
        row, token, prob = row[new], token[new], prob[new]
        order = np.lexsort((token, -prob, row))
        row, token, prob = row[order], token[order], prob[order]
        begin = np.searchsorted(row, np.arange(n_rows))
        best = np.arange(len(row)) - begin[row] < WAYS
        start = np.searchsorted(row[best], np.arange(n_rows + 1))
        return cls(start, token[best], prob[best])

    def level(self, first: Ints) -> Level:
        """As the file has it, without children."""
        return Level(
            first=first.astype(np.uint32),
            child=np.zeros(0, np.uint32),
            next=self.start.astype(np.uint32),
            token=self.token.astype(np.uint32),
            prob=units(self.prob),
        )


def _likeliest(
    table: _Grams,
    kept: NDArray[np.bool_],
    probs: Floats,
    weight: Floats,
    parents: Ints,
    shorter: _Ways,
) -> _Ways:
    """The likeliest tokens of the kept contexts.

    They are among those that were seen there and the likeliest of the shorter context: whatever
    beats an unseen token there beats it here too.
    """
    row_of = np.cumsum(kept) - 1
    own = np.flatnonzero(kept[table.context])
    rows = row_of[table.context[own]]
    counts = np.diff(shorter.start)[parents]
    inherited = np.repeat(np.arange(len(parents)), counts)
    before = np.cumsum(counts) - counts
    at = np.repeat(shorter.start[:-1][parents] - before, counts) + np.arange(len(inherited))
    return _Ways.of(
        np.concatenate([rows, inherited]),
        np.concatenate([table.last[own], shorter.token[at]]),
        np.concatenate([probs[own], weight[kept][inherited] * shorter.prob[at]]),
        len(parents),
    )


def _with_children(level: Level, parents: Ints) -> Level:
    """Where the contexts that lengthen each row begin; `parents` are the rows, rising."""
    child = np.searchsorted(parents, np.arange(len(level.next)))
    return replace(level, child=child.astype(np.uint32))
