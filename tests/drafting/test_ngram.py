"""The n-gram drafter: a table as its model, and the conversation above it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.drafting.ngram import NgramDrafter
from tests.drafting.wants import grown, want

END = 9
Law = list[tuple[int, float]]
IDS = st.lists(st.sampled_from([0, 1, 2, END]), min_size=1, max_size=60)


class Table:
    """A model with laws for some last tokens."""

    def __init__(self, laws: dict[int, Law]) -> None:
        self.laws = laws

    def after(self, context: Sequence[int]) -> Law:
        return self.laws.get(context[-1], [])


TABLE = Table({1: [(2, 0.9), (5, 0.1)], 2: [(3, 0.8)], 3: [(END, 0.7), (4, 0.3)], 4: [(1, 0.2)]})


def drafter(model: Table = TABLE, least: float = 0.3, nodes: int = 8) -> NgramDrafter:
    return NgramDrafter(model, lambda token: token == END, least=least, nodes=nodes)


def draft(ids: Sequence[int], model: Table = TABLE, least: float = 0.3) -> list[int]:
    (proposal,) = drafter(model, least).propose([want(ids)])
    return list(proposal.tokens)


@pytest.mark.parametrize(
    ("ids", "tokens"),
    [
        ([0, 1], [2, 3]),  # then the turn would end
        ([0, 2], [3]),
        ([0, 4], []),  # too unlikely
        ([0, 7], []),  # unknown
        ([1], [2, 3]),
    ],
)
def test_the_model_alone(ids: list[int], tokens: list[int]) -> None:
    assert draft(ids) == tokens


def posterior(law: Law, ids: Sequence[int]) -> dict[int, float]:
    """Two and three tokens of context, the latest 8 continuations, the law below worth two more."""
    known = dict(law)
    for length in (2, 3):
        context = list(ids[-length:])
        ends = [n for n in range(length, len(ids)) if list(ids[n - length : n]) == context][-8:]
        if len(ids) < length or not ends:
            continue
        tokens = {*known, *(ids[n] for n in ends)}
        known = {
            t: (2 * known.get(t, 0.0) + sum(ids[n] == t for n in ends)) / (2 + len(ends))
            for t in tokens
        }
    return known


@given(IDS, st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_the_first_token_is_the_likeliest(ids: list[int], weights: list[int]) -> None:
    law = sorted(((t, w / 27) for t, w in enumerate(weights)), key=lambda way: -way[1])
    model = Table(dict.fromkeys((0, 1, 2, END), law))
    expected = posterior(law, ids)
    best = max(expected.values())
    tokens = draft(ids, model, least=0.0)
    if not tokens:
        assert expected[END] == pytest.approx(best)
    else:
        assert expected[tokens[0]] == pytest.approx(best)


@given(st.lists(st.tuples(st.integers(0, 30), IDS), min_size=1, max_size=6))
def test_drafts_the_same_after_any_growth_and_rewinds(turns: list[tuple[int, list[int]]]) -> None:
    lookup = drafter()
    for ids in grown(lookup, turns):
        lookup.prepare(0, ids[:-1])
        (proposal,) = lookup.propose([want(ids)])
        assert list(proposal.tokens) == draft(ids)


def test_a_rewind_too_far_to_undo_forgets_the_sequence() -> None:
    lookup, ids = drafter(Table({})), [0, 6, 8] * 400
    lookup.prepare(0, ids)
    lookup.rewind(0, 6)
    changed = [*ids[:6], 0, 6, 5, 0, 6]
    (proposal,) = lookup.propose([want(changed)])
    assert list(proposal.tokens) == draft(changed, Table({}))


def test_the_conversation_overrules_the_model() -> None:
    assert draft([0, 1]) == [2, 3]
    assert draft([0, 1, 7, 7, 0, 1, 7, 7, 0, 1])[:2] == [7, 7]


def test_the_latest_use_counts_more_than_old_ones() -> None:
    old = [0, 6, 8] * 20
    assert draft([*old, 0, 6], Table({}))[:1] == [8]
    assert draft([*old, *[0, 6, 5] * 8, 7, 0, 6], Table({}))[:1] == [5]


def test_sequences_do_not_see_each_other() -> None:
    lookup = drafter(Table({}))
    first, second = [1, 2, 3, 1, 2], [1, 2, 4, 1, 2]
    proposals = lookup.propose([want(first, key=0), want(second, key=1), want([1, 2], key=2)])
    assert [p.tokens[:1] for p in proposals] == [(3,), (4,), ()]
    lookup.forget()
    (proposal,) = lookup.propose([want([8, 1, 2])])
    assert len(proposal) == 0


def test_a_tree_has_the_second_best_too() -> None:
    (proposal,) = drafter(least=0.05).propose([want([0, 1], branches=3)])
    assert proposal.source == "ngram"
    assert {tuple(proposal.path(node)) for node in range(len(proposal))} == {
        (2,), (5,), (2, 3), (2, 3, 4)
    }  # fmt: skip
    assert proposal.tokens == (2, 3, 4, 5)
    assert set(proposal.laws) == {None}
