"""llama.cpp's own programs, built from the very sources specllama's llama.cpp was built from.

The sources are those inside llama-cpp-python's source package, and the options are
scripts/llama_build.cmake's, so two arms differ in their programs alone. Flag names are those of
that version (its common/arg.cpp).
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from setup import LLAMA, SetupError, cache_folder, digest, log_folder, processor, run

from peers.protocol import Files, Peer, PeerError, Reply, Request, Sampling

PROGRAMS = ("llama-speculative-simple", "llama-speculative", "llama-server")
OPTIONS = Path(__file__).with_name("native.cmake")
START_S = 60.0
ASK_S = 600.0


def build() -> Path:
    """Compile PROGRAMS, once on this machine; the folder they are in.

    Raises:
        SetupError: there is no cmake, or a step failed; it names the log.
    """
    home = cache_folder() / "native" / _key()
    programs = home / "build" / "bin"
    if all((programs / name).is_file() for name in PROGRAMS):
        return programs
    if shutil.which("cmake") is None:
        raise SetupError("Building llama.cpp's programs needs cmake: pip install cmake ninja")
    home.mkdir(parents=True, exist_ok=True)
    source = home / "src"
    if not source.is_dir():
        _fetch(source)
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = ["cmake", "-S", str(source), "-B", str(home / "build"), *ninja, *_definitions()]
    run("Configuring llama.cpp", configure, log_folder() / "native-configure.log")
    compile_ = ["cmake", "--build", str(home / "build"), "--parallel", "--target", *PROGRAMS]
    run("Compiling llama.cpp's programs", compile_, log_folder() / "native-build.log", _ninja())
    return programs


def _key() -> str:
    """The sources, the options and the machine."""
    own = OPTIONS.read_bytes(), OPTIONS.parent.with_name("llama_build.cmake").read_bytes()
    asked = os.environ.get("CMAKE_ARGS", "").encode()
    return f"{LLAMA.replace('==', '-')}-{digest(*own, asked, processor().encode())}"


def _definitions() -> list[str]:
    given = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    return [
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={OPTIONS}",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_APP=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        "-DLLAMA_OPENSSL=OFF",
        *given,
    ]


def _ninja() -> dict[str, str]:
    return os.environ | {"NINJA_STATUS": "[%f/%t] "}


def _fetch(source: Path) -> None:
    """llama.cpp's sources out of llama-cpp-python's source package."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
        command = [*pip, "--no-deps", "--no-binary", "llama-cpp-python", "-d", folder, LLAMA]
        run("Fetching llama.cpp's sources", command, log_folder() / "native-fetch.log")
        unpacked = Path(folder) / "unpacked"
        with tarfile.open(next(Path(folder).glob("llama_cpp_python-*.tar.gz"))) as package:
            wanted = [m for m in package.getmembers() if "/vendor/llama.cpp/" in m.name]
            package.extractall(unpacked, wanted, filter="data")
        next(unpacked.glob("*/vendor/llama.cpp")).replace(source)


def _model_flags(files: Files) -> list[str]:
    """Of the target; the draft's context takes over what is said here of attention."""
    threads = str(files.threads)
    attention = [] if files.flash_attn == "auto" else ["-fa", files.flash_attn]
    models = ["-m", str(files.target), "-c", str(files.n_ctx)]
    return [*models, "-t", threads, "-tb", threads, *attention]


def _draft_flags(files: Files, spec: Sequence[str]) -> list[str]:
    if "draft-simple" not in spec:
        return list(spec)
    if files.draft is None:
        raise PeerError("there is no draft model.")
    threads = str(files.threads)
    return ["-md", str(files.draft), "-td", threads, "-tbd", threads, *spec]


