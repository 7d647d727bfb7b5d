from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.drafting.text import (
    FARTHEST,
    FIRST,
    GROWTH,
    LONGEST,
    SOLID,
    TRUST,
    Alignment,
    TextDrafter,
)
from specllama.engine.engine import Engine
from tests.drafting.wants import replay, want
from tests.engine.fake_model import FakeModel, language
from tests.engine.harness import expected, finish, request

PROMPT = [7, 7]
IDS = st.lists(st.integers(0, 3), max_size=40)


def drafter(text: Sequence[int], key: int = 0, prompt: Sequence[int] = PROMPT) -> TextDrafter:
    made = TextDrafter()
    made.prepare(key, prompt)
    made.predict(key, text)
    return made


def draft(text: Sequence[int], reply: Sequence[int], limit: int = 16) -> list[int]:
    (proposal,) = drafter(text).propose([want([*PROMPT, *reply], limit)])
    return list(proposal.tokens)


# --- the alignment, against a search written without arrays


def searched(text: list[int], reply: list[int], limit: int) -> list[int]:
    """What to draft after a reply, by the rules in the module's words."""
    place = agreed = missed = anchor = 0
    for read in range(1, len(reply) + 1):
        if place < len(text) and text[place] == reply[read - 1]:
            place, agreed, missed = place + 1, agreed + 1, 0
            continue
        anchor = place if agreed >= SOLID else anchor
        found = places(text, reply[max(0, read - LONGEST) : read], anchor)
        if found:
            agreed, place = max(found, key=lambda f: (f[0], f[1] >= anchor, -abs(f[1] - anchor)))
            missed = 0
        else:
            place, agreed, missed = place + 1, 0, missed + 1
    return text[place : place + max(0, min(limit, FIRST - missed + GROWTH * agreed))]


def places(text: list[int], latest: list[int], anchor: int) -> list[tuple[int, int]]:
    """(length, place) of every match that may be trusted."""
    return [
        (length, place)
        for place in range(1, len(text) + 1)
        for length in range(1, min(place, len(latest)) + 1)
        if text[place - length : place] == latest[-length:]
        and abs(place - anchor) <= min(TRUST**length, FARTHEST)
    ]


@settings(deadline=None)
@given(IDS, IDS, st.integers(1, 20))
def test_drafts_what_a_search_finds(text: list[int], reply: list[int], limit: int) -> None:
    assert draft(text, reply, limit) == searched(text, reply, limit)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 60))
def test_drafts_what_a_search_finds_in_edited_texts(seed: int, edits: int, size: int) -> None:
    text = words(size * 3, seed, kinds=40)
    reply = edited(text, edits, seed + 1)
    cut = random.Random(seed).randrange(len(reply) + 1)
    assert draft(text, reply[:cut]) == searched(text, reply[:cut], 16)


@settings(deadline=None)
@given(IDS, st.lists(st.tuples(st.integers(0, 30), IDS), min_size=1, max_size=6))
def test_drafts_the_same_after_any_growth_and_rewinds(
    text: list[int], turns: list[tuple[int, list[int]]]
) -> None:
    follower = drafter(text)
    ids = list(PROMPT)
    for kept, new in turns:
        if len(PROMPT) + kept < len(ids):
            follower.rewind(0, len(PROMPT) + kept)
            del ids[len(PROMPT) + kept :]
        ids += new
        (proposal,) = follower.propose([want(ids)])
        assert list(proposal.tokens) == draft(text, ids[len(PROMPT) :])


A, B, C, D, E, F, G, H = range(10, 18)
TEXT = [A, B, C, D, E, F, G, H]


@pytest.mark.parametrize(
    ("reply", "tokens"),
    [
        ([], [A, B, C]),
        ([A], [B, C, D, E, F]),
        ([A, B], [C, D, E, F, G, H]),
        ([A, B, 1], [D, E]),  # C was replaced, so it seems
        ([A, B, 1, D], [E, F, G, H]),  # it was
        ([A, B, 1, C], [D, E, F, G, H]),  # no, something was inserted
        ([A, B, D], [E, F, G, H]),  # C was left out
        ([A, B, C, G, H], []),  # the end
        ([A, B, C, D, E, F, G, H, 1], []),
        ([E, F, G, H, A], [B, C, D, E, F]),  # moved
        ([1, 2, A, B], [C, D, E, F, G, H]),  # a preface
        ([1, 2, 3], []),
        ([1, 2, 3, 4, 5, 6, 7, 8], []),
    ],
)
def test_table(reply: list[int], tokens: list[int]) -> None:
    assert draft(TEXT, reply) == tokens


def test_the_nearest_following_place_is_taken() -> None:
    text = [1, A, 2, A, B, 3, A, B, C, 4, A, B, D]
    assert draft(text, [1, A, 2, A, B, 3, 5, A], limit=1) == [B]
    assert draft(text, [1, A, 2, A, B, 3, 5, A, B], limit=1) == [C]
    assert draft([A, B, C, D, E, F, D, G], [A, B, C, D, D], limit=1) == [E]


