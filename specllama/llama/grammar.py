"""Grammars in llama.cpp's notation (GBNF), through its grammar sampler.

llama.cpp's states change in place, and it ends the process when it is given a token that its state
forbids. Here a state never changes: `GrammarState.after` asks first, then clones, so that every
drafted position has a state of its own and rolling back is forgetting.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.errors import UsageError
from specllama.llama import library
from specllama.llama.gbnf import check
from specllama.llama.model import LlamaVocabulary
from specllama.sampling.distribution import IntArray

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


_NONE = np.empty(0, np.int64)
_FEW = 128


class Grammars:
    """Reads grammars for one vocabulary."""

    def __init__(self, vocabulary: LlamaVocabulary) -> None:
        self._vocabulary = vocabulary

    @functools.cached_property
    def _tree(self) -> _TokenTree:
        return _TokenTree(self._vocabulary)

    def read(self, text: str) -> GrammarState:
        """The state before the first token of a text that follows a grammar from its rule `root`.

        Control tokens have no text of their own and are forbidden, except those that end a
        generation and those of grammars that name tokens (`<[7]>`).

        Raises:
            UsageError: llama.cpp cannot read the grammar, or would not survive it.
        """
        names_tokens = check(text)
        library.forget_log()
        raw = text.encode("utf-8", "surrogatepass")
        handle = library.load().llama_sampler_init_grammar(self._vocabulary.handle, raw, b"root")
        if not handle:
            reason = " ".join(library.recent_errors(1)) or "llama.cpp refuses it"
            raise UsageError(f"The grammar cannot be used: {reason}.")
        return GrammarState(handle, _AnyToken(self._vocabulary) if names_tokens else self._tree)


class GrammarState:
    """A place in a grammar (`sampling.constraint.Constraint`)."""

    __slots__ = ("__weakref__", "_allowed", "_handle", "_lib", "_tokens")

    def __init__(self, handle: Any, tokens: _TokenTree | _AnyToken) -> None:
        self._lib = library.load()
        self._handle = handle
        self._tokens = tokens
        self._allowed = _NONE  # by the latest question; the next token is mostly among them
        weakref.finalize(self, self._lib.llama_sampler_free, handle)

    def allowed(self, ids: IntArray) -> NDArray[np.bool_]:
        """Whether each token of the vocabulary may come next, bool [len(ids)]."""
        usable = self._tokens.usable[ids]  # first, since llama.cpp would not survive other ids
        candidates = np.zeros(len(ids), _CANDIDATE)
        candidates["id"] = ids
        array = self._lib.llama_token_data_array(size=len(ids), selected=-1)
        # its first field, which ctypes would take five times as long to convert to
        ctypes.c_void_p.from_buffer(array).value = candidates.ctypes.data
        self._lib.llama_sampler_apply(self._handle, ctypes.byref(array))
        usable &= candidates["logit"] == 0.0
        self._allowed = ids[usable]
        return usable

    def every(self) -> IntArray:
        """All tokens that may come next, int64, rising."""
        return self._tokens.every(self)

    def after(self, token: int) -> GrammarState | None:
        """The state after a token; None where it is forbidden."""
        if not (self._allowed == token).any():
            known = 0 <= token < len(self._tokens.usable)
            if not known or not self.allowed(np.array([token]))[0]:
                return None
        if token in self._tokens.ends:
            return self
        clone = self._lib.llama_sampler_clone(self._handle)
        self._lib.llama_sampler_accept(clone, token)
        return GrammarState(clone, self._tokens)


class _AnyToken:
    """The vocabulary of a grammar that names tokens: it decides about each on its own.

    Attributes:
        usable: tokens that can come at all, bool [n_vocab].
        ends: tokens that end a generation.
    """

    def __init__(self, vocabulary: LlamaVocabulary) -> None:
        self.usable = np.ones(vocabulary.size, np.bool_)
        self.ends = frozenset(filter(vocabulary.is_eog, range(vocabulary.size)))

    def every(self, state: GrammarState) -> IntArray:
        """All tokens that a state allows, rising."""
        return np.flatnonzero(state.allowed(np.arange(len(self.usable))))


class _TokenTree:
    """The tokens of a vocabulary below the longest other token that their text begins with.

    Where a grammar forbids a text it forbids whatever begins with it. Asking about a token's
    beginning first makes it cheap to list the tokens that a strict grammar allows.

    Attributes:
        usable: tokens that can come at all, bool [n_vocab].
        ends: tokens that end a generation.
    """

    def __init__(self, vocabulary: LlamaVocabulary) -> None:
        size = vocabulary.size
        self.ends = frozenset(filter(vocabulary.is_eog, range(size)))
        pieces = {
            token: vocabulary.piece(token, special=True)
            for token in range(size)
            if token not in self.ends and not vocabulary.is_control(token)
        }
        pieces = {token: piece for token, piece in pieces.items() if piece and b"\0" not in piece}
        self.usable = np.zeros(size, np.bool_)
        self.usable[[*pieces, *self.ends]] = True
        parents = _parents(pieces) | dict.fromkeys(self.ends, -1)
        below: list[list[int]] = [[] for _ in range(size + 1)]
        for token, parent in parents.items():
            below[parent].append(token)
        self._first = np.cumsum([0, *map(len, below)])
        self._below = np.array([token for tokens in below for token in tokens], np.int64)
        self._whole = _small_subtrees(below[:-1])

    def every(self, state: GrammarState) -> IntArray:
        """All tokens that a state allows, rising."""
        found: list[IntArray] = []
        level = self._below[self._first[-2] :]
        while len(level):
            level = level[state.allowed(level)]
            found.append(level)
            level, whole = self._next(level.tolist())
            if len(whole):
                found.append(whole[state.allowed(whole)])
        return np.sort(np.concatenate([*found, _NONE]))

    def _next(self, tokens: list[int]) -> tuple[IntArray, IntArray]:
        """What to ask about below some tokens: their children, or all that is below where that is
        little, since a question costs more than a few tokens."""
        children, whole = [_NONE], [_NONE]
        for token in tokens:
            if token in self._whole:
                whole.append(self._whole[token])
            else:
                children.append(self._below[self._first[token] : self._first[token + 1]])
        return np.concatenate(children), np.concatenate(whole)


def _small_subtrees(below: list[list[int]]) -> dict[int, IntArray]:
    """All tokens below a token, for those that have some and not many."""
    small: dict[int, IntArray] = {}
    for token, children in enumerate(below):
        inside = list(children)
        for inner in inside:
            inside += below[inner]
            if len(inside) > _FEW:
                break
        else:
            if inside:
                small[token] = np.array(inside, np.int64)
    return small


def _parents(pieces: dict[int, bytes]) -> dict[int, int]:
    """Per token the one with the longest proper beginning of its text, -1 where there is none.

    A beginning has to end with a whole character: what llama.cpp makes of a part of one says
    nothing about the whole.
    """
    parents: dict[int, int] = {}
    above: list[int] = []
    for token in sorted(pieces, key=pieces.__getitem__):
        while above and not pieces[token].startswith(pieces[above[-1]]):
            above.pop()
        parents[token] = above[-1] if above else -1
        if _is_text(pieces[token]):
            above.append(token)
    return parents


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
