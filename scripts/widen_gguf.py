"""Make a model that says what a small one says, at the cost of a large one.

    .venv/bin/python scripts/widen_gguf.py SOURCE.gguf OUT.gguf --as 8b
    .venv/bin/python scripts/widen_gguf.py SOURCE.gguf OUT.gguf --layers 32 --width 640 \
        --heads 12 --kv-heads 3 --ffn 1600

A function-preserving widening (Net2Net, Chen et al. 2016, with padding instead of copies) of a
llama-architecture GGUF. The residual stream x becomes [x, 0] and every matrix W becomes

    [ W  R ]      W: the source's quantised blocks, bit for bit
    [ 0  R ]      R: random blocks, so that the arithmetic and the traffic are real

so the padding stays exactly zero whatever R is, also behind heads and feed-forward units that are
added. RMS norms divide by the width, so their weights shrink by sqrt(old / new) and epsilon by
old / new; that rounding is all that separates the two models' logits. Added layers have no W: they
add zero. Query, key and gate rows of the padding read the real stream too (0 becomes R): their
values are multiplied by zeros afterwards.

For measuring what speculation gives where targets are large and no large model is at hand:
acceptance and text are the source's, time is the large model's.
"""

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from arguments import distinct
from numpy.typing import NDArray

from specllama.errors import SpecllamaError
from specllama.hub.gguf import read
from specllama.whole_file import whole_file

Bytes = NDArray[np.uint8]

BLOCK = 32
"""Weights a quantisation block, along the input dimension."""
POOL_BLOCKS = 1 << 21
STRIDE = 7919
"""Each matrix starts so many blocks further on in the pool."""
THREADS = 8
COPIED = ("tokenizer.", "general.license", "general.languages")
TABLE, HEAD, LAST_NORM = "token_embd.weight", "output.weight", "output_norm.weight"


@dataclass(frozen=True, slots=True)
class Shape:
    """What the widened model is to look like; the size of a head stays the source's."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int


SHAPES = {
    "8b": Shape(layers=32, width=4096, heads=64, kv_heads=16, ffn=14336),
    "70b": Shape(layers=80, width=8192, heads=128, kv_heads=16, ffn=28672),
}
"""Llama 3's matrices (there in heads of 128, half as many, for the same sizes)."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of matrices.

    Attributes:
        size: units in the widened model.
        real: where the source's units lie, in the source's order.
        silent: padding whose values are not zero, so that nothing may be read from it.
    """

    size: int
    real: NDArray[np.intp]
    silent: NDArray[np.intp]

    def blocks(self, units: NDArray[np.intp]) -> NDArray[np.intp]:
        """The blocks that hold these units, which fill them."""
        return units[::BLOCK] // BLOCK


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of the widened model.

    Attributes:
        source: name in the source, "" in an added layer.
        like: a tensor of the source that says the type.
        reads: the padding's rows read the real stream (see the module's R in place of 0).
        empty: the padding is zero all over.
    """

    name: str
    source: str
    like: str
    rows: Axis
    columns: Axis
    reads: bool = False
    empty: bool = False


ROLES = {
    "attn_q": ("query", "width", True),
    "attn_k": ("kv", "width", True),
    "attn_v": ("kv", "width", False),
    "attn_output": ("width", "query", False),
    "ffn_gate": ("ffn", "width", True),
    "ffn_up": ("ffn", "width", False),
    "ffn_down": ("width", "ffn", False),
}
"""A layer's matrices: rows, columns, and whether the padding's rows read the real stream."""
NORMS = ("attn_norm", "ffn_norm")


