"""Pruning: with llama.cpp's quantiser where a model is there, with a stand-in child elsewhere."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from specllama.errors import EngineError, ModelError, SpecllamaError
from specllama.hub.ggml_types import FILE_TYPES
from specllama.hub.gguf import Header, read
from specllama.hub.pair import check_files
from specllama.llama import quantize
from specllama.llama.context import Context
from specllama.llama.model import Model
from tests.hub.ggufs import write_gguf

TENSORS = ["token_embd.weight", *(f"blk.{layer}.attn_q.weight" for layer in range(12))]


@pytest.fixture
def model(tmp_path: Path) -> Header:
    """A header of 12 layers; llama.cpp would not load it."""
    return read(write_gguf(tmp_path / "m.gguf", tensors=TENSORS, extra={"llama.block_count": 12}))


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces the child process by a shell script; "$4" is the file it has to write."""

    def replace(script: str) -> None:
        file = tmp_path / "child"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr("sys.executable", str(file))

    return replace


def left(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()} - {"child", "m.gguf"}


def test_the_bytes_that_stay(model: Header) -> None:
    each = 64 * 8 * 4
    assert quantize.pruned_bytes(model, []) == 13 * each
    # layer 1 is not layers 10 and 11
    assert quantize.pruned_bytes(model, [1]) == 12 * each
    assert quantize.pruned_bytes(model, [10, 11]) == 11 * each


def test_the_bytes_of_the_file_are_those_and_the_metadata(model: Header) -> None:
    metadata = model.file_size - model.weight_bytes
    entry = 24 + len("blk.1.attn_q.weight") + 2 * 8
    assert quantize.file_bytes(model, []) == model.file_size
    assert quantize.file_bytes(model, [1]) == metadata - entry + 12 * 64 * 8 * 4
    halves = quantize.file_bytes(model, [1], file_type=1)
    assert halves == metadata - entry + 12 * 64 * 8 * 2


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_every_quantisation_takes_some_bytes(model: Header, file_type: int) -> None:
    metadata = quantize.file_bytes(model, []) - model.weight_bytes
    assert quantize.file_bytes(model, [], file_type) > metadata


def test_layers_of_different_kinds_are_refused(tmp_path: Path) -> None:
    mixed = read(
        write_gguf(
            tmp_path / "m.gguf",
            tensors=TENSORS,
            extra={"llama.block_count": 12, "llama.attention.head_count_kv": [1, 2] * 6},
        )
    )
    with pytest.raises(ModelError, match=r"different kinds \(llama.attention.head_count_kv\)"):
        quantize.prune(mixed, tmp_path / "out.gguf", [1])
    assert left(tmp_path) == set()


