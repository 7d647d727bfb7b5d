"""scripts/rule_table.py: where its table goes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from specllama.errors import SpecllamaError

SCRIPT = Path(__file__).parents[2] / "scripts" / "rule_table.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rule_table", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_takes_the_place_of_the_last_one(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Before\n{script.BEGIN}\nold\n{script.END}\nAfter\n", encoding="utf-8")
    for lines in (["| a |"], ["| b |", "| c |"]):
        script.write(page, lines)
    assert page.read_text() == f"Before\n{script.BEGIN}\n| b |\n| c |\n{script.END}\nAfter\n"


@pytest.mark.parametrize("text", ["", "no markers", "{begin} only", "{end} {begin}"])
def test_a_page_without_its_markers_stays_as_it_is(
    script: ModuleType, tmp_path: Path, text: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text.format(begin=script.BEGIN, end=script.END), encoding="utf-8")
    before = page.read_text()
    with pytest.raises(SpecllamaError, match="lacks the markers"):
        script.write(page, ["| a |"])
    assert page.read_text() == before
