"""Quantise a draft with llama.cpp: one type for the tied embedding, one for the body."""

from pathlib import Path

import llama_cpp

FILE_TYPES = {"Q8_0": 7, "Q6_K": 18, "Q5_K": 17, "Q4_K": 15, "Q4_0": 2, "F16": 1}
"""llama_ftype of a body type (llama.h)."""
TENSOR_TYPES = {"Q8_0": 8, "Q6_K": 14, "Q5_K": 13, "Q4_K": 12, "Q4_1": 3, "Q4_0": 2, "IQ4_NL": 20}
"""ggml_type of a head type (ggml.h)."""


def quantise(source: Path, out: Path, head: str, body: str) -> None:
    """The head decides the size, the body the quality: 4 and 8 bits are a good pair."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = 1
    params.ftype = FILE_TYPES[body]
    params.token_embedding_type = params.output_tensor_type = TENSOR_TYPES[head]
    llama_cpp.llama_backend_init()
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params):
        raise RuntimeError(f"llama.cpp could not quantise {source}")
