"""What people are told about the scheduler's choices."""

from __future__ import annotations

from typing import Literal

import pytest

from specllama.cli.cost_view import table_lines
from specllama.results import Forecast, SourceStats, SpecStats
from specllama.scheduling.acceptance import Step
from specllama.scheduling.explain import Explanation, explain
from specllama.scheduling.scheduler import Scheduler
from specllama.scheduling.table import CostTable

AVX2 = {1: 0.0118, 2: 0.0199, 4: 0.0313, 8: 0.0541}
"""The costs of docs/log.md: two tokens 1.68 as much as one."""


def told(
    same: dict[int, float], *, good: bool = True, free: tuple[str, ...] = (), adaptive: bool = True
) -> Explanation:
    known = Scheduler()
    known.recall(CostTable(same=same, draft={"model": {1: 0.0017, 4: 0.0066}}))
    for number in range(300):
        rank = 0 if number % 7 < 5 and good else None
        known.acceptance("model").observe([Step(rank, 1)], [], n_nodes=1)
    stats = SpecStats(rounds=20, drafted=7, tested=6, accepted=5)
    stats.by_source["model"] = SourceStats(3, 3, 3)
    stats.by_source["suffix"] = SourceStats(4, 3, 2)
    stats.forecast = Forecast(20, 25.0, 0.25, 25, 0.2475)
    return explain(known, stats, costly=["model"], free=free, temperature=0.0, adaptive=adaptive)


def test_why_it_decoded_plainly() -> None:
    text = " ".join(told(AVX2).lines)
    assert "A batch of 2 costs 1.69 single tokens here, one of 4 costs 2.65, one of" in text
    assert "costs 0.14 of a plain one" in text
    assert "drafting 1 token would give 0.9" in text
    assert "so it decoded plainly" in text


def test_why_it_drafted() -> None:
    explanation = told({1: 0.0118, 2: 0.0125, 4: 0.0135, 8: 0.016})
    assert explanation.prospects[0].pays
    assert any(line.endswith(": so it drafted.") for line in explanation.lines)


def test_fixed_lengths_were_nobodys_choice() -> None:
    text = " ".join(told(AVX2, adaptive=False).lines)
    assert "drafting 1 token would give 0.9" in text and "was fixed, whatever it brings" in text
    assert "measured 101.0 (-1%)" in text
    assert "decoded plainly" not in text and "A reply may lose" not in text


def test_what_came_of_it() -> None:
    lines = told(AVX2, free=("suffix", "text")).lines
    assert "A reply may lose 2% and 20 ms to drafting; then it goes on plainly." in lines[-1]
    assert any("suffix (2 of 4 accepted)" in line for line in lines)
    assert "In 20 rounds 7 tokens were drafted and 5 accepted: 1.25 tokens a round." in lines
    assert any("Expected 100.0 tokens/s, measured 101.0 (-1%)" in line for line in lines)


def test_nothing_to_copy() -> None:
    lines = told(AVX2, free=("text",)).lines
    assert "Nothing to copy was found by text." in lines


def test_before_anything_is_known() -> None:
    lines = explain(Scheduler(), SpecStats(), costly=[], free=[], temperature=0.0).lines
    assert len(lines) == 1
    assert "Too few tokens" in lines[0]


def test_changing_the_size_is_told() -> None:
    same = {n: 0.003 + 0.0003 * n for n in (1, 2, 4, 8)}
    known = Scheduler()
    other, second = ({n: s + extra for n, s in same.items()} for extra in (0.0018, 0.0047))
    known.recall(CostTable(same=same, other=other, second=second))
    lines = explain(known, SpecStats(rounds=1), costly=[], free=[], temperature=0.0).lines
    assert "going over to another size costs 6.5 ms" in lines[0]
    assert "No drafter was asked for, so it decoded plainly." in lines
    known.recall(CostTable(same=same))
    lines = explain(known, SpecStats(rounds=1), costly=[], free=[], temperature=0.0).lines
    assert "another size" not in lines[0]


def test_the_table_is_at_todays_pace_as_the_sentences_are() -> None:
    """A calibrated one keeps its level, whatever the machine does meanwhile."""
    known = Scheduler(kept_graphs="none")
    kept = CostTable(
        "calibrated",
        same={1: 0.023, 2: 0.025, 8: 0.04},
        draft={"model": {1: 0.0014, 4: 0.005, 8: 0.01}},
    )
    known.recall(kept)
    for _ in range(40):
        known.costs.observe_target(1, 0.015)
        known.costs.observe_target(2, 0.0163)
        known.costs.observe_draft("model", 4, 0.01)
    assert known.table().same[1] == pytest.approx(0.023, rel=0.1)
    found = explain(known, SpecStats(rounds=1), costly=["model"], free=[], temperature=0.0)
    lines = table_lines(found.table)
    assert (
        lines[1].split()[:2] == ["1", "15.00"]
        and "(A single token takes 15.0 ms.)" in found.lines[0]
    )
    assert (
        lines[2].split()[:3] == ["2", "16.30", "1.09"]
        and "A batch of 2 costs 1.09" in found.lines[0]
    )
    assert lines[3].split()[1] == "26.08"
    share = f"{found.prospects[0].token_share:.2f} of a plain one"
    assert f"(a token is {share})" in lines[4] and f"model costs {share}" in found.lines[1]


@pytest.mark.parametrize("how", ["calibrated", "learned"])
def test_what_was_only_kept_is_told_as_it_was_kept(how: Literal["calibrated", "learned"]) -> None:
    known = Scheduler()
    kept = CostTable(how, same=dict(AVX2), draft={"model": {1: 0.0017}})
    known.recall(kept)
    found = explain(known, SpecStats(rounds=1), costly=[], free=[], temperature=0.0)
    assert (found.table.same, found.table.draft) == (kept.same, kept.draft)


def test_what_changing_sizes_costs_is_at_todays_pace_too() -> None:
    same = {n: 0.003 + 0.0003 * n for n in (1, 2, 4, 8)}
    other, second = ({n: s + extra for n, s in same.items()} for extra in (0.0018, 0.0047))
    known = Scheduler()
    known.recall(CostTable("calibrated", same=same, other=other, second=second))
    for _ in range(40):
        known.costs.observe_target(1, 2 * same[1])
    found = explain(known, SpecStats(rounds=1), costly=[], free=[], temperature=0.0).table
    assert found.same == pytest.approx({n: 2 * seconds for n, seconds in same.items()})
    assert found.other[4] == pytest.approx(2 * other[4])
    assert found.second[4] == pytest.approx(2 * second[4])
