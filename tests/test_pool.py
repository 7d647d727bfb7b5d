"""Pool and Ticket over a fake model: order, queue, cancellation; errors that disturb nobody."""

from __future__ import annotations

import os
import threading
import time
from asyncio import CancelledError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from specllama import PoolClosed, QueueFull, SpecllamaError, UsageError
from specllama.drafting.protocol import Drafter, Want
from specllama.errors import ContextFull, EngineError
from specllama.pool import Pool
from specllama.results import StreamEvent
from specllama.verification.types import Proposal
from tests.engine.fake_model import Fault, language
from tests.engine.harness import right
from tests.fake_decoder import LETTERS, WAIT_S, FakeDecoder, endless, said


class Poisonous(Drafter):
    """A drafter that cannot bear sequences which start with a certain token."""

    name = "suffix"

    def __init__(self, poison: int, oracle: Any) -> None:
        self._poison = poison
        self._oracle = oracle

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        if any(want.ids[0] == self._poison for want in wants):
            raise ZeroDivisionError("poison")
        return [
            Proposal.chain(self._oracle(want.ids, min(2, want.limit)), source=self.name)
            for want in wants
        ]


ENDLESS = 1 << 17
"""A context that no reply fills before a cancel arrives."""


@contextmanager
def pool_of(decoder: FakeDecoder, **settings: Any) -> Iterator[Pool]:
    lender: Any = decoder
    pool = Pool(lender, **settings)
    try:
        yield pool
    finally:
        decoder.gate.set()
        pool.close()


