"""Loading: every file that is not a model says so, and the vocabulary is read as it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from specllama.errors import ModelNotFound, NotAModel, UsageError
from specllama.llama import library
from specllama.llama.model import Model
from tests.llama.tiny import N_VOCAB, write_mamba

pytestmark = pytest.mark.model


class TestBadFiles:
    @pytest.fixture(autouse=True)
    def loaded(self, llama_cpp: None) -> None:
        pass

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFound, match=r"none\.gguf"):
            Model(tmp_path / "none.gguf")

    def test_directory(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFound):
            Model(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model" * 1000, bytes(5000)])
    def test_garbage(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "garbage.gguf"
        path.write_bytes(content)
        with pytest.raises(NotAModel, match=r"garbage\.gguf"):
            Model(path)

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
    def test_truncated(self, tmp_path: Path, share: float) -> None:
        whole = write_mamba(tmp_path / "whole.gguf").read_bytes()
        path = tmp_path / "part.gguf"
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(NotAModel, match=r"part\.gguf"):
            Model(path)

    def test_the_next_load_works(self, tmp_path: Path) -> None:
        """A failure leaves nothing behind that the next message could be taken from."""
        path = tmp_path / "garbage.gguf"
        path.write_bytes(b"GGUF")
        with pytest.raises(NotAModel):
            Model(path)
        with Model(write_mamba(tmp_path / "good.gguf")) as model:
            assert model.n_vocab == N_VOCAB


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """Names of files are bytes; a model is loaded whatever they are."""
    model = write_mamba(tmp_path / "model.gguf")
    odd = model.rename(tmp_path / os.fsdecode(b"t\xe9.gguf"))
    with Model(odd, vocab_only=True) as loaded:
        assert loaded.n_vocab == N_VOCAB


class TestOptions:
    @pytest.fixture
    def path(self, tmp_path: Path, llama_cpp: None) -> Path:
        return write_mamba(tmp_path / "model.gguf")

    def test_unknown_device(self, path: Path) -> None:
        with pytest.raises(UsageError, match=r"No device called CUDA7.*sees: .*CPU"):
            Model(path, device="CUDA7")

    def test_known_device(self, path: Path) -> None:
        with Model(path, device="CPU") as model:
            assert model.n_ctx_train == 512

    def test_offloaded_where_a_gpu_has_a_part_in_it(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def is_offloaded(**options: Any) -> bool:
            with Model(path, **options) as model:
                return model.offloaded

        assert not is_offloaded()
        monkeypatch.setattr(library, "gpus", lambda: ["CUDA0"])
        assert is_offloaded()
        assert is_offloaded(gpu_layers=10)
        assert not is_offloaded(gpu_layers=0)
        assert not is_offloaded(device="CPU")

    def test_a_library_of_linear_algebra_is_no_gpu(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """ggml has a device "BLAS" on every Mac, and wherever it was built with OpenBLAS."""
        both = [{"name": name, "description": ""} for name in ("BLAS", "CPU")]
        monkeypatch.setattr(library, "devices", lambda: both)
        with Model(path) as model:
            assert not model.offloaded

    def test_progress(self, path: Path) -> None:
        shares: list[float] = []
        with Model(path, on_progress=shares.append):
            assert shares == sorted(shares)
            assert shares[-1] == 1.0

    def test_progress_that_raises(self, path: Path) -> None:
        """Ctrl-C while a model loads."""

        def stop(share: float) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Model(path, on_progress=stop)

    def test_tensor_split_for_too_many_devices(self, path: Path) -> None:
        with pytest.raises(UsageError, match="1000 parts"):
            Model(path, tensor_split=[1.0] * 1000)

    def test_a_gpu_by_number(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is the only device then; elsewhere llama.cpp would spread the model over all."""
        monkeypatch.setattr(library, "gpus", lambda: ["CUDA0", "CPU"])
        with Model(path, main_gpu=1) as model:
            assert model.n_ctx_train == 512
        with pytest.raises(UsageError, match=r"No device called CUDA0"):
            Model(path, main_gpu=0)

    def test_a_gpu_that_is_not_there(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(library, "gpus", lambda: ["CUDA0"])
        with pytest.raises(UsageError, match=r"no GPU number 1.*sees: CUDA0"):
            Model(path, main_gpu=1)
        monkeypatch.setattr(library, "gpus", list)
        with pytest.raises(UsageError, match=r"no GPU number 0.*no GPU at all"):
            Model(path, main_gpu=0)

    def test_a_split_with_a_main_gpu_is_left_to_llama_cpp(self, path: Path) -> None:
        with Model(path, main_gpu=0, tensor_split=[1.0]) as model:
            assert model.n_ctx_train == 512

    def test_closing_twice(self, path: Path) -> None:
        model = Model(path)
        model.close()
        assert model.handle is None
        model.close()


class TestVocabulary:
    def test_facts(self, model: Model) -> None:
        vocabulary = model.vocabulary
        assert vocabulary.size == model.n_vocab == 49152
        assert (vocabulary.bos, vocabulary.eos, vocabulary.add_bos) == (1, 2, False)
        assert model.n_ctx_train == 8192
        assert model.can_generate
        assert vocabulary.chat_template
        assert "<|im_start|>" in vocabulary.chat_template

    def test_every_end_token(self, model: Model) -> None:
        """All that end a turn, not only EOS."""
        ends = [t for t in range(model.n_vocab) if model.vocabulary.is_eog(t)]
        assert ends == [0, 2, 4]

    @pytest.mark.parametrize(("token", "size"), [(8500, 41), (9225, 49)])
    def test_long_pieces(self, model: Model, token: int, size: int) -> None:
        """Longer than the 32 bytes that a fixed buffer would take."""
        assert len(model.vocabulary.piece(token)) == size

    def test_pieces_join_to_the_text(self, model: Model) -> None:
        vocabulary = model.vocabulary
        for text in (
            "",
            "Hello, world!\n",
            "  two  spaces",
            "naïve 🦙 日本語",
            "\x00\t\r\n",
            "x" * 999,
        ):
            ids = vocabulary.tokenize(text, special=False, add_bos=False)
            assert b"".join(map(vocabulary.piece, ids)) == text.encode()

    def test_an_emoji_of_three_tokens(self, model: Model) -> None:
        ids = model.vocabulary.tokenize("🦙", special=False, add_bos=False)
        assert len(ids) == 3
        assert b"".join(map(model.vocabulary.piece, ids)) == "🦙".encode()

    def test_control_tokens(self, model: Model) -> None:
        vocabulary = model.vocabulary
        assert vocabulary.tokenize("<|im_end|>", special=True, add_bos=False) == [2]
        assert len(vocabulary.tokenize("<|im_end|>", special=False, add_bos=False)) > 1
        assert vocabulary.is_control(2)
        assert not vocabulary.is_control(500)
        assert vocabulary.piece(2) == b""
        assert vocabulary.piece(2, special=True) == b"<|im_end|>"
        assert vocabulary.text_of(2) == "<|im_end|>"

    @pytest.mark.parametrize("token", [-1, 49152, 10**9])
    def test_ids_that_llama_cpp_would_not_survive(self, model: Model, token: int) -> None:
        vocabulary = model.vocabulary
        for ask in (vocabulary.piece, vocabulary.is_eog, vocabulary.is_control, vocabulary.text_of):
            with pytest.raises(UsageError, match="not in the vocabulary"):
                ask(token)

    def test_metadata(self, model: Model) -> None:
        assert model.metadata("general.architecture") == "llama"
        assert model.metadata("no.such.key") is None
