"""Fetching files of a Hugging Face repository into its cache, or into a folder.

Listing, metadata, authentication and the cache's layout are huggingface_hub's. The bytes are ours:
since huggingface_hub 2 an interrupted download starts again from nothing (its partial file has a
random name and is removed), which nobody wants for 40 GB. Here the partial file stays, and the next
call asks for the rest with a Range request.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

from specllama.errors import HubError, UsageError
from specllama.hub import cache

if TYPE_CHECKING:
    from huggingface_hub import HfFileMetadata

OnProgress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes of it that are here, and its size."""

_RETRIES = 5
_RETRY_WAIT_S = 1.0
_SHA256_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository's files at one commit.

    Attributes:
        revision: what was asked for.
        files: name -> bytes.
        etags: name -> SHA-256 of the large ones, which is also their name in the cache.
    """

    repo: str
    revision: str
    commit: str
    files: Mapping[str, int]
    etags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file to have: its bytes, how many are here already, and where it is if complete."""

    name: str
    size: int
    here: int
    path: Path | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a download will do: bytes to fetch, and bytes free in the folder they go to."""

    files: tuple[PlannedFile, ...]
    folder: Path
    free: int

    @property
    def to_fetch(self) -> int:
        """Bytes that are missing."""
        return sum(file.size - file.here for file in self.files)


def check_room(plans: Sequence[Plan]) -> None:
    """See that there is room for all of them in the folder that they go to.

    Raises:
        HubError: there is not.
    """
    needed = sum(plan.to_fetch for plan in plans)
    for plan in plans:
        if needed > plan.free:
            raise HubError(
                f"Need {_gb(needed)}, {_gb(plan.free)} free in {plan.folder}.",
                "Free some space, take a smaller quantisation, or give another --local-dir.",
            )


class Downloader:
    """Fetches from one repository.

    Args:
        repo: `user/repo`.
        revision: branch, tag or commit.
        token: for private and gated repositories; None uses $HF_TOKEN or the stored login.
        local_dir: write here instead of into the cache.
        force: fetch again what is here already.
    """

    def __init__(
        self,
        repo: str,
        *,
        revision: str = "main",
        token: str | None = None,
        local_dir: Path | None = None,
        force: bool = False,
    ) -> None:
        self.repo = repo
        self._revision = revision
        self._token = token.strip() if token else None
        self._local_dir = local_dir
        self._force = force

    def listing(self) -> Listing:
        """The repository's files.

        Raises:
            HubError: gated, not found, offline, or the network failed; says what to do.
        """
        from huggingface_hub import HfApi

        with self._errors():
            info = HfApi().model_info(
                self.repo, revision=self._revision, files_metadata=True, token=self._token
            )
        siblings = info.siblings or []
        return Listing(
            self.repo,
            self._revision,
            info.sha or self._revision,
            files={file.rfilename: file.size or 0 for file in siblings},
            etags={file.rfilename: file.lfs.sha256 for file in siblings if file.lfs},
        )

    def plan(self, listing: Listing, names: Sequence[str]) -> Plan:
        """What fetching `names` takes; changes nothing."""
        folder = self._local_dir or cache.folder()
        files = tuple(self._planned(listing, name) for name in names)
        return Plan(files, folder, shutil.disk_usage(_existing(folder)).free)

    def fetch(
        self, listing: Listing, names: Sequence[str], on_progress: OnProgress | None = None
    ) -> list[Path]:
        """The files' paths, absolute, in the order of `names`; fetches what is missing.

        Raises:
            HubError: not enough disk (before anything is fetched), or see `listing`.
            UsageError: another file of that name is in `local_dir`.
        """
        plan = self.plan(listing, names)
        self._check_replaced(plan)
        check_room([plan])
        with self._errors():
            return [
                file.path.absolute() if file.path else self._fetch(listing, file, on_progress)
                for file in plan.files
            ]

    def _check_replaced(self, plan: Plan) -> None:
        """Raise where a file of the folder would be replaced that is not the repository's."""
        for file in plan.files:
            if self._local_dir is None or self._force or file.path is not None:
                continue
            if (place := self._local_dir / file.name).exists():
                raise UsageError(
                    f"{place} is there, and it is not the file of {self.repo}.",
                    "--force replaces it; or give another --local-dir.",
                )

    def _planned(self, listing: Listing, name: str) -> PlannedFile:
        if name not in listing.files or _leads_elsewhere(name):
            raise UsageError(f"No file {name} in {self.repo}.", "`--list` shows its models.")
        size = listing.files[name]
        path = None if self._force else self._present(listing, name)
        if path is not None:
            return PlannedFile(name, size, size, path)
        return PlannedFile(name, size, min(self._begun(listing, name), size), None)

    def _present(self, listing: Listing, name: str) -> Path | None:
        """The complete file, if it is here."""
        if self._local_dir is not None:
            path = self._local_dir / name
            complete = path.is_file() and path.stat().st_size == listing.files[name]
            return path if complete else None
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.repo, name, revision=listing.commit)
        return Path(found) if isinstance(found, str) else None

    def _begun(self, listing: Listing, name: str) -> int:
        """Bytes that an interrupted download of the file left."""
        if self._force:
            return 0
        if self._local_dir is not None:
            return _size(_partial(self._local_dir / name))
        etag = listing.etags.get(name)
        return _size(_partial(self._blob(etag))) if etag else 0

    def _fetch(self, listing: Listing, file: PlannedFile, on_progress: OnProgress | None) -> Path:
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url

        url = hf_hub_url(self.repo, file.name, revision=listing.commit)
        metadata = get_hf_file_metadata(url, token=self._token)
        if file.size <= constants.MAX_HTTP_DOWNLOAD_SIZE:
            blob = self._blob(str(metadata.etag))
            target = self._local_dir / file.name if self._local_dir else blob
            self._fetch_to(target, url, metadata, file, on_progress)
            if self._local_dir:
                return target.absolute()
        path = hf_hub_download(
            self.repo,
            file.name,
            revision=listing.revision,
            token=self._token,
            local_dir=self._local_dir,
        )
        return Path(path).absolute()

    def _blob(self, etag: str) -> Path:
        """Where the cache keeps a file's bytes: hf_hub_download finds them there and links them."""
        return cache.repo_folder(self.repo) / "blobs" / etag

    def _fetch_to(
        self,
        target: Path,
        url: str,
        metadata: HfFileMetadata,
        file: PlannedFile,
        on_progress: OnProgress | None,
    ) -> None:
        from filelock import FileLock

        target.parent.mkdir(parents=True, exist_ok=True)
        partial = _partial(target)
        with FileLock(f"{partial}.lock"):
            if self._force:
                partial.unlink(missing_ok=True)
            if target.exists() and not self._force and self._local_dir is None:
                return
            resumed = partial.exists()
            self._stream(url, partial, file, on_progress)
            if resumed:
                _verify(partial, str(metadata.etag))
            partial.replace(target)
        Path(f"{partial}.lock").unlink(missing_ok=True)

    def _stream(
        self, url: str, partial: Path, file: PlannedFile, on_progress: OnProgress | None
    ) -> None:
        """Append to `partial` until it is complete; a cut connection is taken up again."""
        import httpx2

        failures = 0
        while (have := _size(partial)) != file.size or not partial.exists():
            try:
                self._request(url, partial, file, on_progress)
            except httpx2.TransportError:
                failures = 0 if _size(partial) > have else failures + 1
                if failures >= _RETRIES:
                    raise
                time.sleep(_RETRY_WAIT_S)

    def _request(
        self, url: str, partial: Path, file: PlannedFile, on_progress: OnProgress | None
    ) -> None:
        from huggingface_hub import get_session, hf_raise_for_status

        have = _size(partial)
        if have > file.size:
            partial.unlink()
            have = 0
        headers = self._headers(have)
        with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
            hf_raise_for_status(response)
            continues = response.status_code == 206
            with partial.open("ab" if continues else "wb") as stream:
                done = have if continues else 0
                for chunk in response.iter_bytes():
                    stream.write(chunk)
                    done += len(chunk)
                    if on_progress is not None:
                        on_progress(file.name, done, file.size)
        if done != file.size:
            partial.unlink()
            raise HubError(
                f"{file.name} came with {done} bytes instead of {file.size}.", "Run it again."
            )

    def _headers(self, start: int) -> dict[str, str]:
        from huggingface_hub import get_token

        headers = {"Accept-Encoding": "identity"}
        if token := self._token or get_token():
            headers["Authorization"] = f"Bearer {token}"
        if start:
            headers["Range"] = f"bytes={start}-"
        return headers

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """huggingface_hub's and the system's exceptions as ours."""
        import httpx2
        from huggingface_hub import errors

        try:
            yield
        except errors.HFValidationError as error:
            raise UsageError(f"{self.repo!r} is not a repository name.", "user/repo") from error
        except (UnicodeEncodeError, httpx2.LocalProtocolError) as error:  # a header's
            raise UsageError(
                "The Hugging Face token has characters that no token has.",
                "Correct --token or HF_TOKEN.",
            ) from error
        except (errors.HfHubHTTPError, errors.EntryNotFoundError) as error:
            raise self._hub_error(error) from error
        except errors.OfflineModeIsEnabled as error:
            raise HubError(
                f"Offline, and {self.repo} is not in the cache.",
                "Unset HF_HUB_OFFLINE to fetch it.",
            ) from error
        except httpx2.TransportError as error:
            raise HubError(
                f"Cannot reach {_host()}: {_reason(error)}.",
                "Check the connection and run it again; the download continues where it stopped.",
            ) from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise HubError(
                f"The disk is full: {self._local_dir or cache.folder()}.",
                "Free some space and run it again; the download continues where it stopped.",
            ) from error

    def _hub_error(self, error: Exception) -> HubError:
        """Order matters: gated is a kind of not found."""
        from huggingface_hub import errors

        match error:
            case errors.GatedRepoError():
                return HubError(
                    f"{self.repo} needs approval.",
                    f"Accept its terms at https://huggingface.co/{self.repo}, then: hf auth login",
                )
            case errors.RepositoryNotFoundError():
                return HubError(
                    f"{self.repo} not found, or it is private and the token cannot see it.",
                    "Check the name, or log in: hf auth login",
                )
            case errors.RevisionNotFoundError():
                return HubError(
                    f"{self.repo} has no revision {self._revision}.",
                    "Leave out --revision.",
                )
            case errors.LocalEntryNotFoundError():
                return HubError(f"{_host()} did not answer for {self.repo}.", "Try again later.")
            case errors.HfHubHTTPError():
                status = error.response.status_code
                advice = "Check the token." if status in (401, 403) else "Try again later."
                return HubError(f"{_host()} answered {status} for {self.repo}.", advice)
        return HubError(f"A file of {self.repo} is gone.", "Run it again for the new revision.")


def _leads_elsewhere(name: str) -> bool:
    """Whether a file of that name would not be in the folder it goes to, on any system."""
    path = PureWindowsPath(name)
    return ".." in path.parts or bool(path.anchor)


def _verify(path: Path, etag: str) -> None:
    """Compare with the SHA-256 that large files have for an etag; others cannot be checked.

    Raises:
        HubError: the parts do not belong together; the file is deleted.
    """
    if len(etag) != _SHA256_LENGTH:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != etag:
        path.unlink()
        raise HubError(
            f"{path.name} was damaged while it was downloaded.", "Run it again to start afresh."
        )


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.incomplete")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.3g} GB"


def _host() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT.removeprefix("https://").removeprefix("http://")


def _reason(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
