"""The real target, loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama.llama.context import Context
from specllama.llama.model import Model


@pytest.fixture(scope="session")
def model(target_file: Path) -> Iterator[Model]:
    """SmolLM2-135M-Instruct."""
    with Model(target_file, gpu_layers=0) as model:
        yield model


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    """A small cache with four sequence ids."""
    context = Context(
        model, n_ctx=256, n_batch=32, n_seq=4, n_outputs=16, threads=1, flash_attn="on"
    )
    yield context
    context.close()