def until(condition: Any) -> None:
    """Wait for something that another thread is about to do."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.001)


class TestTickets:
    def test_events_and_result(self) -> None:
        decoder = FakeDecoder()
        with pool_of(decoder) as pool:
            ticket = pool.submit("abc")
            assert ticket.n_prompt == 3
            events = list(ticket)
            assert "".join(event.text for event in events) == decoder.says("abc", 6)
            assert ticket.result.text == decoder.says("abc", 6)
            assert ticket.done
            assert ticket.started
            assert list(ticket) == []

    def test_more_requests_than_slots(self) -> None:
        decoder = FakeDecoder(2)
        prompts = ["abc", "ba", "lmn", "ok", "eee", "hi"]
        with pool_of(decoder) as pool:
            tickets = [pool.submit(prompt, said(4 + n)) for n, prompt in enumerate(prompts)]
            texts = [ticket.finish().text for ticket in tickets]
        assert texts == [decoder.says(prompt, 4 + n) for n, prompt in enumerate(prompts)]

    def test_results_have_to_be_waited_for(self) -> None:
        decoder = FakeDecoder()
        with pool_of(decoder) as pool:
            decoder.gate.clear()
            ticket = pool.submit("abc")
            with pytest.raises(SpecllamaError, match="still running"):
                _ = ticket.result
            assert not ticket.wait(0.01)

    def test_first_come_first_served(self) -> None:
        decoder = FakeDecoder(1)
        with pool_of(decoder) as pool:
            decoder.gate.clear()
            order: list[int] = []

            def tell(number: int) -> Any:
                return lambda event: order.append(number) if event is None else None

            tickets = [pool.submit("ab", on_event=tell(n)) for n in range(4)]
            until(lambda: tickets[0].started)
            assert [ticket.started for ticket in tickets] == [True, False, False, False]
            waited = tickets[3].queued_s
            decoder.gate.set()
            assert tickets[3].wait(WAIT_S)
            assert order == [0, 1, 2, 3]
            assert tickets[3].queued_s >= waited > 0
            assert tickets[3].queued_s == tickets[3].queued_s, "it is fixed once it started"

    def test_the_prefix_that_was_cached(self) -> None:
        with pool_of(FakeDecoder(2)) as pool:
            first = pool.submit("abcdefgh")
            first.finish()
            second = pool.submit("abcdefa")
            assert second.finish().usage.cached_tokens == second.n_cached == 6

    def test_stop_strings(self) -> None:
        decoder = FakeDecoder()
        whole = decoder.says("abc", 8)
        with pool_of(decoder) as pool:
            ticket = pool.submit("abc", said(8, stop=(whole[3:6],)))
            texts = [event.text for event in ticket]
            assert "".join(texts) == ticket.result.text == whole[: whole.index(whole[3:6])]
            assert ticket.result.finish_reason == "stop"

    def test_callbacks(self) -> None:
        decoder = FakeDecoder()
        with pool_of(decoder) as pool:
            seen: list[StreamEvent | None] = []
            done: list[bool] = []

            def on_event(event: StreamEvent | None) -> None:
                seen.append(event)
                done.append(ticket.done)

            decoder.gate.clear()
            ticket = pool.submit("abc", on_event=on_event)
            decoder.gate.set()
            ticket.finish()
            until(lambda: seen[-1:] == [None])
            assert "".join(e.text for e in seen if e is not None) == decoder.says("abc", 6)
            assert done == [False] * 6 + [True]
            with pytest.raises(UsageError, match="on_event"):
                next(ticket)


class TestQueue:
    def test_full(self) -> None:
        decoder = FakeDecoder(1)
        with pool_of(decoder, max_queue=2) as pool:
            decoder.gate.clear()
            running = pool.submit("ab")
            until(lambda: running.started)
            waiting = [pool.submit("ab") for _ in range(2)]
            with pytest.raises(QueueFull, match="2 requests"):
                pool.submit("ab")
            assert (pool.stats().processing, pool.stats().deferred) == (1, 2)
            decoder.gate.set()
            assert all(ticket.finish().text for ticket in waiting)
            assert pool.submit("ab").finish().text

    def test_a_queue_cannot_be_shorter_than_none(self) -> None:
        with pytest.raises(UsageError, match="max_queue must be at least 0, not -1"):
            Pool(FakeDecoder(1), max_queue=-1)  # type: ignore[arg-type]

    def test_no_queue_at_all(self) -> None:
        decoder = FakeDecoder(1)
        with pool_of(decoder, max_queue=0) as pool:
            decoder.gate.clear()
            first = pool.submit("ab")
            with pytest.raises(QueueFull):
                pool.submit("ab")
            decoder.gate.set()
            first.finish()
            until(lambda: not pool.stats().processing)
            pool.submit("ab").finish()

    def test_what_cannot_be_served_is_not_queued(self) -> None:
        with pool_of(FakeDecoder(1)) as pool:
            with pytest.raises(ContextFull):
                pool.submit("a" * 500)
            with pytest.raises(UsageError):
                pool.submit("")
            assert pool.stats().finished == {}


class TestCancel:
    def test_a_running_one(self) -> None:
        decoder = FakeDecoder(2, n_ctx=ENDLESS)
        with pool_of(decoder) as pool:
            ticket, other = pool.submit("abc", said(None)), pool.submit("lm", said(30))
            next(ticket)
            ticket.cancel()
            result = ticket.finish()
            assert result.finish_reason == "cancelled"
            assert decoder.says("abc", len(result.text)) == result.text
            assert other.finish().text == decoder.says("lm", 30)

    def test_within_one_round(self) -> None:
        decoder = FakeDecoder(1, n_ctx=ENDLESS)
        with pool_of(decoder) as pool:
            ticket = pool.submit("abc", said(None))
            next(ticket)
            decoder.gate.clear()
            time.sleep(0.01)
            decodes = len(decoder.target.batches)
            ticket.cancel()
            decoder.gate.set()
            ticket.finish()
            assert len(decoder.target.batches) <= decodes + 1

    def test_a_waiting_one(self) -> None:
        decoder = FakeDecoder(1, n_ctx=ENDLESS)
        with pool_of(decoder) as pool:
            first, second = pool.submit("abc", said(None)), pool.submit("abc")
            next(first)
            second.cancel()
            result = second.finish()
            assert (result.text, result.finish_reason) == ("", "cancelled")
            assert result.usage.prompt_tokens == 3
            assert not first.done
            first.cancel()
            first.finish()
            assert pool.stats().prompt_tokens == 3, "nobody read the other's"

    def test_one_that_has_ended(self) -> None:
        with pool_of(FakeDecoder(1)) as pool:
            ticket = pool.submit("abc")
            result = ticket.finish()
            ticket.cancel()
            assert ticket.result == result


class TestErrors:
    @pytest.mark.parametrize("n_slots", [1, 3])
    def test_only_the_guilty_one_ends(self, n_slots: int) -> None:
        """One request breaks every round it is in; nobody else notices."""
        oracle = right(endless(language(1)))
        decoder = FakeDecoder(n_slots, [Poisonous(LETTERS.index("k"), oracle)])
        params = said(20, drafter="suffix", adaptive=False)
        with pool_of(decoder) as pool:
            prompts = ["abc", "kkk", "lm", "ka", "ii"]
            tickets = [pool.submit(prompt, params) for prompt in prompts]
            for prompt, ticket in zip(prompts, tickets, strict=True):
                if prompt[0] == "k":
                    with pytest.raises(ZeroDivisionError):
                        ticket.finish()
                    with pytest.raises(ZeroDivisionError):
                        list(ticket)
                else:
                    assert ticket.finish().text == decoder.says(prompt, 20)
                    assert "".join(e.text for e in ticket) == decoder.says(prompt, 20)
            assert pool.stats().failed == 2
            assert pool.stats().finished == {"length": 3}

    def test_a_passing_error_ends_nobody(self) -> None:
        decoder = FakeDecoder(2)
        decoder.target.faults[4] = Fault(EngineError, "half")
        with pool_of(decoder) as pool:
            decoder.gate.clear()
            tickets = [pool.submit(prompt, said(12)) for prompt in ("abc", "lm")]
            decoder.gate.set()
            texts = [ticket.finish().text for ticket in tickets]
        assert texts == [decoder.says("abc", 12), decoder.says("lm", 12)]
        assert not decoder.target.faults

    @pytest.mark.parametrize("error", [BrokenPipeError, SystemExit, CancelledError])
    def test_a_broken_callback_ends_its_own_request(self, error: type[BaseException]) -> None:
        def broken(event: StreamEvent | None) -> None:
            raise error("gone")

        decoder = FakeDecoder(2)
        with pool_of(decoder) as pool:
            bad, good = pool.submit("abc", on_event=broken), pool.submit("lm", said(9))
            with pytest.raises(error):
                bad.finish()
            assert good.finish().text == decoder.says("lm", 9)
            assert pool.submit("abc").finish().text == decoder.says("abc", 6)


class TestClose:
    def test_lets_requests_end(self) -> None:
        decoder = FakeDecoder(1)
        with pool_of(decoder) as pool:
            tickets = [pool.submit("abc"), pool.submit("lm")]
            pool.close(WAIT_S)
            assert [ticket.result.finish_reason for ticket in tickets] == ["length"] * 2
            with pytest.raises(PoolClosed):
                pool.submit("abc")

    def test_cancels_what_takes_too_long(self) -> None:
        decoder = FakeDecoder(1, n_ctx=ENDLESS)
        with pool_of(decoder) as pool:
            running, waiting = pool.submit("abc", said(None)), pool.submit("lm")
            next(running)
            pool.close()
            assert running.result.finish_reason == "cancelled"
            assert waiting.result.finish_reason == "cancelled"

    def test_twice(self) -> None:
        with pool_of(FakeDecoder()) as pool:
            pool.close()
            pool.close()
            with pytest.raises(PoolClosed):
                pool.submit("abc")

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_a_forked_child_has_none(self) -> None:
        """A child would wait for ever for a thread that it does not have."""
        with pool_of(FakeDecoder()) as pool:
            child = os.fork()
            if child == 0:
                try:
                    pool.submit("abc")
                except PoolClosed:
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(child, 0)[1] == 0

    def test_gives_the_decoder_back(self) -> None:
        decoder = FakeDecoder()
        with pool_of(decoder) as pool:
            with pytest.raises(UsageError), pool_of(decoder):
                pass
            pool.close()
            with pool_of(decoder) as again:
                assert again.submit("abc").finish().text

    def test_nobody_waits_for_a_dead_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(threading, "excepthook", lambda args: None)
        decoder = FakeDecoder(1)
        decoder.target.faults[2] = Fault(KeyboardInterrupt)
        with pool_of(decoder) as pool:
            decoder.gate.clear()
            tickets = [pool.submit("abc"), pool.submit("lm")]
            decoder.gate.set()
            for ticket in tickets:
                with pytest.raises(PoolClosed):
                    ticket.finish()


class TestStats:
    def test_add_up(self) -> None:
        decoder = FakeDecoder(2)
        with pool_of(decoder) as pool:
            results = [t.finish() for t in [pool.submit(p) for p in ("abc", "abd", "lm")]]
            stats = pool.stats()
        assert (stats.slots, stats.processing, stats.deferred) == (2, 0, 0)
        assert stats.finished == {"length": 3}
        assert stats.prompt_tokens == 8
        assert stats.completion_tokens == 18
        assert stats.cached_tokens == sum(result.usage.cached_tokens for result in results)
        assert stats.spec.rounds == sum(result.spec.rounds for result in results)
        assert stats.cells == 400
        assert 0 < stats.used_cells < 40
        assert stats.decode_s > 0

    def test_who_is_told_of_an_end_finds_it_counted(self) -> None:
        decoder, seen = FakeDecoder(2), []

        def tell(event: StreamEvent | None) -> None:
            if event is None:
                seen.append(dict(pool.stats().finished))

        with pool_of(decoder) as pool:
            pool.submit("abc", on_event=tell).finish()
        assert seen == [{"length": 1}]

    def test_times_only_grow(self) -> None:
        """Reading counts when it is done, not when its request ends."""
        decoder, seen = FakeDecoder(1, n_batch=16), []

        def look(_: float) -> None:
            time.sleep(0.001)
            seen.append((pool.stats().prompt_s, pool.stats().decode_s))

        with pool_of(decoder) as pool:
            decoder.target.on_decode = look
            pool.submit("abcdefgh" * 20, said(10)).finish()
            pool.submit("lm", said(3)).finish()
        for times in zip(*seen, strict=True):
            assert list(times) == sorted(times)
            assert times[-1] > 0
        assert seen[12][0] > seen[9][0] >= 0.009, "the prompt's ten decodes are told before its end"


def test_many_threads() -> None:
    """Submitting, iterating and cancelling from everywhere; nothing lost, nothing mixed."""
    decoder = FakeDecoder(3)
    wrong: list[str] = []

    def client(number: int, pool: Pool) -> None:
        random = np.random.default_rng(number)
        for _ in range(12):
            prompt = "".join(random.choice(list(LETTERS), size=int(random.integers(1, 6))))
            count = int(random.integers(1, 15))
            ticket = pool.submit(prompt, said(count))
            if random.random() < 0.3:
                ticket.cancel()
            text = "".join(event.text for event in ticket)
            if text != decoder.says(prompt, count)[: len(text)]:
                wrong.append(f"{prompt}: {text}")
            if ticket.result.finish_reason == "length" and len(text) != count:
                wrong.append(f"{prompt}: {len(text)} of {count}")

    with pool_of(decoder, max_queue=100) as pool:
        threads = [threading.Thread(target=client, args=(n, pool)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sum(pool.stats().finished.values()) == 8 * 12
    assert not wrong
    assert not decoder.engine._live