def test_a_short_match_far_away_is_no_place_to_go_on_from() -> None:
    text = [*range(100, 200), A, B, C, D, E]
    assert draft(text, [100, 101, 102, 103, 104, A]) == [106, 107]  # as if 105 were replaced
    assert draft(text, [100, 101, 102, 103, 104, A, B], limit=2) == [C, D]


@pytest.mark.parametrize(
    ("n_agreed", "tokens"), [(SOLID, [140, 141, 142, 143, 144]), (SOLID - 1, [125])]
)
def test_a_short_match_is_looked_for_where_agreement_was_solid(
    n_agreed: int, tokens: list[int]
) -> None:
    """One token is trusted up to sixteen from there, else from the beginning."""
    text = list(range(100, 160))
    assert draft(text, [*range(120, 120 + n_agreed), 1, 139]) == tokens


@pytest.mark.parametrize(("place", "tokens"), [(FARTHEST - 9, 1), (FARTHEST + 9, 0)])
def test_what_is_too_far_away_is_not_found(place: int, tokens: int) -> None:
    text = list(range(FARTHEST + 100))
    assert len(draft(text, text[place - 6 : place], limit=1)) == tokens


# --- simulations: how many rounds a reply takes


def words(count: int, seed: int, kinds: int = 400) -> list[int]:
    return random.Random(seed).choices(range(20, 20 + kinds), k=count)


def edited(text: list[int], edits: int, seed: int) -> list[int]:
    """A text with spans replaced, inserted, left out or moved."""
    chance, reply = random.Random(seed), list(text)
    for _ in range(edits):
        at, span = chance.randrange(len(reply) + 1), chance.randint(0, 5)
        block = reply[at : at + span]
        del reply[at : at + chance.choice([0, span])]
        at = chance.choice([at, chance.randrange(len(reply) + 1)])
        reply[at:at] = chance.choice([block, words(span, chance.randrange(99)), []])
    return reply


def file_of(lines: int) -> list[list[int]]:
    """A file of 9 tokens a line: an indent and an end shared by all, words of its own between."""
    return [[1, *words(7, line), 2] for line in range(lines)]


def rounds(text: Sequence[int], reply: Sequence[int], limit: int = 16) -> int:
    return len(replay(drafter(text), PROMPT, reply, limit))


def flat(lines: Sequence[Sequence[int]]) -> list[int]:
    return [token for line in lines for token in line]


