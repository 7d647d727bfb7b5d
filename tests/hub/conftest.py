"""`hub`: a stand-in for Hugging Face, and an empty cache, for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub.standin import StandIn, serving


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No alias, no token and no cache from outside."""
    use_hub(monkeypatch, tmp_path, "http://127.0.0.1:9")
    monkeypatch.setenv("SPECLLAMA_HOME", str(tmp_path / "home"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with serving(StandIn()) as hub:
        use_hub(monkeypatch, tmp_path, hub.url)
        yield hub


def use_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str) -> None:
    """Point huggingface_hub at `url` and at a cache of the test's own.

    Its constants are read from the environment once, on import, so both are set here.
    """
    from huggingface_hub import constants

    cache = tmp_path / "hf" / "hub"
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setattr("specllama.hub.download._RETRY_WAIT_S", 0.0)
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
