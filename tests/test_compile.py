"""scripts/compile.py: what becomes of a build with and without a compiler."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from compile import CompileHook

from specllama.sampling import few

SOURCE = Path(few.__file__).with_name("_few.c")


def build(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], list[str]]:
    """What the hook tells the build, and the modules that are there then."""
    folder = root / "specllama" / "sampling"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, folder)
    monkeypatch.chdir(root)
    told: dict[str, Any] = {"artifacts": [], "pure_python": True}
    hook = CompileHook(str(root), {}, None, None, str(root), "wheel")
    hook.initialize("standard", told)
    return told, [file.name for file in folder.glob("*.so")]


@pytest.mark.skipif(not few.is_compiled(), reason="no C compiler")
def test_a_module_and_a_wheel_of_this_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, modules = build(tmp_path, monkeypatch)
    assert modules == ["_few.abi3.so"]
    assert told == {
        "artifacts": ["/specllama/sampling/_few.abi3.so"],
        "pure_python": False,
        "infer_tag": True,
    }


def test_without_a_compiler_the_wheel_is_pure_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an earlier build left a module: its source may be another one by now."""
    stale = tmp_path / "specllama" / "sampling" / "_few.abi3.so"
    stale.parent.mkdir(parents=True)
    stale.touch()
    monkeypatch.setenv("CC", "/bin/false")
    told, modules = build(tmp_path, monkeypatch)
    assert modules == []
    assert told == {"artifacts": [], "pure_python": True}
