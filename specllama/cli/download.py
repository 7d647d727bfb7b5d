"""`download`: fetch a model, or a target with its draft, from Hugging Face."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from specllama.cli.output import out, size
from specllama.errors import UsageError

if TYPE_CHECKING:
    from specllama.hub.catalogue import KnownPair
    from specllama.hub.download import Downloader, Listing, Plan
    from specllama.hub.references import Reference, Variant
    from specllama.hub.resolve import ResolvedPair


def download(
    model: Annotated[
        str, typer.Argument(help="user/repo[:QUANT], or a pair of `list --catalogue`.")
    ],
    files: Annotated[
        list[str] | None, typer.Argument(help="These files instead of one quantisation.")
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            "-md",
            "--draft",
            "--model-draft",
            "--draft-model",
            metavar="MODEL",
            help="Its draft too, and check the pair.",
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the models, fetch nothing.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be fetched, and whether it fits.")
    ] = False,
    include: Annotated[
        list[str] | None, typer.Option("--include", metavar="GLOB", help="Files to fetch.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="GLOB", help="Files to leave out.")
    ] = None,
    revision: Annotated[str, typer.Option("--revision", help="Branch, tag or commit.")] = "main",
    local_dir: Annotated[
        Path | None, typer.Option("--local-dir", help="Write here, not into the HF cache.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is here.")] = False,
    token: Annotated[
        str | None, typer.Option("--token", help="Else HF_TOKEN, else the stored login.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never go to the network.")] = False,
) -> None:
    """Fetch a model from Hugging Face.

    Without a quantisation: Q4_K_M, else a question. An interrupted download is continued by the
    same command. The paths are printed on stdout, one a line.
    """
    from specllama.cli import settings
    from specllama.hub.resolve import is_offline

    how = _How(
        files=tuple(files or ()),
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        revision=revision,
        local_dir=local_dir,
        force=force,
        token=token,
        offline=is_offline(settings.load({"offline": offline or None})["offline"]),
        dry_run=dry_run,
    )
    wanted = _wanted(model, draft)
    if list_:
        _list(_repository(wanted[0]), how)
        return
    fetched = _fetch([_prepared(wanted[0], how), *(_prepared(d, how.of_draft) for d in wanted[1:])])
    for part in fetched:
        for path in part.paths:
            out.line(str(path))
    report = None
    if len(fetched) > 1 and not dry_run:
        report = _check_pair(model, draft, fetched)
    if out.mode == "json":
        out.json({"models": [part.data for part in fetched]} | (report or {}))


@dataclass(frozen=True, slots=True)
class _How:
    """The options that say which files to fetch and how."""

    files: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    revision: str = "main"
    local_dir: Path | None = None
    force: bool = False
    token: str | None = None
    offline: bool = False
    dry_run: bool = False

    @property
    def of_draft(self) -> _How:
        """The same for a draft, which is told by its own name alone."""
        return replace(self, files=(), include=(), exclude=(), revision="main")

    @property
    def names_files(self) -> bool:
        """Whether files were chosen by name instead of a quantisation."""
        return bool(self.files or self.include or self.exclude)

    def downloader(self, repo: str) -> Downloader:
        from specllama.hub.download import Downloader

        return Downloader(
            repo,
            revision=self.revision,
            token=self.token,
            local_dir=self.local_dir,
            force=self.force,
        )


@dataclass(frozen=True, slots=True)
class _Fetched:
    """What came of a model: where it is, and what JSON says of it."""

    name: str
    paths: tuple[Path, ...]
    data: dict[str, Any]


def _wanted(model: str, draft: str | None) -> list[str]:
    """The models a command line asks for: a catalogue name means a target and its draft."""
    from specllama.hub import catalogue

    pair: KnownPair | None = catalogue.pairs().get(model)
    guess = draft or (pair.draft_name if pair else None)
    return [model, guess] if guess and guess != "none" else [model]


def _is_shipped(name: str) -> bool:
    """Whether a built-in model came with a package, so that there is nothing to fetch."""
    from specllama.hub import builtin

    find = {builtin.TARGET: builtin.find_target, builtin.DRAFT: builtin.draft_path}.get(name)
    return find is not None and find() is not None


def _repository(name: str) -> Reference:
    from specllama.hub import catalogue
    from specllama.hub.references import parse

    known = catalogue.model(name)
    reference = parse(known.model if known else name)
    if reference is None:
        raise UsageError(
            f"{name!r} is not a repository.",
            "Write user/repo[:QUANT], or a name of `specllama list --catalogue`.",
        )
    return reference


@dataclass(frozen=True, slots=True)
class _Job:
    """A model whose files are chosen and not fetched yet."""

    name: str
    downloader: Downloader
    listing: Listing
    plan: Plan
    how: _How

    @property
    def files(self) -> list[str]:
        return [file.name for file in self.plan.files]

    def run(self) -> _Fetched:
        if self.how.dry_run:
            return _planned(self.name, self.plan)
        try:
            with _Bars(self.plan) as bars:
                paths = self.downloader.fetch(self.listing, self.files, bars.update)
        except KeyboardInterrupt:
            out.status("Stopped. The same command continues the download.")
            raise
        return _done(self.name, paths)


def _prepared(name: str, how: _How) -> _Job | _Fetched:
    """What is to do for a model; already done where it is built in, or offline."""
    from specllama.hub.resolve import locate

    if _is_shipped(name):
        return _done(name, [locate(name)], shipped=True)
    reference = _repository(name)
    if how.offline:
        return _done(str(reference), _cached(reference, how))
    downloader = how.downloader(reference.repo)
    with out.spinner(f"Listing {reference.repo}"):
        listing = downloader.listing()
    plan = downloader.plan(listing, _names(listing, reference, how))
    return _Job(str(reference), downloader, listing, plan, how)


def _fetch(models: Sequence[_Job | _Fetched]) -> list[_Fetched]:
    """Fetch what is to be fetched, once it is clear that there is room and a place for each."""
    from specllama.hub.download import check_room

    jobs = [job for job in models if isinstance(job, _Job)]
    check_room([job.plan for job in jobs if not job.how.dry_run])
    files = Counter(name for job in jobs if job.how.local_dir is not None for name in job.files)
    if twice := [name for name, count in files.items() if count > 1]:
        raise UsageError(
            f"Both models have a file {twice[0]}, and one folder holds only one.",
            "Fetch them one after the other, each into a --local-dir of its own.",
        )
    return [model.run() if isinstance(model, _Job) else model for model in models]


def _cached(reference: Reference, how: _How) -> list[Path]:
    from specllama.hub import cache
    from specllama.hub.resolve import not_cached_offline

    if how.names_files or how.force or how.local_dir is not None or how.revision != "main":
        raise UsageError(
            "Offline, a model is found by its quantisation or file, in the cache and as it is.",
            f"Write {reference.repo}:QUANT or {reference.repo}:FILE.gguf and no more.",
        )
    found = cache.find(reference)
    if found is None:
        raise not_cached_offline(reference)
    return list(found.paths)


def _names(listing: Listing, reference: Reference, how: _How) -> list[str]:
    """The files to fetch: named, matched by globs, or those of one quantisation."""
    from specllama.hub.references import DEFAULT_QUANT, choose, fits, variants

    if how.names_files:
        return _matching(listing, how)
    found = variants(listing.files)
    undecided = reference.select is None and not any(fits(v, DEFAULT_QUANT) for v in found)
    if undecided and len(found) > 1 and out.interactive:
        return list(_ask_which(found, reference.repo).files)
    return list(choose(found, reference).files)


def _matching(listing: Listing, how: _How) -> list[str]:
    patterns = how.files or how.include or ("*",)
    names = [
        name
        for name in listing.files
        if any(_matches(name, pattern) for pattern in patterns)
        and not any(_matches(name, pattern) for pattern in how.exclude)
    ]
    missing = [name for name in how.files if not any(_matches(n, name) for n in listing.files)]
    if missing or not names:
        raise UsageError(
            f"No file {', '.join(missing or patterns)} in {listing.repo}.",
            f"Its models: specllama download {listing.repo} --list",
        )
    return names


def _matches(name: str, pattern: str) -> bool:
    """Whether `pattern` is the name itself, brackets and all, or a glob that fits it."""
    return name == pattern or fnmatch(name, pattern)


def _ask_which(found: Sequence[Variant], repo: str) -> Variant:
    from specllama.hub.references import labels

    out.status(f"{repo} has no Q4_K_M. Which one?")
    for number, (variant, label) in enumerate(zip(found, labels(found), strict=True), 1):
        out.status(f"{number:>3}  {label:<12} {size(variant.size):>9}")
    answer = out.ask(f"1-{len(found)}: ").strip()
    if not answer.isdecimal() or not 1 <= int(answer) <= len(found):
        raise UsageError(f"{answer!r} is not one of 1-{len(found)}.")
    return found[int(answer) - 1]


def _list(reference: Reference, how: _How) -> None:
    """The models of a repository, nothing fetched; offline those that are here."""
    found = _cached_variants(reference) if how.offline else _listed_variants(reference, how)
    rows: list[dict[str, Any]] = [
        {
            "quant": variant.quant,
            "bytes": variant.size,
            "here": is_here,
            "files": list(variant.files),
        }
        for variant, is_here in found
    ]
    out.result(rows, lambda: _print_list(rows))


def _listed_variants(reference: Reference, how: _How) -> list[tuple[Variant, bool]]:
    """The repository's models, and whether each is here."""
    from specllama.hub.references import variants

    downloader = how.downloader(reference.repo)
    listing = downloader.listing()
    return [
        (variant, all(f.path for f in downloader.plan(listing, variant.files).files))
        for variant in variants(listing.files)
    ]


