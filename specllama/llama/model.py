"""A loaded GGUF model and its vocabulary."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from specllama.errors import EngineError, ModelNotFound, NotAModel, OutOfMemory, UsageError
from specllama.llama import library

Progress = Callable[[float], None]

_MEMORY_WORDS = ("out of memory", "failed to allocate", "unable to allocate", "bad_alloc")
_SPLIT_NONE = 0
_NO_ROPE = -1


class Model:
    """Weights and vocabulary of one GGUF file (or the first of its shards).

    Args:
        gpu_layers: layers to offload; -1 is all.
        main_gpu: load on this GPU alone, counted from 0; None lets llama.cpp use all there are.
        tensor_split: share of each GPU; empty leaves it to llama.cpp. With `main_gpu`, that one
            holds what is not split.
        device: load on this device alone ("CUDA1", "Metal", "CPU").
        repack: let llama.cpp repack weights for the CPU; None asks `library.repacking_works`.
        vocab_only: load the vocabulary alone, no weights: it can tokenise and nothing else.
        on_progress: called with 0..1 while loading.

    Raises:
        ModelNotFound, NotAModel, OutOfMemory, UsageError (unknown device).
    """

    def __init__(
        self,
        path: Path,
        *,
        gpu_layers: int = -1,
        main_gpu: int | None = None,
        tensor_split: Sequence[float] = (),
        device: str | None = None,
        repack: bool | None = None,
        vocab_only: bool = False,
        on_progress: Progress | None = None,
    ) -> None:
        if not path.is_file():
            raise ModelNotFound(f"Model file not found: {path}.")
        self.path = path
        self._lib: Any = library.load()
        self.offloaded = is_offloaded(gpu_layers, device)
        self._keep: list[Any] = []
        self._interrupted: BaseException | None = None
        params = self._params(gpu_layers, main_gpu, tensor_split, device, on_progress)
        params.vocab_only = vocab_only
        if not vocab_only:
            params.use_extra_bufts = library.repacking_works() if repack is None else repack
        self.handle = self._load(params)
        self.vocabulary = LlamaVocabulary(self._lib, self.handle)
        # which points into the model, and lives at least as long as this object
        self._end = weakref.finalize(self.vocabulary, self._lib.llama_model_free, self.handle)
        self._end.atexit = False

    def _params(
        self,
        gpu_layers: int,
        main_gpu: int | None,
        tensor_split: Sequence[float],
        device: str | None,
        on_progress: Progress | None,
    ) -> Any:
        params = self._lib.llama_model_default_params()
        params.n_gpu_layers = gpu_layers if gpu_layers >= 0 else 0x7FFFFFFF
        if tensor_split:
            params.main_gpu = main_gpu or 0
            params.tensor_split = self._hold(_tensor_split(self._lib, tensor_split))
        elif main_gpu is not None and device is None:
            device = _gpu(main_gpu)
        if device is not None:
            params.devices = self._devices(device)
            params.split_mode = _SPLIT_NONE
            params.main_gpu = 0
        if on_progress is not None:
            callback = self._lib.llama_progress_callback(self._reporter(on_progress))
            params.progress_callback = self._hold(callback)
        return params

    def _reporter(self, on_progress: Progress) -> Callable[[float, Any], bool]:
        """A callback that stops the loading on an error (Ctrl-C), which `_load` raises again."""

        def report(share: float, _user_data: Any) -> bool:
            try:
                on_progress(share)
            except BaseException as error:  # ctypes would swallow it
                self._interrupted = error
            return self._interrupted is None

        return report

    def _hold(self, thing: Any) -> Any:
        """Keep memory alive that llama.cpp points into."""
        self._keep.append(thing)
        return thing

    def _devices(self, name: str) -> Any:
        handle = library.device_handle(name)
        if handle is None:
            names = ", ".join(device["name"] for device in library.devices())
            raise UsageError(f"No device called {name}.", f"llama.cpp sees: {names}.")
        listing = self._hold((ctypes.c_void_p * 2)(handle, None))
        return ctypes.cast(listing, ctypes.c_void_p)

    def _load(self, params: Any) -> Any:
        library.forget_log()
        handle = self._lib.llama_model_load_from_file(os.fsencode(self.path), params)
        if self._interrupted is not None:
            if handle:
                self._lib.llama_model_free(handle)
            raise self._interrupted
        if handle:
            return handle
        errors = " ".join(library.recent_errors())
        if any(word in errors.lower() for word in _MEMORY_WORDS):
            raise OutOfMemory(
                f"Not enough memory to load {self.path.name}.",
                "Try a smaller quantisation, or fewer GPU layers (-ngl).",
            )
        raise NotAModel(f"llama.cpp cannot load {self.path}: {errors or 'no reason given'}.")

    @property
    def n_vocab(self) -> int:
        """Rows of the output layer: the width of a row of logits."""
        return self.vocabulary.size

    @property
    def n_ctx_train(self) -> int:
        """Context length the model was trained for, in tokens."""
        return int(self._lib.llama_model_n_ctx_train(self.handle))

    @property
    def n_places(self) -> int | None:
        """How many places a token may have where each has learned weights (GPT-2), else None.

        llama.cpp aborts the process behind the last one. Without rope they may also be unlimited
        (ALiBi), which cannot be told here.
        """
        recurrent = self._lib.llama_model_is_recurrent(self.handle)
        if recurrent or self._lib.llama_model_rope_type(self.handle) != _NO_ROPE:
            return None
        return self.n_ctx_train or None

    @property
    def window(self) -> int:
        """Tokens that layers with a sliding window look back, their own included; 0 without."""
        return int(self._lib.llama_model_n_swa(self.handle))

    @property
    def can_generate(self) -> bool:
        """False for encoders and embedding models."""
        return bool(self._lib.llama_model_has_decoder(self.handle)) and not bool(
            self._lib.llama_model_has_encoder(self.handle)
        )

    def metadata(self, key: str) -> str | None:
        """A metadata value as text, None when the key is absent."""
        buffer = ctypes.create_string_buffer(1 << 12)
        length = self._lib.llama_model_meta_val_str(
            self.handle, key.encode(), ctypes.cast(buffer, ctypes.c_char_p), len(buffer)
        )
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    def close(self) -> None:
        """Free the weights, as the last reference does. Its contexts must be closed before."""
        self._end()
        self._lib, self.handle = library.Closed(), None
        self.vocabulary.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LlamaVocabulary:
    """text/vocabulary.py's protocol over a loaded model."""

    def __init__(self, lib: Any, model: Any) -> None:
        self._lib: Any = lib
        self.handle = lib.llama_model_get_vocab(model)
        self.size = int(lib.llama_vocab_n_tokens(self.handle))
        self.bos = _optional(lib.llama_vocab_bos(self.handle))
        self.eos = _optional(lib.llama_vocab_eos(self.handle))
        self.add_bos = bool(lib.llama_vocab_get_add_bos(self.handle))
        template = lib.llama_model_chat_template(model, None)
        self.chat_template: str | None = template.decode() if template else None
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._is_end: dict[int, bool] = {}

    def close(self) -> None:
        """The model is gone: what is not known by now cannot be told any more."""
        self._lib = library.Closed()

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        """Ids of a text; `special` reads control tokens written in it as such."""
        raw = text.encode("utf-8", "surrogatepass")
        room = len(raw) + 2
        while True:
            ids = (self._lib.llama_token * room)()
            count = self._lib.llama_tokenize(
                self.handle, raw, len(raw), ids, room, add_bos, special
            )
            if count >= 0:
                return list(ids[:count])
            if -count <= room:
                raise EngineError("llama.cpp cannot tokenise this text.")
            room = -count

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of a token; control tokens are empty unless `special`."""
        known = self._pieces.get((token, special))
        if known is None:
            known = self._pieces[token, special] = self._read_piece(token, special)
        return known

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(len(self._read_piece(token, True)) for token in range(self.size))

    def _read_piece(self, token: int, special: bool) -> bytes:
        self._check(token)
        buffer = ctypes.create_string_buffer(64)
        while True:
            length = self._lib.llama_token_to_piece(
                self.handle, token, buffer, len(buffer), 0, special
            )
            if length >= 0:
                return buffer.raw[:length]
            buffer = ctypes.create_string_buffer(-length)

    def text_of(self, token: int) -> str:
        """The token as written in the vocabulary ("<|im_end|>")."""
        self._check(token)
        raw = self._lib.llama_vocab_get_text(self.handle, token)
        return raw.decode("utf-8", "replace") if raw else ""

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation (any of them, not only EOS)."""
        known = self._is_end.get(token)
        if known is None:
            self._check(token)
            known = self._is_end[token] = bool(self._lib.llama_vocab_is_eog(self.handle, token))
        return known

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token, never text."""
        self._check(token)
        return bool(self._lib.llama_vocab_is_control(self.handle, token))

    def _check(self, token: int) -> None:
        """llama.cpp ends the process over an id that it does not know."""
        if not 0 <= token < self.size:
            raise UsageError(f"Token id {token} is not in the vocabulary (0 to {self.size - 1}).")


def _optional(token: int) -> int | None:
    return int(token) if token >= 0 else None


def is_offloaded(gpu_layers: int, device: str | None) -> bool:
    """Whether such a model has weights on a device other than the CPU."""
    if gpu_layers == 0 or device == "CPU":
        return False
    return bool(library.gpus())


def _gpu(number: int) -> str:
    """The name of a GPU, counted from 0.

    Raises:
        UsageError: there is none of that number.
    """
    names = library.gpus()
    if number >= len(names):
        seen = ", ".join(names) or "no GPU at all"
        raise UsageError(f"There is no GPU number {number}.", f"llama.cpp sees: {seen}.")
    return names[number]


def _tensor_split(lib: Any, shares: Sequence[float]) -> Any:
    count = int(lib.llama_max_devices())
    if len(shares) > count:
        raise UsageError(f"tensor_split has {len(shares)} parts; llama.cpp takes at most {count}.")
    return (ctypes.c_float * count)(*shares)
