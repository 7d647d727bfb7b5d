from __future__ import annotations

import time
from collections.abc import Sequence
from math import prod
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.drafting.protocol import Seen
from specllama.drafting.recycle import CHANCES, WORTH, RecycleDrafter, Slot, template
from specllama.engine.engine import Engine
from specllama.verification.types import ROOT, Proposal
from tests.drafting.wants import want
from tests.engine.fake_model import N_VOCAB, FakeModel, language
from tests.engine.harness import expected, request, run

V = 12


def row(*falling: int, n_vocab: int = V) -> np.ndarray:
    """Logits with these tokens on top, in this order."""
    logits = -np.arange(n_vocab, dtype=np.float32) - 100.0
    for place, token in enumerate(falling):
        logits[token] = -place
    return logits


def taught(lists: dict[int, Sequence[int]], nodes: int = 8) -> RecycleDrafter:
    drafter = RecycleDrafter(V, nodes)
    drafter.observe(0, [Seen(token, row(*falling)) for token, falling in lists.items()])
    return drafter


def propose(drafter: RecycleDrafter, *ids: int, **limits: int) -> Proposal:
    (proposal,) = drafter.propose([want(ids, **limits)])  # type: ignore[arg-type]
    return proposal


# --- what it remembers


def test_nothing_is_known_at_first() -> None:
    assert len(propose(RecycleDrafter(V), 1, 2, 3)) == 0


def test_a_chain_of_the_likeliest_successors() -> None:
    drafter = taught({1: [2, 5], 2: [3, 6], 3: [4]}, nodes=2)
    proposal = propose(drafter, 9, 1)
    assert proposal == Proposal.chain([2, 3], source="recycle")


def test_the_latest_opinion_counts() -> None:
    drafter = taught({1: [2]})
    drafter.observe(3, [Seen(1, row(7)), Seen(1, row(8))])
    assert propose(drafter, 1).tokens[0] == 8


def test_a_chain_ends_where_nothing_is_known() -> None:
    assert propose(taught({1: [2]}), 1).tokens == (2,)


def test_a_broken_row_is_no_trouble_here() -> None:
    """The target's own draw tells of it."""
    drafter = RecycleDrafter(V)
    drafter.observe(0, [Seen(1, np.full(V, np.nan, np.float32))])
    assert all(0 <= token < V for token in propose(drafter, 1).tokens)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([3, 8, 9, 700, 3000]), st.booleans())
def test_the_lists_are_the_largest_logits(seed: int, n_vocab: int, ties: bool) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(0.0, 3.0, n_vocab).astype(np.float32)
    if ties:
        logits = np.round(logits)
    drafter = RecycleDrafter(n_vocab, nodes=8)
    drafter.observe(0, [Seen(2, logits)])
    wide = propose(drafter, 2, limit=1, branches=7)
    falling = sorted(range(n_vocab), key=lambda token: (-logits[token], token))
    assert list(wide.tokens) == falling[: len(wide)]
    assert len(wide) == min(n_vocab, sum(chance >= WORTH for chance in CHANCES))


def test_close_forgets_everything() -> None:
    drafter = taught({1: [2]})
    drafter.forget()
    assert len(propose(drafter, 1)) == 0


# --- the shape


def path(slots: Sequence[Slot], node: int) -> tuple[int, ...]:
    above = slots[node].parent
    return (*(() if above == ROOT else path(slots, above)), slots[node].rank)


def worth(tree: frozenset[tuple[int, ...]]) -> float:
    return sum(prod(CHANCES[rank] for rank in path) for path in tree)


def n_leaves(tree: frozenset[tuple[int, ...]]) -> int:
    return len(tree - {path[:-1] for path in tree})


def all_trees(nodes: int, depth: int, branches: int) -> set[frozenset[tuple[int, ...]]]:
    """Every tree in which a node comes with its parent and elder siblings, as sets of paths."""
    trees = last = {frozenset[tuple[int, ...]]()}
    for _ in range(nodes):
        last = {tree | {new} for tree in last for new in additions(tree, depth)}
        trees = trees | last
    return {tree for tree in trees if n_leaves(tree) <= 1 + branches}


def additions(tree: frozenset[tuple[int, ...]], depth: int) -> list[tuple[int, ...]]:
    found = []
    for parent in ((), *tree):
        rank = sum(path[:-1] == parent for path in tree if len(path) == len(parent) + 1)
        new = (*parent, rank)
        likely = rank < len(CHANCES) and prod(CHANCES[r] for r in new) >= WORTH
        if len(new) <= depth and likely:
            found.append(new)
    return found


