"""Speculative beam search finds what plain beam search finds, written down simply below."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.drafting.beams import ModelBeams, RecycledBeams, Size, draft_beams
from specllama.drafting.follower import Follower
from specllama.drafting.protocol import Seen
from specllama.drafting.recycle import RecycleDrafter
from specllama.engine.beam import BeamSearch, BeamSettings, Hypothesis
from specllama.errors import EngineError
from specllama.llama.branches import Branches, Node
from specllama.llama.cache import TokenCache
from tests.engine.fake_model import END, N_VOCAB, FakeModel, Fault, Language, language, near

Found = list[tuple[tuple[int, ...], float, float, str]]


def is_end(token: int) -> bool:
    return token in (END, 3)


def log_softmax(row: np.ndarray) -> np.ndarray:
    shifted = row.astype(np.float64) - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def plain(words: Language, prompt: list[int], how: BeamSettings) -> tuple[Found, int]:
    """Beam search with a row for each beam at each step: (hypotheses, steps)."""

    def score(logprob: float, length: int) -> float:
        return logprob / length**how.length_penalty

    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended: Found = []
    for step in range(1, how.max_tokens + 1):
        options = []
        for path, logprob in live:
            for token, more in enumerate(log_softmax(words((*prompt, *path)))):
                options.append(((*path, token), logprob + more))
        options.sort(key=lambda option: -option[1])
        for path, logprob in options[: how.width]:
            if is_end(path[-1]):
                ended.append((path[:-1], score(logprob, step), logprob, "stop"))
        ended = sorted(ended, key=lambda one: -one[1])[: how.width]
        live = [option for option in options if not is_end(option[0][-1])][: how.width]
        hope = -np.inf if how.early_stopping else score(live[0][1], step)
        if len(ended) == how.width and ended[-1][1] >= hope:
            break
    else:
        ended += [(path, score(logprob, step), logprob, "length") for path, logprob in live]
    return sorted(ended, key=lambda one: -one[1])[: how.width], step


def drafter_of(kind: str, words: Language, prompt: list[int], share: float, **fake: Any) -> Any:
    if kind == "model":
        backend = FakeModel(near(words, 3, share), n_seq=24, **fake)
        return ModelBeams(Follower(backend, fake.get("n_shared")), 0, prompt, range(1, 24))
    return RecycledBeams(RecycleDrafter(N_VOCAB)) if kind == "recycle" else None


def search_of(
    words: Language,
    prompt: list[int],
    how: BeamSettings,
    drafter: Any = None,
    in_order: bool = False,
    **fake: Any,
) -> tuple[BeamSearch, FakeModel]:
    target = FakeModel(words, n_seq=24, **fake)
    cache = TokenCache(target)
    cache.fill(0, prompt[:-1])
    branches = Branches(cache, 0, range(1, 24), in_order=in_order)
    observe = None
    if isinstance(drafter, RecycledBeams):

        def observe(token: int, row: np.ndarray) -> None:
            drafter._drafter.observe(0, [Seen(token, row)])

    search = BeamSearch(target, branches, prompt[-1], how, is_end, drafter=drafter, observe=observe)
    return search, target


def run(search: BeamSearch, target: FakeModel, prompt: list[int]) -> list[Hypothesis]:
    while not search.over:
        search.advance()
    search._branches.close()
    assert target.held <= {0} and target.tokens(0) == tuple(prompt[:-1]), "cells are left behind"
    return search.results(search._settings.width)


def same(found: list[Hypothesis], wanted: Found) -> None:
    assert [(one.tokens, one.reason) for one in found] == [(w[0], w[3]) for w in wanted]
    np.testing.assert_allclose(
        [one.score for one in found], [w[1] for w in wanted], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        [one.logprob for one in found], [w[2] for w in wanted], rtol=1e-5, atol=1e-6
    )


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(data=st.data())
def test_the_hypotheses_are_those_of_plain_beam_search(data: st.DataObject) -> None:
    draw = data.draw
    words = language(
        draw(st.integers(0, 200), "words"), spread=draw(st.sampled_from([0.5, 1.5, 4.0]))
    )
    prompt = draw(st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=6), "prompt")
    how = BeamSettings(
        width=draw(st.integers(1, 6), "width"),
        max_tokens=draw(st.sampled_from([1, 2, 7, 12]), "max_tokens"),
        length_penalty=draw(st.sampled_from([0.0, 0.7, 1.0, 2.0, -0.5]), "penalty"),
        early_stopping=draw(st.booleans(), "early"),
        draft_max=draw(st.sampled_from([0, 1, 3, 16]), "draft_max"),
    )
    kind = draw(st.sampled_from(["none", "model", "recycle"]), "drafter")
    share = draw(st.sampled_from([0.0, 0.3, 1.0]), "share")
    drafter = drafter_of(kind, words, prompt, share, n_batch=draw(st.sampled_from([2, 8, 32])))
    n_batch = draw(st.sampled_from([6, 16, 40]), "n_batch")
    in_order = draw(st.booleans(), "in order")
    # too few cells for all that is ever decoded, but enough for what is needed at a time
    n_ctx = draw(st.sampled_from([120, 1000]), "cells")
    search, target = search_of(words, prompt, how, drafter, in_order, n_ctx=n_ctx, n_batch=n_batch)
    wanted, steps = plain(words, prompt, how)
    same(run(search, target, prompt), wanted)
    assert search.steps == steps
    assert search.batches <= steps
    if kind == "none":
        assert search.batches == steps


def test_a_perfect_draft_saves_most_batches() -> None:
    words, prompt, how = language(5), [1, 2], BeamSettings(width=3, max_tokens=20, draft_max=6)
    drafter = drafter_of("model", words, prompt, 0.0, n_batch=32)
    search, target = search_of(words, prompt, how, drafter, n_ctx=200, n_batch=64)
    same(run(search, target, prompt), plain(words, prompt, how)[0])
    assert search.batches <= 0.4 * search.steps
    assert search.used > search.drafted / 4


def test_a_draft_that_knows_fewer_tokens() -> None:
    words, prompt, how = language(5), [1, 2], BeamSettings(width=3, max_tokens=12)
    backend = FakeModel(near(words, 3, 0.1), n_seq=24, n_batch=32)
    drafter = ModelBeams(Follower(backend, 12, (1, 5)), 0, prompt, range(1, 24))
    search, target = search_of(words, prompt, how, drafter, n_ctx=200, n_batch=64)
    same(run(search, target, prompt), plain(words, prompt, how)[0])
    drafter.close()
    assert backend.held <= {0}


def test_foreign_ids_are_neither_said_nor_read_by_a_draft() -> None:
    """Those it has not, and those that mean something else to it, though it likes them best."""
    foreign = [1, 5, *range(12, N_VOCAB)]

    def liking(ids: tuple[int, ...]) -> np.ndarray:
        return language(5)(ids) + 9.0 * np.isin(np.arange(N_VOCAB), foreign).astype(np.float32)

    backend = FakeModel(liking, n_seq=24, n_batch=32)
    drafter = ModelBeams(Follower(backend, 12, (1, 5)), 0, [2, 3], range(1, 24))
    root = Node.root(3)
    (ways,) = drafter.ways([root], 8)
    assert ways and not {token for token, _ in ways} & set(foreign)
    below = [root.child(token) for token in (4, 5, 12)]
    known = drafter.ways(below, 8)
    assert [len(ways) > 0 for ways in known] == [True, False, False]


@pytest.mark.parametrize("text", [[1] * 12, [2, 13, 4]], ids=["too long", "foreign"])
def test_a_draft_that_cannot_read_the_text_says_nothing(text: list[int]) -> None:
    backend = FakeModel(language(5), n_ctx=8, n_seq=4)
    drafter = ModelBeams(Follower(backend, 12), 0, text, range(1, 4))
    assert not any(drafter.ways([Node.root(text[-1])], 3))
    assert (backend.batches, drafter.batches) == ([], 0)


@pytest.mark.parametrize("limits", [{"n_batch": 3}, {"n_outputs": 3}, {"n_seq": 5}, {"n_ctx": 4}])
def test_a_draft_says_what_it_has_room_for(limits: dict[str, int]) -> None:
    backend = FakeModel(language(5), **{"n_batch": 32, "n_seq": 24} | limits)  # type: ignore[arg-type]
    drafter = ModelBeams(Follower(backend), 0, [2, 3], range(1, backend.n_seq))
    root = Node.root(3)
    assert all(drafter.ways([root], 3))
    said = drafter.ways([root.child(token) for token in range(6)], 3)
    assert sum(len(ways) > 0 for ways in said) == (0 if "n_ctx" in limits else 3)
    drafter.close()
    assert backend.held == {0}


def test_nothing_is_drafted_behind_an_end() -> None:
    root = Node.root(2)
    drafter = drafter_of("model", language(5), [1, 2], 0.0, n_batch=32)
    found = draft_beams(drafter, [(root, 0.0)], is_end, Size(N_VOCAB, 1, N_VOCAB, N_VOCAB))
    assert {node.token for node in found} == set(range(N_VOCAB)) - {3, END}


def test_a_full_cache_ends_the_search() -> None:
    endless, prompt = language(5), [1, 2]

    def words(ids: tuple[int, ...]) -> np.ndarray:
        return endless(ids) - 20.0 * np.isin(np.arange(N_VOCAB), (3, END)).astype(np.float32)

    search, target = search_of(
        words, prompt, BeamSettings(width=3, max_tokens=50), n_ctx=20, n_batch=16
    )
    found = run(search, target, prompt)
    assert {one.reason for one in found} == {"context"}
    assert 4 < len(found[0].tokens) < 20


def test_cells_are_not_used_again_in_order() -> None:
    """FakeModel's list of cells is their order; dropped ones stay until the search is over."""
    words, prompt, how = language(5), [1, 2], BeamSettings(width=3, max_tokens=9)
    drafter = drafter_of("model", words, prompt, 0.3, n_batch=32)
    search, target = search_of(words, prompt, how, drafter, True, n_ctx=500, n_batch=64)
    while not search.over:
        search.advance()
        assert len(target.cells) == sum(target.batches)
    search._branches.close()
    assert target.held == {0}


