"""OpenMP's threads are let go between replies, so that another thread's decodes are not held up."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama import GenerationParams, ModelOptions, Pool, SpeculativeDecoder
from specllama.llama import library
from specllama.llama.context import Context
from specllama.llama.model import Model

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.skipif(not library._pauses(), reason="llama.cpp is built without libgomp"),
]
THREADS = 2


def helpers() -> int:
    """Threads of this process that Python does not know of.

    The least seen for a while: one that was joined may be listed a little longer.
    """
    counts = []
    for _ in range(15):
        counts.append(len(list(Path("/proc/self/task").iterdir())) - threading.active_count())
        time.sleep(0.02)
    return min(counts)


@pytest.fixture(scope="module")
def decoder(target_file: Path) -> Iterator[SpeculativeDecoder]:
    with SpeculativeDecoder(
        target_file, options=ModelOptions(n_ctx=256, threads=THREADS)
    ) as decoder:
        yield decoder


def test_the_threads_of_a_decode_are_let_go(model: Model) -> None:
    library.end_team()
    before = helpers()
    context = Context(model, n_ctx=256, threads=THREADS)
    assert helpers() == before + THREADS - 1
    library.end_team()
    assert helpers() == before
    context.decode([1], [0], [(0,)], [True])  # starts new ones
    assert helpers() == before + THREADS - 1
    context.close()
    library.end_team()


def test_none_are_left_by_loading_and_by_a_reply(decoder: SpeculativeDecoder) -> None:
    before = helpers()
    stream = decoder.stream("Once upon a time", GenerationParams(max_tokens=4, seed=1))
    next(stream)
    assert helpers() == before + THREADS - 1
    stream.finish()
    assert helpers() == before
    stream = decoder.stream("Once upon a time", GenerationParams(max_tokens=4, seed=1))
    next(stream)
    stream.close()
    assert helpers() == before


def test_a_pool_is_the_only_one_with_any(decoder: SpeculativeDecoder) -> None:
    before = helpers()
    with Pool(decoder) as pool:
        pool.submit("Once upon a time", GenerationParams(max_tokens=4, seed=1)).finish()
        assert helpers() == before + THREADS - 1
