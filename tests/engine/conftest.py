"""Time stands still for the engine but for a tick a look, so that its choices repeat."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specllama.engine import engine, propose
from tests.engine.clock import Clock


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """The engine's clock."""
    clock = Clock()
    for module in (engine, propose):
        monkeypatch.setattr(module, "time", clock)
    yield clock
