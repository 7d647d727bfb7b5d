"""The text side of one generation: tokens in, text out, ending before a stop string."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specllama.text.detokenizer import StreamingDetokenizer
from specllama.text.stop import StopMatcher
from specllama.text.vocabulary import Vocabulary

NO_CHARACTER = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """What one more token brings.

    Attributes:
        text: text that is now certain; "" while a character or a possible stop string is open.
        stopped: a stop string is complete; the text of all pieces ends before it.
        dropped_tokens: once stopped, how many of the latest tokens (this one included) have no byte
            in the kept text. A token that lies half before the stop string is kept.
    """

    text: str
    stopped: bool = False
    dropped_tokens: int = 0


class TextStream:
    """Detokeniser and stop strings together. After a stop or `finish`, it takes a new generation.

    Args:
        stops: strings that end the text and are not part of it.
        at_start: see StreamingDetokenizer.

    Raises:
        UsageError: a stop string is empty.
    """

    def __init__(
        self, vocabulary: Vocabulary, stops: Iterable[str] = (), *, at_start: bool = False
    ) -> None:
        self._detokenizer = StreamingDetokenizer(vocabulary, at_start=at_start)
        self._matcher = StopMatcher(stops)
        self.restart()

    def restart(self) -> None:
        """Forget the generation so far, keep the stop strings."""
        self._detokenizer.restart()
        self._matcher.restart()
        self._released = 0
        # First character of each latest token, back to the last one that is certainly kept.
        self._recent: list[int] = []

    @property
    def holds(self) -> bool:
        """Whether some text of the tokens so far is still to come."""
        return self._detokenizer.holds or self._matcher.holds

    def push(self, token: int) -> Piece:
        """Take the next token of the reply."""
        text, stopped = self._matcher.push(self._detokenizer.push(token))
        first = self._detokenizer.first_character
        self._recent.append(NO_CHARACTER if first is None else first)
        self._released += len(text)
        if stopped:
            dropped = self._count_dropped()
            self.restart()
            return Piece(text, True, dropped)
        if NO_CHARACTER < self._recent[-1] < self._released:
            self._recent.clear()
        return Piece(text)

    def finish(self) -> str:
        """The generation ended otherwise: the text held back so far."""
        text, stopped = self._matcher.push(self._detokenizer.flush())
        rest = text if stopped else text + self._matcher.finish()
        self.restart()
        return rest

    def _count_dropped(self) -> int:
        dropped = 0
        for first in reversed(self._recent):
            if NO_CHARACTER < first < self._released:
                break
            dropped += 1
        return dropped
