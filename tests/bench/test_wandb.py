"""Logging to Weights & Biases: on a stand-in, and, where it is installed, on the real package."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from specllama.bench import wandb
from specllama.errors import SpecllamaError, UsageError
from tests.bench.test_report import report

REPO = Path(__file__).parents[2]


class FakeRun:
    """Notes what is logged."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.logged: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.finished = False

    def log(self, data: dict[str, Any]) -> None:
        self.logged |= data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finished = True


def test_a_report_becomes_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[FakeRun] = []

    def init(**settings: Any) -> FakeRun:
        runs.append(FakeRun(settings))
        return runs[-1]

    stand_in = SimpleNamespace(init=init, Table=lambda columns, data: (columns, data))
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    wandb.log(report())
    (run,) = runs
    assert run.finished
    assert run.settings["project"] == "specllama-bench"
    assert run.settings["config"]["cpu"] == "Abacus"
    columns, rows = run.logged["runs"]
    assert len(rows) == 16 and all(len(row) == len(columns) for row in rows)
    assert {"arm", "prompt", "kind", "text", "tokens", "ttft_s"} <= set(columns)
    assert run.summary["fast | furious/speedup"] == pytest.approx(1.581, abs=1e-3)
    assert "plain/speedup" not in run.summary
    assert run.summary["verdict"].startswith("best: ")


def test_what_the_package_refuses_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusal(Exception):
        pass

    def init(**_settings: Any) -> FakeRun:
        raise Refusal("No API key configured.")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Error=Refusal))
    with pytest.raises(SpecllamaError, match="took no run: No API key configured") as error:
        wandb.log(report())
    assert "WANDB_MODE=offline" in error.value.hint


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="not installed") as error:
        wandb.require()
    assert error.value.hint == "Run: pip install wandb"


@pytest.mark.slow
def test_the_real_package_takes_it_offline(tmp_path: Path) -> None:
    """In a process of its own: the package starts threads and warns as it likes."""
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("wandb is not installed")
    code = (
        "from specllama.bench import wandb\n"
        "from tests.bench.test_report import report\n"
        "wandb.log(report())\n"
    )
    env = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPO, env=env, timeout=120)
    (kept,) = (tmp_path / "wandb").glob("offline-run-*")
    assert [file for file in kept.glob("*.wandb") if file.stat().st_size > 1000]
