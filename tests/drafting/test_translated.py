from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.drafting.follower import Follower
from specllama.drafting.translated import TranslatedDrafter
from specllama.engine.engine import Engine
from specllama.sampling.params import SamplingParams
from tests.drafting.wants import want
from tests.engine.fake_model import FakeModel
from tests.engine.harness import GREEDY, PLAIN, expected, request, run
from tests.text.fakes import FakeVocabulary

WORDS = (" the", " fox", " sees", " a", " tree", ".", " ä", " 漢字", " fo", "x", " tr", "ee")
OTHERS = (" tree", " a fox", " ä", " s", "ees", " the", ".", " 漢", "字", " fo")
TARGET = FakeVocabulary(WORDS)
CONTROL = ("<s>", "<|im_end|>", "<|im_start|>")
DRAFT = FakeVocabulary(OTHERS, control=CONTROL)
SAID = [TARGET._ids[word.encode()] for word in WORDS[:8]]
END = TARGET.control_id("<|im_end|>")
START = TARGET.control_id("<|im_start|>")


def text_of(vocabulary: FakeVocabulary, ids: Sequence[int]) -> bytes:
    return b"".join(map(vocabulary.piece, ids))


@cache
def target_row(context: tuple[int, ...]) -> np.ndarray:
    """A target that says words: which ones depends on the two before."""
    random = np.random.default_rng([7, *context[-2:]])
    row = np.full(TARGET.size, -30.0, np.float32)
    row[SAID] = random.normal(0.0, 2.0, len(SAID)).astype(np.float32)
    return row


def oracle(vocabulary: FakeVocabulary, *asked_for: Any) -> Callable[[tuple[int, ...]], np.ndarray]:
    """A draft of another vocabulary that knows what the target will say to these requests."""
    texts = []
    for wanted in asked_for:
        longer = replace(wanted, max_tokens=wanted.max_tokens + 10)
        ids = [*wanted.ids, *expected(target_row, longer, n_ctx=200)[0]]
        texts.append(text_of(TARGET, ids).decode())
    known = [vocabulary.tokenize(text, special=False, add_bos=False) for text in texts]

    def row(context: tuple[int, ...]) -> np.ndarray:
        own = [token for token in context if not vocabulary.is_control(token)]
        row = np.zeros(vocabulary.size, np.float32)
        row[[ids[len(own)] for ids in known if ids[: len(own)] == own]] = 20.0
        return row

    return row


def noise(context: tuple[int, ...]) -> np.ndarray:
    """A draft that says anything, bytes that are no text too."""
    random = np.random.default_rng([3, *context])
    return random.normal(0.0, 3.0, DRAFT.size).astype(np.float32)


def engine(
    draft: FakeVocabulary, language: Callable[[tuple[int, ...]], np.ndarray], **settings: Any
) -> tuple[Engine, FakeModel]:
    target = FakeModel(target_row, n_vocab=TARGET.size, n_ctx=200, n_seq=2)
    backend = FakeModel(language, n_vocab=draft.size, n_ctx=400, n_seq=2, **settings)
    drafter = TranslatedDrafter(Follower(backend), TARGET, draft)
    return Engine(target, [drafter], n_slots=2), backend


def prompt(*words: str) -> list[int]:
    return [TARGET._ids[word.encode()] for word in words]


def asked(ids: Sequence[int], **changes: Any) -> Any:
    return request(ids, max_tokens=40, is_end=lambda token: False, **changes)


@pytest.mark.parametrize("adds_space", [False, True])
def test_a_draft_that_knows_better_is_right(adds_space: bool) -> None:
    """But for the last token of a draft that ends inside a word."""
    draft = FakeVocabulary(OTHERS, add_bos=True, adds_space=adds_space)
    wanted = asked(prompt("x", " the", " fox"))
    outcome = run(engine(draft, oracle(draft, wanted))[0], wanted)
    assert outcome.tokens == expected(target_row, wanted, n_ctx=200)[0]
    stats = outcome.stats
    assert stats.rounds < 20
    assert stats.tested - stats.accepted < stats.rounds


@settings(max_examples=60)
@given(
    seed=st.integers(1, 5),
    words=st.lists(st.sampled_from(SAID), min_size=1, max_size=6),
    sampling=st.sampled_from([GREEDY, PLAIN, SamplingParams(temperature=0.7, top_k=3)]),
    draft_max=st.integers(1, 9),
    rollback=st.sampled_from(["free", "checkpoint"]),
)
def test_whatever_the_draft_says_the_text_is_the_targets(
    seed: int, words: list[int], sampling: SamplingParams, draft_max: int, rollback: str
) -> None:
    wanted = asked(words, seed=seed, sampling=sampling, draft_max=draft_max)
    for language in (noise, oracle(DRAFT, wanted)):
        tested, _ = engine(DRAFT, language, rollback=rollback)
        assert run(tested, wanted).tokens == expected(target_row, wanted, n_ctx=200)[0]


