"""`cli("list", "--json")` runs one command line as people do: exit code, stdout and stderr."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from specllama.cli.main import run
from specllama.cli.output import out
from tests.hub.conftest import use_hub
from tests.hub.standin import StandIn, serving


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, a HF cache and a folder to work in of the test's own; no settings from outside."""
    out.configure()
    use_hub(monkeypatch, tmp_path, "http://127.0.0.1:9")
    for variable in [name for name in os.environ if name.startswith("SPECLLAMA_")]:
        monkeypatch.delenv(variable)
    for folder in ("home", "work"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("SPECLLAMA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    def invoke(*args: str, stdin: str = "") -> Result:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = run(args)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return invoke


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A stand-in for Hugging Face."""
    with serving(StandIn()) as hub:
        use_hub(monkeypatch, tmp_path, hub.url)
        yield hub
