"""Files of arrays, memory-mapped: what an n-gram file and a segment of the store are made of.

    magic 8 bytes | version u32 | header length u32 | CRC-32 of the header u32 | header | arrays

The header is JSON: fields of the file's own, and each array's name, dtype, length and checksum.
Arrays are little-endian unless their dtype says otherwise, and each starts at a multiple of 64.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.errors import ModelError
from specllama.whole_file import whole_file

_PREAMBLE = struct.Struct("<8sIII")
_ALIGNMENT = 64
_BLOCK = 8192
_DTYPES = ("|u1", "<u2", "<u4", ">u4")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file.

    Attributes:
        magic: its first 8 bytes.
        version: of what its fields and arrays mean.
        what: how people call it, with an article.
        remedy: what to do about one that cannot be read.
    """

    magic: bytes
    version: int
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Arrays:
    """An open file: its fields and its arrays, read-only views of the mapped file."""

    fields: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    n_bytes: int


class _Parts(dict[str, Any]):
    """Parts of a file by their names; to lack one is an error of the file."""

    def __init__(self, path: Path, kind: Kind, parts: Mapping[str, Any] = MappingProxyType({})):
        super().__init__(parts)
        self._path, self._kind = path, kind

    def __missing__(self, name: str) -> Any:
        raise _unusable(self._path, self._kind, f"lacks its {name}")


def write_arrays(
    path: Path, kind: Kind, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write a file in one step: a reader sees the old one or the whole new one.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    entries = [
        {"name": name, "dtype": array.dtype.str, "length": len(array), "sum": _checksum(array)}
        for name, array in arrays.items()
    ]
    header = json.dumps({"fields": dict(fields), "arrays": entries}).encode()
    with whole_file(path) as part, part.open("wb") as file:
        file.write(_PREAMBLE.pack(kind.magic, kind.version, len(header), zlib.crc32(header)))
        file.write(header)
        for array in arrays.values():
            file.write(bytes(-file.tell() % _ALIGNMENT))
            file.write(np.ascontiguousarray(array).data)
        file.flush()
        os.fsync(file.fileno())


def read_arrays(path: Path, kind: Kind) -> Arrays:
    """Map a file and check every byte of it, some 10 ms for 50 MB.

    Raises:
        ModelError: no such file, another kind or version, cut short, or damaged; names it.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < _PREAMBLE.size:
                raise _unusable(path, kind, f"is not {kind.what}")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise ModelError(f"File not found: {path}.") from error
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}.") from error
    try:
        return _read(path, kind, data)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        # a header of another making, whose checksum is right
        raise _unusable(path, kind, "is damaged") from error


def _read(path: Path, kind: Kind, data: mmap.mmap) -> Arrays:
    header, start = _header(path, kind, data)
    arrays = _Parts(path, kind)
    for entry in header["arrays"]:
        start += -start % _ALIGNMENT
        array = _array(path, kind, data, start, entry)
        arrays[entry["name"]] = array
        start += array.nbytes
    if start != len(data):
        raise _unusable(path, kind, "is longer than it says")
    return Arrays(_Parts(path, kind, header["fields"]), arrays, len(data))


def _header(path: Path, kind: Kind, data: mmap.mmap) -> tuple[dict[str, Any], int]:
    """The header and where it ends."""
    magic, version, length, crc = _PREAMBLE.unpack_from(data)
    if magic != kind.magic:
        raise _unusable(path, kind, f"is not {kind.what}")
    if version != kind.version:
        raise _unusable(path, kind, f"has format {version}; this specllama reads {kind.version}")
    end = _PREAMBLE.size + length
    text = data[_PREAMBLE.size : end]
    if len(text) < length:
        raise _unusable(path, kind, "is cut short")
    if zlib.crc32(text) != crc:
        raise _unusable(path, kind, "is damaged")
    header: dict[str, Any] = json.loads(text)
    return header, end


def _array(
    path: Path, kind: Kind, data: mmap.mmap, start: int, entry: Mapping[str, Any]
) -> NDArray[Any]:
    if entry["dtype"] not in _DTYPES:
        raise _unusable(path, kind, "is damaged")
    dtype = np.dtype(entry["dtype"])
    if start + dtype.itemsize * entry["length"] > len(data):
        raise _unusable(path, kind, "is cut short")
    array = np.frombuffer(data, dtype, entry["length"], start)
    if _checksum(array) != entry["sum"]:
        raise _unusable(path, kind, "is damaged")
    return array


def _unusable(path: Path, kind: Kind, why: str) -> ModelError:
    return ModelError(f"{path} {why}.", kind.remedy)


def _checksum(array: NDArray[Any]) -> int:
    """CRC-32 over the sums of blocks of 64 KiB: any one change shows, at the speed of memory."""
    raw = np.ascontiguousarray(array).view(np.uint8)
    whole = len(raw) // 8 * 8
    words = raw[:whole].view(np.dtype("<u8"))
    sums = np.add.reduceat(words, np.arange(0, len(words), _BLOCK)) if whole else words
    return zlib.crc32(raw[whole:].tobytes(), zlib.crc32(sums.tobytes()))
