"""The file of aliases, with several writers and with damage."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from specllama.errors import SpecllamaError, UsageError
from specllama.hub import aliases
from specllama.hub.aliases import Alias

WRITER = """
import sys, time
from specllama.hub import aliases

load = aliases.load

def slow():
    known = load()
    time.sleep(0.1)
    return known

aliases.load = slow
aliases.save(sys.argv[1], aliases.Alias("model.gguf"))
"""


def test_none_of_several_writers_is_lost() -> None:
    names = [f"a{number}" for number in range(4)]
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name]) for name in names]
    assert [writer.wait(60) for writer in writers] == [0] * len(names)
    assert aliases.load() == dict.fromkeys(names, Alias("model.gguf"))


def test_a_writer_that_hangs_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aliases.save("q", Alias("model.gguf"))
    monkeypatch.setattr(aliases, "_LOCK_S", 0.05)
    with (
        FileLock(f"{aliases.path()}.lock"),
        pytest.raises(SpecllamaError, match=r"Another process is changing .*aliases\.json"),
    ):
        aliases.remove("q")
    aliases.remove("q")
    assert aliases.load() == {}


def test_a_full_disk_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    aliases.save("q", Alias("model.gguf"))
    before = sorted(aliases.path().parent.iterdir())

    def full(self: Path, *_args: object, **_options: object) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        aliases.save("r", Alias("model.gguf"))
    assert sorted(aliases.path().parent.iterdir()) == before


@pytest.mark.parametrize(
    "entry",
    [
        {"target": 5},
        {"target": None},
        {"target": "t", "draft": ["d"]},
        {"target": "t", "draft_max": "8"},
        {"target": "t", "draft_max": True},
        {},
        "t",
    ],
)
def test_an_entry_of_another_kind(entry: object) -> None:
    aliases.path().parent.mkdir(parents=True)
    aliases.path().write_text(json.dumps({"a": entry}))
    with pytest.raises(UsageError, match=r"aliases\.json does not hold aliases"):
        aliases.load()
