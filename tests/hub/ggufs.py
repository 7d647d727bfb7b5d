"""Tiny GGUF files for tests, written by the gguf package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORDS = ("<s>", "</s>", "<unk>", *(f"word{i}" for i in range(197)))


def write_gguf(
    path: Path,
    *,
    tokens: Sequence[str] = WORDS,
    kind: str = "gpt2",
    architecture: str = "llama",
    tensors: Sequence[str] = ("token_embd.weight", "blk.0.attn_q.weight"),
    types: Sequence[int] | None = None,
    extra: Mapping[str, Any] | None = None,
    **special: int,
) -> Path:
    """A model of 64 x 8 weights a tensor; `special` are token ids ("bos", "eos")."""
    import gguf

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(path.stem)
    writer.add_license("apache-2.0")
    writer.add_context_length(2048)
    writer.add_embedding_length(8)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_feed_forward_length(16)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if tokens:
        writer.add_tokenizer_model(kind)
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(tokens)
        writer.add_token_types(types or [1] * len(tokens))
        writer.add_token_merges(["a b", "c d"])
    for name, value in special.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value)
    for name, value in (extra or {}).items():
        _add(writer, name, value)
    for name in tensors:
        writer.add_tensor(name, np.ones((64, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


def shuffled(path: Path, source: Path, seed: int = 7) -> Path:
    """The same model with its token ids in another order: a stranger that says the same."""
    import gguf

    reader = gguf.GGUFReader(source)
    texts = reader.fields["tokenizer.ggml.tokens"].contents()
    order = np.random.default_rng(seed).permutation(len(texts))
    place = np.argsort(order)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = field.contents()
        if isinstance(value, list) and len(value) == len(texts):
            value = [value[old] for old in order]
        elif name.endswith("_token_id"):
            value = int(place[value])
        kinds = {"sub_type": field.types[1]} if len(field.types) > 1 else {}
        writer.add_key_value(name, value, field.types[0], **kinds)
    for tensor in reader.tensors:
        by_token = tensor.name in ("token_embd.weight", "output.weight")
        rows = np.ascontiguousarray(tensor.data[order]) if by_token else tensor.data
        writer.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
