"""Complete models of a few kilobytes with random weights, of kinds the built-in pair is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_EMBD, _INNER, _STATE, _RANK, _CONV, _LAYERS = 32, 64, 8, 4, 4, 2
SPECIAL = ("<|end|>", "<|user|>", "<|bot|>")


def _byte_letters() -> list[str]:
    """The 256 letters of byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _writer(path: Path, architecture: str, layers: int = _LAYERS, n_ctx: int = 512) -> Any:
    import gguf

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(path.stem)
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(_EMBD)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    tokens = [*SPECIAL, *_byte_letters()]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * 256)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    return writer


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


N_VOCAB = len(SPECIAL) + 256


def write_mamba(path: Path, noise: float = 0.0) -> Path:
    """A recurrent model. With `noise` it is a draft of the one without: other weights, a little."""
    random, other = np.random.default_rng(7), np.random.default_rng(8)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        weights = random.normal(0.0, scale / np.sqrt(shape[-1]), shape)
        weights += noise * other.normal(0.0, scale / np.sqrt(shape[-1]), shape)
        return weights.astype(np.float32)

    writer = _writer(path, "mamba")
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(_CONV)
    writer.add_ssm_inner_size(_INNER)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_time_step_rank(_RANK)
    writer.add_tensor("token_embd.weight", normal(N_VOCAB, _EMBD, scale=5.0))
    writer.add_tensor("output.weight", normal(N_VOCAB, _EMBD, scale=2.5))
    writer.add_tensor("output_norm.weight", np.ones(_EMBD, np.float32))
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        writer.add_tensor(f"{block}.attn_norm.weight", np.ones(_EMBD, np.float32))
        writer.add_tensor(f"{block}.ssm_in.weight", normal(2 * _INNER, _EMBD, scale=2.0))
        writer.add_tensor(f"{block}.ssm_conv1d.weight", normal(_INNER, _CONV))
        writer.add_tensor(f"{block}.ssm_conv1d.bias", np.zeros(_INNER, np.float32))
        writer.add_tensor(f"{block}.ssm_x.weight", normal(_RANK + 2 * _STATE, _INNER))
        writer.add_tensor(f"{block}.ssm_dt.weight", normal(_INNER, _RANK))
        writer.add_tensor(f"{block}.ssm_dt.bias", np.zeros(_INNER, np.float32))
        decay = -np.tile(np.arange(1.0, _STATE + 1, dtype=np.float32) / _STATE, (_INNER, 1))
        writer.add_tensor(f"{block}.ssm_a", decay)
        writer.add_tensor(f"{block}.ssm_d", np.ones(_INNER, np.float32))
        writer.add_tensor(f"{block}.ssm_out.weight", normal(_EMBD, _INNER, scale=2.0))
    _finish(writer)
    return path


def _normal(seed: int) -> Callable[..., np.ndarray]:
    random = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return random.normal(0.0, scale / np.sqrt(shape[-1]), shape).astype(np.float32)

    return normal


def write_gemma3(path: Path, window: int, n_ctx: int = 2048) -> Path:
    """Attention with a sliding window in five of six layers."""
    normal, ones, layers, head = _normal(5), np.ones(_EMBD, np.float32), 6, 8
    writer = _writer(path, "gemma3", layers, n_ctx)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_freq_base(10_000.0)
    writer.add_sliding_window(window)
    writer.add_tensor("token_embd.weight", normal(N_VOCAB, _EMBD, scale=0.6))
    writer.add_tensor("output.weight", normal(N_VOCAB, _EMBD, scale=2.5))
    writer.add_tensor("output_norm.weight", ones)
    for block in (f"blk.{layer}" for layer in range(layers)):
        for name in ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"):
            writer.add_tensor(f"{block}.{name}.weight", ones)
        for name in ("attn_q_norm", "attn_k_norm"):
            writer.add_tensor(f"{block}.{name}.weight", np.ones(head, np.float32))
        for name, rows in (("attn_q", 32), ("attn_k", 16), ("attn_v", 16), ("attn_output", 32)):
            writer.add_tensor(f"{block}.{name}.weight", normal(rows, _EMBD, scale=2.0))
        writer.add_tensor(f"{block}.ffn_gate.weight", normal(64, _EMBD, scale=2.0))
        writer.add_tensor(f"{block}.ffn_up.weight", normal(64, _EMBD, scale=2.0))
        writer.add_tensor(f"{block}.ffn_down.weight", normal(_EMBD, 64, scale=2.0))
    _finish(writer)
    return path