def test_a_full_disk_is_seen_before(
    model: Header, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(SpecllamaError, match=r"takes 0 MB; .* has 0 MB left"):
        quantize.prune(model, tmp_path / "out.gguf", [1])
    with pytest.raises(SpecllamaError, match=r"takes 0 MB; .* has 0 MB left"):
        quantize.prune(model, tmp_path / "out.gguf", [1], file_type=2)


def test_the_metadata_need_room_too(
    model: Header, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = quantize.pruned_bytes(model, [1])
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(SpecllamaError, match="Make room"):
        quantize.prune(model, tmp_path / "out.gguf", [1])


def test_a_disk_that_fills_up_meanwhile(
    model: Header, tmp_path: Path, child: Callable[[str], None]
) -> None:
    child(
        'echo half > "$4"; echo "failed to quantize: basic_ios::clear: iostream error" >&2; exit 1'
    )
    with pytest.raises(SpecllamaError, match=r"could not be written: .* MB left\. Make room"):
        quantize.prune(model, tmp_path / "out.gguf", [1], file_type=2)
    assert left(tmp_path) == set()


def test_a_crash_is_a_sentence_and_leaves_what_was_there(
    model: Header, tmp_path: Path, child: Callable[[str], None]
) -> None:
    out = tmp_path / "out.gguf"
    out.write_text("before")
    child('echo half > "$4"; kill -ABRT $$')
    with pytest.raises(EngineError, match="crashed with signal 6"):
        quantize.prune(model, out, [1])
    assert out.read_text() == "before"
    assert left(tmp_path) == {"out.gguf"}


def test_a_refusal_says_why(model: Header, tmp_path: Path, child: Callable[[str], None]) -> None:
    child("echo first >&2; echo no such tensor >&2; exit 1")
    with pytest.raises(EngineError, match=r"pruned model: no such tensor\."):
        quantize.prune(model, tmp_path / "out.gguf", [1])


def test_a_file_of_other_layers_is_not_kept(
    model: Header, tmp_path: Path, child: Callable[[str], None]
) -> None:
    child('cp "$3" "$4"')
    with pytest.raises(EngineError, match="wrote 12 layers instead of 11"):
        quantize.prune(model, tmp_path / "out.gguf", [1])
    assert left(tmp_path) == set()


def test_an_interrupt_ends_the_child_and_leaves_nothing(
    model: Header, tmp_path: Path, child: Callable[[str], None]
) -> None:
    child('echo half > "$4"; exec sleep 60')
    seen = []

    def stop(done: int) -> None:
        seen.append(done)
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        quantize.prune(model, tmp_path / "out.gguf", [1], on_progress=stop)
    assert seen == [5]
    assert time.monotonic() - started < 30
    assert left(tmp_path) == set()


# --- with llama.cpp


def test_llama_cpp_refuses_with_a_reason(llama_cpp: None, model: Header, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"could not write the pruned model: .+key not found"):
        quantize.prune(model, tmp_path / "out.gguf", [1])
    assert left(tmp_path) == set()


def weights(header: Header, name: str) -> bytes:
    """The bytes of one tensor; the data end with the file, each tensor padded to 32 bytes."""
    end = max(tensor.offset + -(-tensor.n_bytes // 32) * 32 for tensor in header.tensors)
    tensor = next(tensor for tensor in header.tensors if tensor.name == name)
    with header.path.open("rb") as file:
        file.seek(header.file_size - end + tensor.offset)
        return file.read(tensor.n_bytes)


@pytest.mark.model
def test_the_layers_that_stay_are_copied_and_renumbered(target_file: Path, tmp_path: Path) -> None:
    whole, out = read(target_file), tmp_path / "draft.gguf"
    quantize.prune(whole, out, range(2, 28))
    pruned = read(out)
    assert quantize.layer_count(pruned) == 4
    assert pruned.quantization == whole.quantization
    assert pruned.weight_bytes == quantize.pruned_bytes(whole, range(2, 28))
    for new, old in enumerate((0, 1, 28, 29)):
        for part in ("attn_q", "ffn_down", "ffn_norm"):
            ours, theirs = (f"blk.{layer}.{part}.weight" for layer in (new, old))
            assert weights(pruned, ours) == weights(whole, theirs)
    assert weights(pruned, "token_embd.weight") == weights(whole, "token_embd.weight")


@pytest.mark.model
def test_the_result_loads_as_a_draft_of_its_target(target_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft.gguf"
    quantize.prune(read(target_file), out, range(2, 29), file_type=2)
    assert read(out).quantization == "Q4_0"
    assert check_files(target_file, out).compatible
    with Model(out, gpu_layers=0) as model:
        context = Context(model, n_ctx=256, n_batch=32, threads=1)
        (row,) = context.decode([1, 2], [0, 1], [(0,), (0,)], [False, True])
        assert row.shape == (model.n_vocab,)
        assert row.std() > 0
        context.close()


@pytest.mark.model
@pytest.mark.parametrize("file_type", [None, 2, 7])
def test_the_file_is_as_large_as_announced(
    target_file: Path, tmp_path: Path, file_type: int | None
) -> None:
    model, out = read(target_file), tmp_path / "draft.gguf"
    quantize.prune(model, out, range(1, 29), file_type=file_type)
    announced = quantize.file_bytes(model, range(1, 29), file_type)
    assert announced <= out.stat().st_size
    assert file_type == 2 or out.stat().st_size < announced + 4096
