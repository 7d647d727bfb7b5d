"""The header reader against files written by the gguf package."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import gguf as reference
import numpy as np
import pytest

from specllama.errors import ModelNotFound, NotAModel
from specllama.hub import ggml_types
from specllama.hub.gguf import read, read_language_model, shard_name
from tests.hub.ggufs import WORDS, write_gguf


def test_reads_what_was_written(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "tiny.gguf",
        bos=0,
        eos=1,
        extra={"tokenizer.chat_template": "{{ x }}", "tokenizer.ggml.add_bos_token": True},
    )

    header = read_language_model(path)

    assert (header.architecture, header.name, header.license) == ("llama", "tiny", "apache-2.0")
    assert (header.n_ctx_train, header.n_params, header.quantization) == (2048, 1024, "F32")
    assert header.weight_bytes == 4096
    assert header.file_size == path.stat().st_size
    assert header.chat_template == "{{ x }}"
    vocabulary = header.vocabulary
    assert [vocabulary.text(i) for i in range(len(vocabulary))] == list(WORDS)
    assert list(vocabulary.types) == [1] * len(WORDS)
    assert (vocabulary.kind, vocabulary.pre) == ("gpt2", "smollm")
    assert (vocabulary.special, vocabulary.add_bos) == ({"bos": 0, "eos": 1}, True)
    assert vocabulary.add_eos is None


def test_agrees_with_the_reference_reader_on_every_kind_of_value(tmp_path: Path) -> None:
    path = tmp_path / "kinds.gguf"
    writer = reference.GGUFWriter(path, "llama")
    writer.add_uint8("x.u8", 200)
    writer.add_int8("x.i8", -3)
    writer.add_uint16("x.u16", 60000)
    writer.add_int16("x.i16", -300)
    writer.add_uint64("x.u64", 2**40)
    writer.add_int64("x.i64", -(2**40))
    writer.add_float32("x.f32", 0.5)
    writer.add_float64("x.f64", 0.1)
    writer.add_bool("x.bool", True)
    writer.add_string("x.text", "grüße")
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.floats", [0.5, 1.5])
    writer.add_array("x.bools", [True, False])
    writer.add_array("x.texts", ["a", "ß"])
    writer.add_tensor("t", np.ones((3, 4), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    header = read(path)
    theirs = reference.GGUFReader(path)

    for name, field in theirs.fields.items():
        if name.startswith("x."):
            mine = header.metadata[name]
            expected = field.contents()
            if name == "x.texts":
                mine = [text.decode() for text in mine]
            assert (list(mine) if isinstance(expected, list) else mine) == expected, name
    (tensor,) = header.tensors
    assert (tensor.name, tensor.shape, tensor.n_bytes) == ("t", (4, 3), 24)


def test_type_tables_are_those_of_the_gguf_package() -> None:
    blocks = {kind.value: (*sizes, kind.name) for kind, sizes in reference.GGML_QUANT_SIZES.items()}
    assert blocks == ggml_types.BLOCKS
    names = {
        kind.value: kind.name.replace("MOSTLY_", "").replace("ALL_", "")
        for kind in reference.LlamaFileType
        if kind is not reference.LlamaFileType.GUESSED
    }
    assert names == ggml_types.FILE_TYPES


def test_a_large_vocabulary_is_read_at_once(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "big.gguf", tokens=[f"token{i}" for i in range(262_144)])

    started = time.process_time()
    vocabulary = read_language_model(path).vocabulary
    assert vocabulary.text(262_143) == "token262143"
    assert time.process_time() - started < 2.0


def test_not_gguf(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(NotAModel, match=r"notes\.gguf is not a GGUF file"):
        read(path)


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.touch()
    with pytest.raises(NotAModel, match="is not a GGUF file"):
        read(path)


def test_a_truncated_file_says_how_much_is_there(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "half.gguf")
    data = path.read_bytes()
    path.write_bytes(data[:-2000])
    with pytest.raises(NotAModel) as caught:
        read(path)
    have, need = (len(data) - 2000) / 1000, len(data) / 1000
    assert f"half.gguf is not a complete GGUF file ({have:.1f} of {need:.1f} kB)." in str(
        caught.value
    )


@pytest.mark.parametrize("length", [30, 100, 500, 3000])
def test_a_header_that_breaks_off(tmp_path: Path, length: int) -> None:
    path = write_gguf(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(NotAModel, match=r"cut\.gguf is not a complete GGUF file"):
        read(path)


def test_a_damaged_length_is_an_error_not_a_memory_hog(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60) + bytes(50))
    with pytest.raises(NotAModel, match=r"its header breaks off\)\."):
        read(path)


def test_a_length_beyond_63_bits(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    keys = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, 2) + struct.pack("<Q", 2**63)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + keys + bytes(50))
    with pytest.raises(NotAModel, match=r"bad\.gguf is not a complete GGUF file"):
        read(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.alignment", 0),
        ("general.alignment", "abc"),
        ("general.file_type", [1, 2]),
        ("tokenizer.ggml.eot_token_id", "x"),
        ("llama.context_length", "long"),
        ("tokenizer.ggml.tokens", 5),
    ],
)
def test_a_value_that_cannot_be(tmp_path: Path, key: str, value: object) -> None:
    names = {"key": key, "value": value}
    path = _write_metadata(tmp_path / "bad.gguf", **names)  # type: ignore[arg-type]
    with pytest.raises(NotAModel, match=rf"bad\.gguf is not a complete GGUF file.*{key}"):
        read(path)


def _write_metadata(path: Path, key: str, value: object) -> Path:
    """A file of one key, which the gguf package would not write like this."""
    writer = reference.GGUFWriter(path, "llama")
    if isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        assert isinstance(value, list)
        writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_big_endian_file(tmp_path: Path) -> None:
    path = tmp_path / "big_endian.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(20))
    with pytest.raises(NotAModel, match="big-endian"):
        read(path)


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("is an embedding or encoder model (nomic-bert)", {"architecture": "nomic-bert"}),
        ("is an embedding model (it pools its outputs)", {"extra": {"llama.pooling_type": 3}}),
        ("is not causal", {"extra": {"llama.attention.causal": False}}),
        ("is no model (its type is adapter)", {"extra": {"general.type": "adapter"}}),
        ("has no language model head", {"tensors": ["blk.0.attn_q.weight"]}),
        ("has no vocabulary", {"tokens": ()}),
    ],
)
def test_what_cannot_generate_text(tmp_path: Path, why: str, options: dict[str, object]) -> None:
    path = write_gguf(tmp_path / "other.gguf", **options)  # type: ignore[arg-type]
    with pytest.raises(NotAModel) as caught:
        read_language_model(path)
    assert caught.value.message == f"other.gguf {why}, so it cannot generate text."


def test_a_pooling_type_of_none_is_a_language_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "ok.gguf", extra={"llama.pooling_type": 0})
    assert read_language_model(path).path == path


def test_a_split_model_is_read_as_one(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / shard_name("m", 1, 2), tensors=["token_embd.weight"])
    second = write_gguf(tmp_path / shard_name("m", 2, 2), tensors=["output.weight"])

    header = read_language_model(second)

    assert (header.path, header.n_parts, header.n_params) == (first, 2, 1024)
    assert header.file_size == first.stat().st_size + second.stat().st_size


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / shard_name("m", 1, 3))
    with pytest.raises(ModelNotFound, match=r"missing: m-00002-of-00003\.gguf, m-00003-of-00003"):
        read(first)
