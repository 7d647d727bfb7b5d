"""Write a student as a GGUF with the target's tokenizer."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from .shape import Shape, open_gguf

COPIED = ("tokenizer.", "general.license", "general.languages")


def write_gguf(
    tensors: Mapping[str, np.ndarray], shape: Shape, target: Path, out: Path, name: str | None
) -> None:
    """A GGUF of 16-bit matrices and 32-bit norms, named after the target where no name is given."""
    reader = open_gguf(target)
    teacher = _text(reader, "general.name", target.stem)
    part = out.with_name(f".{out.name}.part")
    writer = gguf.GGUFWriter(part, "llama")
    writer.add_name(name or f"{teacher} draft")
    writer.add_description(
        "Speculative draft distilled by specllama: predicts the text of "
        f"{teacher} ({target.name}); not for use on its own"
    )
    _copy_fields(reader, writer)
    _add_shape(writer, shape)
    for tensor_name, values in tensors.items():
        kind = np.float16 if values.ndim == 2 else np.float32
        writer.add_tensor(tensor_name, values.astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(out)


def _text(reader: gguf.GGUFReader, key: str, default: str) -> str:
    field = reader.get_field(key)
    return default if field is None else str(field.contents())


def _copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if key.startswith(COPIED):
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, sub_type=inner)


def _add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.eps)
