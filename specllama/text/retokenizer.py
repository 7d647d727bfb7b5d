"""Tokens of a text that grows, as if it had been tokenised at once, at the price of its end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import eq

from specllama.text.detokenizer import adds_space_prefix, is_inside_character
from specllama.text.vocabulary import Vocabulary

_LOOK_BACK = 16
_MARK = b"\x01"  # merges with nothing


class Retokenizer:
    """Goes on with tokens of a vocabulary where bytes are what is known.

    The last tokens of a text may be others once it goes on ("hel", then "hello"): the last
    sixteen are made anew. What merges across more of them than that is not found.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ends: dict[int, bool] = {}
        self._mark = _MARK if adds_space_prefix(vocabulary) else b""
        self._n_mark = len(self._tokens(self._mark))

    def extend(self, ids: Sequence[int], text: bytes, start: int = 0) -> tuple[int, list[int]]:
        """What tokens become when their text goes on.

        Args:
            ids: tokens so far, those from `start` on without control tokens between them.
            text: what comes behind, UTF-8; bytes that are none become U+FFFD.

        Returns:
            How many of `ids` stay, and what follows them.
        """
        if not text:
            return len(ids), []
        first = self._cut(ids, start)
        tail = list(ids[first:])
        tokens = self.inside(self._text(tail) + text) if tail else self._tokens(text)
        n_same = len([*takewhile(bool, map(eq, tail, tokens))])
        return first + n_same, tokens[n_same:]

    def inside(self, text: bytes) -> list[int]:
        """Tokens of a text that stands behind others, so that no space is added to it."""
        return self._tokens(self._mark + text)[self._n_mark :]

    def _cut(self, ids: Sequence[int], start: int) -> int:
        """Where to begin anew: at a whole character, behind what ends a text."""
        window = range(max(start, len(ids) - _LOOK_BACK), len(ids))
        if self._mark:
            ended = (place + 1 for place in reversed(window) if self._ends_text(ids[place]))
            start = next(ended, start)
        for place in range(max(start, window.start), len(ids)):
            piece = self._vocabulary.piece(ids[place])
            if piece and not is_inside_character(piece, 0):
                return place
        return start

    def _ends_text(self, token: int) -> bool:
        """Whether a space is added behind a token: it is user-defined, the only kind that gets
        none in front of it."""
        known = self._ends.get(token)
        if known is None:
            alone = self._tokens(self._vocabulary.piece(token))
            known = self._ends[token] = alone == [token]
        return known

    def _text(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._vocabulary.piece, ids))

    def _tokens(self, text: bytes) -> list[int]:
        told = text.decode("utf-8", "replace")
        return self._vocabulary.tokenize(told, special=False, add_bos=False)
