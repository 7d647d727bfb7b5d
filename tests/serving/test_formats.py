"""Answers in OpenAI's and llama.cpp's words."""

from __future__ import annotations

import pytest

from specllama.results import Generation, SpecStats, Timings, Usage
from specllama.serving.formats import timings


@pytest.mark.parametrize(
    ("prompt", "cached", "ms"), [(10, 4, 50.0), (2, 0, 10.0), (10, 9, 0.0), (1, 0, 0.0)]
)
def test_the_time_of_a_prompt_is_that_of_reading_it(prompt: int, cached: int, ms: float) -> None:
    """All but its last token, which is decoded in the first round."""
    found = timings(
        Generation(
            text="a",
            tokens=[1],
            logprobs=[],
            finish_reason="stop",
            usage=Usage(prompt, 1, cached),
            timings=Timings(0.0, 0.1, 100.0, 40.0, 0.2, 0.05),
            spec=SpecStats(),
            seed=1,
            verify="coupled",
            guarantee="",
            lossless=True,
        )
    )
    assert found["prompt_ms"] == pytest.approx(ms)
    assert found["prompt_n"] == prompt - cached
