"""Speculative decoding for local GGUF models: faster answers, the target's own words."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama.decoder import SpeculativeDecoder
    from specllama.errors import (
        ContextFull,
        EngineError,
        HubError,
        ModelError,
        ModelNotFound,
        NotAModel,
        OutOfMemory,
        PairMismatch,
        PoolClosed,
        QueueFull,
        SpecllamaError,
        UsageError,
    )
    from specllama.options import BeamParams, GenerationParams, ModelOptions
    from specllama.pool import Pool, Ticket
    from specllama.results import (
        BeamResult,
        BeamStats,
        Generation,
        Hypothesis,
        SourceStats,
        SpecStats,
        StreamEvent,
        Timings,
        Usage,
    )
    from specllama.sampling.params import SamplingParams
    from specllama.stream import Stream
    from specllama.text.chat import Message

__version__ = "0.1.0"

_HOMES = {
    "BeamParams": "options",
    "BeamResult": "results",
    "BeamStats": "results",
    "ContextFull": "errors",
    "EngineError": "errors",
    "Generation": "results",
    "GenerationParams": "options",
    "HubError": "errors",
    "Hypothesis": "results",
    "Message": "text.chat",
    "ModelError": "errors",
    "ModelNotFound": "errors",
    "ModelOptions": "options",
    "NotAModel": "errors",
    "OutOfMemory": "errors",
    "PairMismatch": "errors",
    "Pool": "pool",
    "PoolClosed": "errors",
    "QueueFull": "errors",
    "SamplingParams": "sampling.params",
    "SourceStats": "results",
    "SpecStats": "results",
    "SpecllamaError": "errors",
    "SpeculativeDecoder": "decoder",
    "Stream": "stream",
    "StreamEvent": "results",
    "Ticket": "pool",
    "Timings": "results",
    "Usage": "results",
    "UsageError": "errors",
}

__all__ = [
    "BeamParams",
    "BeamResult",
    "BeamStats",
    "ContextFull",
    "EngineError",
    "Generation",
    "GenerationParams",
    "HubError",
    "Hypothesis",
    "Message",
    "ModelError",
    "ModelNotFound",
    "ModelOptions",
    "NotAModel",
    "OutOfMemory",
    "PairMismatch",
    "Pool",
    "PoolClosed",
    "QueueFull",
    "SamplingParams",
    "SourceStats",
    "SpecStats",
    "SpecllamaError",
    "SpeculativeDecoder",
    "Stream",
    "StreamEvent",
    "Ticket",
    "Timings",
    "Usage",
    "UsageError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `specllama --help` stays quick."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"specllama.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'specllama' has no attribute {name!r}")
