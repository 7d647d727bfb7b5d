"""The real downloader against a stand-in hub."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from specllama.errors import HubError, UsageError
from specllama.hub import cache
from specllama.hub.download import Downloader
from specllama.hub.references import Reference
from tests.hub.standin import COMMIT, StandIn

REPO = "user/model-GGUF"
NAME = "model-Q4_K_M.gguf"
DATA = bytes(range(256)) * 40


@pytest.fixture
def stocked(hub: StandIn) -> StandIn:
    hub.repos[REPO] = {NAME: DATA, "README.md": b"read me"}
    return hub


def fetch(downloader: Downloader | None = None, **options: object) -> Path:
    downloader = downloader or Downloader(REPO, **options)  # type: ignore[arg-type]
    (path,) = downloader.fetch(downloader.listing(), [NAME])
    return path


def test_lists_files_with_sizes(stocked: StandIn) -> None:
    listing = Downloader(REPO).listing()

    assert listing.files == {NAME: len(DATA), "README.md": 7}
    assert listing.commit == COMMIT


def test_puts_the_file_where_the_cache_of_hugging_face_finds_it(stocked: StandIn) -> None:
    from huggingface_hub import hf_hub_download

    path = fetch()

    assert path.read_bytes() == DATA
    assert path.is_absolute()
    assert hf_hub_download(REPO, NAME, local_files_only=True) == str(path)
    found = cache.find(Reference(REPO))
    assert found is not None
    assert found.paths == (path,)


def test_fetches_nothing_that_is_here(stocked: StandIn) -> None:
    first = fetch()
    assert fetch() == first
    assert stocked.downloads() == 1


def test_force_fetches_again(stocked: StandIn) -> None:
    fetch()
    stocked.repos[REPO][NAME] = DATA
    fetch(force=True)
    assert stocked.downloads() == 2


def test_takes_up_a_cut_connection_where_it_broke(stocked: StandIn) -> None:
    stocked.cuts = 1

    assert fetch().read_bytes() == DATA
    assert stocked.ranges == [None, "bytes=1000-"]


def test_a_later_run_continues_an_interrupted_one(
    stocked: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specllama.hub.download._RETRIES", 0)
    stocked.cuts = 1
    with pytest.raises(HubError, match="continues where it stopped"):
        fetch()

    assert fetch().read_bytes() == DATA
    assert stocked.ranges == [None, "bytes=1000-"]


def test_starts_again_where_the_server_ignores_ranges(stocked: StandIn) -> None:
    stocked.cuts = 1
    stocked.ignores_range = True

    assert fetch().read_bytes() == DATA


def test_a_resumed_file_with_foreign_bytes_is_refused(
    stocked: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specllama.hub.download._RETRIES", 0)
    stocked.cuts = 1
    with pytest.raises(HubError):
        fetch()
    (partial,) = cache.folder().rglob("*.incomplete")
    partial.write_bytes(b"x" * 1000)

    with pytest.raises(HubError, match="damaged"):
        fetch()
    assert fetch().read_bytes() == DATA


def test_gives_up_after_several_fruitless_tries(stocked: StandIn) -> None:
    stocked.cuts, stocked.cut_after = 100, 0

    with pytest.raises(HubError, match="Cannot reach"):
        fetch()
    assert stocked.downloads() == 5


def test_local_dir_gets_the_file_itself(stocked: StandIn, tmp_path: Path) -> None:
    path = fetch(local_dir=tmp_path / "models")

    assert path == tmp_path / "models" / NAME
    assert path.read_bytes() == DATA
    assert [file.name for file in path.parent.iterdir()] == [NAME]
    assert not cache.folder().exists()


def test_progress_counts_the_bytes_that_are_here(stocked: StandIn) -> None:
    seen: list[tuple[str, int, int]] = []
    downloader = Downloader(REPO)
    downloader.fetch(downloader.listing(), [NAME], lambda *step: seen.append(step))

    assert seen[-1] == (NAME, len(DATA), len(DATA))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_full_disk_is_told_before_anything_is_fetched(
    stocked: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))

    with pytest.raises(HubError, match=r"Need 1\.02e-05 GB, 1e-06 GB free in /"):
        fetch()
    assert stocked.downloads() == 0


@pytest.mark.parametrize("into", ["cache", "local_dir"])
def test_what_an_interrupted_download_left_needs_no_more_room(
    stocked: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, into: str
) -> None:
    local_dir = tmp_path / "models" if into == "local_dir" else None
    monkeypatch.setattr("specllama.hub.download._RETRIES", 0)
    stocked.cuts = 1
    with pytest.raises(HubError):
        fetch(local_dir=local_dir)
    rest = len(DATA) - stocked.cut_after

    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=rest - 1))
    with pytest.raises(HubError, match="Need "):
        fetch(local_dir=local_dir)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=rest))
    assert fetch(local_dir=local_dir).read_bytes() == DATA


def test_gated(stocked: StandIn) -> None:
    stocked.gated.add(REPO)

    with pytest.raises(HubError) as caught:
        fetch()
    assert str(caught.value) == (
        f"{REPO} needs approval. Accept its terms at https://huggingface.co/{REPO}, "
        "then: hf auth login"
    )


def test_not_found_or_private(stocked: StandIn) -> None:
    with pytest.raises(HubError, match=r"^user/other not found, or it is private and the token"):
        Downloader("user/other").listing()


def test_a_token_opens_what_is_private(stocked: StandIn) -> None:
    stocked.private.add(REPO)

    assert fetch(token=stocked.token).read_bytes() == DATA


def test_the_environment_token_is_used(stocked: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    stocked.private.add(REPO)
    monkeypatch.setenv("HF_TOKEN", stocked.token)

    assert fetch().read_bytes() == DATA


def test_no_such_revision(stocked: StandIn) -> None:
    with pytest.raises(HubError, match=f"{REPO} has no revision v9"):
        Downloader(REPO, revision="v9").listing()


def test_no_such_file(stocked: StandIn) -> None:
    downloader = Downloader(REPO)
    with pytest.raises(UsageError, match=r"No file other\.gguf in user/model-GGUF"):
        downloader.fetch(downloader.listing(), ["other.gguf"])


@pytest.mark.parametrize(
    "name", ["../evil.gguf", "{tmp}/evil.gguf", "..\\evil.gguf", "C:evil.gguf", "\\evil.gguf"]
)
def test_a_file_name_cannot_leave_the_folder(stocked: StandIn, tmp_path: Path, name: str) -> None:
    name = name.format(tmp=tmp_path)
    stocked.repos[REPO][name] = DATA
    downloader = Downloader(REPO, local_dir=tmp_path / "models")
    with pytest.raises(UsageError, match="No file"):
        downloader.fetch(downloader.listing(), [name])
    assert not (tmp_path / "evil.gguf").exists()
    assert stocked.downloads() == 0


def test_a_server_that_is_down(stocked: StandIn) -> None:
    stocked.broken = True
    with pytest.raises(HubError, match=f"answered 503 for {REPO}"):
        fetch()


def test_no_network() -> None:
    with pytest.raises(HubError, match=r"Cannot reach 127\.0\.0\.1:9") as caught:
        Downloader(REPO).listing()
    assert isinstance(caught.value.__cause__, httpx2.TransportError)


def test_offline(stocked: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match=f"Offline, and {REPO} is not in the cache"):
        fetch()


def test_a_name_that_is_no_repository() -> None:
    with pytest.raises(UsageError, match="is not a repository name"):
        Downloader("a//b").listing()
