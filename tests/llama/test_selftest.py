"""The self-test of `--exact`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specllama import ModelOptions, SpeculativeDecoder
from specllama.llama.context import Context
from specllama.llama.selftest import batch_difference, exact_range
from tests.engine.fake_model import FakeModel, language


def shifted(rows: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    return [row + np.float32(0.25) for row in rows]


class Rounding(FakeModel):
    """A machine whose batches come out a little different."""

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
    ) -> list[NDArray[np.float32]]:
        rows = super().decode(tokens, positions, sequences, outputs)
        return shifted(rows) if len(tokens) > 1 else rows


def test_finds_a_difference() -> None:
    assert batch_difference(FakeModel(language(1)), 7) == 0.0
    assert batch_difference(Rounding(language(1)), 7) == pytest.approx(0.25, rel=1e-3)


class Stepping(FakeModel):
    """A machine that takes another kernel from five tokens on."""

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
    ) -> list[NDArray[np.float32]]:
        rows = super().decode(tokens, positions, sequences, outputs)
        return shifted(rows) if len(tokens) >= 5 else rows


def test_the_exact_range_ends_before_the_first_difference() -> None:
    assert exact_range(FakeModel(language(1)), 8) == 8
    assert exact_range(Stepping(language(1)), 8) == 4
    assert exact_range(Rounding(language(1)), 8) == 1
    backend = Stepping(language(1))
    exact_range(backend, 8)
    assert backend.length(0) == 0


def test_leaves_nothing_behind() -> None:
    backend = FakeModel(language(1))
    batch_difference(backend, 7)
    assert backend.length(0) == 0


@pytest.mark.model
def test_exact_says_where_it_is_not(target_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ModelOptions(exact=True, threads=1, n_ctx=256)
    with SpeculativeDecoder(target_file, options=options) as decoder:
        assert decoder.warnings == []
    real = Context.decode

    def rounding(self: Context, tokens: Sequence[int], *rest: object) -> list[NDArray[np.float32]]:
        rows = real(self, tokens, *rest)  # type: ignore[arg-type]
        return shifted(rows) if len(tokens) > 2 else rows

    monkeypatch.setattr(Context, "decode", rounding)
    with SpeculativeDecoder(target_file, options=options) as decoder:
        assert any("Not bit-exact here" in warning for warning in decoder.warnings)
