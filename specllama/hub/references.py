"""`user/repo[:QUANT|:FILE]`, and which files of a repository one quantisation is made of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote

from specllama.errors import HubError, UsageError
from specllama.hub.gguf import shard_of

DEFAULT_QUANT = "Q4_K_M"

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REFERENCE = re.compile(
    rf"(?:hf://|https://huggingface\.co/)?(?P<repo>{_PART}/{_PART}?)"
    r"(?::(?P<select>[A-Za-z0-9._/-]+|[^:?]+\.(?i:gguf))"
    r"|/(?:blob|resolve)/[^/]+/(?P<file>[^?]+)(?:\?.*)?)?/?"
)
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])(?P<quant>(?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|F(?:P)?16|F(?:P)?32"
    r"|MXFP4(?:_MOE)?|NVFP4))(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_NOT_A_MODEL = re.compile(r"mmproj|imatrix", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reference:
    """A repository on Hugging Face, and optionally a quantisation or a file name in it."""

    repo: str
    select: str | None = None

    def __str__(self) -> str:
        return f"{self.repo}:{self.select}" if self.select else self.repo


@dataclass(frozen=True, slots=True)
class Variant:
    """One model of a repository: its quantisation ("" if unknown), all its files, their bytes."""

    quant: str
    files: tuple[str, ...]
    size: int

    @property
    def file_name(self) -> str:
        """The name of its (first) file, without the folder."""
        return PurePosixPath(self.files[0]).name


def parse(text: str) -> Reference | None:
    """A repository, with `:QUANT` or `:file.gguf`, or a huggingface.co address; else None."""
    match = _REFERENCE.fullmatch(text)
    if not match:
        return None
    file = match["file"]
    return Reference(match["repo"], match["select"] or (unquote(file) if file else None))


def variants(files: Mapping[str, int]) -> list[Variant]:
    """The GGUF models among a repository's files (name -> bytes), smallest first.

    The parts of a split model are one variant; vision projectors and importance matrices are none.
    """
    grouped: dict[str, list[str]] = {}
    for name in sorted(files):
        path = PurePosixPath(name)
        if path.suffix.lower() == ".gguf" and not _NOT_A_MODEL.search(path.name):
            shard = shard_of(path.name)
            grouped.setdefault(str(path.parent / shard[0]) if shard else name, []).append(name)
    found = (
        Variant(_quant_of(key), tuple(names), sum(files[name] for name in names))
        for key, names in grouped.items()
    )
    return sorted(found, key=lambda variant: variant.size)


def choose(found: Iterable[Variant], reference: Reference) -> Variant:
    """The variant that `reference` selects: Q4_K_M, or the only one, where it selects none.

    Raises:
        HubError: the repository holds no GGUF model.
        UsageError: no such quantisation, or several models fit; lists what there is.
    """
    found = list(found)
    if not found:
        raise HubError(
            f"{reference.repo} holds no GGUF files.", "Look for a repository named *-GGUF."
        )
    chosen = _fitting(found, reference.select or DEFAULT_QUANT)
    if reference.select is None and not chosen and len(found) == 1:
        chosen = found
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        raise UsageError(
            f"Several files of {reference.repo} fit: {', '.join(labels(chosen))}.",
            f"Name one: {reference.repo}:{labels(chosen)[0]}",
        )
    names = labels(found)
    if reference.select is None:
        raise UsageError(
            f"{reference.repo} has no {DEFAULT_QUANT}. It has: {', '.join(names)}.",
            f"Choose one: specllama download {reference.repo}:{names[0]}",
        )
    raise UsageError(f"No {reference.select} in {reference.repo}. It has: {', '.join(names)}.")


def labels(found: Sequence[Variant], taken: Container[str] = ()) -> list[str]:
    """What selects each variant alone: its quantisation, else its file name, else its path.

    Args:
        taken: quantisations that mean other models.
    """
    quants = Counter(variant.quant for variant in found)
    names = Counter(variant.file_name.lower() for variant in found)

    def label(variant: Variant) -> str:
        if variant.quant and quants[variant.quant] == 1 and variant.quant not in taken:
            return variant.quant
        is_alone = names[variant.file_name.lower()] == 1
        return variant.file_name if is_alone else variant.files[0]

    return [label(variant) for variant in found]


def fits(variant: Variant, select: str) -> bool:
    """Whether `select`, a quantisation or a file name in any case, means this variant."""
    if not select.lower().endswith(".gguf"):
        return variant.quant.lower() == select.lower()
    wanted = select.lower()
    return any(wanted in (file.lower(), PurePosixPath(file).name.lower()) for file in variant.files)


def _fitting(found: Iterable[Variant], select: str) -> list[Variant]:
    """The variants that `select` fits; a whole path wins over the names of files in folders."""
    fitting = [variant for variant in found if fits(variant, select)]
    exact = [v for v in fitting if select.lower() in map(str.lower, v.files)]
    return exact or fitting


def _quant_of(key: str) -> str:
    """The last quantisation named in a file name, else in its folder's."""
    path = PurePosixPath(key)
    for text in (path.name, path.parent.name):
        if names := [match["quant"] for match in _QUANT.finditer(text)]:
            return str(names[-1]).upper()
    return ""