def _cached_variants(reference: Reference) -> list[tuple[Variant, bool]]:
    from specllama.hub import cache
    from specllama.hub.resolve import not_cached_offline

    found = [(model.variant, True) for model in cache.models() if model.repo == reference.repo]
    if not found:
        raise not_cached_offline(reference)
    return found


def _print_list(rows: list[dict[str, Any]]) -> None:
    def line(row: dict[str, Any]) -> tuple[str, ...]:
        first, *others = row["files"]
        more = f" (+ {len(others)} more)" if others else ""
        here = "yes" if row["here"] else "no"
        return row["quant"] or "-", size(row["bytes"]), here, first + more

    out.table(["QUANT", "SIZE", "HERE", "FILE"], [line(row) for row in rows], right="SIZE")


def _planned(name: str, plan: Plan) -> _Fetched:
    fits = plan.to_fetch <= plan.free
    for file in plan.files:
        out.line(f"{file.name}  {size(file.size)}  {'here' if file.path else 'to fetch'}")
    out.status(
        f"{size(plan.to_fetch)} to fetch, {size(plan.free)} free in {plan.folder}"
        f"{'' if fits else ': it does not fit'}"
    )
    files = [{"name": f.name, "bytes": f.size, "here": f.path is not None} for f in plan.files]
    data = {"name": name, "files": files, "to_fetch": plan.to_fetch, "free": plan.free}
    return _Fetched(name, (), data | {"fits": fits})


