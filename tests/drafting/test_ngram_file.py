"""Files of arrays and n-gram files: what is written is read, and no damage goes unseen."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.drafting.arrays import Kind, read_arrays, write_arrays
from specllama.drafting.ngram_file import KIND, NgramFile, save
from specllama.drafting.ngram_train import train
from specllama.errors import ModelError

OTHER = Kind(b"SPECTEST", 3, "a test file", "Write it again.")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = random.Random(0)
    documents = [np.array([rng.randrange(50) for _ in range(2000)], np.uint32)]
    fields = {"fingerprint": "mine", "model": "tiny.gguf", "order": 4, "n_vocab": 50}
    path = tmp_path / "model.ngram"
    save(path, train(documents, 50), fields | {"n_tokens": 2000, "min_count": 2})
    return path


def error(path: Path, fingerprint: str | None = "mine") -> str:
    with pytest.raises(ModelError) as caught:
        NgramFile.open(path, fingerprint)
    assert str(path) in caught.value.message
    return str(caught.value)


def test_a_file_says_what_it_is(path: Path) -> None:
    facts = NgramFile.open(path).facts
    assert (facts.fingerprint, facts.model, facts.order) == ("mine", "tiny.gguf", 4)
    assert (facts.n_vocab, facts.n_tokens, facts.min_count) == (50, 2000, 2)
    assert facts.contexts[0] == 50
    assert all(facts.contexts)
    assert all(facts.ngrams)
    assert facts.n_bytes == path.stat().st_size


def test_contexts_outside_the_vocabulary_know_nothing(path: Path) -> None:
    model = NgramFile.open(path)
    assert model.after([49]) != []
    assert model.after([50]) == []
    assert model.after([2**31 - 1]) == []
    assert model.after([1, 2**31 - 1, 49]) == model.after([49])


def test_a_file_for_another_vocabulary(path: Path) -> None:
    text = error(path, "another")
    assert "tiny.gguf" in text
    assert "specllama ngram build" in text


def test_a_missing_file(tmp_path: Path) -> None:
    assert error(tmp_path / "none") == f"File not found: {tmp_path / 'none'}."


def test_a_folder(tmp_path: Path) -> None:
    assert "Cannot read" in error(tmp_path)


@pytest.mark.parametrize("data", [b"", b"GGUF", b"x" * 100])
def test_another_kind_of_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    assert "is not an n-gram file" in error(tmp_path / "x")


def test_another_version(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8] += 1
    path.write_bytes(data)
    assert "has format 2; this specllama reads 1" in error(path)


def test_any_flipped_bit_is_seen(path: Path) -> None:
    rng = random.Random(1)
    whole = path.read_bytes()
    arrays = read_arrays(path, KIND)
    padding = {
        at for at in range(len(whole)) if whole[at] == 0
    }  # between arrays lies nothing that counts
    seen = 0
    for _ in range(300):
        at = rng.randrange(len(whole))
        data = bytearray(whole)
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            found = read_arrays(path, KIND)
        except ModelError as caught:
            assert str(path) in str(caught)
            seen += 1
        else:
            assert at in padding
            for name, array in found.arrays.items():
                assert np.array_equal(array, arrays.arrays[name])
    assert seen > 250


def test_any_cut_is_seen(path: Path) -> None:
    rng = random.Random(2)
    whole = path.read_bytes()
    for size in [0, 7, 20, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(100))]:
        path.write_bytes(whole[:size])
        error(path)
    path.write_bytes(whole + b"x")
    assert "longer than it says" in error(path)


ARRAY = st.lists(st.integers(0, 65_535), max_size=40)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=ARRAY, second=ARRAY, third=ARRAY)
def test_arrays_come_back(
    tmp_path: Path, first: list[int], second: list[int], third: list[int]
) -> None:
    arrays = {
        "a": np.array(first, "<u2"), "b": np.array(second, "<u4"), "c": np.array(third, ">u4")
    }  # fmt: skip
    write_arrays(tmp_path / "x", OTHER, {"n": 1}, arrays)
    found = read_arrays(tmp_path / "x", OTHER)
    assert found.fields == {"n": 1}
    assert {name: list(array) for name, array in found.arrays.items()} == {
        "a": first, "b": second, "c": third
    }  # fmt: skip


def test_swapped_blocks_are_seen(tmp_path: Path) -> None:
    """The sum of all words stays the same when two parts of an array change places."""
    path = tmp_path / "x"
    write_arrays(path, OTHER, {}, {"a": np.arange(100_000, dtype="<u4")})
    data = path.read_bytes()
    half = (len(data) - 400_000, len(data) - 200_000)
    path.write_bytes(data[: half[0]] + data[half[1] :] + data[half[0] : half[1]])
    with pytest.raises(ModelError, match="damaged"):
        read_arrays(path, OTHER)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_arrays(path, OTHER, {"n": 1}, {})
    with pytest.raises(TypeError):
        write_arrays(path, OTHER, {"n": object()}, {})
    with pytest.raises(OSError, match="No such file"):
        write_arrays(tmp_path / "no" / "x", OTHER, {}, {})
    assert read_arrays(path, OTHER).fields == {"n": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "[" * 100_000,
        "{}",
        '{"fields": 5, "arrays": []}',
        '{"fields": {}, "arrays": 5}',
        '{"fields": {}, "arrays": [{}]}',
        '{"fields": {}, "arrays": [{"name": [], "dtype": "<u4", "length": 0, "sum": 0}]}',
        '{"fields": {}, "arrays": [{"name": "a", "dtype": "<u4", "length": "x", "sum": 0}]}',
    ],
)
def test_a_header_of_another_making(tmp_path: Path, text: str) -> None:
    """Its checksum is right, what it says is not."""
    path = tmp_path / "x"
    preamble = struct.pack("<8sIII", KIND.magic, KIND.version, len(text), zlib.crc32(text.encode()))
    path.write_bytes(preamble + text.encode())
    assert "Build it again" in error(path)


@pytest.mark.parametrize(
    "changed", [{"order": "x"}, {"order": None}, {"order": 1}, {"order": -1}, {"new": 5}]
)
def test_facts_of_another_making(tmp_path: Path, path: Path, changed: dict[str, object]) -> None:
    found = read_arrays(path, KIND)
    write_arrays(tmp_path / "x", KIND, {**found.fields, **changed}, found.arrays)
    assert "Build it again" in error(tmp_path / "x")
