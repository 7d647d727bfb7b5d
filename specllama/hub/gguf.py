"""What a GGUF file says about itself, from its header alone: no weights are read.

An own reader, because `show` and `check` must answer at once: the gguf package makes one numpy
object per array element and takes seconds for a vocabulary (4.8 s for SmolLM2's 49,152 tokens and
48,900 merges, against 0.03 s here). Format: ggml's docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import re
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from specllama.errors import ModelNotFound, NotAModel
from specllama.hub.ggml_types import BLOCKS, FILE_TYPES

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)

_NOT_GENERATIVE = ("bert", "t5encoder", "gemma-embedding", "wavtokenizer", "clip", "ssm-encoder")
"""Parts of architecture names whose models have no causal language-model head."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor table; `offset` in bytes from the start of the data section."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def n_elements(self) -> int:
        """Number of weights."""
        return prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Size in the file; 0 for a type this version does not know."""
        per_block, block_bytes, _ = BLOCKS.get(self.type, (1, 0, ""))
        return self.n_elements // per_block * block_bytes


class Strings(Sequence[bytes]):
    """An array of strings in a header, decoded when first looked at: a list of merges never is."""

    def __init__(self, data: bytes, count: int) -> None:
        self._data = data
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._items)

    @cached_property
    def _items(self) -> list[bytes]:
        data, position, items = self._data, 0, []
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(self._count):
            end = position + 8 + unpack(data, position)[0]
            items.append(data[position + 8 : end])
            position = end
        return items


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's tokens.

    Attributes:
        kind: GGUF's tokenizer model: "gpt2" is byte-level BPE, "llama" SentencePiece.
        pre: the BPE pre-tokenizer.
        texts: UTF-8, as stored (with "Ġ" or "▁" for blanks); the index is the token id.
        types: GGUF token types (1 normal, 3 control, 4 user defined, 6 byte).
        special: "bos", "eos", "eot", "unk", "pad" and so on -> id, where the file says.
        add_bos, add_eos: whether a text gets them; None where the file does not say.
    """

    kind: str
    pre: str
    texts: Sequence[bytes]
    types: Sequence[int]
    special: Mapping[str, int]
    add_bos: bool | None
    add_eos: bool | None

    def __len__(self) -> int:
        return len(self.texts)

    def text(self, id: int) -> str:
        """The token as stored."""
        return bytes(self.texts[id]).decode("utf-8", "replace")


