"""Token ids to text, one token at a time, in whole characters only."""

from __future__ import annotations

import codecs

from specllama.text.vocabulary import Vocabulary

SPACE = b" "


class StreamingDetokenizer:
    """Turns a growing list of tokens into text; each push costs only its own token's bytes.

    The texts of all pushes and of `flush`, joined, are the joined pieces decoded as
    `bytes.decode("utf-8", "replace")` would: a character split over tokens appears with its last
    byte, invalid bytes become U+FFFD. Control tokens have no bytes and so no text.

    Args:
        at_start: the tokens are a text of their own (a chat reply) rather than the continuation of
            one. SentencePiece vocabularies put a space before such a text; it is left out.

    Attributes:
        holds: whether a character is incomplete.
        first_character: see `push`.
    """

    def __init__(self, vocabulary: Vocabulary, *, at_start: bool = False) -> None:
        self._vocabulary = vocabulary
        self._drops_space = at_start and adds_space_prefix(vocabulary)
        self.restart()

    def restart(self) -> None:
        """Forget everything pushed."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._complete = 0
        self._at_start = True
        self.first_character: int | None = None
        self.holds = False

    def push(self, token: int) -> str:
        """The characters this token completes, "" while one is still open.

        Afterwards `first_character` is the index, in the whole text, of the character that the
        token's first byte belongs to; None for a token without bytes.
        """
        piece = self._vocabulary.piece(token)
        if self._at_start and piece:
            self._at_start = False
            if self._drops_space:
                piece = piece.removeprefix(SPACE)
        if not piece:
            self.first_character = None
            return ""
        if piece.isascii() and not self.holds:
            self.first_character = self._complete
            self._complete += len(piece)
            return piece.decode("ascii")
        text = self._decode(piece[:1])
        self.first_character = self._complete + self._open_characters() - 1
        text += self._decode(piece[1:])
        self.holds = self._open_characters() > 0
        return text

    def flush(self) -> str:
        """End of the tokens: U+FFFD if the last character stayed incomplete, else ""."""
        text = self._decoder.decode(b"", final=True)
        self._complete += len(text)
        self.holds = False
        return text

    def _decode(self, raw: bytes) -> str:
        text = self._decoder.decode(raw)
        self._complete += len(text)
        return text

    def _open_characters(self) -> int:
        """1 for an incomplete character; Python also waits for the end of a surrogate, which is
        one invalid byte after the other."""
        return len(self._decoder.getstate()[0].decode("utf-8", "replace"))


def adds_space_prefix(vocabulary: Vocabulary) -> bool:
    """Whether the tokenizer puts a space before a text, as SentencePiece's does by default."""
    ids = vocabulary.tokenize("a", special=False, add_bos=False)
    return bool(ids) and vocabulary.piece(ids[0]).startswith(SPACE)


def is_inside_character(raw: bytes, place: int) -> bool:
    """Whether the byte at a place of UTF-8 belongs to a character that began before it."""
    return place < len(raw) and raw[place] & 0xC0 == 0x80


def whole_characters(raw: bytes) -> int:
    """Length of a text without the character that it breaks off in, if it does."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(raw[-4:])
    return len(raw) - len(decoder.getstate()[0])
