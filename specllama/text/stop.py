"""Stop strings in a stream of text (Aho and Corasick, "Efficient string matching", CACM 1975)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from specllama.errors import UsageError

ROOT = 0
LONGEST_STOP = 1000
"""Characters of a stop string; each takes some 400 bytes here."""


class StopMatcher:
    """Finds the first stop string in text that arrives in parts.

    First is the one that is complete first; of several complete at the same character, the longest.
    So the cut depends on the text alone, never on how it was split. Text that may still become a
    stop string is held back, all other text is released at once; a character costs amortised O(1).

    Raises:
        UsageError: a stop string is empty, or longer than `LONGEST_STOP`.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._stop_length = [0]
        for stop in stops:
            self._add(stop)
        self._fallback = [ROOT] * len(self._next)
        self._link()
        self.restart()

    def restart(self) -> None:
        """Forget all text, keep the stop strings."""
        self._state = ROOT
        self._held = ""

    @property
    def stops(self) -> bool:
        """Whether there is any stop string."""
        return bool(self._next[ROOT])

    @property
    def holds(self) -> bool:
        """Whether text is held back."""
        return bool(self._held)

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is certain not to belong to a stop string, and whether one is complete.

        Once one is complete the text ends before it, and whatever follows is dropped.
        """
        for index, character in enumerate(text):
            self._state = self._step(self._state, character)
            length = self._stop_length[self._state]
            if length:
                seen = self._held + text[: index + 1]
                self.restart()
                return seen[:-length], True
        seen = self._held + text
        certain = len(seen) - self._depth[self._state]
        self._held = seen[certain:]
        return seen[:certain], False

    def finish(self) -> str:
        """The end of the text: what was held back is not a stop string after all."""
        held = self._held
        self.restart()
        return held

    def _add(self, stop: str) -> None:
        if not stop:
            raise UsageError("A stop string must not be empty.")
        if len(stop) > LONGEST_STOP:
            raise UsageError(f"A stop string must have at most {LONGEST_STOP} characters.")
        state = ROOT
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._stop_length.append(0)
            state = self._next[state][character]
        self._stop_length[state] = len(stop)

    def _link(self) -> None:
        """Find each state's longest proper suffix that is a state, and pass stop lengths on."""
        waiting = deque(self._next[ROOT].values())
        while waiting:
            state = waiting.popleft()
            for character, child in self._next[state].items():
                shorter = self._fallback[child] = self._step(self._fallback[state], character)
                self._stop_length[child] = self._stop_length[child] or self._stop_length[shorter]
                waiting.append(child)

    def _step(self, state: int, character: str) -> int:
        while state != ROOT and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, ROOT)