@dataclass(frozen=True)
class Header:
    """One model's header; of a split model, all parts together.

    Attributes:
        path: the file, or the first part.
        metadata: every key but the arrays of merges, by GGUF name.
        tensors: of all parts.
        file_size: bytes on disk, all parts.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[Tensor, ...]
    file_size: int
    n_parts: int = 1

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture: "llama", "qwen3", …"""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def name(self) -> str:
        """The model's own name, else the file's."""
        return str(self.metadata.get("general.name") or self.path.stem)

    @property
    def license(self) -> str:
        """The licence the file names; "" where it names none."""
        return str(self.metadata.get("general.license", ""))

    @property
    def n_ctx_train(self) -> int:
        """The context length the model was trained for, in tokens; 0 where it does not say."""
        return int(self.get("context_length", 0))

    @cached_property
    def n_params(self) -> int:
        """Number of weights."""
        return sum(tensor.n_elements for tensor in self.tensors)

    @cached_property
    def weight_bytes(self) -> int:
        """Size of the weights."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def quantization(self) -> str:
        """ "Q4_K_M" and so on, as the file says, else the type most weights have."""
        named = FILE_TYPES.get(self.metadata.get("general.file_type", -1))
        return named or self._most_common_type()

    @property
    def chat_template(self) -> str:
        """The Jinja chat template; "" where there is none."""
        return str(self.metadata.get("tokenizer.chat_template", ""))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens."""
        ggml = "tokenizer.ggml."
        suffix = "_token_id"
        special = {
            _SPECIAL_NAMES.get(name, name): int(value)
            for key, value in self.metadata.items()
            if key.startswith(ggml) and key.endswith(suffix)
            for name in [key.removeprefix(ggml).removesuffix(suffix)]
        }
        return Vocabulary(
            kind=str(self.metadata.get(f"{ggml}model", "")),
            pre=str(self.metadata.get(f"{ggml}pre", "")),
            texts=self.metadata.get(f"{ggml}tokens", ()),
            types=self.metadata.get(f"{ggml}token_type", ()),
            special=special,
            add_bos=self.metadata.get(f"{ggml}add_bos_token"),
            add_eos=self.metadata.get(f"{ggml}add_eos_token"),
        )

    def get(self, key: str, default: Any = None) -> Any:
        """The architecture's own key, without its prefix: `get("block_count")`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def _most_common_type(self) -> str:
        sizes: dict[int, int] = {}
        for tensor in self.tensors:
            sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.n_elements
        largest = max(sizes, key=lambda kind: sizes[kind], default=0)
        return BLOCKS[largest][2] if largest in BLOCKS else f"type {largest}"


_SPECIAL_NAMES = {"unknown": "unk", "padding": "pad", "seperator": "sep"}


def read(path: Path) -> Header:
    """The header of a complete GGUF file, or of all parts of a split one.

    Raises:
        ModelNotFound: a part of a split model is missing; says which.
        NotAModel: no GGUF, an old or big-endian one, damaged, or shorter than its tensors need.
    """
    parts = [_read_one(part) for part in parts_of(path)]
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    return Header(
        path=parts[0].path,
        metadata=parts[0].metadata,
        tensors=tensors,
        file_size=sum(part.file_size for part in parts),
        n_parts=len(parts),
    )


def read_language_model(path: Path) -> Header:
    """`read`, and make sure that the model can write text.

    Raises:
        NotAModel: an embedding model, an adapter, a projector, or a file without weights.
    """
    header = read(path)
    if reason := _why_not_a_language_model(header):
        raise NotAModel(
            f"{path.name} {reason}, so it cannot generate text.", "Use a chat or text model."
        )
    return header


def parts_of(path: Path) -> list[Path]:
    """All files of the model that `path` is a part of; just `path` for a file that is whole.

    Raises:
        ModelNotFound: a part is missing; says which.
    """
    match = _SHARD.fullmatch(path.name)
    if not match:
        return [path]
    count = int(match["count"])
    parts = [path.with_name(shard_name(match["stem"], i, count)) for i in range(1, count + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise ModelNotFound(
            f"{path.name} is one of {count} parts; missing: {', '.join(missing)}.",
            "Put all parts into the same folder, or download the model again.",
        )
    return parts


def shard_name(stem: str, number: int, count: int) -> str:
    """The file name of part `number` (from 1) of `count`, as llama.cpp's gguf-split makes it."""
    return f"{stem}-{number:05d}-of-{count:05d}.gguf"


def shard_of(name: str) -> tuple[str, int, int] | None:
    """(stem, number, count) of a part's file name, else None."""
    match = _SHARD.fullmatch(name)
    return (match["stem"], int(match["number"]), int(match["count"])) if match else None


def _why_not_a_language_model(header: Header) -> str:
    kind = str(header.metadata.get("general.type", "model"))
    if kind != "model":
        return f"is no model (its type is {kind})"
    if any(part in header.architecture for part in _NOT_GENERATIVE):
        return f"is an embedding or encoder model ({header.architecture})"
    if header.get("pooling_type", 0):
        return "is an embedding model (it pools its outputs)"
    if header.get("attention.causal") is False:
        return "is not causal"
    if not {"output.weight", "token_embd.weight"} & {tensor.name for tensor in header.tensors}:
        return "has no language model head"
    return "" if len(header.vocabulary) else "has no vocabulary"


