"""A generation under way, pulled round by round by who iterates it."""

from __future__ import annotations

from collections.abc import Iterator

from specllama.engine.engine import Engine
from specllama.llama import library
from specllama.llama.cache import Progress
from specllama.reply import Reply
from specllama.results import Generation, StreamEvent


class Stream(Iterator[StreamEvent]):
    """A generation under way: iterate for its events, then read `result`."""

    def __init__(self, engine: Engine, reply: Reply, on_prompt: Progress | None) -> None:
        self._engine = engine
        self._reply = reply
        self._cancelled = False
        self._reply.begin(on_prompt)
        self._events = self._run()

    def __iter__(self) -> Iterator[StreamEvent]:
        return self

    def __next__(self) -> StreamEvent:
        return next(self._events)

    def _run(self) -> Iterator[StreamEvent]:
        try:
            while not self._reply.ended:
                if self._cancelled:
                    yield from self._reply.end()
                else:
                    yield from self._reply.take(self._engine.step())
        finally:  # whoever goes on may be another thread
            library.end_team()

    def cancel(self) -> None:
        """End the generation after the current round; safe from signal handlers and threads."""
        self._cancelled = True

    def close(self) -> None:
        """Stop now; the decoder can generate again, and `result` has what there is."""
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
