"""The memory estimate."""

from __future__ import annotations

from pathlib import Path

from specllama.hub.gguf import read
from specllama.hub.memory import estimate
from specllama.options import ModelOptions
from tests.hub.ggufs import write_gguf


def test_key_value_cache_of_plain_attention(tmp_path: Path) -> None:
    """2 layers x 2 KV heads x head width 8/4, keys and values, 2 bytes each."""
    header = read(write_gguf(tmp_path / "m.gguf"))
    memory = estimate(header, 1000)

    assert memory.kv_cache == 1000 * 2 * 2 * 2 * 2 * 2
    assert memory.weights == 4096
    assert memory.total == memory.weights + memory.kv_cache + memory.compute


def test_a_quantised_cache_is_smaller(tmp_path: Path) -> None:
    header = read(write_gguf(tmp_path / "m.gguf", extra={"llama.attention.key_length": 32}))
    full = estimate(header, 1024, ModelOptions(cache_type_v="f16")).kv_cache
    half = estimate(header, 1024, ModelOptions(cache_type_k="q8_0")).kv_cache
    assert full - half == 1024 * 4 * 32 * 2 - 1024 * 4 * 34


def test_compute_buffer_with_and_without_flash_attention(tmp_path: Path) -> None:
    """Logits of 512 rows; without flash attention 4 heads x context scores of 128, if more."""
    header = read(write_gguf(tmp_path / "m.gguf"))
    on = ModelOptions(flash_attn="on")
    assert estimate(header, 1000, on).compute == 4 * 512 * (200 + 2 * 8)
    assert estimate(header, 1000).compute == 4 * 128 * (4 * 1000 + 2 * 8)
    assert estimate(header, 10).compute == 4 * 128 * (200 + 2 * 8)


def test_heads_by_layer(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    header = read(path)
    layered = type(header)(
        header.path,
        dict(header.metadata) | {"llama.attention.head_count_kv": [2, 0]},
        header.tensors,
        header.file_size,
    )
    assert estimate(layered, 1000).kv_cache * 2 == estimate(header, 1000).kv_cache
