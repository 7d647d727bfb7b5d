"""Loading llama.cpp: its log kept quiet but remembered, and a CPU that lies about AMX survived."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import platformdirs

from specllama.errors import UsageError
from specllama.machine import cpu_name
from specllama.whole_file import whole_file

_LOG_LINES = 200
_ERROR_LEVEL = 4
_PAUSE, _SOFT = "omp_pause_resource_all", 1
_GPU_TYPES = (1, 2)  # ggml-backend.h: GPU, IGPU


class GgmlInit(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_Functions = dict[str, tuple[Any, tuple[Any, ...]]]
"""Results and arguments by name."""
_DEVICES: _Functions = {
    "ggml_backend_dev_count": (_SIZE, ()),
    "ggml_backend_dev_get": (_POINTER, (_SIZE,)),
    "ggml_backend_dev_type": (_INT, (_POINTER,)),
    "ggml_backend_dev_by_name": (_POINTER, (ctypes.c_char_p,)),
    "ggml_backend_dev_name": (ctypes.c_char_p, (_POINTER,)),
    "ggml_backend_dev_description": (ctypes.c_char_p, (_POINTER,)),
}
_BASE: _Functions = {
    "ggml_version": (ctypes.c_char_p, ()),
    "ggml_op_name": (ctypes.c_char_p, (_INT,)),
    "ggml_init": (_POINTER, (GgmlInit,)),
    "ggml_free": (None, (_POINTER,)),
    "ggml_new_tensor_2d": (_POINTER, (_POINTER, _INT, ctypes.c_int64, ctypes.c_int64)),
    "ggml_scale": (_POINTER, (_POINTER, _POINTER, ctypes.c_float)),
    "ggml_new_graph": (_POINTER, (_POINTER,)),
    "ggml_build_forward_expand": (None, (_POINTER, _POINTER)),
    "ggml_backend_dev_backend_reg": (_POINTER, (_POINTER,)),
    "ggml_backend_dev_init": (_POINTER, (_POINTER, _POINTER)),
    "ggml_backend_guid": (_POINTER, (_POINTER,)),
    "ggml_backend_free": (None, (_POINTER,)),
    "ggml_backend_tensor_set": (None, (_POINTER, _POINTER, _SIZE, _SIZE)),
    "ggml_backend_tensor_get": (None, (_POINTER, _POINTER, _SIZE, _SIZE)),
    "ggml_backend_sched_new": (
        _POINTER, (_POINTER, _POINTER, _INT, _SIZE, ctypes.c_bool, ctypes.c_bool)
    ),
    "ggml_backend_sched_free": (None, (_POINTER,)),
    "ggml_backend_sched_alloc_graph": (ctypes.c_bool, (_POINTER, _POINTER)),
    "ggml_backend_sched_graph_compute": (_INT, (_POINTER, _POINTER)),
}  # fmt: skip
_log: deque[tuple[int, str]] = deque(maxlen=_LOG_LINES)
_kept: list[Any] = []  # a ctypes callback dies with its last reference


@functools.cache
def load() -> ModuleType:
    """Import llama.cpp's bindings once, with its log captured (see `recent_errors`)."""
    from llama_cpp import llama_cpp

    callback = llama_cpp.llama_log_callback(_remember)
    _kept.append(callback)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    module: ModuleType = llama_cpp
    return module


class Closed:
    """In place of llama.cpp in what was closed: a call with a freed handle would end the process.

    Raises:
        UsageError: anything of it is asked for.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError("The model was closed.", "Load it again.")


@functools.cache
def logits_address() -> Callable[[Any], int]:
    """`llama_get_logits` as a plain address; the typed pointer of the bindings takes far longer."""
    function = load()._lib["llama_get_logits"]
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
    get: Callable[[Any], int] = function
    return get


def end_team() -> None:
    """Let the threads go that libgomp keeps for the decodes of the calling thread.

    It keeps them for as long as their caller lives. Once all callers' threads are more than the
    machine's cores, it sends threads to sleep wherever they wait for each other, and every decode
    takes two to three times as long. The next decode starts new ones.
    """
    for pause in _pauses():
        pause(_SOFT)


@functools.cache
def _pauses() -> list[Callable[[int], int]]:
    """`omp_pause_resource_all` of each libgomp that is loaded (OpenMP 5.0, 3.2.44)."""
    load()
    try:
        mapped = Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:  # no Linux: llama.cpp has other threads there
        return []
    paths = {line.split(maxsplit=5)[-1] for line in mapped.splitlines() if "libgomp" in line}
    libraries = [ctypes.CDLL(path) for path in sorted(paths)]
    return [lib.omp_pause_resource_all for lib in libraries if hasattr(lib, _PAUSE)]


def _remember(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    _log.append((level, text.decode("utf-8", "replace").strip()))


def recent_errors(count: int = 3) -> list[str]:
    """llama.cpp's latest error lines, oldest first."""
    return [line for level, line in list(_log) if level == _ERROR_LEVEL and line][-count:]


