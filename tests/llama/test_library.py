"""llama.cpp's log, and CPUs that advertise matrix units which do not work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama.llama import library
from specllama.llama.context import Context
from specllama.llama.model import Model
from tests.llama.tiny import write_mamba

pytestmark = pytest.mark.model


class TestSurvives:
    def run(self, code: str, timeout_s: float = 60.0) -> bool:
        return library.survives([sys.executable, "-c", code], timeout_s)

    def test_a_normal_end(self) -> None:
        assert self.run("pass")

    @pytest.mark.parametrize("name", ["SIGSEGV", "SIGILL", "SIGKILL"])
    def test_a_signal(self, name: str) -> None:
        assert not self.run(f"import os, signal; os.kill(os.getpid(), signal.{name})")

    def test_an_error(self) -> None:
        """A probe that could not do its work has not shown that it works."""
        assert not self.run("raise SystemExit(1)")

    def test_a_hang(self) -> None:
        assert not self.run("import time; time.sleep(60)", timeout_s=0.5)


@pytest.fixture
def amx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llama_cpp: None) -> Iterator[Path]:
    """A build that uses AMX, whose probe dies; the memo's path."""
    monkeypatch.setattr(library, "system_info", lambda: "CPU : AVX2 = 1 | AMX_INT8 = 1 |")
    monkeypatch.setattr(library, "survives", lambda command: False)
    monkeypatch.setattr(library.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    library.repacking_works.cache_clear()
    yield tmp_path / "specllama" / "amx.json"
    library.repacking_works.cache_clear()


class TestRepacking:
    def test_builds_without_amx_need_no_probe(
        self, monkeypatch: pytest.MonkeyPatch, amx: Path
    ) -> None:
        monkeypatch.setattr(library, "system_info", lambda: "CPU : AVX2 = 1 |")
        assert library.repacking_works()
        assert not amx.exists()

    def test_the_answer_is_remembered(self, monkeypatch: pytest.MonkeyPatch, amx: Path) -> None:
        assert not library.repacking_works()
        library.repacking_works.cache_clear()
        monkeypatch.setattr(library, "survives", lambda command: pytest.fail("probed again"))
        assert not library.repacking_works()
        assert list(json.loads(amx.read_text()).values()) == [False]

    def test_another_build_is_probed(self, monkeypatch: pytest.MonkeyPatch, amx: Path) -> None:
        assert not library.repacking_works()
        library.repacking_works.cache_clear()
        monkeypatch.setattr(library, "system_info", lambda: "CPU : AMX_INT8 = 1 | new = 1 |")
        monkeypatch.setattr(library, "survives", lambda command: True)
        assert library.repacking_works()

    @pytest.mark.parametrize("memo", [b"", b"{", b"[1]", b"\xff\xfe", b'{"x": "y"}'])
    def test_a_broken_memo(self, amx: Path, memo: bytes) -> None:
        amx.parent.mkdir(parents=True)
        amx.write_bytes(memo)
        assert not library.repacking_works()
        assert False in json.loads(amx.read_text()).values()

    def test_a_memo_that_cannot_be_written(self, amx: Path) -> None:
        amx.parent.parent.mkdir(exist_ok=True)
        amx.parent.write_text("a file where the folder should be")
        assert not library.repacking_works()

    def test_a_memo_that_is_a_folder(self, amx: Path) -> None:
        amx.mkdir(parents=True)
        assert not library.repacking_works()

    def test_models_are_loaded_without_it(
        self, amx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`use_extra_bufts` really is off, and the model works."""
        seen: list[bool] = []
        load = Model._load

        def spy(model: Model, params: Any) -> Any:
            seen.append(bool(params.use_extra_bufts))
            return load(model, params)

        monkeypatch.setattr(Model, "_load", spy)
        with Model(write_mamba(tmp_path / "model.gguf")) as model:
            Context(model, n_ctx=256, threads=1).close()
        assert seen == [False]


def test_the_log_is_kept_quiet(tmp_path: Path, llama_cpp: None, capfd: Any) -> None:
    path = tmp_path / "garbage.gguf"
    path.write_bytes(b"not a model" * 100)
    with pytest.raises(Exception, match="cannot load"):
        Model(path)
    assert library.recent_errors()
    library.forget_log()
    assert library.recent_errors() == []
    assert capfd.readouterr() == ("", "")


def test_describe(llama_cpp: None) -> None:
    facts = library.describe()
    assert facts["llama_cpp_python"].startswith("0.3.")
    assert facts["devices"][-1]["name"] == "CPU"
    assert isinstance(facts["repacking_works"], bool)


def test_devices_of_the_llama_cpp_that_is_used(llama_cpp: None, tmp_path: Path) -> None:
    """LLAMA_CPP_LIB_PATH puts another build in the place of the package's own."""
    from llama_cpp import llama_cpp as bindings

    for file in bindings._base_path.iterdir():
        shutil.copy2(file, tmp_path / file.name, follow_symlinks=False)
    code = """
from specllama.llama.library import devices
names = [device["name"] for device in devices()]
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libggml.so" in line}
print(names, *mapped, sep="\\n")
"""
    given = os.environ | {"LLAMA_CPP_LIB_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True)
    names, *mapped = done.stdout.splitlines()
    assert "CPU" in names
    assert mapped and all(path.startswith(str(tmp_path)) for path in mapped)
