"""How much memory a model will take, estimated from its header.

Weights are exact. The KV cache is exact for plain attention (all layers at full length: a sliding
window may make it smaller, as does a recurrent layer). The compute buffer is the logits of one
micro-batch, or without flash attention (the default on CPUs) the attention scores if they are
larger; measured with SmolLM2-135M on a CPU: 98.25 MiB with flash attention at any context (estimate
98.25); without it a process grew by 43 MiB beside the cache at 8192 tokens (36.6). Other backends
differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from specllama.hub.ggml_types import BLOCKS
from specllama.hub.gguf import Header
from specllama.options import ModelOptions, micro_batch

_BY_NAME = {name.lower(): (per_block, n_bytes) for per_block, n_bytes, name in BLOCKS.values()}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    weights: int
    kv_cache: int
    compute: int

    @property
    def total(self) -> int:
        """All three."""
        return self.weights + self.kv_cache + self.compute


def estimate(header: Header, n_ctx: int, options: ModelOptions | None = None) -> Memory:
    """The memory of one model with a context of `n_ctx` tokens."""
    options = options or ModelOptions()
    return Memory(
        weights=header.weight_bytes,
        kv_cache=_kv_cache(header, n_ctx, options),
        compute=_compute(header, n_ctx, options),
    )


def _kv_cache(header: Header, n_ctx: int, options: ModelOptions) -> int:
    heads = header.get("attention.head_count", 0)
    kv_heads = _of_all_layers(header, "attention.head_count_kv", heads)
    width = header.get("embedding_length", 0) // max(_first(heads), 1)
    k = kv_heads * header.get("attention.key_length", width)
    v = kv_heads * header.get("attention.value_length", width)
    return n_ctx * (_bytes(k, options.cache_type_k) + _bytes(v, options.cache_type_v))


def _compute(header: Header, n_ctx: int, options: ModelOptions) -> int:
    flash = options.attention(offloaded=False)["flash_attn"]
    scores = _first(header.get("attention.head_count", 0)) * n_ctx if flash == "off" else 0
    widest = max(len(header.vocabulary), scores)
    rows = micro_batch(options.n_batch, flash)
    return int(4 * rows * (widest + 2 * header.get("embedding_length", 0)))


def _of_all_layers(header: Header, key: str, default: object) -> int:
    """The sum of a value that the file gives once, or for each layer."""
    value = header.get(key, default)
    if isinstance(value, int):
        return value * int(header.get("block_count", 0))
    return sum(int(item) for item in value)


def _first(value: object) -> int:
    if isinstance(value, int):
        return value
    return max((int(item) for item in value), default=0)  # type: ignore[attr-defined]


def _bytes(n_values: int, kind: str) -> int:
    per_block, block_bytes = _BY_NAME[kind]
    return n_values * block_bytes // per_block