@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_a_broken_off_batch_leaves_nothing_behind(when: Any) -> None:
    words, prompt, how = language(5), [1, 2], BeamSettings(width=3, max_tokens=12)
    drafter = drafter_of("model", words, prompt, 0.3, n_batch=32)
    search, target = search_of(words, prompt, how, drafter, n_ctx=200, n_batch=64)
    target.faults[3] = Fault(KeyboardInterrupt, when)
    with pytest.raises(KeyboardInterrupt):
        run(search, target, prompt)
    search._branches.close()
    drafter.close()
    assert target.held <= {0} and target.tokens(0) == (1,)
    search, target = search_of(words, prompt, how, n_ctx=200)
    same(run(search, target, prompt), plain(words, prompt, how)[0])


@pytest.mark.parametrize("kind", ["none", "recycle", "model"])
def test_a_broken_row_is_an_error(kind: str) -> None:
    words, how = language(5), BeamSettings(width=2, max_tokens=12)
    drafter = drafter_of(kind, words, [1, 2], 0.9)
    search, _ = search_of(lambda ids: words(ids) * np.nan, [1, 2], how, drafter)
    with pytest.raises(EngineError, match="not finite"):
        search.advance()


def test_a_plain_search_is_one_batch_a_step() -> None:
    words, prompt = language(5), [1, 2]
    how = BeamSettings(width=4, max_tokens=9)
    search, target = search_of(words, prompt, replace(how, draft_max=0), None, n_ctx=200)
    run(search, target, prompt)
    assert target.batches[1:] == [1, *[4] * (search.steps - 1)]
