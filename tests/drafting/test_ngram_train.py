"""The trained file against modified Kneser-Ney written down from its definition."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from specllama.drafting.ngram_file import NgramFile, save
from specllama.drafting.ngram_train import LEAST, WAYS, train

Gram = tuple[int, ...]
N_VOCAB = 6
TOLERANCE = 1.01 / 65535
EDGES = 1 + 1e-9, 1 - 1e-9
"""Between these shares of LEAST a probability is in the file or not, as it is rounded."""
TEXTS = st.lists(st.lists(st.integers(0, N_VOCAB - 2), max_size=40), max_size=5)


class Reference:
    """p(token | context) by counting in dictionaries."""

    def __init__(self, texts: list[list[int]], order: int) -> None:
        self.order = order
        self.seen: Counter[Gram] = Counter()
        lefts: defaultdict[Gram, set[int]] = defaultdict(set)
        for text in texts:
            for length in range(1, order + 1):
                for start in range(len(text) - length + 1):
                    gram = tuple(text[start : start + length])
                    self.seen[gram] += 1
                    lefts[gram].add(text[start - 1] if start else -1)
        self.count = {
            gram: seen if len(gram) == order else len(lefts[gram])
            for gram, seen in self.seen.items()
        }
        self.prob = cache(self._prob)

    @cache  # noqa: B019
    def discounts(self, length: int) -> list[float]:
        of = Counter(count for gram, count in self.count.items() if len(gram) == length)
        n1, n2, n3, n4 = (of[n] for n in (1, 2, 3, 4))
        if not (n1 and n2 and n3 and n4):
            return [0.0, 0.5, 1.0, 1.5]
        y = n1 / (n1 + 2 * n2)
        found = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        return [0.0, *(min(max(d, 0.0), most) for most, d in enumerate(found, start=1))]

    def followers(self, context: Gram) -> dict[int, int]:
        return {
            gram[-1]: count
            for gram, count in self.count.items()
            if len(gram) == len(context) + 1 and gram[:-1] == context
        }

    def _prob(self, token: int, context: Gram) -> float:
        followers = self.followers(context)
        lower = self.prob(token, context[1:]) if context else 1 / N_VOCAB
        if not followers:
            return lower
        discounts = self.discounts(len(context) + 1)
        total = sum(followers.values())
        lost = sum(discounts[min(count, 3)] for count in followers.values())
        count = followers.get(token, 0)
        return (count - discounts[min(count, 3)] + lost * lower) / total

    def goes_on(self, context: Gram) -> int:
        return sum(
            seen
            for gram, seen in self.seen.items()
            if len(gram) == len(context) + 1 and gram[:-1] == context
        )

    def stored_suffix(self, context: Gram, min_count: int) -> Gram:
        longest = context[-(self.order - 1) :]
        while len(longest) > 1 and self.goes_on(longest) < min_count:
            longest = longest[1:]
        return longest


def built(texts: list[list[int]], order: int, min_count: int, path: Path) -> NgramFile:
    documents = [np.array(text, np.uint32) for text in texts]
    levels = train(documents, N_VOCAB, order=order, min_count=min_count)
    fields = {"fingerprint": "f", "model": "m", "order": order, "n_vocab": N_VOCAB}
    save(path, levels, fields | {"n_tokens": sum(map(len, texts)), "min_count": min_count})
    return NgramFile.open(path, "f")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ngram") / "model.ngram"


def check(texts: list[list[int]], order: int, min_count: int, path: Path) -> None:
    """Every context that goes on has the likeliest tokens of the whole law."""
    reference, model = Reference(texts, order), built(texts, order, min_count, path)
    contexts = {gram for gram in reference.seen if len(gram) < order + 1}
    for context in sorted(contexts | {(N_VOCAB - 1,), (N_VOCAB - 1, 0), (0, 1, 2, 3)}):
        stored = reference.stored_suffix(context, min_count)
        law = {token: reference.prob(token, stored) for token in range(N_VOCAB)}
        assert sum(law.values()) == pytest.approx(1.0)
        found = model.after(context)
        if not reference.goes_on(stored):
            assert found == []
            continue
        least, most = (sum(prob >= LEAST * edge for prob in law.values()) for edge in EDGES)
        assert min(least, WAYS) <= len(found) <= min(most, WAYS)
        best = sorted(law.values(), reverse=True)[: len(found)]
        assert [prob for _, prob in found] == pytest.approx(best, abs=TOLERANCE)
        for token, prob in found:
            assert prob == pytest.approx(law[token], abs=TOLERANCE)
        assert len({token for token, _ in found}) == len(found)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS, order=st.integers(2, 4), min_count=st.integers(1, 3))
@example(texts=[[2], [0, 0, 2, 1, *[2] * 9, 0, *[2] * 4, 0]], order=2, min_count=1)  # 1/64
def test_the_file_has_the_best_of_the_law(
    texts: list[list[int]], order: int, min_count: int, path: Path
) -> None:
    check(texts, order, min_count, path)


@pytest.mark.parametrize("seed", range(3))
def test_with_estimated_discounts(seed: int, path: Path) -> None:
    """Texts long enough for n-grams of every count, so that equation 26 decides."""
    rng = random.Random(seed)
    texts = [[int(4.99 * rng.random() ** 2) for _ in range(150)] for _ in range(3)]
    reference = Reference(texts, 4)
    assert reference.discounts(4) != [0.0, 0.5, 1.0, 1.5]
    check(texts, 4, 1, path)


def test_a_probability_by_hand(path: Path) -> None:
    """One text, a b a c: after a, b and c were seen once each, and discounts are the fixed ones."""
    model = built([[0, 1, 0, 2]], 2, 1, path)
    # Continuation counts: a after the beginning and b, b and c after a: 2, 1, 1 of 4.
    # p(a) = (2 - 1) / 4 + (1 + .5 + .5) / 4 / 6, p(b) = p(c) = (1 - .5) / 4 + 2 / 4 / 6
    p_a, p_b = 1 / 4 + 1 / 12, 1 / 8 + 1 / 12
    after_a = (1 - 0.5) / 2 + 0.5 * p_b
    assert model.after([0]) == [
        (1, pytest.approx(after_a, abs=TOLERANCE)),
        (2, pytest.approx(after_a, abs=TOLERANCE)),
        (0, pytest.approx(0.5 * p_a, abs=TOLERANCE)),
        (3, pytest.approx(0.5 / 12, abs=TOLERANCE)),
    ]


def test_progress_reaches_the_end() -> None:
    shares: list[float] = []
    train([np.array([0, 1, 2, 0, 1], np.uint32)], N_VOCAB, on_share=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
