"""Decodes of one constant width: what llama.cpp gets to see, and that texts do not change by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specllama import GenerationParams, ModelOptions, Pool, SamplingParams, SpeculativeDecoder
from specllama.llama.model import Model
from specllama.llama.selftest import batch_difference
from specllama.llama.width import ConstantWidth, decode_filled
from tests.engine.fake_model import FakeModel, language

WIDTH = 8


class Wide(FakeModel):
    """A device whose rows tell how many tokens were decoded and how many cells attention read."""

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
    ) -> list[NDArray[np.float32]]:
        return decode_filled(
            self._decode, self.truncate, WIDTH, tokens, positions, sequences, outputs
        )

    def _decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
    ) -> list[NDArray[np.float32]]:
        assert len(set(sequences)) == 1, "one sequence at a time"
        assert len(tokens) == WIDTH
        assert all(outputs)
        rows = super().decode(tokens, positions, sequences, outputs)
        for row in rows:
            row += np.float32(-(-(positions[-1] + 1) // 256))
        return rows


def wide(n_seq: int = 1) -> Wide:
    return Wide(language(1), n_ctx=1024, n_batch=64, n_seq=n_seq)


def one_by_one(backend: Wide, ids: Sequence[int]) -> NDArray[np.float32]:
    rows = [
        backend.decode([token], [place], [(0,)], [True])[0].copy()
        for place, token in enumerate(ids)
    ]
    backend.drop(0)
    return np.stack(rows)


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 24, 50])
def test_batches_have_the_rows_of_single_tokens(size: int) -> None:
    """Across a multiple of 256 cells as well."""
    ids = [(7 * place + 3) % 15 for place in range(300)]
    backend = wide()
    expected = one_by_one(backend, ids)
    for first in range(0, len(ids), size):
        part = ids[first : first + size]
        places = range(first, first + len(part))
        rows = backend.decode(part, places, [(0,)] * len(part), [True] * len(part))
        assert np.array_equal(rows, expected[first : first + len(part)])
        assert backend.tokens(0) == tuple(ids[: first + len(part)]), "a filler stayed"
    assert set(backend.batches) == {WIDTH}


def test_only_what_is_wanted() -> None:
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    expected = one_by_one(wide(), ids)
    for wanted in ([9], [4, 5, 6], [1, 7], [], [0, 8, 9]):
        rows = wide().decode(ids, range(10), [(0,)] * 10, [n in wanted for n in range(10)])
        assert len(rows) == len(wanted)
        assert all(map(np.array_equal, rows, expected[wanted]))
        rows = wide().decode(ids[:8], range(8), [(0,)] * 8, [n in wanted for n in range(8)])
        within = [n for n in wanted if n < 8]
        assert len(rows) == len(within)
        assert all(map(np.array_equal, rows, expected[within]))


def test_sequences_are_decoded_apart() -> None:
    backend = wide(n_seq=3)
    expected = one_by_one(backend, [3, 1, 4])
    rows = backend.decode(
        [3, 1, 3, 3, 1, 4], [0, 1, 0, 0, 1, 2], [(0,), (0,), (1,), (2,), (2,), (2,)], [True] * 6
    )
    assert np.array_equal(rows, expected[[0, 1, 0, 0, 1, 2]])
    assert [backend.length(seq) for seq in range(3)] == [2, 1, 3]


def test_the_self_test_passes() -> None:
    assert batch_difference(wide(n_seq=3), WIDTH, 3) == 0.0


# the real target, on a CPU


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the CPU's device were a GPU's."""
    monkeypatch.setattr("specllama.llama.model.is_offloaded", lambda gpu_layers, device: True)


@pytest.fixture
def context(model: Model) -> Iterator[ConstantWidth]:
    context = ConstantWidth(model, n_ctx=512, width=WIDTH, n_seq=2, threads=1, flash_attn="on")
    yield context
    context.close()


@pytest.mark.model
def test_a_context_can_be_filled_to_its_end(context: ConstantWidth) -> None:
    assert (context.width, context.n_ctx, context.n_ctx_seq) == (WIDTH, 512, 256)
    ids = [5 + place for place in range(256)]
    context.decode(ids, range(256), [(1,)] * 256, [False] * 256)
    assert (context.length(0), context.length(1)) == (0, 256)
    assert len(context.decode([5], [0], [(0,)], [True])) == 1
    context.truncate(1, 255)
    assert len(context.decode(ids[255:], [255], [(1,)], [True])) == 1
    assert context.length(1) == 256