class Source:
    """The small model.

    Raises:
        SystemExit: it cannot be read, or cannot be widened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reader = _read(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        if self.get("general.architecture") != "llama":
            raise SystemExit(f"{path.name} is not of the llama architecture. Give one that is.")
        self.shape = Shape(
            layers=self.get("llama.block_count"),
            width=self.get("llama.embedding_length"),
            heads=self.get("llama.attention.head_count"),
            kv_heads=self.get("llama.attention.head_count_kv"),
            ffn=self.get("llama.feed_forward_length"),
        )
        self.head_size = self.shape.width // self.shape.heads
        self.vocabulary = int(self.tensors[TABLE].shape[1])
        self._check()

    def get(self, key: str) -> Any:
        """A metadata value that must be there."""
        field = self.reader.get_field(key)
        if field is None:
            raise SystemExit(f"{self.path.name} does not say its {key}. Give another model.")
        return field.contents()

    def _check(self) -> None:
        known = {*ROLES, *NORMS}
        for name, tensor in self.tensors.items():
            part = name.removesuffix(".weight").rpartition(".")[2]
            if part not in known and name not in (TABLE, HEAD, LAST_NORM):
                raise SystemExit(
                    f"Cannot widen {name}: what it does is not known here. Give a plain llama."
                )
            if len(tensor.shape) > 1 and gguf.GGML_QUANT_SIZES[tensor.tensor_type][0] != BLOCK:
                raise SystemExit(f"{name} is {tensor.tensor_type.name}; use Q4_0, Q4_1 or Q8_0.")

    def blocks(self, name: str) -> Bytes:
        """A matrix as uint8 [rows, blocks a row, bytes a block]."""
        tensor = self.tensors[name]
        data: Bytes = tensor.data
        return data.reshape(int(tensor.shape[1]), -1, block_bytes(tensor.tensor_type))


def _read(path: Path) -> gguf.GGUFReader:
    """The file's reader; the header is checked first, whose errors are sentences."""
    try:
        read(path)
        return gguf.GGUFReader(path)
    except OSError as error:
        raise SystemExit(f"Cannot read {path}: {error.strerror}. Give a model's file.") from error
    except SpecllamaError as error:
        raise SystemExit(f"{error}") from error


def block_bytes(kind: gguf.GGMLQuantizationType) -> int:
    """Bytes of a block."""
    return int(gguf.GGML_QUANT_SIZES[kind][1])


def axes(source: Source, shape: Shape) -> dict[str, Axis]:
    """The dimensions by role.

    Head j of group g (the heads that share key and value head g) stays in its group; new heads of
    a real group see its real values, so they are silent.
    """
    old, size = source.shape, source.head_size
    group, wide = old.heads // old.kv_heads, shape.heads // shape.kv_heads
    places = np.arange(old.kv_heads * wide).reshape(old.kv_heads, wide)
    return {
        "width": _axis(shape.width, old.width),
        "query": Axis(shape.heads * size, _units(places[:, :group], size),
                      _units(places[:, group:], size)),
        "kv": _axis(shape.kv_heads * size, old.kv_heads * size),
        "ffn": _axis(shape.ffn, old.ffn),
        "vocabulary": _axis(source.vocabulary, source.vocabulary),
    }  # fmt: skip


def _axis(size: int, real: int) -> Axis:
    return Axis(size, np.arange(real), np.arange(0))


def _units(heads: NDArray[np.intp], size: int) -> NDArray[np.intp]:
    return (heads.reshape(-1, 1) * size + np.arange(size)).reshape(-1)


def matrices(source: Source, shape: Shape) -> Iterator[Matrix]:
    """Every matrix of the widened model, in the file's order."""
    axis = axes(source, shape)
    yield Matrix(TABLE, TABLE, TABLE, axis["vocabulary"], axis["width"], empty=True)
    head = HEAD if HEAD in source.tensors else TABLE
    yield Matrix(HEAD, head, head, axis["vocabulary"], axis["width"])
    for layer in range(shape.layers):
        for role, (rows, columns, reads) in ROLES.items():
            name = f"blk.{layer}.{role}.weight"
            given = name if layer < source.shape.layers else ""
            like = f"blk.{layer % source.shape.layers}.{role}.weight"
            yield Matrix(name, given, like, axis[rows], axis[columns], reads)


