"""specllama itself, through its public library."""

from collections.abc import Mapping
from typing import Any

from peers.protocol import Files, Peer, PeerError, Reply, Request
from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.errors import SpecllamaError
from specllama.results import Generation

EAGER_LENGTH = 3
"""llama.cpp's default, for the same test."""


class Engine:
    """One decoder that several arms share; it is opened with the first and closed with the last."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._users = 0
        self._decoder: SpeculativeDecoder | None = None

    def acquire(self) -> SpeculativeDecoder:
        if self._decoder is None:
            options = ModelOptions(
                n_ctx=self._files.n_ctx,
                threads=self._files.threads,
                threads_batch=self._files.threads,
                draft_threads=self._files.threads,
                flash_attn=self._files.flash_attn,
            )
            self._decoder = SpeculativeDecoder(
                self._files.target, self._files.draft, options=options
            )
        self._users += 1
        return self._decoder

    def release(self) -> None:
        self._users -= 1
        if self._users == 0 and self._decoder is not None:
            self._decoder.close()
            self._decoder = None


class Ours(Peer):
    """An arm of specllama.

    Args:
        settings: fields of `GenerationParams` over the request's.

    Attributes:
        told: the latest reply with all its figures.
    """

    def __init__(self, name: str, engine: Engine, **settings: Any) -> None:
        self.name = name
        self.speculates = settings.get("drafter") != "none"
        self._engine = engine
        self._settings: Mapping[str, Any] = settings
        self._decoder: SpeculativeDecoder | None = None
        self.told: Generation | None = None

    def open(self) -> None:
        try:
            self._decoder = self._engine.acquire()
        except SpecllamaError as error:
            raise PeerError(str(error)) from error

    def ask(self, request: Request) -> Reply:
        assert self._decoder is not None
        eager = {"adaptive": False, "draft_max": EAGER_LENGTH} if request.eager else {}
        params = GenerationParams(
            max_tokens=request.n,
            sampling=SamplingParams(**request.sampling.to_dict()),  # type: ignore[arg-type]
            seed=request.seed,
            logprobs=False,
            **{**self._settings, **eager},
        )
        self._decoder.forget()
        try:
            told = self.told = self._decoder.generate(request.ids, params)
        except SpecllamaError as error:
            raise PeerError(str(error)) from error
        spec, tok_s = told.spec, told.timings.decode_tok_s
        return Reply(told.text, len(told.tokens), tok_s, spec.rounds, spec.drafted, spec.accepted)

    def close(self) -> None:
        if self._decoder is not None:
            self._decoder = None
            self._engine.release()
