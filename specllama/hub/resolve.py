"""From what people type to a file that is there and can be read.

A name is, in this order: an existing path; an alias; the built-in pair's or the catalogue's name
(`qwen3-32b`, `qwen3-32b-draft`); `user/repo[:QUANT|:FILE]` in the Hugging Face cache. Nothing here
goes to the network: what is not on this machine is an error that holds the command to fetch it.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from specllama.errors import HubError, ModelError, ModelNotFound, NotAModel, UsageError
from specllama.hub import aliases, builtin, cache, catalogue
from specllama.hub.gguf import Header, read_language_model
from specllama.hub.pair import PairReport, compare
from specllama.hub.paths import expanded
from specllama.hub.references import Reference, parse

Role = Literal["target", "draft"]

_KINDS_OF_NAMES = (
    "Give a .gguf file, an alias, user/repo:QUANT, or a name of `specllama list --catalogue`."
)
OFF = "none"
"""The draft name that means: no draft model."""


class NotDownloaded(ModelNotFound):
    """A repository that is not in the cache; `name` is what `specllama download` takes."""

    def __init__(self, reference: str, name: str) -> None:
        command = f"specllama download {shlex.quote(name)}"
        super().__init__(f"{reference} is not in the cache.", f"Run: {command}")
        self.name = name


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model file on this machine.

    Attributes:
        path: the GGUF, or the first part of a split one (llama.cpp finds the others).
        name: what was asked for.
        header: the file's header, already read and checked.
    """

    path: Path
    name: str
    header: Header


@dataclass(frozen=True, slots=True)
class ResolvedPair:
    """A target, and a draft that can serve it or none.

    Attributes:
        report: the vocabulary check; None without a draft.
        warnings: why a draft that was not asked for by name is missing.
    """

    target: ResolvedModel
    draft: ResolvedModel | None = None
    report: PairReport | None = None
    warnings: tuple[str, ...] = ()


def resolve_pair(
    target: str | None = None,
    draft: str | None = None,
    *,
    offline: bool = False,
    translate: bool = False,
) -> ResolvedPair:
    """The files of a target and its draft.

    No target means the built-in pair. No draft means the one that belongs to the target (an
    alias's, a catalogue pair's); if that is missing or does not fit, the pair goes without and says
    so in `warnings`. "none" means no draft; a draft asked for by name must be there and must fit.

    Args:
        translate: a draft with another vocabulary fits too.

    Raises:
        ModelNotFound, NotAModel, HubError: see `resolve`.
        PairMismatch: the draft that was asked for cannot serve the target.
        UsageError: a name is empty.
    """
    name = builtin.TARGET if target is None else target
    found = resolve(name, "target", offline=offline)
    if draft == OFF:
        return ResolvedPair(found)
    if draft is not None:
        return _checked(found, resolve(draft, "draft", offline=offline), translate)
    own = own_draft(name)
    if own is None:
        return ResolvedPair(found)
    try:
        return _checked(found, resolve(own, "draft", offline=offline), translate)
    except ModelError as error:
        return ResolvedPair(found, warnings=(f"Running without a draft model: {error}",))


def resolve(name: str, role: Role = "target", *, offline: bool = False) -> ResolvedModel:
    """The file that `name` means, checked to be a complete language model.

    Raises:
        ModelNotFound: no such file, alias or repository; names the nearest ones.
        NotDownloaded: a repository that is not in the cache, with the command to fetch it.
        NotAModel: a folder, no GGUF, incomplete, or unable to generate text.
        HubError: `offline`, and the repository is not in the cache.
        UsageError: the name is empty.
    """
    header = read_language_model(locate(name, role, offline=offline))
    return ResolvedModel(header.path, name, header)