_DAMAGE = (struct.error, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""What the parser runs into where bytes are not what they should be."""


def _read_one(path: Path) -> Header:
    with path.open("rb") as file:
        file_size = file.seek(0, 2)
        if file_size < 24:
            raise _not_gguf(path)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != b"GGUF":
                raise _not_gguf(path)
            try:
                return _Parser(path, data).header()
            except _DAMAGE as error:
                raise _cut_or_damaged(path, error) from error


def _not_gguf(path: Path) -> NotAModel:
    return NotAModel(
        f"{path.name} is not a GGUF file.", "specllama reads models in GGUF format (*.gguf)."
    )


def _cut_or_damaged(path: Path, error: Exception) -> NotAModel:
    why = f": {error}" if isinstance(error, ValueError) else ""  # the others are Python's words
    return NotAModel(
        f"{path.name} is not a complete GGUF file (its header breaks off{why}).",
        "Download it again.",
    )


class _Parser:
    """Walks one file's header. Every length is checked by the unpacking itself."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._at = 4

    def header(self) -> Header:
        version = self._scalar("I")
        if version not in (2, 3):
            which = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
            raise NotAModel(f"{self._path.name} is a {which} GGUF file.", "Use version 2 or 3.")
        n_tensors, n_keys = self._scalar("Q"), self._scalar("Q")
        metadata = {}
        for _ in range(n_keys):
            key = self._text()
            metadata[key] = self._value(self._scalar("I"))
        tensors = tuple(self._tensor() for _ in range(n_tensors))
        _check_kinds(metadata)
        self._check_size(tensors, metadata.get("general.alignment", 32))
        return Header(self._path, metadata, tensors, len(self._data))

    def _check_size(self, tensors: tuple[Tensor, ...], alignment: int) -> None:
        if alignment < 1:
            raise ValueError(f"general.alignment is {alignment}")
        start = -(-self._at // alignment) * alignment
        needed = start + max((t.offset + t.n_bytes for t in tensors), default=0)
        if len(self._data) < needed:
            raise NotAModel(
                f"{self._path.name} is not a complete GGUF file ({_of(len(self._data), needed)}).",
                "Download it again: `specllama download` continues where it stopped.",
            )

    def _scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += size
        return value

    def _bytes(self) -> bytes:
        length = self._scalar("Q")
        return self._take(length)

    def _text(self) -> str:
        return self._bytes().decode("utf-8")

    def _take(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise struct.error(f"{length} bytes expected at {self._at}")
        self._at += length
        return self._data[self._at - length : self._at]

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._bytes().decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._array(self._scalar("I"), self._scalar("Q"))
        return self._scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> Any:
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            return [self._array(self._scalar("I"), self._scalar("Q")) for _ in range(count)]
        code = _SCALARS[kind]
        raw = self._take(count * struct.calcsize("<" + code))
        if code == "?":
            return [byte != 0 for byte in raw]
        values = array(code)
        values.frombytes(raw)
        return values

    def _strings(self, count: int) -> Strings:
        start, position, data = self._at, self._at, self._data
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            position += 8 + unpack(data, position)[0]
        return Strings(self._take(position - start), count)

    def _tensor(self) -> Tensor:
        name = self._text()
        n_dims = self._scalar("I")
        shape = struct.unpack(f"<{n_dims}Q", self._take(8 * n_dims))
        return Tensor(name, shape, self._scalar("I"), self._scalar("Q"))


def _check_kinds(metadata: Mapping[str, Any]) -> None:
    """Make sure that what is counted with, or looked up, can be."""
    architecture = metadata.get("general.architecture", "")
    whole = {"general.alignment", "general.file_type"}
    whole |= {f"{architecture}.context_length", f"{architecture}.block_count"}
    for key, value in metadata.items():
        is_whole = key in whole or key.endswith("_token_id")
        if is_whole and not isinstance(value, int):
            raise ValueError(f"{key} is no whole number")
        if key == "tokenizer.ggml.tokens" and not isinstance(value, Strings):
            raise ValueError(f"{key} is no list of texts")


def _of(have: int, need: int) -> str:
    """ "12.1 of 40.5 GB": both in the unit that fits the larger one."""
    unit, scale = next((u, s) for u, s in _UNITS if need >= s or s == 1)
    return (
        f"{have / scale:.1f} of {need / scale:.1f} {unit}" if scale > 1 else f"{have} of {need} B"
    )


_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))