class Program(Peer):
    """llama-speculative-simple or llama-speculative: a process for each reply.

    Args:
        spec: its speculative flags.
    """

    def __init__(self, name: str, program: Path, files: Files, spec: Sequence[str]) -> None:
        self.name = name
        self._program, self._files, self._spec = program, files, spec

    def open(self) -> None:
        if not self._program.is_file():
            raise PeerError(f"{self._program} is not there.")
        _draft_flags(self._files, self._spec)

    def ask(self, request: Request) -> Reply:
        flags = [*_model_flags(self._files), *_draft_flags(self._files, self._spec)]
        sampling = _sampling_flags(request.sampling)
        prompt = ["--no-escape", "-p", request.text, "-n", str(request.n), "-s", str(request.seed)]
        told = subprocess.run(
            [self._program, *flags, *sampling, *prompt],
            capture_output=True, encoding="utf-8", errors="replace",  # cut in mid-character
            timeout=ASK_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if told.returncode != 0:
            last = (told.stderr.strip().splitlines() or ["(it said nothing)"])[-1]
            raise PeerError(f"it left with {told.returncode}: {last[:200]}")
        return read_reply(told.stdout, told.stderr, request)

    def close(self) -> None:
        pass


def _sampling_flags(sampling: Sampling) -> list[str]:
    return [
        "--samplers", "top_k;top_p;min_p;temperature",
        "--temp", str(sampling.temperature), "--top-k", str(sampling.top_k),
        "--top-p", str(sampling.top_p), "--min-p", str(sampling.min_p),
    ]  # fmt: skip


def read_reply(text: str, log: str, request: Request) -> Reply:
    """The reply out of what llama-speculative-simple prints, and its figures out of its log.

    Its decode time starts with the prompt's last token, so that all its tokens count.

    Raises:
        PeerError: it read another prompt, or printed something else.
    """
    figures = {
        "prompt": r"encoded\s+(\d+) tokens",
        "n": r"decoded\s+(\d+) tokens",
        "seconds": r"decoded\s+\d+ tokens in\s+([\d.]+)",
        "drafted": r"n_drafted\s*=\s*(\d+)",
        "accepted": r"n_accept\s*=\s*(\d+)",
    }
    found = {name: re.search(pattern, log) for name, pattern in figures.items()}
    if missing := [name for name, match in found.items() if match is None]:
        raise PeerError(f"its output lacks {', '.join(missing)}.")
    values = {name: float(match[1]) for name, match in found.items() if match is not None}
    if values["prompt"] != len(request.ids):
        raise PeerError(f"it read {values['prompt']:.0f} tokens, not {len(request.ids)}.")
    said = text.partition(request.text)[2].rstrip("\n")
    n, accepted, seconds = int(values["n"]), int(values["accepted"]), values["seconds"]
    return Reply(
        text=said,
        n=n,
        tok_s=n / seconds if seconds else None,
        rounds=n - accepted,
        drafted=int(values["drafted"]),
        accepted=accepted,
    )


class Server(Peer):
    """llama-server, over its own HTTP interface.

    Args:
        fresh: a new process for each reply: ngram-mod remembers earlier replies, and a repetition
            of one would be read off it.
    """

    def __init__(
        self, name: str, program: Path, files: Files, spec: Sequence[str], *, fresh: bool = False
    ) -> None:
        self.name = name
        self.speculates = bool(spec)
        self._program, self._files, self._spec, self._fresh = program, files, spec, fresh
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    def open(self) -> None:
        if not self._program.is_file():
            raise PeerError(f"{self._program} is not there.")
        if not self._fresh:
            self._start()

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        flags = [*_model_flags(self._files), *_draft_flags(self._files, self._spec)]
        own = ["--host", "127.0.0.1", "--port", str(port), "-np", "1", "--no-ui"]
        log = log_folder() / "llama-server.log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [self._program, *flags, *own], stdout=file, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_S
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise PeerError(f"it does not start; see {log}.")
            time.sleep(0.05)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, request: Request) -> Reply:
        if self._fresh:
            self._start()
        try:
            return self._reply(self._post(request))
        finally:
            if self._fresh:
                self.close()

    def _post(self, request: Request) -> dict[str, Any]:
        wanted = {
            "prompt": list(request.ids),
            "n_predict": request.n,
            "seed": request.seed,
            "cache_prompt": False,
            "samplers": ["top_k", "top_p", "min_p", "temperature"],
            **request.sampling.to_dict(),
        }
        post = urllib.request.Request(
            f"{self._url}/completion",
            json.dumps(wanted).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(post, timeout=ASK_S) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError) as error:
            raise PeerError(f"it does not answer: {error}.") from error

    def _reply(self, told: dict[str, Any]) -> Reply:
        """Its clock starts with the first token, which therefore does not count."""
        timings = told["timings"]
        n, seconds = int(timings["predicted_n"]), timings["predicted_ms"] / 1000
        accepted = timings.get("draft_n_accepted", 0)
        return Reply(
            text=told["content"],
            n=n,
            tok_s=(n - 1) / seconds if n > 1 and seconds > 0 else None,
            rounds=n - 1 - accepted,
            drafted=timings.get("draft_n", 0),
            accepted=accepted,
        )

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