def write_gpt2(path: Path, n_ctx: int) -> Path:
    """Learned positions, `n_ctx` of them."""
    normal, ones = _normal(9), np.ones(_EMBD, np.float32)
    writer = _writer(path, "gpt2", n_ctx=n_ctx)
    writer.add_layer_norm_eps(1e-5)
    writer.add_tensor("token_embd.weight", normal(N_VOCAB, _EMBD, scale=5.0))
    writer.add_tensor("position_embd.weight", normal(n_ctx, _EMBD))
    writer.add_tensor("output.weight", normal(N_VOCAB, _EMBD, scale=2.5))
    names = ["output_norm"]
    shapes = {
        "attn_qkv": (96, 32),
        "attn_output": (32, 32),
        "ffn_up": (64, 32),
        "ffn_down": (32, 64),
    }
    for block in (f"blk.{layer}" for layer in range(_LAYERS)):
        names += [f"{block}.attn_norm", f"{block}.ffn_norm"]
        for name, shape in shapes.items():
            writer.add_tensor(f"{block}.{name}.weight", normal(*shape, scale=2.0))
            writer.add_tensor(f"{block}.{name}.bias", np.zeros(shape[0], np.float32))
    for name in names:
        writer.add_tensor(f"{name}.weight", ones)
        writer.add_tensor(f"{name}.bias", 0.0 * ones)
    _finish(writer)
    return path


WORDS = (
    *("▁", "▁▁", "▁the", "▁a", "▁fox", "▁fo", "fo", "ox", "th", "he", "the", "ll", "lo", "hel"),
    *("hello", "▁hello", "▁w", "or", "ld", "wor", "world", "▁world", "▁漢", "漢", "字", "漢字"),
    *map(chr, range(97, 123)),
)


def write_llama(path: Path, n_ctx: int = 512) -> Path:
    """A SentencePiece vocabulary, which adds spaces; "<|note|>" is a user-defined token."""
    import gguf

    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [*WORDS, "<|note|>"]
    normal, size = _normal(11), len(tokens)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(_EMBD)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(WORDS), 4])
    writer.add_token_scores([0.0] * 259 + [float(len(word)) for word in WORDS] + [0.0])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_tensor("token_embd.weight", normal(size, _EMBD, scale=5.0))
    writer.add_tensor("output.weight", normal(size, _EMBD, scale=2.5))
    writer.add_tensor("output_norm.weight", np.ones(_EMBD, np.float32))
    for block in (f"blk.{layer}" for layer in range(_LAYERS)):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}.{name}.weight", np.ones(_EMBD, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{block}.{name}.weight", normal(_EMBD, _EMBD, scale=2.0))
        for name in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"{block}.{name}.weight", normal(64, _EMBD, scale=2.0))
        writer.add_tensor(f"{block}.ffn_down.weight", normal(_EMBD, 64, scale=2.0))
    _finish(writer)
    return path


def write_bert(path: Path) -> Path:
    """An encoder: it embeds texts and cannot continue them."""
    random = np.random.default_rng(7)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(0.0, 0.1, shape).astype(np.float32)

    writer = _writer(path, "bert")
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    writer.add_token_type_count(2)
    writer.add_tensor("token_embd.weight", normal(N_VOCAB, _EMBD))
    writer.add_tensor("token_types.weight", normal(2, _EMBD))
    writer.add_tensor("position_embd.weight", normal(512, _EMBD))
    for name in ("token_embd_norm",):
        writer.add_tensor(f"{name}.weight", np.ones(_EMBD, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(_EMBD, np.float32))
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{block}.{name}.weight", normal(_EMBD, _EMBD))
            writer.add_tensor(f"{block}.{name}.bias", np.zeros(_EMBD, np.float32))
        for name in ("attn_output_norm", "layer_output_norm"):
            writer.add_tensor(f"{block}.{name}.weight", np.ones(_EMBD, np.float32))
            writer.add_tensor(f"{block}.{name}.bias", np.zeros(_EMBD, np.float32))
        writer.add_tensor(f"{block}.ffn_up.weight", normal(64, _EMBD))
        writer.add_tensor(f"{block}.ffn_up.bias", np.zeros(64, np.float32))
        writer.add_tensor(f"{block}.ffn_down.weight", normal(_EMBD, 64))
        writer.add_tensor(f"{block}.ffn_down.bias", np.zeros(_EMBD, np.float32))
    _finish(writer)
    return path
