"""A conversation on disk: what both models' caches hold of it, so that nothing is read again.

Such a file belongs to one target file, one llama.cpp and one format of the cache. Restore only
files you trust: llama.cpp reads what is in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.arrays import Arrays, Kind, read_arrays, write_arrays
from specllama.engine.engine import Engine
from specllama.errors import ModelError, UsageError
from specllama.hub.fingerprint import file_identity
from specllama.llama import library
from specllama.llama.cache import TokenCache
from specllama.loading import DraftModel, TargetModel
from specllama.options import ModelOptions

CONVERSATION = Kind(
    magic=b"SPECCONV", version=1, what="a saved conversation", remedy="Save it again."
)


def save(
    path: Path, engine: Engine, target: TargetModel, draft: DraftModel | None, options: ModelOptions
) -> None:
    """Write the conversation that was last worked on.

    Raises:
        UsageError: there is none, or the file cannot be written.
    """
    slot = engine.latest_slot
    if slot is None or not engine.cache.length(slot):
        raise UsageError("There is no conversation to save.", "Generate something first.")
    arrays = _held("target", engine.cache, slot)
    fields = _settings(target, options) | {"draft": ""}
    if draft is not None:
        arrays |= _held("draft", draft.follower.cache, slot)
        fields["draft"] = _identity(draft, options)
    try:
        write_arrays(path, CONVERSATION, fields, arrays)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"Cannot write {str(path)!r}: {error}.", "Name a file.") from error


def restore(
    path: Path, engine: Engine, target: TargetModel, draft: DraftModel | None, options: ModelOptions
) -> int:
    """Put a conversation back into the slot that was idle for longest.

    Another draft model than the saved one reads it again when it drafts.

    Returns:
        How many of its tokens the target need not read again.

    Raises:
        ModelError: no such file, a damaged one, or one of another model, llama.cpp or cache format.
        UsageError: it is longer than the context.
        EngineError: llama.cpp refused it.
    """
    found = read_arrays(path, CONVERSATION)
    _check(path, found.fields, _settings(target, options))
    ids = found.arrays["target ids"].tolist()
    if len(ids) > engine.n_ctx:
        raise UsageError(
            f"The conversation in {path} has {len(ids)} tokens; the context takes {engine.n_ctx}.",
            "Give a larger context (-c).",
        )
    slot = engine.take_in(ids)
    _load(found, "target", engine.cache, slot)
    if draft is not None and found.fields["draft"] == _identity(draft, options):
        _load(found, "draft", draft.follower.cache, slot)
    engine.touch(slot)
    return len(ids)


def _held(name: str, cache: TokenCache, slot: int) -> dict[str, NDArray[np.uint8 | np.uint32]]:
    ids = np.array(cache.tokens(slot), np.uint32)
    return {f"{name} ids": ids, f"{name} state": np.frombuffer(cache.backend.state(slot), np.uint8)}


def _load(found: Arrays, name: str, cache: TokenCache, slot: int) -> None:
    ids: Sequence[int] = found.arrays[f"{name} ids"].tolist()
    cache.load(slot, ids, found.arrays[f"{name} state"].tobytes())


def _identity(draft: DraftModel, options: ModelOptions) -> str:
    """The draft's file, and how its attention works where that need not be as the target's."""
    flash = options.attention(draft.model.offloaded)["flash_attn"]
    return f"{file_identity(draft.model.path)}, flash attention {flash}"


def _settings(target: TargetModel, options: ModelOptions) -> dict[str, str]:
    """What the bytes of the target's cache depend on, by what people call it."""
    attention = options.attention(target.model.offloaded)
    return {
        "target": file_identity(target.model.path),
        "llama.cpp": library.build(),
        "flash attention": attention["flash_attn"],
        "key cache": attention["cache_type_k"],
        "value cache": attention["cache_type_v"],
    }


def _check(path: Path, was: Mapping[str, str], now: Mapping[str, str]) -> None:
    changed = [name for name, value in now.items() if was.get(name) != value]
    if changed:
        raise ModelError(
            f"{path} was saved with another {' and '.join(changed)}.", CONVERSATION.remedy
        )
