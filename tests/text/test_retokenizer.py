from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.llama.model import Model
from specllama.text.retokenizer import Retokenizer
from specllama.text.vocabulary import Vocabulary
from tests.llama.tiny import write_llama
from tests.text.fakes import FakeVocabulary

WORDS = ("he", "hel", "hello", "lo", " wor", " world", "d ", "  ", "ä", "äh", "漢", "字 ", " h")
TEXTS = st.lists(st.sampled_from([*WORDS, "l", " ", "o", "w", "😀", "\n"]), max_size=40)


def grown(vocabulary: Vocabulary, parts: list[str], start: int = 0) -> list[int]:
    """Tokens of a text that comes in parts."""
    retokenizer, ids = Retokenizer(vocabulary), [7] * start
    for part in parts:
        kept, tokens = retokenizer.extend(ids, part.encode(), start)
        assert start <= kept <= len(ids)
        assert len(tokens) > 0 or kept == len(ids)
        ids[kept:] = tokens
    return ids[start:]


@given(parts=TEXTS, adds_space=st.booleans(), start=st.integers(0, 3))
def test_a_text_in_parts_has_the_tokens_of_the_whole(
    parts: list[str], adds_space: bool, start: int
) -> None:
    vocabulary = FakeVocabulary(WORDS, adds_space=adds_space)
    whole = vocabulary.tokenize("".join(parts), special=False, add_bos=False)
    assert grown(vocabulary, parts, start) == whole


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_real_vocabulary(smollm2: Vocabulary, size: int) -> None:
    text = (
        "Once upon a time, in the year 1848, a fox said: 'You mustn't!' — \n\n```python\n"
        "def reverse(items):\n    return items[::-1]\n```\nOù êtes-vous? 漢字 😀\t\tend   of it."
    )
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    assert grown(smollm2, parts) == smollm2.tokenize(text, special=False, add_bos=False)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    with Model(write_llama(tmp_path_factory.mktemp("llama") / "tiny.gguf")) as model:
        yield model.vocabulary


PARTS = ("hel", "lo", " ", "the", " fox", "漢", "字", " wor", "ld", "\n", "  ", "😀", "x")


@pytest.mark.model
@pytest.mark.parametrize("parts", [PARTS, (*PARTS, "<|note|>")], ids=["words", "user-defined"])
def test_spaces_that_a_vocabulary_adds_are_added_once(
    sentencepiece: Vocabulary, parts: tuple[str, ...]
) -> None:
    choose = random.Random(1)
    for _ in range(50):
        said = choose.choices(parts, k=30)
        whole = sentencepiece.tokenize("".join(said), special=False, add_bos=False)
        assert grown(sentencepiece, said) == whole


@pytest.mark.parametrize("adds_space", [False, True])
def test_inside_a_text_no_space_is_added(adds_space: bool) -> None:
    vocabulary = FakeVocabulary(WORDS, adds_space=adds_space)
    for text in ("hello world", " h", "漢"):
        tokens = Retokenizer(vocabulary).inside(text.encode())
        assert b"".join(map(vocabulary.piece, tokens)).decode() == text


@pytest.mark.parametrize("text", ["hello world", "漢字漢"])
@pytest.mark.parametrize("adds_space", [False, True])
def test_only_the_end_is_made_anew(text: str, adds_space: bool) -> None:
    """Though there is no space to begin at."""
    vocabulary = FakeVocabulary(WORDS, adds_space=adds_space)
    seen: list[str] = []

    def tokenize(text: str, **settings: bool) -> list[int]:
        seen.append(text)
        return FakeVocabulary.tokenize(vocabulary, text, special=False, add_bos=False)

    retokenizer = Retokenizer(vocabulary)
    ids = vocabulary.tokenize(text * 1000, special=False, add_bos=False)
    vocabulary.tokenize = tokenize  # type: ignore[method-assign, assignment]
    kept, tokens = retokenizer.extend(ids, b" world")
    assert (kept, tokens) == (len(ids), [vocabulary._ids[b" world"]])
    assert max(map(len, seen)) < 120


def test_nothing_new_changes_nothing() -> None:
    ids = [1, 2, 3]
    assert Retokenizer(FakeVocabulary(WORDS)).extend(ids, b"") == (3, [])


def test_bytes_that_are_no_text_are_told_as_such() -> None:
    vocabulary = FakeVocabulary(WORDS)
    kept, tokens = Retokenizer(vocabulary).extend([], b"he\xff")
    assert kept == 0
    assert b"".join(map(vocabulary.piece, tokens)).decode() == "he\ufffd"
