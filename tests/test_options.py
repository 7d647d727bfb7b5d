"""What options mean for a model: attention, cache formats, pieces of prompts."""

from __future__ import annotations

import pytest

from specllama.options import CacheType, ModelOptions, micro_batch


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
