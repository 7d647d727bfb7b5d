"""scripts/rule_table.py: what it still has to do, what its tables say and where they go."""

from __future__ import annotations

import importlib.util
import sys
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
    sys.modules[spec.name] = module  # dataclasses look their module up
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


def test_what_is_done_is_not_done_again(script: ModuleType, tmp_path: Path) -> None:
    setting = {"target": "t", "draft": "d", "tokens": 8, "gamma": 4}
    prompt, other = script.builtin()[:2]
    cell = script.Cell("rrs", "2,2,1", 0.7)
    file = tmp_path / "deeper" / "runs.jsonl"
    script.Runs(file, setting).add(prompt, cell, {"rounds": 4, "drafted": 40, "accepted": 5})
    again = script.Runs(file, setting)
    assert again.has(prompt, cell) and not again.has(other, cell)
    assert not script.Runs(file, setting | {"gamma": 5}).has(prompt, cell)
    assert again.of(cell, [other, prompt])[0]["accepted"] == 5


def test_only_prompts_with_all_cells_count(script: ModuleType, tmp_path: Path) -> None:
    runs = script.Runs(
        tmp_path / "runs.jsonl", {"target": "t", "draft": "d", "tokens": 8, "gamma": 4}
    )
    full, half = script.builtin()[:2]
    for cell in script.cells(script.rule_rows()):
        runs.add(full, cell, {"rounds": 10, "drafted": 40, "accepted": 5})
    runs.add(half, script.Cell("match", "", 0.0), {"rounds": 1, "drafted": 4, "accepted": 4})
    lines = script.report(runs, [full, half])
    assert "1 prompts of 1 kinds" in lines[0]
    rows = [line for line in lines if line.startswith("| rrs ")]
    assert rows == ["| rrs | tree 2,2,1 | 1.50 | 1.50 | 1.50 |"]
    assert lines[-1] == "Not measured yet."


@pytest.mark.parametrize("flag", ["--tokens", "--gamma", "--threads"])
@pytest.mark.parametrize("number", ["0", "-1", "x"])
def test_no_tokens_make_no_table(
    script: ModuleType,
    flag: str,
    number: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["rule_table.py", f"{flag}={number}"])
    monkeypatch.setattr(script, "SpeculativeDecoder", None)
    with pytest.raises(SystemExit):
        script.main()
    assert f"{number} is not a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("line", ['{"rule": "rr', '{"tokens": 8}'])
def test_a_file_of_something_else_is_named(script: ModuleType, tmp_path: Path, line: str) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(line)
    with pytest.raises(SpecllamaError, match=r"Cannot go on from .*runs\.jsonl"):
        script.Runs(file, {"tokens": 8})


def test_every_rule_is_in_the_table(script: ModuleType) -> None:
    assert {rule for rule, _ in script.rule_rows()} == set(script.RULES)


def test_the_standard_error_is_that_of_a_mean(script: ModuleType) -> None:
    """With equal rounds the ratio is a mean: its error is known in closed form."""
    runs = [{"rounds": 10, "accepted": accepted} for accepted in (10, 20, 30, 40)]
    assert script.standard_error(runs) == pytest.approx((5 / 3) ** 0.5 / 2)


def test_prompts_come_kind_by_kind_in_turns(script: ModuleType) -> None:
    prompts = script.by_turns(script.builtin())
    assert len(prompts) == len(script.builtin()) >= 40
    assert len({prompt.kind for prompt in prompts[:10]}) == 10
