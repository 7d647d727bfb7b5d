"""The Hugging Face cache on this machine: what GGUF models it holds. Never goes to the network."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.errors import HubError
from specllama.hub.gguf import shard_of
from specllama.hub.references import Reference, Variant, choose, fits, labels, variants

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRepoInfo

_OF_NO_USE_ALONE = ("readme.md", ".gitattributes")


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One model in the cache.

    Attributes:
        select: what tells it from the repository's others: a quantisation or a file.
        paths: in the order of parts.
        modified: in seconds since 1970.
    """

    repo: str
    select: str
    variant: Variant
    paths: tuple[Path, ...]
    modified: float

    @property
    def name(self) -> str:
        """What `resolve` finds it under."""
        return f"{self.repo}:{self.select}"

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return self.variant.size


def folder() -> Path:
    """Where the cache is ($HF_HUB_CACHE, $HF_HOME/hub, …)."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repo_folder(repo: str) -> Path:
    """The cache's folder of one repository; it need not exist."""
    return folder() / f"models--{repo.replace('/', '--')}"


def find(reference: Reference) -> CachedModel | None:
    """The model that `reference` means among the cached ones; None if its repository has none.

    Raises:
        UsageError: the repository is cached, but not so that exactly one model fits.
    """
    for snapshot in _snapshots(reference.repo):
        found = _whole(snapshot)
        if found and (
            reference.select is None or any(fits(variant, reference.select) for variant in found)
        ):
            chosen = choose(found, reference)
            return _cached(reference.repo, snapshot, chosen, labels(found)[found.index(chosen)])
    return None


def models() -> list[CachedModel]:
    """All GGUF models in the cache, by name.

    Raises:
        HubError: where the cache should be is a file.
    """
    found = [model for repo in _repos() for model in _models_of(repo.repo_id)]
    return sorted(found, key=lambda model: model.name.lower())


def _models_of(repo: str) -> list[CachedModel]:
    """The models of all revisions; where two have the same files, the one `find` would find."""
    found: dict[tuple[str, ...], CachedModel] = {}
    for snapshot in _snapshots(repo):
        here = _whole(snapshot)
        taken = {model.variant.quant for model in found.values()}
        for variant, label in zip(here, labels(here, taken), strict=True):
            found.setdefault(variant.files, _cached(repo, snapshot, variant, label))
    return list(found.values())


def delete(models: Iterable[CachedModel]) -> None:
    """Delete models of the cache, in every revision; files that are no GGUF are not ours."""
    for model in models:
        snapshots = repo_folder(model.repo) / "snapshots"
        names = {Path(*path.relative_to(snapshots).parts[1:]) for path in model.paths}
        for repo in _repos():
            if repo.repo_id == model.repo:
                _delete_from(repo, names)


def _delete_from(repo: CachedRepoInfo, names: set[Path]) -> None:
    gone: list[CachedFileInfo] = []
    left: list[CachedFileInfo] = []
    for revision in repo.revisions:
        for file in revision.files:
            is_gone = file.file_path.relative_to(revision.snapshot_path) in names
            (gone if is_gone else left).append(file)
    if all(file.file_path.name.lower() in _OF_NO_USE_ALONE for file in left):
        shutil.rmtree(repo.repo_path)
        return
    kept = {file.blob_path for file in left}
    for file in gone:
        file.file_path.unlink(missing_ok=True)
        if file.blob_path not in kept:
            file.blob_path.unlink(missing_ok=True)


def _repos() -> list[CachedRepoInfo]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        info = scan_cache_dir(folder())
    except CacheNotFound:
        return []
    except ValueError as error:
        raise HubError(
            f"The Hugging Face cache {folder()} is no folder.", "Correct HF_HUB_CACHE or HF_HOME."
        ) from error
    return [repo for repo in info.repos if repo.repo_type == "model"]


def _snapshots(repo: str) -> list[Path]:
    """The cached revisions of a repository: the branch main's first, then the newest."""
    base = repo_folder(repo)
    if not (base / "snapshots").is_dir():
        return []
    main = base / "refs" / "main"
    current = main.read_text().strip() if main.is_file() else ""
    return sorted(
        (base / "snapshots").iterdir(),
        key=lambda path: (path.name != current, -path.stat().st_mtime),
    )


def _whole(snapshot: Path) -> list[Variant]:
    """The models of a revision, all of whose parts are here."""
    return [variant for variant in variants(_sizes(snapshot)) if _is_whole(variant)]


def _is_whole(variant: Variant) -> bool:
    part = shard_of(variant.file_name)
    return part is None or len(variant.files) == part[2]


def _sizes(snapshot: Path) -> dict[str, int]:
    """name -> bytes; a link whose file is gone counts as absent."""
    return {
        path.relative_to(snapshot).as_posix(): path.stat().st_size
        for path in snapshot.rglob("*.gguf")
        if path.is_file()
    }


def _cached(repo: str, snapshot: Path, variant: Variant, select: str) -> CachedModel:
    paths = tuple(snapshot / file for file in variant.files)
    return CachedModel(repo, select, variant, paths, paths[0].stat().st_mtime)