@pytest.mark.parametrize("nodes", [1, 2, 4, 5])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("branches", [0, 1, 2, 9])
def test_no_tree_within_the_limits_is_worth_more(nodes: int, depth: int, branches: int) -> None:
    slots = template(nodes, depth, branches)
    tree = frozenset(path(slots, node) for node in range(len(slots)))
    trees = all_trees(nodes, depth, branches)
    assert tree in trees
    assert worth(tree) == pytest.approx(max(worth(other) for other in trees))


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 6), st.integers(0, 20))
def test_a_template_is_in_depth_first_order_likeliest_first(
    nodes: int, depth: int, branches: int
) -> None:
    slots = template(nodes, depth, branches)
    paths = [path(slots, node) for node in range(len(slots))]
    assert paths == sorted(paths)
    assert {slot.parent for slot in slots} - {ROOT} == {
        node for node, slot in enumerate(slots) if slot.has_children
    }


def test_a_tree_of_first_and_second_successors() -> None:
    drafter = taught({1: [2, 5], 2: [3, 6], 3: [4], 5: [7]}, nodes=4)
    proposal = propose(drafter, 1, branches=1)
    assert proposal.tokens == (2, 3, 4, 5)
    assert proposal.parents == (ROOT, 0, 1, ROOT)
    assert proposal.laws == (None,) * 5


def test_what_lies_below_an_unknown_token_is_left_out() -> None:
    proposal = propose(taught({1: [2, 5]}), 1, branches=1)
    assert proposal.tokens == (2, 5)
    assert proposal.parents == (ROOT, ROOT)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 9), st.integers(0, 9))
def test_every_proposal_is_a_tree_within_its_limits(
    seed: int, limit: int, nodes: int, branches: int
) -> None:
    random = np.random.default_rng(seed)
    drafter = RecycleDrafter(V, nodes=16)
    for token in random.choice(V, 8, replace=False):
        drafter.observe(0, [Seen(int(token), random.normal(size=V).astype(np.float32))])
    proposal = propose(drafter, 3, limit=limit, nodes=nodes, branches=branches)
    assert len(proposal) <= nodes
    assert max(proposal.depths(), default=0) <= limit
    leaves = set(range(len(proposal))) - set(proposal.parents)
    assert len(leaves) <= 1 + branches
    assert all(parent < node for node, parent in enumerate(proposal.parents))
    for node in (ROOT, *range(len(proposal))):
        siblings = [proposal.tokens[child] for child in proposal.children(node)]
        assert len(siblings) == len(set(siblings))


def test_the_scheduler_bounds_the_depth() -> None:
    drafter = taught({1: [1]})
    (proposal,) = drafter.propose([want([1], go_on=lambda drafted, confidence: drafted < 1)])
    assert proposal.tokens == (1,)


# --- in the engine


@pytest.mark.parametrize("rule", ["coupled", "match", "rejection"])
def test_the_engine_says_the_same_and_a_text_seen_before_is_guessed(rule: str) -> None:
    says = language(4)
    n_seq = 1 if rule == "rejection" else 5
    engine = Engine(FakeModel(says, n_seq=n_seq), [RecycleDrafter(N_VOCAB)])
    asked = request([1, 2, 3], rule, drafters=("recycle",), max_tokens=20)
    reply, _ = expected(says, asked)
    first, second = run(engine, asked), run(engine, asked)
    assert first.tokens == second.tokens == reply
    assert second.stats.accepted > 0


def test_learning_and_proposing_take_microseconds() -> None:
    n_vocab = 49_152
    random = np.random.default_rng(1)
    rows = [random.normal(0.0, 3.0, n_vocab).astype(np.float32) for _ in range(20)]
    drafter = RecycleDrafter(n_vocab)
    learning, proposing = [], []
    for token in range(300):
        seen = [Seen(token, rows[token % 20])]
        started = time.perf_counter()
        drafter.observe(0, seen)
        learned = time.perf_counter()
        drafter.propose([want([token], branches=4)])
        learning.append(learned - started)
        proposing.append(time.perf_counter() - learned)
    # 30 and 10 µs on an idle machine; sorting a row would take milliseconds.
    assert median(learning) < 600e-6
    assert median(proposing) < 300e-6