def test_a_file_as_it_was_takes_whole_blocks() -> None:
    text = flat(file_of(300))
    # 3, then 11 tokens drafted, each with one of the target's own; from then on blocks of 16 + 1
    assert rounds(text, text) == 2 + -(-(2700 - 16) // 17)
    assert rounds(text, text, limit=64) == 3 + -(-(2700 - 4 - 12 - 36) // 65)


def test_a_file_with_three_changed_lines_takes_mostly_whole_blocks() -> None:
    before = file_of(300)
    after = [list(line) for line in before]
    after[40][3] = 3  # a word replaced
    after[150][5:5] = [3, 4, 5, 6]  # four inserted
    after[260] = [1, 3, 4, 5, 2]  # a line written anew
    # eleven more than the file as it was
    assert rounds(flat(before), flat(after)) == 2 + -(-(2700 - 16) // 17) + 11


@pytest.mark.parametrize(
    ("edit", "more"),
    [
        (lambda lines: lines[:100] + lines[140:], 1),  # 40 lines left out
        (lambda lines: lines[:100] + file_of(400)[390:395] + lines[100:], 39),  # 45 new tokens
        (lambda lines: lines[:50] + lines[200:220] + lines[50:200] + lines[220:], 2),  # moved
        (lambda lines: lines[150:] + lines[:150], 4),  # the halves change places
    ],
)
def test_rounds_beyond_those_of_whole_blocks(
    edit: Callable[[list[list[int]]], list[list[int]]], more: int
) -> None:
    lines = file_of(300)
    reply = flat(edit(lines))
    assert rounds(flat(lines), reply) - (2 + -(-(len(reply) - 16) // 17)) == more


def test_a_corrected_page_takes_few_rounds() -> None:
    """Aggressive decoding: one word in 25 is another."""
    page = words(1000, 1)
    corrected = [3 if place % 25 == 24 else word for place, word in enumerate(page)]
    # 25 tokens: 2 guessed + 1, 11 + 1, and up to the next difference
    assert rounds(page, corrected) <= 1000 / 25 * 3 + 2


def test_a_text_in_another_language_costs_next_to_nothing() -> None:
    drafted = replay(drafter(words(500, 1)), PROMPT, [token + 5000 for token in words(300, 2)])
    assert sum(drafted) == FIRST + (FIRST - 1) + (FIRST - 2)


# --- what any drafter owes its engine


def test_an_empty_text_and_no_text_draft_nothing() -> None:
    assert draft([], [1, 2, 3]) == []
    (proposal,) = TextDrafter().propose([want([1, 2, 3])])
    assert len(proposal) == 0


def test_proposals_are_chains_chosen_without_a_law() -> None:
    (proposal,) = drafter(TEXT).propose([want([*PROMPT, A], 2)])
    assert proposal.source == "text"
    assert proposal.tokens == (B, C)
    assert proposal.parents == (-1, 0)
    assert proposal.laws == (None, None, None)


def test_the_scheduler_ends_a_chain() -> None:
    asked: list[tuple[int, float | None]] = []

    def two(drafted: int, confidence: float | None) -> bool:
        asked.append((drafted, confidence))
        return drafted < 2

    (proposal,) = drafter(TEXT).propose([want([*PROMPT, A], go_on=two)])
    assert proposal.tokens == (B, C)
    assert asked == [(0, 2 / 3), (1, 2 / 3), (2, 2 / 3)]


def test_the_longer_the_agreement_the_surer() -> None:
    text = list(range(20))
    alignment, seen = Alignment(text), []
    for token in (0, 1, 2, 3, 99, 5, 6):
        alignment.follow([token])
        seen.append(alignment.confidence)
    assert seen[:4] == sorted(set(seen[:4]))
    assert seen[4] == 0.5 < seen[5] < seen[6]


def test_sequences_have_their_own_texts() -> None:
    both = drafter(TEXT, key=0)
    both.prepare(1, [7])
    both.predict(1, TEXT[::-1])
    wants = [want([*PROMPT, A], 1, key=0), want([7, H], 1, key=1), want([A], 1, key=2)]
    assert [p.tokens for p in both.propose(wants)] == [(B,), (G,), ()]


def test_a_prediction_is_for_one_reply() -> None:
    once = drafter(TEXT)
    once.prepare(0, [*PROMPT, A, 7])
    (proposal,) = once.propose([want([*PROMPT, A, 7, A])])
    assert len(proposal) == 0


def test_has_an_idea_as_long_as_a_text_is_predicted() -> None:
    """Wherever the reply is in it: the text may begin to agree with any token."""
    made = drafter(TEXT)
    assert made.idea(0, PROMPT) == 1
    assert [made.idea(0, [*PROMPT, *TEXT[:count]]) for count in (1, 2, 3)] == [2, 3, 4]
    assert made.idea(0, [*PROMPT, *TEXT[:3], 9, 9]) == 1
    assert not made.idea(1, PROMPT)
    made.rewind(0, 0)
    assert made.idea(0, PROMPT) == 1
    made.prepare(0, [*PROMPT, A, 7])
    assert not made.idea(0, [*PROMPT, A, 7])
    made.predict(0, [])
    assert not made.idea(0, [*PROMPT, A, 7])
    made.predict(0, TEXT)
    assert made.idea(0, [*PROMPT, A, 7])
    made.forget()
    assert not made.idea(0, [*PROMPT, A, 7])


def test_a_repair_in_the_middle_of_a_reply_keeps_the_prediction() -> None:
    repaired = drafter(TEXT)
    repaired.propose([want([*PROMPT, A, B])])
    repaired.rewind(0, 0)
    (proposal,) = repaired.propose([want([*PROMPT, A, B, C], 2)])
    assert proposal.tokens == (D, E)


def test_close_forgets_everything() -> None:
    closed = drafter(TEXT)
    closed.forget()
    (proposal,) = closed.propose([want([*PROMPT, A])])
    assert len(proposal) == 0


@pytest.mark.parametrize("rule", ["coupled", "match", "rejection", "block"])
def test_the_engine_says_the_same_in_fewer_rounds(rule: str) -> None:
    says = language(3)
    asked = request([1, 2, 3], rule, drafters=("text",), max_tokens=24, draft_max=8)
    reply, _ = expected(says, asked)
    text = TextDrafter()
    engine = Engine(FakeModel(says), [text])
    live = engine.add(asked)
    text.predict(live.key, [*reply[:5], 9, *reply[6:], 1, 1, 1])
    outcome = finish(engine, live)
    assert outcome.tokens == reply
    assert outcome.stats.by_source["text"].accepted >= len(reply) - 8
    assert outcome.stats.rounds <= 8


def test_a_round_at_32k_tokens_takes_microseconds() -> None:
    text = words(32_000, 1, kinds=2000)
    follower = drafter(text)
    ids = [*PROMPT]
    follower.propose([want(ids)])
    agreeing, lost = [], []
    for seconds, tokens in ((agreeing, text[:300]), (lost, words(300, 2, kinds=2000))):
        for token in tokens:
            ids.append(token)
            started = time.perf_counter()
            follower.propose([want(ids)])
            seconds.append(time.perf_counter() - started)
    # 5 and 40 µs on an idle machine; comparing all places one by one would take milliseconds.
    assert median(agreeing) < 500e-6
    assert median(lost) < 1000e-6