def norms(source: Source, shape: Shape) -> dict[str, NDArray[np.float32]]:
    """Every norm, its weights smaller as the stream's mean square is."""
    scale = np.sqrt(source.shape.width / shape.width)
    found = {LAST_NORM: _norm(source, LAST_NORM, shape.width, scale)}
    for layer in range(shape.layers):
        for role in NORMS:
            like = f"blk.{layer % source.shape.layers}.{role}.weight"
            found[f"blk.{layer}.{role}.weight"] = _norm(source, like, shape.width, scale)
    return found


def _norm(source: Source, name: str, width: int, scale: float) -> NDArray[np.float32]:
    weights = np.ones(width, np.float32)
    given = source.tensors[name].data.astype(np.float32)
    weights[: len(given)] = given * scale
    return weights


class Pool:
    """Random blocks of one type, made once and handed out again and again.

    Values have a mean of about 0 and a deviation of about `deviation`.
    """

    def __init__(self, kind: gguf.GGMLQuantizationType, deviation: float) -> None:
        random = np.random.default_rng(1)
        size = block_bytes(kind)
        blocks = np.frombuffer(random.bytes(POOL_BLOCKS * size), np.uint8).reshape(-1, size).copy()
        spread = {"Q4_0": 4.61, "Q4_1": 4.61, "Q8_0": 73.9}.get(kind.name)
        if spread is None:
            raise SystemExit(f"Cannot make random blocks of {kind.name}; use Q4_0, Q4_1 or Q8_0.")
        step = random.uniform(0.5, 1.5, POOL_BLOCKS) * deviation / spread
        blocks[:, :2] = _halves(step)
        if kind.name == "Q4_1":
            blocks[:, 2:4] = _halves(-7.5 * step)
        self._blocks = blocks

    def fill(self, out: Bytes, start: int) -> None:
        """Fill [blocks, bytes] from block `start` of the pool on, around its end."""
        done, start = 0, start % len(self._blocks)
        while done < len(out):
            part = self._blocks[start : start + len(out) - done]
            out[done : done + len(part)] = part
            done, start = done + len(part), 0


def _halves(values: NDArray[np.float64]) -> Bytes:
    return values.astype(np.float16).view(np.uint8).reshape(-1, 2)


