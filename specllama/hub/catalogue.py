"""Pairs that people run, from models/catalogue.toml; one of them is built in (hub/builtin.py)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One model of a pair: `model` is a reference for `resolve`; size in GB (10^9 bytes)."""

    model: str
    file: str
    gb: float


@dataclass(frozen=True, slots=True)
class KnownPair:
    """A target and the draft for it. `verified` says how repository, file and size were checked."""

    name: str
    target: KnownModel
    draft: KnownModel
    license: str
    note: str
    verified: str

    @property
    def draft_name(self) -> str:
        """The name under which `resolve` finds the draft of this pair."""
        return f"{self.name}-draft"


@cache
def pairs() -> dict[str, KnownPair]:
    """All pairs by name, in the order of the file."""
    content = tomllib.loads((models_dir() / "catalogue.toml").read_text(encoding="utf-8"))
    return {entry["name"]: _pair(entry) for entry in content["pair"]}


def model(name: str) -> KnownModel | None:
    """The model that a catalogue name means: NAME is a pair's target, NAME-draft its draft."""
    if pair := pairs().get(name):
        return pair.target
    pair = pairs().get(name.removesuffix("-draft"))
    return pair.draft if pair and name == pair.draft_name else None


def models_dir() -> Path:
    """The folder of catalogue.toml and the built-in draft: in the package, else in the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "models"
    return installed if installed.is_dir() else package.parent / "models"


def _pair(entry: dict[str, Any]) -> KnownPair:
    return KnownPair(
        name=entry["name"],
        target=KnownModel(**entry["target"]),
        draft=KnownModel(**entry["draft"]),
        license=entry["license"],
        note=entry["note"],
        verified=entry["verified"],
    )