def _done(name: str, paths: Sequence[Path], *, shipped: bool = False) -> _Fetched:
    if shipped:
        out.status(f"{name} is built in.")
    data = {
        "name": name,
        "paths": [str(path) for path in paths],
        "bytes": sum(path.stat().st_size for path in paths),
    }
    return _Fetched(name, tuple(paths), data)


def _check_pair(model: str, draft: str | None, fetched: Sequence[_Fetched]) -> dict[str, Any]:
    """Check that the two fit; offer a name for a pair that has none yet."""
    from specllama.hub.pair import check_files

    target, guess = (part.paths[0] for part in fetched[:2])
    report = check_files(target, guess).require()
    out.status("The draft can serve this target.")
    for note in report.notes:
        out.status(f"  {note}")
    if draft is not None:
        _offer_alias(fetched[0].name, fetched[1].name)
    else:
        out.hint(f"Talk with it: specllama chat -m {model}")
    return {"compatible": True, "notes": list(report.notes)}


def _offer_alias(target: str, draft: str) -> None:
    from specllama.hub import aliases

    if not out.interactive:
        out.hint(f"Name the pair: specllama alias set NAME {target} --draft {draft}")
        return
    name = out.ask("A name for this pair (empty for none): ").strip()
    if name:
        aliases.save(name, aliases.Alias(target, draft))
        out.hint(f"Talk with it: specllama chat -m {name}")


class _Bars:
    """A progress bar for each file, started where the file already is."""

    def __init__(self, plan: Plan) -> None:
        self._progress = out.progress()
        self._sizes = {file.name: file.size for file in plan.files if file.path is None}
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, name: str, done: int, total: int) -> None:
        """What `Downloader.fetch` calls."""
        if name not in self._tasks:
            label = name.rsplit("/", 1)[-1]
            self._tasks[name] = self._progress.add_task(label, total=total, completed=done)
        self._progress.update(self._tasks[name], completed=done)


def pair_or_offer(
    target: str | None,
    draft: str | None = None,
    *,
    offline: bool = False,
    translate: bool = False,
) -> ResolvedPair:
    """`resolve_pair`; on a terminal, a repository that is not here may be fetched first.

    Raises:
        SpecllamaError: see `resolve_pair`; what is missing and was not wanted stays an error.
    """
    from specllama.hub.resolve import NotDownloaded, resolve_pair

    while True:
        try:
            return resolve_pair(target, draft, offline=offline, translate=translate)
        except NotDownloaded as missing:
            question = f"{missing.message[:-1]}. Download it?"
            if not out.interactive or not out.confirm(question):
                raise
            _fetch([_prepared(name, _How(offline=offline)) for name in _wanted(missing.name, None)])
