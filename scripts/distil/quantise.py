"""Quantise a draft: llama.cpp's types, and for Q4_K the very grid that was trained.

The matrices were rounded in training (train.fake_quantise).  llama.cpp's own search would choose
other scales for the same weights and move them off that grid, so what is to be Q4_K is packed here.
"""

from pathlib import Path

import gguf
import llama_cpp
import numpy as np

from specllama.whole_file import whole_file

from .kinds import FILE_TYPES, TENSOR_TYPES
from .shape import open_gguf


def quantise(source: Path, out: Path, head: str, body: str) -> None:
    """The head (the tied embedding) decides most of the size, the body most of the quality.

    Raises:
        SystemExit: llama.cpp refuses, or `out` cannot be written; it is as it was.
    """
    exact = {t.name: t.data for t in open_gguf(source).tensors}
    try:
        with whole_file(out) as part:
            part.touch()  # a folder that is not there is told here, not by llama.cpp
            _quantise(source, part, head, body)
            for tensor in gguf.GGUFReader(part, "r+").tensors:
                if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_K:
                    tensor.data[:] = pack_q4_k(exact[tensor.name].astype(np.float32))
    except OSError as error:
        raise SystemExit(
            f"Cannot write {out}: {error.strerror}. Name a file that can be written."
        ) from error


def _quantise(source: Path, out: Path, head: str, body: str) -> None:
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread, params.pure = 1, True
    params.ftype = FILE_TYPES[body]
    params.token_embedding_type = params.output_tensor_type = TENSOR_TYPES[head]
    llama_cpp.llama_backend_init()
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params):
        raise SystemExit(
            f"llama.cpp could not make {head} and {body} of {source}; its log says why. "
            "Give a 16-bit draft, or choose other types with --head and --body."
        )


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
