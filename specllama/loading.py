"""Opening the models of a pair: names to files, checks before memory is taken, contexts sized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specllama.drafting.follower import Follower
from specllama.errors import NotAModel, OutOfMemory
from specllama.hub.pair import check_files
from specllama.hub.resolve import resolve
from specllama.llama.context import Context, padded
from specllama.llama.grammar import Grammars
from specllama.llama.model import Model
from specllama.llama.width import ConstantWidth
from specllama.options import ModelOptions

if TYPE_CHECKING:
    from specllama.hub.pair import PairReport

LoadProgress = Callable[[str, float], None]
"""(what is being loaded, share done 0..1)."""

TREE_BRANCHES = 31
LEAST_OUTPUTS = 64
OUTPUTS_A_SLOT = 32
EXACT_WIDTH = 8
"""Tokens of every decode in exact mode on a GPU, the most of CUDA's matrix-vector kernels."""


@dataclass(frozen=True, slots=True)
class TargetModel:
    """A loaded target and its context; `grammars` reads grammars for its vocabulary.

    Attributes:
        n_ctx: the most tokens of one sequence; the context has cells for several.
    """

    name: str
    model: Model
    context: Context
    n_ctx: int
    grammars: Grammars

    def close(self) -> None:
        """Free cache and weights."""
        self.context.close()
        self.model.close()


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A loaded draft, its context and what follows the target in it.

    Attributes:
        follower: over the draft's own ids where those are not the target's (`is_foreign`).
    """

    name: str
    model: Model
    context: Context
    follower: Follower
    pair: PairReport

    @property
    def is_foreign(self) -> bool:
        """Whether its vocabulary is another one, so that only text goes between the two."""
        return not self.pair.compatible

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
        n_ctx = options.context_of(model.n_ctx_train)
        context = _target_context(model, options, n_ctx)
    except BaseException:
        model.close()
        raise
    n_ctx = min(padded(n_ctx), context.n_ctx_seq)
    return TargetModel(found.name, model, context, n_ctx, Grammars(model.vocabulary))


def load_draft(
    name: str | Path, target: TargetModel, options: ModelOptions, on_progress: LoadProgress | None
) -> DraftModel:
    """Load a draft for a target; its context has as many cells as the target's.

    Raises:
        PairMismatch: its token ids mean something else (checked in the headers, before loading).
        ModelNotFound, NotAModel, OutOfMemory, UsageError.
    """
    found = resolve(str(name), "draft")
    pair = check_files(target.model.path, found.path).require(translate=options.translate)
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
    ids = (pair.shared_size, pair.differing_ids) if pair.compatible else ()
    follower = Follower(context, *ids, one_by_one=model.offloaded)
    return DraftModel(found.name, model, context, follower, pair)


def _target_context(model: Model, options: ModelOptions, n_ctx: int) -> Context:
    """Cells for `parallel` sequences of `n_ctx` tokens, fewer where memory is short.

    In exact mode each of several sequences has cells of its own, since the order of cells in a
    shared buffer changes the order of llama.cpp's sums; there is no room for branches of trees.
    On a GPU a single one has none either, and all decodes have one width.
    """
    n_cells = options.parallel * padded(n_ctx)
    width = _width(model, options)
    apart = options.exact and (options.parallel > 1 or width > 0)
    while True:
        try:
            return _context(
                model,
                options,
                n_cells,
                options.threads,
                options.threads_batch,
                apart=apart,
                width=width,
            )
        except OutOfMemory:
            if apart or n_cells <= padded(n_ctx):
                raise
            n_cells = max(padded(n_ctx), padded(n_cells // 2))


def _context(
    model: Model,
    options: ModelOptions,
    n_cells: int,
    threads: int | None,
    threads_batch: int | None,
    *,
    apart: bool = False,
    width: int = 0,
) -> Context:
    settings: dict[str, Any] = {
        "n_ctx": n_cells,
        "n_batch": options.n_batch,
        "n_seq": options.parallel + (0 if apart else TREE_BRANCHES),
        "n_outputs": max(LEAST_OUTPUTS, options.parallel * OUTPUTS_A_SLOT),
        "threads": threads,
        "threads_batch": threads_batch,
        **options.attention(model.offloaded),
    }
    if width:
        return ConstantWidth(model, width=width, **settings)
    return Context(model, apart=apart, **settings)


def _width(model: Model, options: ModelOptions) -> int:
    """Tokens of every decode of the target, 0 where batches may be of any size."""
    return EXACT_WIDTH if options.exact and model.offloaded else 0


def exact_context(model: Model, options: ModelOptions) -> Context:
    """A small context as exact mode has them, to try it out."""
    exact = replace(options, exact=True, parallel=1)
    width = _width(model, exact)
    return _context(model, exact, padded(1), options.threads, None, apart=width > 0, width=width)


def _labelled(role: str, on_progress: LoadProgress | None) -> Callable[[float], None] | None:
    if on_progress is None:
        return None
    return lambda share: on_progress(f"loading {role}", share)
