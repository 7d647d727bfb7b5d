"""What kind of llama a GGUF is, from its metadata and its tensors' names; no weights, no torch."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import gguf

TENSORS = re.compile(
    r"(token_embd|output|output_norm|rope_freqs"
    r"|blk\.\d+\.(attn_(norm|q|k|v|output)|ffn_(norm|gate|up|down)))\.weight"
)
"""Those that model.Llama computes with."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything that fixes a llama model's tensors and arithmetic."""

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    head_dim: int
    context: int
    rope_base: float
    eps: float

    def student(self, width: int, layers: int, heads: int, kv_heads: int, ffn: int) -> "Shape":
        """The same vocabulary, context and rotation with a smaller body."""
        return replace(
            self,
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            ffn=ffn,
            head_dim=width // heads,
        )


def open_gguf(path: Path) -> gguf.GGUFReader:
    """A file's reader.

    Raises:
        SystemExit: it cannot be read, or is no GGUF.
    """
    try:
        return gguf.GGUFReader(path)
    except OSError as error:
        raise SystemExit(f"Cannot read {path}: {error.strerror}. Give a model's file.") from error
    except (ValueError, LookupError) as error:
        raise SystemExit(f"{path} is not a whole GGUF file. Give a model's file.") from error


def read_shape(path: Path, reader: gguf.GGUFReader) -> Shape:
    """The shape that a llama GGUF's metadata states.

    Raises:
        SystemExit: it is of another architecture, or has parts that model.Llama lacks.
    """

    def value(key: str, default: object = None) -> object:
        field = reader.get_field(key)
        return default if field is None else field.contents()

    arch = value("general.architecture")
    if arch != "llama":
        raise SystemExit(
            f"The architecture of {path} is {arch!r}; only 'llama' can be distilled. "
            "Choose another target."
        )
    if other := next((t.name for t in reader.tensors if not TENSORS.fullmatch(t.name)), None):
        raise SystemExit(
            f"{path} has {other}, which plain llama models lack and which cannot be distilled. "
            "Choose another target."
        )
    width, heads = int(value("llama.embedding_length")), int(value("llama.attention.head_count"))
    return Shape(
        vocab=len(reader.fields["tokenizer.ggml.tokens"].data),
        width=width,
        layers=int(value("llama.block_count")),
        heads=heads,
        kv_heads=int(value("llama.attention.head_count_kv", heads)),
        ffn=int(value("llama.feed_forward_length")),
        head_dim=int(value("llama.attention.key_length", width // heads)),
        context=int(value("llama.context_length")),
        rope_base=float(value("llama.rope.freq_base", 10000.0)),
        eps=float(value("llama.attention.layer_norm_rms_epsilon")),
    )


def check_start(path: Path, new: Shape) -> None:
    """Whether a student can begin as the model of a file, or some of its layers (train.take_over).

    Raises:
        SystemExit: it cannot.
    """
    reader = open_gguf(path)
    old = read_shape(path, reader)
    if any(tensor.name == "output.weight" for tensor in reader.tensors):
        raise SystemExit(
            f"{path} has a head besides its embedding, which drafts made here have not. "
            "Give a draft that was made here with --begin-as, or leave it out."
        )
    same = (old.vocab, old.width, old.heads, old.kv_heads)
    if same != (new.vocab, new.width, new.heads, new.kv_heads) or new.ffn < old.ffn:
        raise SystemExit(
            f"--begin-as is a model of {old}, as which a draft of {new} cannot begin. "
            "Give the width and heads that it has, and no smaller --ffn."
        )
