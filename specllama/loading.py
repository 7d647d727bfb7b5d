"""Opening the models of a pair: names to files, checks before memory is taken, contexts sized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.drafting.follower import Follower
from specllama.errors import NotAModel
from specllama.hub.pair import check_files
from specllama.hub.resolve import resolve
from specllama.llama.context import Context
from specllama.llama.model import Model
from specllama.options import ModelOptions

if TYPE_CHECKING:
    from specllama.hub.pair import PairReport

LoadProgress = Callable[[str, float], None]
"""(what is being loaded, share done 0..1)."""

DEFAULT_CTX = 8192
TREE_BRANCHES = 31


@dataclass(frozen=True, slots=True)
class TargetModel:
    """A loaded target and its context."""

    name: str
    model: Model
    context: Context

    def close(self) -> None:
        """Free cache and weights."""
        self.context.close()
        self.model.close()


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A loaded draft, its context and what follows the target in it."""

    name: str
    model: Model
    context: Context
    follower: Follower
    pair: PairReport

    def close(self) -> None:
        """Free cache and weights."""
        self.context.close()
        self.model.close()


def load_target(
    name: str | Path, options: ModelOptions, on_progress: LoadProgress | None
) -> TargetModel:
    """Load a target by name.

    Raises:
        ModelNotFound, NotAModel, OutOfMemory, UsageError.
    """
    found = resolve(str(name), "target")
    model = Model(
        found.path,
        gpu_layers=options.gpu_layers,
        main_gpu=options.main_gpu,
        tensor_split=options.tensor_split,
        device=options.device,
        on_progress=_labelled("target", on_progress),
    )
    try:
        if not model.can_generate:
            raise NotAModel(f"{found.name} is not a text generation model (an encoder?).")
        n_ctx = options.n_ctx or min(model.n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)
        context = _context(model, options, n_ctx, options.threads, options.threads_batch)
    except BaseException:
        model.close()
        raise
    return TargetModel(found.name, model, context)


def load_draft(
    name: str | Path, target: TargetModel, options: ModelOptions, on_progress: LoadProgress | None
) -> DraftModel:
    """Load a draft for a target; its context is as long as the target's.

    Raises:
        PairMismatch: its token ids mean something else (checked in the headers, before loading).
        ModelNotFound, NotAModel, OutOfMemory, UsageError.
    """
    found = resolve(str(name), "draft")
    pair = check_files(target.model.path, found.path).require()
    model = Model(
        found.path,
        gpu_layers=options.draft_gpu_layers,
        main_gpu=options.main_gpu,
        device=options.draft_device,
        on_progress=_labelled("draft", on_progress),
    )
    try:
        threads = options.draft_threads or options.threads
        context = _context(model, options, target.context.n_ctx, threads, threads)
    except BaseException:
        model.close()
        raise
    follower = Follower(context, pair.shared_size, pair.differing_ids)
    return DraftModel(found.name, model, context, follower, pair)


def _context(
    model: Model, options: ModelOptions, n_ctx: int, threads: int | None, threads_batch: int | None
) -> Context:
    """In exact mode: flash attention and a bf16 cache, which give batches the bits of singles."""
    return Context(
        model,
        n_ctx=n_ctx,
        n_batch=options.n_batch,
        n_seq=1 + TREE_BRANCHES,
        threads=threads,
        threads_batch=threads_batch,
        flash_attn="on" if options.exact else options.flash_attn,
        cache_type_k="bf16" if options.exact else options.cache_type_k,
        cache_type_v="bf16" if options.exact else options.cache_type_v,
    )


def _labelled(role: str, on_progress: LoadProgress | None) -> Callable[[float], None] | None:
    if on_progress is None:
        return None
    return lambda share: on_progress(f"loading {role}", share)
