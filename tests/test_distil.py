"""scripts/distil: seeds that keep clear of the held-out prompts, and the trained 4-bit grid."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture(scope="module", params=["prompts", "quantise"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module(f"distil.{request.param}")
    finally:
        sys.path.remove(str(SCRIPTS))


def runs(text: str, length: int = 5) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


@pytest.mark.parametrize("module", ["prompts"], indirect=True)
def test_seeds_share_no_five_words_with_held_out_prompts(module: ModuleType) -> None:
    lines = (SCRIPTS / "heldout_prompts.jsonl").read_text().splitlines()
    held_out = set().union(*(runs(json.loads(line)["prompt"]) for line in lines))
    frames = [f"{wrap.before} {wrap.after}" for wrap in module.make_wraps(8000, 1)]
    requests = [prompt for _, prompt in module.make_prompts(8000, 0)]
    seeds = frames + requests + module.make_openers(8000, 2) + module.make_starts(8000, 3)
    assert len(held_out) > 200
    assert [seed for seed in seeds if runs(seed) & held_out] == []


@pytest.mark.parametrize("module", ["prompts"], indirect=True)
def test_openers_are_filled_varied_and_some_leave_everything_to_the_target(
    module: ModuleType,
) -> None:
    openers = module.make_openers(8000, 0)
    assert not any(re.search(r"\{\w+\}", opener) for opener in openers)
    assert len(set(openers)) > 2500
    assert 0.08 < openers.count("") / len(openers) < 0.17


@pytest.mark.parametrize("module", ["prompts"], indirect=True)
def test_topics_of_ones_own_are_asked_about(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = {slot: list(entries) for slot, entries in module.CHOICES.items()}
    monkeypatch.setattr(module, "CHOICES", choices)
    before = [prompt for _, prompt in module.make_prompts(500, 0)]
    module.add_topics(["quokka"] * 500)
    after = [prompt for _, prompt in module.make_prompts(500, 0)] + module.make_openers(500, 0)
    assert not any("quokka" in prompt for prompt in before)
    assert sum("quokka" in prompt for prompt in after) > 100


@pytest.mark.parametrize("module", ["quantise"], indirect=True)
def test_weights_on_a_4_bit_grid_survive_packing(module: ModuleType) -> None:
    rng = np.random.default_rng(0)
    unit, unit_minimum = 1 / 64, 1 / 32
    scale, minimum = rng.integers(8, 63, (2, 6, 8))
    scale[:, 0] = minimum[:, 3] = 63
    levels = rng.integers(0, 16, (6, 8, 32))
    levels[..., :2] = 0, 15
    blocks = (levels * scale[..., None]) * unit - minimum[..., None] * unit_minimum
    table = blocks.reshape(3, 512).astype(np.float32)
    packed = module.pack_q4_k(table)
    assert packed.shape == (3, 2 * 144)
    np.testing.assert_array_equal(dequantize(packed, gguf.GGMLQuantizationType.Q4_K), table)


@pytest.mark.parametrize("module", ["quantise"], indirect=True)
def test_other_weights_move_by_about_half_a_step_at_most(module: ModuleType) -> None:
    table = np.random.default_rng(1).standard_normal((16, 256)).astype(np.float32)
    restored = dequantize(module.pack_q4_k(table), gguf.GGMLQuantizationType.Q4_K)
    blocks, moved = table.reshape(-1, 32), np.abs(restored - table).reshape(-1, 32)
    step = (blocks.max(-1) - blocks.min(-1)) / 15
    assert (moved.max(-1) < 0.8 * step).all()
    assert moved.mean() < 0.3 * step.mean()
