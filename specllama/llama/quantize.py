"""Writing a model without some of its layers, by llama.cpp's own quantiser.

The quantiser runs in a child process: it cannot be interrupted, and where an architecture is not
what it expects it ends its process with an assertion.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from specllama.errors import EngineError, ModelError, SpecllamaError
from specllama.hub.ggml_types import BLOCKS, FILE_TYPES
from specllama.hub.gguf import Header, Tensor, read
from specllama.llama import library
from specllama.llama.context import default_threads
from specllama.whole_file import whole_file

Written = Callable[[int], None]
"""Called now and then with the bytes written so far."""

_HEARTBEAT_S = 0.2
_COPY = -1
_CANNOT_WRITE = "iostream error"
"""All that llama.cpp says where a write fails."""


def prune(
    model: Header,
    out: Path,
    dropped: Collection[int],
    *,
    file_type: int | None = None,
    on_progress: Written | None = None,
) -> None:
    """Write a model without some of its layers; what was in `out` before is replaced.

    Args:
        dropped: layer numbers from 0, not all of them.
        file_type: GGUF's number of a quantisation (`hub.ggml_types.FILE_TYPES`) to convert to;
            None copies the weights as they are.

    Raises:
        ModelError: the model's layers differ in kind, which llama.cpp cannot prune.
        SpecllamaError: the disk has too little room, before or while it is written.
        EngineError: llama.cpp refused or crashed. Nothing is left behind.
    """
    _check_prunable(model)
    _check_room(out, file_bytes(model, dropped, file_type))
    kind = _COPY if file_type is None else file_type
    with whole_file(out) as part:
        arguments = [str(model.path), str(part), str(kind), *map(str, sorted(dropped))]
        _run([sys.executable, "-m", __name__, *arguments], part, on_progress)
        _check_written(part, layer_count(model) - len(dropped))


def layer_count(model: Header) -> int:
    """Layers of a model, 0 where it does not say."""
    return int(model.get("block_count", 0))


def pruned_bytes(model: Header, dropped: Collection[int]) -> int:
    """Bytes of the weights that stay."""
    return sum(tensor.n_bytes for tensor in _kept(model, dropped))


def file_bytes(model: Header, dropped: Collection[int], file_type: int | None = None) -> int:
    """Bytes of the pruned file, metadata included; where it is converted, the least they can be."""
    kept = _kept(model, dropped)
    gone = sum(map(_entry_bytes, model.tensors)) - sum(map(_entry_bytes, kept))
    metadata = model.file_size - model.weight_bytes - gone
    if file_type is None:
        return metadata + pruned_bytes(model, dropped)
    return metadata + sum(_least_bytes(tensor, file_type) for tensor in kept)


def _entry_bytes(tensor: Tensor) -> int:
    """Of its entry in the header: lengths of name and shape, type and offset."""
    return 24 + len(tensor.name.encode()) + 8 * len(tensor.shape)


def _kept(model: Header, dropped: Collection[int]) -> list[Tensor]:
    layers = tuple(f"blk.{layer}." for layer in dropped)
    return [tensor for tensor in model.tensors if not tensor.name.startswith(layers)]


def _least_bytes(tensor: Tensor, file_type: int) -> int:
    """Vectors stay as they are; Q4_K_M takes Q4_K or more for a matrix.

    The IQ types are mixed with smaller ones, of which IQ1_S is the smallest.
    """
    if len(tensor.shape) < 2:
        return tensor.n_bytes
    name = FILE_TYPES[file_type]
    base = "IQ1_S" if name.startswith("IQ") else name
    fitting = [block for block in BLOCKS.values() if base.startswith(block[2])]
    per_block, block_bytes, _ = max(fitting, key=lambda block: len(block[2]))
    return tensor.n_elements // per_block * block_bytes


def _check_prunable(model: Header) -> None:
    """llama.cpp renumbers tensors, not lists in the metadata that have one entry a layer."""
    prefix, n_layers = f"{model.architecture}.", layer_count(model)
    for key, value in model.metadata.items():
        is_list = hasattr(value, "__len__") and not isinstance(value, str | bytes)
        if key.startswith(prefix) and is_list and len(value) == n_layers:
            raise ModelError(
                f"{model.name} has layers of different kinds ({key}); llama.cpp cannot prune it.",
                "Choose a model whose layers are alike.",
            )


def _check_room(out: Path, needed: int) -> None:
    free = shutil.disk_usage(out.parent).free
    if free < needed:
        raise SpecllamaError(
            f"The pruned model takes {needed / 1e6:,.0f} MB; "
            f"{out.parent} has {free / 1e6:,.0f} MB left.",
            "Make room, or write to another disk.",
        )


def _run(command: Sequence[str], part: Path, on_progress: Written | None) -> None:
    """Wait for the child, and end it with us."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as child:
        try:
            while True:
                try:
                    _, errors = child.communicate(timeout=_HEARTBEAT_S)
                    break
                except subprocess.TimeoutExpired:
                    if on_progress is not None and part.exists():
                        on_progress(part.stat().st_size)
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        reason = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        if child.returncode < 0:
            reason = f"it crashed with signal {-child.returncode}"
        raise _failure(part, reason)


def _failure(part: Path, reason: str) -> SpecllamaError:
    """What a child that failed means; to be asked while its file is there."""
    if _CANNOT_WRITE in reason:
        free = shutil.disk_usage(part.parent).free
        return SpecllamaError(
            f"The pruned model could not be written: {part.parent} has {free / 1e6:,.0f} MB left.",
            "Make room, or write to another disk.",
        )
    return EngineError(
        f"llama.cpp could not write the pruned model: {reason or 'no reason given'}.",
        "If it happens with every choice of layers, it cannot prune this architecture.",
    )


def _check_written(part: Path, n_layers: int) -> None:
    written = layer_count(read(part))
    if written != n_layers:
        raise EngineError(f"llama.cpp wrote {written} layers instead of {n_layers}.")


def main(arguments: Sequence[str]) -> int:
    """The child: SOURCE OUT FILE_TYPE LAYER...; what went wrong is the last line of stderr."""
    source, out, file_type, *layers = arguments
    lib = library.load()
    params = lib.llama_model_quantize_default_params()
    params.nthread = default_threads()
    params.only_copy = int(file_type) == _COPY
    if not params.only_copy:
        params.ftype = int(file_type)
        params.allow_requantize = True
    numbers = [*map(int, layers), -1]
    array = (ctypes.c_int32 * len(numbers))(*numbers)
    params.prune_layers = ctypes.cast(array, ctypes.POINTER(ctypes.c_int32))
    status = lib.llama_model_quantize(os.fsencode(source), os.fsencode(out), ctypes.byref(params))
    if status != 0:
        print(*library.recent_errors(1), file=sys.stderr)
    return int(status != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
