from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.text.stream import Piece, TextStream
from specllama.text.vocabulary import Vocabulary
from tests.text.fakes import FakeVocabulary

LLAMA = "🦙".encode()
WORDS = ["ab", "ba", "aSb", "ST", "OP", "xSTO", "STOPx", "éS", "🦙", LLAMA[:2], LLAMA[2:], b"\xffS"]
VOCABULARY = FakeVocabulary(WORDS)
WORD_TOKENS = st.lists(
    st.integers(256, VOCABULARY.size - 1) | st.sampled_from([*b"aSTOP", 0xF0, 0x9F, 0xFF]),
    max_size=14,
)
STOP_STRINGS = st.lists(
    st.sampled_from(["STOP", "S", "TO", "🦙", "ba", "éS", "\ufffd", "bb"]), max_size=3
)


def characters_of(tokens: list[int]) -> list[set[int]]:
    """Per token, the characters of the whole text that its bytes belong to, byte by byte."""
    raw = b"".join(map(VOCABULARY.piece, tokens))
    of_byte = [len(raw[: end + 1].decode("utf-8", "replace")) - 1 for end in range(len(raw))]
    places, start = [], 0
    for token in tokens:
        size = len(VOCABULARY.piece(token))
        places.append(set(of_byte[start : start + size]))
        start += size
    return places


def naive(tokens: list[int], stops: list[str]) -> tuple[str, bool, int]:
    """Kept text, stopped, dropped tokens: by trying every number of tokens from the start."""
    for count in range(1, len(tokens) + 1):
        raw = b"".join(map(VOCABULARY.piece, tokens[:count]))
        text = _complete(raw)
        for end in range(1, len(text) + 1):
            found = [stop for stop in stops if text[:end].endswith(stop)]
            if found:
                kept = end - max(map(len, found))
                places = characters_of(tokens[:count])
                lost = (i for i, place in enumerate(places) if place and min(place) >= kept)
                return text[:kept], True, count - next(lost, count)
    return b"".join(map(VOCABULARY.piece, tokens)).decode("utf-8", "replace"), False, 0


def _complete(raw: bytes) -> str:
    """What is decoded of bytes that may go on: an open character at the end does not show."""
    for size in range(1, min(4, len(raw) + 1)):
        if any(_is_character(raw[-size:] + more) for more in _ENDINGS):
            return raw[:-size].decode("utf-8", "replace")
    return raw.decode("utf-8", "replace")


def _is_character(raw: bytes) -> bool:
    text = raw.decode("utf-8", "replace")
    return len(text) == 1 and text.encode() == raw


_ENDINGS = [bytes([first]) + b"\x80" * more for first in (0x80, 0x90, 0xA0) for more in range(3)]


@given(WORD_TOKENS, STOP_STRINGS)
def test_text_and_dropped_tokens_match_a_search_of_the_whole(
    tokens: list[int], stops: list[str]
) -> None:
    stream = TextStream(VOCABULARY, stops)
    text, last = "", Piece("")
    for token in tokens:
        last = stream.push(token)
        text += last.text
        if last.stopped:
            break
    else:
        text += stream.finish()
    expected = naive(tokens, stops)
    if not expected[1] and "\ufffd" in stops:
        return  # an open character at the end may itself become the stop string
    assert (text, last.stopped, last.dropped_tokens) == expected


def push_all(stream: TextStream, vocabulary: Vocabulary, text: str) -> list[Piece]:
    return [stream.push(t) for t in vocabulary.tokenize(text, special=False, add_bos=False)]


@pytest.mark.parametrize(
    ("words", "stop", "text", "kept", "dropped"),
    [
        (["Hi", " STOP"], " STOP", "Hi STOP", "Hi", 1),
        (["Hi", " ST", "OP"], " STOP", "Hi STOP", "Hi", 2),
        (["Hi S", "TOP"], "STOP", "Hi STOP", "Hi ", 1),
        (["Hi STOP and"], "STOP", "Hi STOP and", "Hi ", 0),
        (["STOP"], "STOP", "STOP", "", 1),
        (["🦙", "日本", "語 STOP"], "日本語", "🦙日本語 STOP", "🦙", 2),
        ([LLAMA[:2], LLAMA[2:], "!!"], "!!", "🦙!!", "🦙", 1),
        ([LLAMA[:2], LLAMA[2:] + b"!"], "!", "🦙!", "🦙", 0),
        ([LLAMA[:2], LLAMA[2:] + b"!"], "🦙", "🦙!", "", 2),
        (["a\n", "\nUser", ":"], "\n\nUser:", "a\n\nUser:", "a", 2),
    ],
)
def test_tokens_before_the_stop_string_are_kept(
    words: list[str | bytes], stop: str, text: str, kept: str, dropped: int
) -> None:
    vocabulary = FakeVocabulary(words)
    pieces = push_all(TextStream(vocabulary, [stop]), vocabulary, text)
    assert "".join(piece.text for piece in pieces) == kept
    assert [piece.stopped for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].dropped_tokens == dropped


def test_control_tokens_go_only_behind_the_first_token_that_goes() -> None:
    stream = TextStream(VOCABULARY, ["ST"])
    control = VOCABULARY.control_id("<|im_start|>")
    tokens = [ord("a"), control, ord("S"), control, ord("T")]
    assert [stream.push(token) for token in tokens][-1] == Piece("", True, 3)


@given(WORD_TOKENS, STOP_STRINGS)
def test_a_token_is_never_dropped_once_nothing_is_held(tokens: list[int], stops: list[str]) -> None:
    stream, certain = TextStream(VOCABULARY, stops), 0
    for count, token in enumerate(tokens, 1):
        piece = stream.push(token)
        if piece.stopped:
            assert count - piece.dropped_tokens >= certain
            return
        whole = b"".join(map(VOCABULARY.piece, tokens[:count]))
        if not stream.holds:
            certain = count
            assert whole.decode("utf-8", "replace").endswith(piece.text)


def test_a_new_generation_begins_after_a_stop_and_after_finish() -> None:
    stream = TextStream(VOCABULARY, ["STOP"])
    assert push_all(stream, VOCABULARY, "aSTOP")[-1].dropped_tokens == 2
    assert "".join(p.text for p in push_all(stream, VOCABULARY, "bST")) == "b"
    assert stream.finish() == "ST"
    assert push_all(stream, VOCABULARY, "OP") == [Piece("OP")]


def test_finish_shows_an_open_character_and_held_back_text() -> None:
    stream = TextStream(VOCABULARY, ["STOP"])
    assert [stream.push(token).text for token in (ord("S"), ord("T"), 0xF0)] == ["", "", ""]
    assert stream.finish() == "ST\ufffd"


@pytest.mark.model
@pytest.mark.parametrize("stop", ["本語", "llama", "🦙", " a", "\n\n"])
def test_with_a_real_vocabulary_kept_ids_are_the_shortest_that_hold_the_text(
    smollm2: Vocabulary, stop: str
) -> None:
    text = f"The answer is 日本{stop} and more"
    tokens = smollm2.tokenize(text, special=False, add_bos=False)
    stream, taken = TextStream(smollm2, [stop]), [Piece("")]
    while not taken[-1].stopped:
        taken.append(stream.push(tokens[len(taken) - 1]))
    shown = "".join(piece.text for piece in taken)
    assert shown == text[: text.index(stop)]
    count = len(taken) - 1 - taken[-1].dropped_tokens
    kept = [*map(smollm2.piece, tokens[:count])]
    assert b"".join(kept).startswith(shown.encode())
    assert not b"".join(kept[:-1]).startswith(shown.encode())