def test_turns_of_a_conversation_are_read_on() -> None:
    """Though a control token stands between; what changes since is read anew."""
    tested, backend = engine(DRAFT, noise)
    first = asked([START, *prompt(" the", " fox")], draft_max=1)
    said = run(tested, first).tokens
    n_before = len(backend.batches)
    second = asked([*first.ids, *said, END, START, *prompt(" a", " tree")], draft_max=1)
    outcome = run(tested, second)
    assert outcome.tokens == expected(target_row, second, n_ctx=200)[0]
    assert sum(backend.batches[n_before:]) < 2 * len(outcome.tokens)
    third = asked([START, *prompt(" sees", " a", " tree")])
    assert run(tested, third).tokens == expected(target_row, third, n_ctx=200)[0]


def test_what_is_held_of_a_prompt_is_not_dropped_to_read_a_part_of_it() -> None:
    """Such a cache could only be emptied; the new turn is shorter in the draft's tokens."""
    tested, backend = engine(DRAFT, noise, rollback="checkpoint")
    first = asked([START, *prompt(*[" sees"] * 30)], draft_max=2)
    ids = [*first.ids, *run(tested, first).tokens]
    n_before = len(backend.batches)
    live = tested.add(asked([*ids, END, START, *prompt(*[" tr", "ee"] * 30)], draft_max=2))
    while live.n_emitted == 0:
        tested.step()
    assert sum(backend.batches[n_before:]) < len(ids)


def test_a_long_prompt_is_read_in_parts() -> None:
    tested, backend = engine(DRAFT, noise)
    ids = prompt(*(" the", " fox") * 60)
    live = tested.add(asked(ids))
    lengths = []
    while live.n_emitted == 0:
        tested.step()
        lengths.append(len(backend.tokens(0)))
    n_own = len(DRAFT.tokenize(text_of(TARGET, ids).decode(), special=False, add_bos=False))
    assert n_own == 180, "half as many again as the target's"
    assert max(b - a for a, b in pairwise([0, *lengths])) <= 16 * 2
    assert lengths[-1] >= n_own


def test_nothing_but_control_tokens() -> None:
    wanted = asked([START, END])
    tested, _ = engine(DRAFT, noise)
    assert run(tested, wanted).tokens == expected(target_row, wanted, n_ctx=200)[0]
    unknown = asked([TARGET.control_id("</s>")])
    tested, _ = engine(DRAFT, noise)
    assert run(tested, unknown).tokens == expected(target_row, unknown, n_ctx=200)[0]


def test_control_tokens_are_the_drafts_own_of_the_same_name() -> None:
    backend = FakeModel(noise, n_vocab=DRAFT.size, n_ctx=64)
    drafter = TranslatedDrafter(Follower(backend), TARGET, DRAFT)
    unknown = TARGET.control_id("</s>")
    drafter.propose([want([START, *prompt(" tree"), unknown, *prompt(" a"), END], limit=1)])
    held = backend.tokens(0)
    assert held == (
        DRAFT.control_id("<|im_start|>"),
        *DRAFT.tokenize(" tree", special=False, add_bos=False),
        *DRAFT.tokenize(" a", special=False, add_bos=False),
        DRAFT.control_id("<|im_end|>"),
    )


def test_a_draft_that_begins_with_its_own_control_token_reads_it_once() -> None:
    draft = FakeVocabulary(OTHERS, control=CONTROL, add_bos=True)
    for begins in ([TARGET.control_id("<s>")], []):
        backend = FakeModel(noise, n_vocab=draft.size, n_ctx=64)
        drafter = TranslatedDrafter(Follower(backend), TARGET, draft)
        drafter.propose([want([*begins, *prompt(" tree")], limit=1)])
        said = draft.tokenize(" tree", special=False, add_bos=False)
        assert backend.tokens(0) == (draft.control_id("<s>"), *said)