def build(source: Source, matrix: Matrix, pool: Pool, start: int) -> Bytes:
    """The blocks of a matrix, uint8 [rows, blocks a row, bytes a block]."""
    size = block_bytes(source.tensors[matrix.like].tensor_type)
    rows, columns = matrix.rows, matrix.columns
    out = np.zeros((rows.size, columns.size // BLOCK, size), np.uint8)
    real = columns.blocks(columns.real)
    if not matrix.empty:
        pool.fill(out.reshape(-1, size), start)
        out[:, columns.blocks(columns.silent)] = 0
        if not matrix.reads:
            out[:, real] = 0
    if matrix.source:
        out[np.ix_(rows.real, real)] = source.blocks(matrix.source)
    return out


def check(source: Source, shape: Shape) -> None:
    """Refuse a shape that the source does not fit into."""
    old = source.shape
    for name in Shape.__dataclass_fields__:
        if getattr(shape, name) < getattr(old, name):
            raise SystemExit(f"{name} must be at least the source's {getattr(old, name)}.")
    if shape.heads % shape.kv_heads or shape.heads // shape.kv_heads < old.heads // old.kv_heads:
        raise SystemExit(f"{shape.kv_heads} kv heads need {old.heads // old.kv_heads} "
                         "heads or more each, and all equally many.")  # fmt: skip
    for units in (shape.width, shape.ffn, old.width, old.ffn, source.head_size):
        if units % BLOCK:
            raise SystemExit(f"{units} is not a multiple of the block size, {BLOCK}.")


def widen(source: Source, shape: Shape, out: Path, threads: int = THREADS) -> None:
    """Write the widened model; `out` is as before until the whole of it is there.

    Raises:
        SystemExit: the shape cannot be, or `out` is the source or cannot be written.
    """
    check(source, shape)
    distinct(out, source.path)
    try:
        with whole_file(out) as part:
            _write(source, shape, part, threads)
    except OSError as error:
        raise SystemExit(
            f"Cannot write {out}: {error.strerror}. Name a file that can be written."
        ) from error


def _write(source: Source, shape: Shape, out: Path, threads: int) -> None:
    small, large = norms(source, shape), list(matrices(source, shape))
    sizes = [4 * len(weights) for weights in small.values()]
    sizes += [_n_bytes(source, matrix) for matrix in large]
    start = _write_header(source, shape, out, small, large)
    places = np.cumsum([start, *(-(-size // BLOCK) * BLOCK for size in sizes)])
    kinds = {source.tensors[matrix.like].tensor_type for matrix in large}
    pools = {kind: Pool(kind, shape.width**-0.5) for kind in kinds}
    with out.open("r+b") as file:
        file.truncate(int(places[-1]))
        for weights, place in zip(small.values(), places, strict=False):
            os.pwrite(file.fileno(), weights.tobytes(), int(place))

        def write(number: int) -> None:
            matrix = large[number]
            pool = pools[source.tensors[matrix.like].tensor_type]
            data = memoryview(build(source, matrix, pool, number * STRIDE).reshape(-1).data)
            place = int(places[len(small) + number])
            while data:
                written = os.pwrite(file.fileno(), data, place)
                place, data = place + written, data[written:]

        with ThreadPoolExecutor(threads) as workers:
            list(workers.map(write, range(len(large))))


def _n_bytes(source: Source, matrix: Matrix) -> int:
    blocks = matrix.rows.size * matrix.columns.size // BLOCK
    return blocks * block_bytes(source.tensors[matrix.like].tensor_type)


def _write_header(
    source: Source,
    shape: Shape,
    out: Path,
    small: dict[str, NDArray[np.float32]],
    large: list[Matrix],
) -> int:
    """Metadata and tensor table; the place where the weights begin."""
    writer = gguf.GGUFWriter(out, "llama")
    _copy_fields(source, writer)
    _add_shape(source, shape, writer)
    for name, weights in small.items():
        writer.add_tensor_info(name, weights.shape, weights.dtype, weights.nbytes)
    for matrix in large:
        kind = source.tensors[matrix.like].tensor_type
        row = matrix.columns.size // BLOCK * block_bytes(kind)
        bytes_shape = (matrix.rows.size, row)
        writer.add_tensor_info(
            matrix.name, bytes_shape, np.dtype(np.uint8), matrix.rows.size * row, raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return -(-out.stat().st_size // BLOCK) * BLOCK


def _copy_fields(source: Source, writer: gguf.GGUFWriter) -> None:
    for key, field in source.reader.fields.items():
        if key.startswith(COPIED):
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, sub_type=inner)


def _add_shape(source: Source, shape: Shape, writer: gguf.GGUFWriter) -> None:
    ratio = source.shape.width / shape.width
    writer.add_name(f"{source.path.stem}, widened")
    writer.add_file_type(source.get("general.file_type"))
    writer.add_vocab_size(source.vocabulary)
    writer.add_context_length(source.get("llama.context_length"))
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(source.head_size)
    writer.add_value_length(source.head_size)
    writer.add_rope_dimension_count(source.head_size)
    writer.add_rope_freq_base(source.get("llama.rope.freq_base"))
    writer.add_layer_norm_rms_eps(source.get("llama.attention.layer_norm_rms_epsilon") * ratio)


def main() -> None:
    """Widen one file."""
    args = _arguments()
    source = Source(args.source)
    given = {name: getattr(args, name) for name in Shape.__dataclass_fields__}
    if args.named is None and None in given.values():
        raise SystemExit("Give --as, or every one of --layers --width --heads --kv-heads --ffn.")
    shape = SHAPES[args.named] if args.named else Shape(**given)
    started = time.perf_counter()
    widen(source, shape, args.out, args.threads)
    seconds, size = time.perf_counter() - started, args.out.stat().st_size
    print(f"{args.out}: {size / 1e9:.2f} GB in {seconds:.1f} s")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--as", dest="named", choices=SHAPES)
    for name in Shape.__dataclass_fields__:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--threads", type=int, default=THREADS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
