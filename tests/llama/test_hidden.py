"""Hidden states: those that a target tells are right, and a draft reads what its file says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from specllama.errors import NotAModel
from specllama.hub.gguf import read
from specllama.llama.context import Context
from specllama.llama.hidden import WEIGHTS, hidden_reader
from specllama.llama.model import Model
from tests.llama.tiny import N_VOCAB, write_llama

WIDTH, STATES = 32, 48
IDS = [104, 101, 108, 108, 111, 32, 119]


@contextmanager
def opened(path: Path, states: int = STATES) -> Iterator[Context]:
    with Model(path, gpu_layers=0) as model:
        context = Context(model, n_ctx=256, reader=hidden_reader(read(path), states))
        yield context
        context.close()


def rows(
    context: Context, ids: Sequence[int], hidden: dict[int, np.ndarray] | None = None
) -> np.ndarray:
    count, first = len(ids), context.length(0)
    places = range(first, first + count)
    return np.stack(context.decode(ids, places, [(0,)] * count, [True] * count, hidden=hidden))


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(0, 1, shape).astype(np.float32)


class TestTelling:
    def test_the_state_says_the_row(self, tmp_path: Path) -> None:
        path = write_llama(tmp_path / "target.gguf")
        head = next(t for t in read_tensors(path) if t.name == "output.weight")
        with opened(path) as context:
            context.tells_hidden = True
            said = rows(context, IDS)
            for index, row in enumerate(said):
                state = context.hidden(index)
                assert state is not None
                np.testing.assert_allclose(head.data @ state, row, rtol=1e-3, atol=1e-3)

    def test_a_copy(self, tmp_path: Path) -> None:
        with opened(write_llama(tmp_path / "target.gguf")) as context:
            context.tells_hidden = True
            rows(context, IDS)
            first = context.hidden(0)
            assert first is not None
            kept = first.copy()
            rows(context, IDS[::-1])
            assert np.array_equal(first, kept)

    def test_only_where_asked_and_all_rows_are_wanted(self, tmp_path: Path) -> None:
        with opened(write_llama(tmp_path / "target.gguf")) as context:
            rows(context, IDS)
            assert context.hidden(0) is None
            context.tells_hidden = True
            rows(context, IDS)
            assert context.hidden(0) is not None
            context.decode([1, 2], [14, 15], [(0,)] * 2, [False, True])
            assert context.hidden(0) is None
            context.tells_hidden = False
            rows(context, IDS)
            assert context.hidden(0) is None

    @pytest.mark.model
    def test_the_targets_bits_stay_the_same(self, context: Context) -> None:
        for ids in (IDS, IDS[:1], IDS[:3]):
            plain = rows(context, ids)
            context.drop(0)
            context.tells_hidden = True
            assert np.array_equal(rows(context, ids), plain)
            context.tells_hidden = False
            context.drop(0)


class TestReading:
    @pytest.mark.parametrize("kind", [None, Type.F16, Type.Q8_0, Type.Q4_0, Type.Q5_1])
    def test_without_a_state_it_reads_the_token(self, tmp_path: Path, kind: Type | None) -> None:
        weights = normal(WIDTH, STATES)
        draft = write_llama(tmp_path / "draft.gguf", states=weights, table_type=kind)
        with opened(draft) as context, opened(draft, states=STATES + 1) as plain:
            assert context.reads_hidden
            assert not plain.reads_hidden
            assert np.array_equal(rows(context, IDS), rows(plain, IDS))
            assert np.array_equal(rows(context, [7]), rows(plain, [7]))

    def test_a_state_is_added_to_the_tokens_row(self, tmp_path: Path) -> None:
        """As the row of a model in whose embedding the sum lies."""
        weights, state, table = (
            normal(WIDTH, STATES),
            3 * normal(STATES),
            5 * normal(N_VOCAB, WIDTH),
        )
        other = table.copy()
        other[IDS[-1]] += weights @ (state / np.sqrt(np.mean(state**2)))
        draft = write_llama(tmp_path / "draft.gguf", states=weights, table=table)
        summed = write_llama(tmp_path / "summed.gguf", table=other)
        with opened(draft) as context, opened(summed) as expected:
            said = rows(context, IDS, {len(IDS) - 1: state})
            np.testing.assert_allclose(said, rows(expected, IDS), rtol=1e-4, atol=1e-4)
            context.drop(0)
            blind = rows(context, IDS)
            assert np.abs(said[-1] - blind[-1]).max() > 0.1
            assert np.array_equal(said[:-1], blind[:-1])

    def test_a_state_of_nothing_adds_nothing(self, tmp_path: Path) -> None:
        draft = write_llama(tmp_path / "draft.gguf", states=normal(WIDTH, STATES))
        with opened(draft) as context:
            said = rows(context, IDS, {0: np.zeros(STATES, np.float32)})
            context.drop(0)
            assert np.array_equal(said, rows(context, IDS))

    def test_the_embeddings_own_rounding(self, tmp_path: Path) -> None:
        """What is read is what llama.cpp would have read of a quantised table."""
        table = normal(N_VOCAB, WIDTH)
        path = write_llama(
            tmp_path / "d.gguf", table=table, table_type=Type.Q8_0, states=normal(WIDTH, STATES)
        )
        reader = hidden_reader(read(path), STATES)
        assert reader is not None
        found = np.zeros((2, WIDTH), np.float32)
        reader.read([5, N_VOCAB - 1], {}, found)
        exact = dequantize(quantize(table, Type.Q8_0), Type.Q8_0)
        np.testing.assert_array_equal(found, exact[[5, N_VOCAB - 1]])


class TestFiles:
    def test_another_width_is_read_without_states(self, tmp_path: Path) -> None:
        path = write_llama(tmp_path / "draft.gguf", states=normal(WIDTH, STATES))
        assert hidden_reader(read(path), STATES + 1) is None

    def test_a_draft_without_states(self, tmp_path: Path) -> None:
        assert hidden_reader(read(write_llama(tmp_path / "draft.gguf")), STATES) is None

    @pytest.mark.parametrize(
        "states", [normal(WIDTH * STATES - 1), np.full((WIDTH, STATES), np.nan)]
    )
    def test_damaged(self, tmp_path: Path, states: np.ndarray) -> None:
        path = write_llama(tmp_path / "draft.gguf", states=states)
        with pytest.raises(NotAModel, match=r"draft\.gguf is damaged"):
            hidden_reader(read(path), STATES)

    def test_not_numbers(self, tmp_path: Path) -> None:
        path = write_llama(tmp_path / "draft.gguf")
        header = read(path)
        wrong = replace(header, metadata={**header.metadata, WEIGHTS: "much"})
        with pytest.raises(NotAModel, match=r"draft\.gguf is damaged"):
            hidden_reader(wrong, STATES)


def read_tensors(path: Path) -> list[Any]:
    from gguf import GGUFReader

    return GGUFReader(path).tensors
