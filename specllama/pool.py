"""Pool: many generations at once over one decoder, from any thread.

    with Pool(decoder) as pool:
        tickets = [pool.submit_chat([Message("user", text)]) for text in questions]
        answers = [ticket.finish().text for ticket in tickets]

One worker thread owns the engine and steps it; up to `ModelOptions.parallel` requests share each
target batch, the others wait in order of arrival. While a pool is open, its decoder is the pool's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from specllama.options import GenerationParams
from specllama.results import FinishReason, Generation, SpecStats, StreamEvent
from specllama.text.chat import Message

if TYPE_CHECKING:
    from specllama.decoder import SpeculativeDecoder

OnEvent = Callable[[StreamEvent | None], None]
"""Called in the pool's thread with each event, at last with None: `Ticket.result` is ready then.

It must return quickly (an asyncio server passes on to `loop.call_soon_threadsafe`). An exception
out of it ends that request alone, and `Ticket.result` raises it.
"""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool does now, and has done since it was opened; totals count ended requests.

    Attributes:
        slots: how many requests can run at once.
        processing, deferred: requests that run now, and that wait for a slot.
        cells, used_cells: size of the target's KV cache in tokens, and how much of it is filled,
            idle slots included.
        finished: ended requests by finish reason.
        failed: requests that ended with an error.
        prompt_tokens, cached_tokens, completion_tokens: sums of the results' `usage`.
        prompt_s, decode_s: seconds spent reading prompts, and in rounds.
        spec: sum of the results' `spec`.
    """

    slots: int
    processing: int
    deferred: int
    cells: int
    used_cells: int
    finished: Mapping[FinishReason, int]
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prompt_s: float
    decode_s: float
    spec: SpecStats


class Ticket(Iterator[StreamEvent]):
    """One request of a pool: iterate for its events (blocking), then read `result`.

    Attributes:
        n_prompt: tokens of the prompt, known at once.
    """

    n_prompt: int

    def __next__(self) -> StreamEvent:
        """The next event, as soon as it is there.

        Raises:
            UsageError: the request was submitted with `on_event`.
            SpecllamaError (or whatever else went wrong with this request).
        """
        raise NotImplementedError

    @property
    def started(self) -> bool:
        """Whether it has left the queue."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether it has ended: `result` returns or raises at once."""
        raise NotImplementedError

    @property
    def queued_s(self) -> float:
        """Seconds it has waited for a slot (so far, while it does)."""
        raise NotImplementedError

    @property
    def n_cached(self) -> int:
        """Tokens of the prompt that were in the cache already; 0 while it waits."""
        raise NotImplementedError

    @property
    def result(self) -> Generation:
        """The finished generation, also of a cancelled request.

        Raises:
            SpecllamaError: it is still running; or the error that ended this request.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """End it within one round (finish_reason "cancelled"); from any thread, any time."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its end; False when `timeout` seconds passed before."""
        raise NotImplementedError

    def finish(self) -> Generation:
        """Wait for its end and return `result` (or raise as it does)."""
        raise NotImplementedError


class Pool:
    """Runs requests over a decoder's slots in one thread; every method may be called from any.

    Args:
        decoder: loaded with `ModelOptions(parallel=N)`; it must not be used otherwise until
            the pool is closed, and is not closed with it.
        max_queue: how many requests may wait for a slot.
    """

    def __init__(self, decoder: SpeculativeDecoder, *, max_queue: int = 16) -> None:
        raise NotImplementedError

    def submit(
        self,
        prompt: str | Sequence[int],
        params: GenerationParams | None = None,
        *,
        on_event: OnEvent | None = None,
    ) -> Ticket:
        """Continue a text (or token ids), no chat template applied, when a slot is free.

        Raises:
            QueueFull: `max_queue` requests wait already.
            PoolClosed: the pool is closed or closing.
            UsageError, ContextFull: as `SpeculativeDecoder.stream`; nothing was queued.
        """
        raise NotImplementedError

    def submit_chat(
        self,
        messages: Sequence[Message],
        params: GenerationParams | None = None,
        *,
        on_event: OnEvent | None = None,
    ) -> Ticket:
        """Reply to a conversation when a slot is free.

        Raises:
            QueueFull, PoolClosed, UsageError, ContextFull, ModelError: as `submit` and
                `SpeculativeDecoder.stream_chat`.
        """
        raise NotImplementedError

    def stats(self) -> PoolStats:
        """Figures for metrics, taken between two rounds."""
        raise NotImplementedError

    def close(self, grace_s: float = 0.0) -> None:
        """Take no more requests, let those at hand end for `grace_s` seconds, cancel the rest."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
