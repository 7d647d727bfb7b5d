"""The text side of one generation: tokens in, text out, ending before a stop string."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from specllama.text.detokenizer import StreamingDetokenizer
from specllama.text.stop import StopMatcher
from specllama.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Piece:
    """What one more token brings.

    Attributes:
        text: text that is now certain; "" while a character or a possible stop string is open.
        stopped: a stop string is complete; the text of all pieces ends before it.
        dropped_tokens: once stopped, how many of the latest tokens (this one included) to take
            back: all from the first one that has no byte in the kept text. A token that lies half
            before the stop string is kept.
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
        # First character of each latest token, as long as all its characters may yet be cut.
        self._open: deque[int] = deque()

    def push(self, token: int) -> Piece:
        """Take the next token of the reply."""
        text = self._detokenizer.push(token)
        if not self._matcher.stops:
            return Piece(text)
        text, stopped = self._matcher.push(text)
        first = self._detokenizer.first_character
        if first is not None:
            self._open.append(first)
        elif self._open:
            self._open.append(self._open[-1])
        self._released += len(text)
        while self._open and self._open[0] < self._released:
            self._open.popleft()
        if not stopped:
            return Piece(text)
        dropped = len(self._open)
        self.restart()
        return Piece(text, True, dropped)

    @property
    def holds(self) -> bool:
        """Whether the tokens so far have text that is not out yet; else none of them is dropped."""
        return self._matcher.holds or self._detokenizer.holds

    def finish(self) -> str:
        """The generation ended otherwise: the text held back so far."""
        text, stopped = self._matcher.push(self._detokenizer.flush())
        rest = text if stopped else text + self._matcher.finish()
        self.restart()
        return rest