def locate(name: str, role: Role = "target", *, offline: bool = False) -> Path:
    """The file that `name` means, not looked into. Raises what `resolve` raises of it."""
    if not name:  # as a path it would be the folder we are in
        raise UsageError("The name of a model is empty.", _KINDS_OF_NAMES)
    path = expanded(name)
    if path.is_file():
        return path
    if (alias := aliases.load().get(name)) is not None:
        name = alias.draft if role == "draft" and alias.draft else alias.target
        path = expanded(name)
        if path.is_file():
            return path
    return _shipped(name) or _downloaded(path, name, offline=offline)


def _shipped(name: str) -> Path | None:
    """The file of a built-in name, if it came with an installed package."""
    if name == builtin.DRAFT:
        return builtin.draft_path()
    return builtin.find_target() if name == builtin.TARGET else None


def _downloaded(path: Path, name: str, *, offline: bool) -> Path:
    if (known := catalogue.model(name)) is not None:
        return _cached(known.model, name, offline=offline)
    if path.is_dir():
        raise NotAModel(f"{name} is a folder.", _models_in(path))
    reference = parse(name)
    # `user/repo:FILE.gguf` ends like a file, and yet names one of a repository.
    if reference is None or (reference.select is None and _looks_like_a_path(name)):
        raise _not_found(path, name)
    return _cached(name, name, offline=offline)


def _cached(model: str, name: str, *, offline: bool) -> Path:
    reference = parse(model)
    if reference is None:
        raise ModelNotFound(f"{model} is not a repository name.", "Write user/repo:QUANT.")
    if (cached := cache.find(reference)) is not None:
        return cached.paths[0]
    if name == builtin.TARGET:
        builtin.target_path()
    if is_offline(offline):
        raise not_cached_offline(reference)
    raise NotDownloaded(str(reference), name)


def not_cached_offline(reference: Reference) -> HubError:
    """The error of an offline run that needs the network."""
    return HubError(f"Offline, and {reference} is not in the cache.", "Go online to download it.")


def _checked(target: ResolvedModel, draft: ResolvedModel, translate: bool) -> ResolvedPair:
    report = compare(target.header.vocabulary, draft.header.vocabulary)
    report.require(translate=translate)
    return ResolvedPair(target, draft, report)


def own_draft(target: str) -> str | None:
    """The draft that belongs to a name, if one does."""
    if (alias := aliases.load().get(target)) is not None:
        return alias.draft
    pair = catalogue.pairs().get(target)
    return pair.draft_name if pair else None


def _looks_like_a_path(name: str) -> bool:
    return name.lower().endswith(".gguf") or name.startswith((".", "~", os.sep))


def _not_found(path: Path, name: str) -> ModelNotFound:
    if path.is_symlink() and not path.exists():
        return ModelNotFound(f"{name} is a link to {path.readlink()}, which is not there.")
    if _looks_like_a_path(name) or path.parent != Path("."):
        return ModelNotFound(f"Model file not found: {name}.", _nearest_files(path))
    known = [known for known in (*aliases.load(), *catalogue.pairs()) if known != name]
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    suggestion = f"Did you mean {', '.join(close)}? " if close else ""
    return ModelNotFound(
        f"No model named {name!r}.",
        f"{suggestion}{_KINDS_OF_NAMES}",
    )


def _nearest_files(path: Path) -> str:
    if not path.parent.is_dir():
        return f"There is no folder {path.parent}."
    stems = sorted(file.stem for file in path.parent.glob("*.gguf") if file.is_file())
    close = get_close_matches(path.stem, stems, n=3, cutoff=0.5) or stems[:3]
    names = ", ".join(f"{stem}.gguf" for stem in close)
    return f"Nearest in that folder: {names}." if names else "That folder has no .gguf."


def _models_in(folder: Path) -> str:
    names = sorted(file.name for file in folder.glob("*.gguf") if file.is_file())[:5]
    return f"Give a file in it: {', '.join(names)}." if names else "It holds no .gguf files."


def is_offline(asked: bool) -> bool:
    """Whether to stay off the network: asked for here, or of huggingface_hub (HF_HUB_OFFLINE)."""
    from huggingface_hub import constants

    return asked or bool(constants.HF_HUB_OFFLINE)
