"""Where specllama keeps its own files. Models are never among them: those stay in the HF cache."""

from __future__ import annotations

import os
from pathlib import Path

PROJECT_CONFIG = "specllama.toml"
"""Settings of the folder one works in, read from the current directory only."""


def expanded(name: str | Path) -> Path:
    """`name` with "~" as the home folder; the "~user" of nobody stays as it is."""
    path = Path(name)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def data_dir() -> Path:
    """Aliases, history, costs, past answers: $SPECLLAMA_HOME, else the user's data directory."""
    if home := os.environ.get("SPECLLAMA_HOME"):
        return expanded(home)
    import platformdirs

    return platformdirs.user_data_path("specllama")


def user_config() -> Path:
    """config.toml in $SPECLLAMA_HOME, else in the platform's user config directory."""
    if home := os.environ.get("SPECLLAMA_HOME"):
        return expanded(home) / "config.toml"
    import platformdirs

    return platformdirs.user_config_path("specllama") / "config.toml"
