"""Quantise a draft: llama.cpp's types, and for Q4_K the very grid that was trained.

The matrices were rounded in training (train.fake_quantise).  llama.cpp's own search would choose
other scales for the same weights and move them off that grid, so what is to be Q4_K is packed here.
"""

from pathlib import Path

import gguf
import llama_cpp
import numpy as np

FILE_TYPES = {"Q8_0": 7, "Q6_K": 18, "Q5_K": 17, "Q4_K": 15, "Q4_0": 2, "F16": 1}
"""llama_ftype of a body type (llama.h)."""
TENSOR_TYPES = {"Q8_0": 8, "Q6_K": 14, "Q5_K": 13, "Q4_K": 12, "Q4_1": 3, "Q4_0": 2, "IQ4_NL": 20}
"""ggml_type of a head type (ggml.h)."""


def quantise(source: Path, out: Path, head: str, body: str) -> None:
    """The head (the tied embedding) decides most of the size, the body most of the quality."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread, params.pure = 1, True
    params.ftype = FILE_TYPES[body]
    params.token_embedding_type = params.output_tensor_type = TENSOR_TYPES[head]
    llama_cpp.llama_backend_init()
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params):
        raise RuntimeError(f"llama.cpp could not quantise {source}")
    exact = {t.name: t.data for t in gguf.GGUFReader(source).tensors}
    for tensor in gguf.GGUFReader(out, "r+").tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_K:
            tensor.data[:] = pack_q4_k(exact[tensor.name].astype(np.float32))


def pack_q4_k(table: np.ndarray) -> np.ndarray:
    """Bytes of ggml's block_q4_K, with the scales and minima of train.fake_quantise."""
    blocks = table.reshape(-1, 8, 32)
    low = np.minimum(blocks.min(-1), 0)
    scale, unit = _six_bits((blocks.max(-1) - low) / 15)
    minimum, unit_minimum = _six_bits(-low)
    step = np.maximum(scale * unit, 1e-12)[..., None]
    offset = (minimum * unit_minimum)[..., None]
    q = np.clip(np.rint((blocks + offset) / step), 0, 15).astype(np.uint8)
    pairs = q.reshape(-1, 4, 2, 32)
    packed = np.concatenate(
        (
            unit.astype(np.float16).view(np.uint8),
            unit_minimum.astype(np.float16).view(np.uint8),
            _pack_scales(scale.astype(np.uint8), minimum.astype(np.uint8)),
            (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128),
        ),
        axis=1,
    )
    return packed.reshape(len(table), -1)


def _six_bits(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole multiples (0 to 63) of a unit a super-block, and the unit, [blocks, 1]."""
    unit = values.max(-1, keepdims=True) / 63
    return np.rint(values / np.maximum(unit, 1e-20)), unit


def _pack_scales(scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    """Eight 6-bit scales and eight 6-bit minima in 12 bytes (ggml's get_scale_min_k4)."""
    first = scale[:, :4] | (scale[:, 4:] >> 4) << 6
    second = minimum[:, :4] | (minimum[:, 4:] >> 4) << 6
    third = scale[:, 4:] & 15 | (minimum[:, 4:] & 15) << 4
    return np.concatenate((first, second, third), axis=1)
