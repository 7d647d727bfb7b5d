"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.whole_file import whole_file


@pytest.mark.parametrize("before", [None, "old"])
def test_a_file_takes_its_place(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "a.json"
    if before is not None:
        path.write_text(before)
    with whole_file(path) as part:
        part.write_text("new")
        assert (path.read_text() if path.exists() else None) == before
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_breaks_off_leaves_the_old_one(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(error), whole_file(path) as part:
        part.write_text("ne")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    """The error is that of the writing."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError), whole_file(tmp_path / "file" / "a") as part:
        part.write_text("new")