def forget_log() -> None:
    """Start a fresh log, before a call whose errors are to be reported."""
    _log.clear()


def system_info() -> str:
    """llama.cpp's own line about the CPU features it was built with."""
    return str(load().llama_print_system_info().decode())


@functools.cache
def repacking_works() -> bool:
    """Whether weights may be repacked for this CPU's matrix units.

    A CPU can advertise AMX while its hypervisor keeps it disabled; llama.cpp then dies with a
    signal on its first batch. Where the build uses AMX, a child process tries it once per build and
    machine; the answer is remembered on disk.
    """
    info = system_info()
    if "AMX_INT8 = 1" not in info:
        return True
    memo = Path(platformdirs.user_cache_dir("specllama")) / "amx.json"
    key = hashlib.sha256(f"{info}{cpu_name()}".encode()).hexdigest()[:16]
    known = _read_memo(memo)
    if key not in known:
        known[key] = survives([sys.executable, "-m", "specllama.llama.probe"])
        # a disk that cannot be written costs another probe next time, nothing more
        with contextlib.suppress(OSError):
            memo.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(memo) as part:
                part.write_text(json.dumps(known))
    return bool(known[key])


def _read_memo(path: Path) -> dict[str, bool]:
    try:
        memo = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return memo if isinstance(memo, dict) else {}


def survives(command: list[str], timeout_s: float = 120.0) -> bool:
    """Run a command in a child process; False unless it ends by itself and without an error."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def devices() -> list[dict[str, str]]:
    """The compute devices llama.cpp sees: name, description."""
    ggml = _ggml()
    found = []
    for index in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(index)
        found.append(
            {
                "name": ggml.ggml_backend_dev_name(device).decode(),
                "description": ggml.ggml_backend_dev_description(device).decode(),
            }
        )
    return found


def device_handle(name: str) -> int | None:
    """llama.cpp's handle of a device by name ("CUDA0", "Metal", "CPU"), None when there is none."""
    handle: int | None = _ggml().ggml_backend_dev_by_name(name.encode())
    return handle


def gpus() -> list[str]:
    """Names of the devices that are GPUs, in llama.cpp's order."""
    ggml = _ggml()
    handles = map(ggml.ggml_backend_dev_get, range(ggml.ggml_backend_dev_count()))
    return [
        ggml.ggml_backend_dev_name(handle).decode()
        for handle in handles
        if ggml.ggml_backend_dev_type(handle) in _GPU_TYPES
    ]


def _bound(name: str, functions: _Functions) -> ctypes.CDLL:
    """A library of ggml with functions that llama-cpp-python does not bind.

    They are llama.cpp's own ggml's: `llama_cpp._ggml` ignores LLAMA_CPP_LIB_PATH, and the devices
    of another copy of ggml mean nothing to it.
    """
    bindings = load()
    from llama_cpp._ctypes_extensions import load_shared_library

    library: ctypes.CDLL = load_shared_library(name, bindings._base_path)
    for function, (result, arguments) in functions.items():
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library


@functools.cache
def _ggml() -> ctypes.CDLL:
    """ggml's device functions."""
    return _bound("ggml", _DEVICES)


@functools.cache
def ggml_base() -> Any:
    """ggml's own functions, None where this build lacks one of those used here."""
    try:
        return _bound("ggml-base", _BASE)
    except (FileNotFoundError, RuntimeError, AttributeError):
        return None


def build() -> str:
    """Versions of llama-cpp-python and of the llama.cpp in use."""
    import llama_cpp

    return f"{llama_cpp.__version__} {load().llama_version().decode()}"


def describe() -> dict[str, Any]:
    """Facts about the llama.cpp in use, for `specllama doctor`."""
    import llama_cpp

    from specllama.llama import graphs

    library = load()
    return {
        "llama_cpp_python": llama_cpp.__version__,
        "llama_cpp": library.llama_version().decode(),
        "system_info": system_info(),
        "gpu_offload": bool(library.llama_supports_gpu_offload()),
        "devices": devices(),
        "graphs": graphs.kept(),
        "repacking_works": repacking_works(),
    }
