"""A generation under way, pulled round by round by who iterates it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from specllama.engine.engine import Engine
from specllama.errors import UsageError
from specllama.llama import library
from specllama.llama.cache import Progress
from specllama.reply import Reply
from specllama.results import Generation, StreamEvent


class Turn:
    """Held while a decoder works: llama.cpp would end the process if two threads did at once.

    Raises:
        UsageError: taken, or checked, while it is held.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def taken(self) -> threading.Lock:
        """What to enter; a lock itself, since Ctrl-C finds no gap in its being released."""
        self.check()
        return self._lock

    def check(self) -> None:
        """Raise where somebody is at work."""
        if self._lock.locked():
            raise UsageError(
                "This decoder is at work, for another thread or for what has just called you.",
                "A Pool runs many generations at once, for any thread.",
            )


class Stream(Iterator[StreamEvent]):
    """A generation under way: iterate for its events, then read `result`."""

    def __init__(
        self, engine: Engine, reply: Reply, on_prompt: Progress | None, turn: Turn
    ) -> None:
        self._engine = engine
        self._reply = reply
        self._turn = turn
        self._pulled = Turn()
        self._cancelled = False
        with turn.taken():
            self._reply.begin(on_prompt)
        self._events = self._run()

    def __iter__(self) -> Iterator[StreamEvent]:
        return self

    def __next__(self) -> StreamEvent:
        with self._pulled.taken():
            return next(self._events)

    def _run(self) -> Iterator[StreamEvent]:
        try:
            while not self._reply.ended:
                yield from self._reply.end() if self._cancelled else self._round()
        finally:  # whoever goes on may be another thread
            library.end_team()

    def _round(self) -> list[StreamEvent]:
        """One round of the engine; what it brought is kept if it fails, or is interrupted."""
        with self._turn.taken():
            try:
                return self._reply.take(self._engine.step())
            except BaseException:
                self._reply.end()
                raise

    def cancel(self) -> None:
        """End the generation after the current round; safe from signal handlers and threads."""
        self._cancelled = True

    def close(self) -> None:
        """Stop now; the decoder can generate again, and `result` has what there is."""
        if not self._reply.ended:
            self._turn.check()
        with self._pulled.taken():
            self._events.close()  # type: ignore[attr-defined]
        self._reply.end()

    def finish(self) -> Generation:
        """Run to the end and return the result."""
        for _ in self:
            pass
        return self.result

    @property
    def result(self) -> Generation:
        """The finished generation.

        Raises:
            SpecllamaError: it is still running.
        """
        return self._reply.result