@pytest.mark.parametrize("rollback", ["free", "checkpoint"])
@pytest.mark.parametrize("n_ctx", [40, 60, 80, 120, 160])
def test_a_draft_without_room_for_all_leaves_some_out(n_ctx: int, rollback: Any) -> None:
    """Its text may be longer than the target's, in tokens."""
    wanted = [asked(prompt(*(" the", " fox") * n), seed=n, draft_max=4) for n in (6, 9, 4)]
    target = FakeModel(target_row, n_vocab=TARGET.size, n_ctx=400, n_seq=3)
    backend = FakeModel(noise, n_vocab=DRAFT.size, n_ctx=n_ctx, n_seq=3, rollback=rollback)
    drafter = TranslatedDrafter(Follower(backend), TARGET, DRAFT)
    tested = Engine(target, [drafter], n_slots=3)
    lives = [tested.add(one) for one in wanted]
    while any(live.finish is None for live in lives):
        tested.step()
    for one, live in zip(wanted, lives, strict=True):
        assert live.ids[live.n_prompt :] == expected(target_row, one, n_ctx=400)[0]
    assert any(live.stats.drafted for live in lives)


def test_nothing_is_drafted_inside_a_character() -> None:
    backend = FakeModel(noise, n_vocab=DRAFT.size)
    drafter = TranslatedDrafter(Follower(backend), TARGET, DRAFT)
    (proposal,) = drafter.propose([want([*prompt(" a"), "漢".encode()[0]])])
    assert not len(proposal)
    assert not backend.batches


def test_two_sequences_share_batches() -> None:
    wanted = [asked(prompt(" the", " fox")), asked(prompt(" a", " tree"))]
    tested, backend = engine(DRAFT, oracle(DRAFT, *wanted))
    lives = [tested.add(one) for one in wanted]
    while any(live.finish is None for live in lives):
        tested.step()
    for one, live in zip(wanted, lives, strict=True):
        assert live.ids[live.n_prompt :] == expected(target_row, one, n_ctx=200)[0]
        assert live.stats.accepted > 10
    assert 2 in backend.batches


def test_a_draft_that_computes_nonsense_drafts_nothing() -> None:
    wanted = asked(prompt(" the", " fox"))
    tested, _ = engine(DRAFT, lambda context: noise(context) * np.nan)
    outcome = run(tested, wanted)
    assert outcome.tokens == expected(target_row, wanted, n_ctx=200)[0]
    assert outcome.stats.drafted == 0


def test_no_more_than_was_asked_for() -> None:
    """A token of the draft may be several of the target's."""
    wanted = asked(prompt(" the", " fox"))
    backend = FakeModel(oracle(DRAFT, wanted), n_vocab=DRAFT.size)
    drafter = TranslatedDrafter(Follower(backend), TARGET, DRAFT)
    for limit in (1, 2, 3):
        (proposal,) = drafter.propose([want(wanted.ids, limit=limit)])
        assert 1 <= len(proposal) <= limit


def test_what_is_unread_is_counted_in_the_drafts_own_tokens() -> None:
    """Also where a text has fewer of these than of the target's."""
    ids = prompt(" the", *[" tr", "ee"] * 9)
    backend = FakeModel(noise, n_vocab=DRAFT.size, n_ctx=400)
    drafter = TranslatedDrafter(Follower(backend), TARGET, DRAFT)
    assert drafter.unread(0, ids) == len(ids)
    drafter.prepare(0, ids)
    drafter.propose([want(ids, limit=1)])
    assert backend.length(0) < len(ids)
    assert drafter.unread(0, ids) <= 1
    assert 1 <= drafter.unread(0, [*ids, *prompt(" a", " fox")]) <= 3


def test_words_that_would_join_what_was_said_are_proposed_apart() -> None:
    """The target said " tr" and no " tree"; "ee" is what it may say next."""
    e = ord("e")
    backend = FakeModel(lambda _: np.eye(DRAFT.size, dtype=np.float32)[e] * 20, n_vocab=DRAFT.size)
    drafter = TranslatedDrafter(Follower(backend), TARGET, DRAFT)
    (proposal,) = drafter.propose([want(prompt(" a", " tr"), limit=2)])
    assert list(proposal.tokens) == prompt("ee")


@pytest.mark.parametrize("how", ["rewind", "prepare"])
@pytest.mark.parametrize("rollback", ["free", "checkpoint"])
def test_ids_that_changed_are_translated_anew(how: str, rollback: Any) -> None:
    backend = FakeModel(noise, n_vocab=DRAFT.size, rollback=rollback)
    drafter = TranslatedDrafter(Follower(backend), TARGET, DRAFT)
    before, after = prompt(" a", " fox", " sees", " the"), prompt(" a", " tree", ".", " fox")
    drafter.propose([want(before, limit=1)])
    if how == "rewind":
        drafter.rewind(0, 1)
    else:
        drafter.prepare(0, after)
    drafter.propose([want(after, limit=1)])
    said = DRAFT.tokenize(text_of(TARGET, after).decode(), special=False, add_bos=False)
    assert list(backend.tokens(0)) == said
