from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.text.detokenizer import (
    StreamingDetokenizer,
    adds_space_prefix,
    is_inside_character,
    whole_characters,
)
from specllama.text.vocabulary import Vocabulary
from tests.text.fakes import FakeVocabulary

VOCABULARY = FakeVocabulary(
    ["é", "中文", "🦙"[:1], "🦙".encode()[:2], "🦙".encode()[1:], b"\xe2\x82"]
)
TOKENS = st.lists(st.integers(0, VOCABULARY.size - 1))
BORDER_BYTES = bytes.fromhex("41 80 bf c3 e2 ed ef bd f0 9f f4 ff")
BORDER_TOKENS = st.lists(st.sampled_from([*BORDER_BYTES, *range(256, VOCABULARY.size)]))


def texts(vocabulary: Vocabulary, tokens: list[int], *, at_start: bool = False) -> list[str]:
    detokenizer = StreamingDetokenizer(vocabulary, at_start=at_start)
    return [*map(detokenizer.push, tokens), detokenizer.flush()]


def whole(vocabulary: Vocabulary, tokens: list[int]) -> str:
    return b"".join(map(vocabulary.piece, tokens)).decode("utf-8", "replace")


@given(TOKENS | BORDER_TOKENS)
def test_joined_texts_are_the_whole_decoded(tokens: list[int]) -> None:
    assert "".join(texts(VOCABULARY, tokens)) == whole(VOCABULARY, tokens)


@given(BORDER_TOKENS)
def test_first_character_is_the_one_that_shows_the_tokens_first_byte(tokens: list[int]) -> None:
    detokenizer = StreamingDetokenizer(VOCABULARY)
    for count, token in enumerate(tokens):
        detokenizer.push(token)
        piece = VOCABULARY.piece(token)
        if not piece:
            assert detokenizer.first_character is None
            continue
        raw = b"".join(map(VOCABULARY.piece, tokens[:count])) + piece[:1]
        assert detokenizer.first_character == len(raw.decode("utf-8", "replace")) - 1


def test_a_character_appears_whole_with_its_last_byte() -> None:
    assert texts(VOCABULARY, [*"a🦙b".encode()]) == ["a", "", "", "", "🦙", "b", ""]


def test_an_incomplete_character_at_the_end_is_flushed_as_a_replacement() -> None:
    assert texts(VOCABULARY, [*"🦙".encode()[:3]]) == ["", "", "", "\ufffd"]


def test_control_tokens_have_no_text_and_do_not_break_characters() -> None:
    control = VOCABULARY.control_id("<|im_end|>")
    assert texts(VOCABULARY, [0xC3, control, 0xA9]) == ["", "", "é", ""]


@pytest.mark.parametrize(
    ("adds_space", "at_start", "text"),
    [(True, True, "Hi  a"), (True, False, " Hi  a"), (False, True, " Hi  a")],
)
def test_the_space_of_sentencepiece_is_dropped_only_where_a_text_starts(
    adds_space: bool, at_start: bool, text: str
) -> None:
    vocabulary = FakeVocabulary([" Hi", "  a"], adds_space=adds_space)
    control = vocabulary.control_id("<s>")
    assert "".join(texts(vocabulary, [control, 256, 257], at_start=at_start)) == text


def test_restart_forgets_an_open_character() -> None:
    detokenizer = StreamingDetokenizer(VOCABULARY)
    detokenizer.push(0xF0)
    detokenizer.restart()
    assert detokenizer.push(ord("a")) == "a"
    assert detokenizer.first_character == 0


@pytest.mark.model
@pytest.mark.parametrize(
    "text",
    [
        "🦙",
        "🦙🦙 llamas",
        "日本語のテキスト、你好",
        "naïve café",
        "  two  spaces\n\n\ttab",
        "👩‍👩‍👧‍👦",
    ],
)
def test_real_tokens_give_the_text_back_without_halves(smollm2: Vocabulary, text: str) -> None:
    tokens = smollm2.tokenize(text, special=False, add_bos=False)
    pieces = texts(smollm2, tokens)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.model
def test_a_llama_of_three_tokens_comes_with_the_third(smollm2: Vocabulary) -> None:
    tokens = smollm2.tokenize("🦙", special=False, add_bos=False)
    assert texts(smollm2, tokens) == ["", "", "🦙", ""]


@pytest.mark.model
@pytest.mark.parametrize(("token", "size"), [(8500, 41), (9225, 49)])
def test_pieces_longer_than_32_bytes_are_whole(smollm2: Vocabulary, token: int, size: int) -> None:
    (text, rest) = texts(smollm2, [token])
    assert len(text.encode()) == size
    assert rest == ""
    assert smollm2.tokenize(text, special=False, add_bos=False) == [token]


@pytest.mark.model
def test_smollm2_adds_no_space(smollm2: Vocabulary) -> None:
    assert not adds_space_prefix(smollm2)


@given(text=st.text(max_size=6), cut=st.integers(0, 3))
def test_whole_characters(text: str, cut: int) -> None:
    raw = text.encode()
    broken = raw[: max(0, len(raw) - cut)]
    assert broken[: whole_characters(broken)].decode() == broken.decode("utf-8", "ignore")


@pytest.mark.parametrize("raw", [b"a\xff", b"\x80\x80\x80\x80\x80", b""])
def test_what_is_no_utf_8_is_left_as_it_is(raw: bytes) -> None:
    assert whole_characters(raw) == len(raw)


def test_the_insides_of_characters() -> None:
    raw = "aä🦙".encode()
    assert [is_inside_character(raw, n) for n in range(8)] == [0, 0, 1, 0, 1, 1, 1, 0]
