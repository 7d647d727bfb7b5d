"""States of llama.cpp's grammars over the real vocabulary."""

from __future__ import annotations

import numpy as np
import pytest

from specllama.errors import UsageError
from specllama.llama.grammar import Grammars, GrammarState
from specllama.llama.model import LlamaVocabulary, Model
from specllama.text.schema import to_gbnf

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def vocabulary(model: Model) -> LlamaVocabulary:
    return model.vocabulary


@pytest.fixture(scope="module")
def grammars(vocabulary: LlamaVocabulary) -> Grammars:
    return Grammars(vocabulary)


def say(state: GrammarState, vocabulary: LlamaVocabulary, text: str) -> GrammarState | None:
    here: GrammarState | None = state
    for token in vocabulary.tokenize(text, special=False, add_bos=False):
        here = here.after(token) if here is not None else None
    return here


def ends(state: GrammarState, vocabulary: LlamaVocabulary) -> bool:
    return any(map(vocabulary.is_eog, state.every().tolist()))


@pytest.mark.parametrize("said", ["", "{", '{"na', '{"a": "é', '{"a": [1', '{"a": tr', '{"a":1}'])
def test_all_that_is_allowed_is_listed(
    grammars: Grammars, vocabulary: LlamaVocabulary, said: str
) -> None:
    """The tree of the vocabulary leaves nothing out, also between the bytes of a character."""
    state = say(grammars.read(to_gbnf({"type": "object"})), vocabulary, said)
    assert state is not None
    everything = np.arange(vocabulary.size)
    assert state.every().tolist() == everything[state.allowed(everything)].tolist()


def test_half_a_character(grammars: Grammars, vocabulary: LlamaVocabulary) -> None:
    """A grammar that excludes one character: what it allows after its first byte is not cut off."""
    state = grammars.read('root ::= "x" [^é]{2}').after(
        vocabulary.tokenize("x", special=False, add_bos=False)[0]
    )
    assert state is not None
    everything = np.arange(vocabulary.size)
    assert state.every().tolist() == everything[state.allowed(everything)].tolist()


def test_a_state_never_changes(grammars: Grammars, vocabulary: LlamaVocabulary) -> None:
    start = grammars.read('root ::= "ab" | "cd"')
    before = start.every().tolist()
    a, c = (vocabulary.tokenize(text, special=False, add_bos=False)[0] for text in "ac")
    after_a, after_c = start.after(a), start.after(c)
    assert after_a is not None and after_c is not None
    assert after_a.every().tolist() != after_c.every().tolist()
    assert start.every().tolist() == before


def test_a_forbidden_token_is_never_accepted(
    grammars: Grammars, vocabulary: LlamaVocabulary
) -> None:
    start = grammars.read('root ::= "yes"')
    assert vocabulary.eos is not None
    for token in (vocabulary.tokenize("no", special=False, add_bos=False)[0], vocabulary.eos):
        assert start.after(token) is None
    assert start.after(vocabulary.size + 5) is None
    with pytest.raises(IndexError):
        start.allowed(np.array([vocabulary.size]))


def test_the_end_only_where_it_may_end(grammars: Grammars, vocabulary: LlamaVocabulary) -> None:
    start = grammars.read('root ::= "yes" "!"?')
    assert not ends(start, vocabulary)
    yes = say(start, vocabulary, "yes")
    assert yes is not None and ends(yes, vocabulary)
    whole = say(yes, vocabulary, "!")
    assert whole is not None
    assert all(map(vocabulary.is_eog, whole.every().tolist()))
    assert vocabulary.eos is not None and whole.after(vocabulary.eos) is whole


def test_control_tokens_are_no_text(grammars: Grammars, vocabulary: LlamaVocabulary) -> None:
    anything = grammars.read("root ::= .*")
    control = [
        token
        for token in range(vocabulary.size)
        if vocabulary.is_control(token) and not vocabulary.is_eog(token)
    ]
    assert control and not anything.allowed(np.array(control)).any()
    named = grammars.read(f'root ::= <[{control[0]}]> "a"')
    assert named.every().tolist() == [control[0]]


def test_what_llama_cpp_alone_refuses(grammars: Grammars) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        grammars.read("root ::= <no such token as this one here>")
