"""What options mean for a model: attention, cache formats, pieces of prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specllama.errors import UsageError
from specllama.options import (
    MAX_CELLS,
    MAX_PARALLEL,
    MAX_THREADS,
    BeamParams,
    CacheType,
    GenerationParams,
    ModelOptions,
    micro_batch,
)


def test_no_flash_attention_on_a_cpu() -> None:
    """There it takes a batch's tokens one by one; elsewhere llama.cpp decides."""
    options = ModelOptions()
    assert options.attention(offloaded=False)["flash_attn"] == "off"
    assert options.attention(offloaded=True)["flash_attn"] == "auto"


@pytest.mark.parametrize("asked", ["on", "off"])
@pytest.mark.parametrize("offloaded", [False, True])
def test_what_is_asked_for_is_done(asked: str, offloaded: bool) -> None:
    options = ModelOptions(flash_attn=asked)  # type: ignore[arg-type]
    assert options.attention(offloaded)["flash_attn"] == asked


@pytest.mark.parametrize(("kind", "flash"), [("bf16", "off"), ("q8_0", "auto"), ("q4_0", "auto")])
def test_a_quantised_value_cache_needs_it(kind: CacheType, flash: str) -> None:
    found = ModelOptions(cache_type_v=kind).attention(offloaded=False)
    assert (found["flash_attn"], found["cache_type_v"]) == (flash, kind)


@pytest.mark.parametrize("offloaded", [False, True])
def test_exact_mode_has_its_own(offloaded: bool) -> None:
    found = ModelOptions(exact=True, flash_attn="off", cache_type_k="q8_0").attention(offloaded)
    assert found == {"flash_attn": "on", "cache_type_k": "bf16", "cache_type_v": "bf16"}


def test_smaller_pieces_without_flash_attention() -> None:
    """Scores of a whole piece are kept there."""
    assert micro_batch(512, "off") == 128
    assert micro_batch(64, "off") == 64
    assert micro_batch(512, "on") == micro_batch(512, "auto") == 512


@pytest.mark.parametrize(
    "options",
    [
        {"n_batch": 1},
        {"parallel": 226},
        {"threads": 513},
        {"threads_batch": 513},
        {"draft_threads": 513},
        {"n_ctx": 2**31},
        {"n_ctx": 2**30, "parallel": 4},
        {"tensor_split": (1.0, -1.0)},
        {"tensor_split": (float("nan"),)},
        {"tensor_split": "1,2"},
        {"tensor_split": ("1", "2")},
        {"tensor_split": 1.0},
        {"tensor_split": (float("inf"), 1.0)},
        {"n_ctx": 512.5},
        {"n_ctx": float("nan")},
        {"n_batch": float("inf")},
        {"threads": "2"},
        {"device": 5},
    ],
)
def test_what_llama_cpp_cannot_do_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ModelOptions(**options)


def test_the_largest_that_can_be() -> None:
    options = ModelOptions(n_batch=2, parallel=MAX_PARALLEL, threads=MAX_THREADS, n_ctx=8192)
    assert options.parallel * options.n_ctx <= MAX_CELLS


def test_branches_of_trees_fit_beside_all_generations(llama_cpp: None) -> None:
    from specllama.llama import library
    from specllama.loading import TREE_BRANCHES

    assert library.load().llama_max_parallel_sequences() == MAX_PARALLEL + TREE_BRANCHES


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 1.5},
        {"max_tokens": float("nan")},
        {"max_tokens": float("inf")},
        {"max_tokens": "5"},
        {"seed": 0.5},
        {"seed": np.float32(3)},
        {"draft_max": None},
        {"draft_max": float("inf")},
        {"top_logprobs": 1.5},
        {"draft_p_min": "0.5"},
        {"drafter": None},
        {"tree": 2},
        {"predict": None},
        {"grammar": b'root ::= "a"'},
        {"sampling": None},
        {"stop": "END"},
        {"stop": b"END"},
        {"stop": ("END", 5)},
        {"stop": None},
    ],
    ids=str,
)
def test_settings_of_another_type_are_refused_by_name(wrong: dict[str, Any]) -> None:
    """A limit that is no whole number would never be met, "END" would be three stop strings."""
    (name,) = wrong
    with pytest.raises(UsageError, match=f"(?i){name.replace('stop', 'stop string')}"):
        GenerationParams(**wrong)


@pytest.mark.parametrize("wrong", [{"width": 2.5}, {"max_tokens": float("nan")}, {"draft_max": ""}])
def test_beams_are_counted_in_whole_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="whole number"):
        BeamParams(**wrong)


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.uint64])
def test_whole_numbers_of_numpy_become_pythons(kind: Any) -> None:
    """Theirs overflow where a seed is mixed."""
    params = GenerationParams(seed=kind(7), max_tokens=kind(3))
    assert (type(params.seed), params.seed) == (int, 7)
    assert (type(params.max_tokens), params.max_tokens) == (int, 3)
    assert type(ModelOptions(n_ctx=kind(64)).n_ctx) is int


def test_stop_strings_may_come_from_anything() -> None:
    stops: Any = (text for text in ("a", "b"))
    assert GenerationParams(stop=stops).stop == ("a", "b")


def test_the_context_is_the_models_own_up_to_8192() -> None:
    assert [ModelOptions().context_of(n) for n in (2048, 131072, None)] == [2048, 8192, 8192]
    assert ModelOptions(n_ctx=512).context_of(2048) == 512
