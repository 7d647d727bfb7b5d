"""`config`: which settings hold, and where each comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specllama.cli.common import group
from specllama.cli.output import out


def show() -> None:
    """Print every setting, its value and its source.

    Flags win over SPECLLAMA_* variables, these over ./specllama.toml, over the user's config.toml,
    over an alias, over the default.
    """
    from specllama.cli import settings

    entries = settings.load().entries
    data = {
        name: {"value": setting.value, "source": setting.source}
        for name, setting in entries.items()
    }
    out.result(
        data,
        lambda: out.table(
            ["KEY", "VALUE", "SOURCE"],
            [(name, _text(setting.value), setting.source) for name, setting in entries.items()],
        ),
    )


def path() -> None:
    """Print the user's config file; it need not exist."""
    from specllama.hub.paths import PROJECT_CONFIG, user_config

    user = user_config()
    data = {
        "user": str(user),
        "user_exists": user.is_file(),
        "project": str(Path(PROJECT_CONFIG).absolute()),
        "project_exists": Path(PROJECT_CONFIG).is_file(),
    }
    out.result(data, lambda: out.line(str(user)))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "-"
    return "-" if value is None else str(value)


app = group("Where settings come from.", show=show, path=path)