@pytest.mark.model
def test_ragged_batches_have_the_bits_of_single_tokens(context: ConstantWidth) -> None:
    ids = [504, 2365, 282, 4649, 314, 3575, 28, 284, 260, 2240, 339, 411]
    singles = [context.decode([t], [n], [(0,)], [True])[0].copy() for n, t in enumerate(ids)]
    context.drop(0)
    for first, last in ((0, 5), (5, 6), (6, 12)):
        count = last - first
        rows = context.decode(ids[first:last], range(first, last), [(0,)] * count, [True] * count)
        assert np.array_equal(rows, np.stack(singles[first:last]))
    assert context.length(0) == len(ids)


@pytest.mark.model
@pytest.mark.parametrize("size", [1, WIDTH, 12])
def test_something_is_done_beside_the_first_of_several_decodes(
    context: ConstantWidth, size: int
) -> None:
    """Once, when no more than a width of tokens has been queued."""
    ids = [504, 2365, 282, 4649, 314, 3575, 28, 284, 260, 2240, 339, 411][:size]
    batch = (ids, range(size), [(0,)] * size, [True] * size)
    expected = np.stack(context.decode(*batch))
    context.drop(0)
    held: list[int] = []
    rows = context.decode(*batch, lambda: held.append(context.length(0)))
    assert held == [WIDTH]
    assert np.array_equal(rows, expected)
    assert context.length(0) == size
    context.drop(0)
    context.decode(*batch, lambda: time.sleep(0.2))
    assert context.overran, "also if decodes follow beside which nothing was done"
    context.drop(0)
    context.width = 0
    context.decode(*batch, lambda: held.append(context.length(0)))
    assert held == [WIDTH, size]


Open = Callable[..., SpeculativeDecoder]


@pytest.fixture
def opened(on_gpu: None, target_file: Path, draft_file: Path) -> Iterator[Open]:
    decoders: list[SpeculativeDecoder] = []

    def opened(**options: Any) -> SpeculativeDecoder:
        settings = ModelOptions(**{"exact": True, "threads": 1, "n_ctx": 512, **options})
        decoders.append(SpeculativeDecoder(target_file, draft_file, options=settings))
        return decoders[-1]

    yield opened
    for decoder in decoders:
        decoder.close()


def said(temperature: float, drafter: str, **settings: Any) -> GenerationParams:
    return GenerationParams(
        **{
            "max_tokens": 12,
            "seed": 5,
            "sampling": SamplingParams(temperature=temperature),
            "drafter": drafter,
            "draft_max": 7,
            "adaptive": False,
            **settings,
        }
    )


@pytest.mark.model
def test_any_draft_gives_the_same_text(opened: Open) -> None:
    """Prompts around a width, and one whose reply crosses a multiple of 256 cells."""
    decoder = opened()
    assert not decoder.warnings
    context = decoder.engine.backend
    assert isinstance(context, ConstantWidth)
    ids = [260, 2240, 28, 284, 504, 260, 2240, 28, 284] * 34
    accepted = 0
    for length, temperature in zip((1, 7, 8, 9, 244, 300), (0.8, 0.0) * 3, strict=True):
        plain = decoder.generate(ids[:length], said(temperature, "none"))
        for drafter in ("suffix", "model", "tree") if length < 244 else ("suffix",):
            decoder.forget()
            drafted = decoder.generate(ids[:length], said(temperature, drafter))
            assert drafted.tokens == plain.tokens, (length, drafter)
            assert drafted.logprobs == plain.logprobs, "not the same bits"
            assert context.length(0) == length + len(drafted.tokens) - 1, "a filler stayed"
            accepted += drafted.spec.accepted
    assert accepted > 0, "nothing was ever put to the test"


@pytest.mark.model
def test_a_full_context_ends_the_reply(opened: Open) -> None:
    decoder = opened(n_ctx=256)
    ids = [260, 2240, 28, 284] * 61
    for drafter in ("none", "suffix"):
        reply = decoder.generate(ids, said(1.2, drafter, max_tokens=None, seed=3))
        assert reply.finish_reason == "context"
        assert len(ids) + len(reply.tokens) == decoder.n_ctx + 1


@pytest.mark.model
def test_the_same_in_company(opened: Open) -> None:
    questions = ["Count: one, two, one, two, one,", "The sky is", "A fox and a fox and a"]
    arms = ["suffix", "model", "none"]
    alone = opened()
    expected = [alone.generate(text, said(0.8, "none")).tokens for text in questions]
    with Pool(opened(parallel=3)) as pool:
        tickets = [
            pool.submit(text, said(0.8, arm)) for text, arm in zip(questions, arms, strict=True)
        ]
        assert [ticket.finish().tokens for ticket in tickets] == expected


@pytest.mark.model
def test_beams_are_refused_in_words(opened: Open) -> None:
    from specllama import BeamParams, UsageError

    with pytest.raises(UsageError, match="--exact"):
        opened().beam_search("A fox", BeamParams(width=2))
