"""The report in its four forms, its verdict, and the charts."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specllama.bench import plots
from specllama.bench.report import Report
from specllama.bench.runner import Arm, Run
from specllama.errors import UsageError
from specllama.results import Forecast
from specllama.scheduling.table import CostTable
from tests.bench.fakes import DRAFTING, PLAIN, make_run, spec

KINDS = ("chat", "code")
FACTS = {"cpu": "Abacus", "load_average_before": [0.0, 0.1, 0.2]}
FAST = replace(DRAFTING, name="fast | furious", params=replace(DRAFTING.params, draft_max=4))


def runs_of(arm: Arm, seconds: Sequence[float], tokens: Sequence[int] = (1, 2, 3)) -> list[Run]:
    """A run a prompt; two tokens after the first take that long."""
    drafted = spec(2, 1, 2) if arm.drafts else spec(3, 0, 0)
    return [
        make_run(arm, f"p{n}", kind=KINDS[n % 2], blocks=[(1, 0.5), (2, 0.5 + each)],
                 tokens=tokens, stats=drafted)
        for n, each in enumerate(seconds)
    ]  # fmt: skip


def report(seconds: Sequence[float] = (0.5, 0.8) * 4, tokens: Sequence[int] = (1, 2, 3)) -> Report:
    """Plain decoding takes 1 s a prompt."""
    runs = runs_of(PLAIN, [1.0] * len(seconds)) + runs_of(FAST, seconds, tokens)
    return Report(FACTS, [PLAIN, FAST], runs)


def test_the_verdict_names_the_settings() -> None:
    (line,) = report().verdicts
    assert line.startswith("best: fast | furious (--draft-max 4): 1.58x (CI 1.")
    assert line.endswith("against plain at temperature 0")


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        ((1.2, 1.3) * 4, "drafting does not pay here: fast | furious is the fastest with 0.80x"),
        ((0.5, 2.0) * 4, "drafting makes no certain difference here: fast | furious"),
        ((0.5, 0.5), "too few prompts to tell: fast | furious is the fastest with 2.00x, against"),
    ],
)
def test_other_verdicts(seconds: Sequence[float], verdict: str) -> None:
    (line,) = report(seconds).verdicts
    assert line.startswith(verdict)


def test_the_best_of_several_is_named_and_the_draft_alone_is_no_rival() -> None:
    slow = replace(DRAFTING, name="slow")
    alone = replace(PLAIN, name="draft alone", model="draft", against="plain")
    runs = [
        *runs_of(PLAIN, [1.0] * 4),
        *runs_of(slow, [0.9] * 4),
        *runs_of(FAST, [0.7] * 4),
        *runs_of(alone, [0.1] * 4),
    ]
    (line,) = Report(FACTS, [PLAIN, slow, FAST, alone], runs).verdicts
    assert line.startswith("best: fast | furious (--draft-max 4): 1.43x")


def test_what_is_faster_for_certain_goes_before_what_seems_faster_still() -> None:
    wild = replace(DRAFTING, name="wild")
    runs = [
        *runs_of(PLAIN, [1.0] * 8),
        *runs_of(wild, [0.2, 2.0] * 4),
        *runs_of(FAST, [0.7] * 8),
    ]
    (line,) = Report(FACTS, [PLAIN, wild, FAST], runs).verdicts
    assert line.startswith("best: fast | furious (--draft-max 4): 1.43x")


def test_replies_without_a_rate_are_told() -> None:
    runs = [make_run(arm, blocks=[(3, 1.0)]) for arm in (PLAIN, FAST)]
    (line,) = Report(FACTS, [PLAIN, FAST], runs).verdicts
    assert line.startswith("nothing to compare: the replies are too short for a rate")


def test_an_arm_that_drafted_nothing_cannot_win() -> None:
    idle = replace(DRAFTING, name="idle")
    nothing = [replace(run, generation=replace(run.generation, spec=spec(3, 0, 0)))
               for run in runs_of(idle, [0.1] * 4)]  # fmt: skip
    plain = runs_of(PLAIN, [1.0] * 4)
    runs = [*plain, *nothing, *runs_of(FAST, [0.9] * 4)]
    (line,) = Report(FACTS, [PLAIN, idle, FAST], runs).verdicts
    assert line.startswith("best: fast | furious")
    (line,) = Report(FACTS, [PLAIN, idle], [*plain, *nothing]).verdicts
    assert line.startswith("drafting does not pay here: no arm drafted anything")


def test_stages_are_both_told() -> None:
    staged = replace(spec(2, 1, 2), inner=spec(9, 4, 8, source="recycle"))
    (run,) = runs_of(FAST, [1.0])
    run = replace(run, generation=replace(run.generation, spec=staged))
    text = Report(FACTS, [FAST], [run]).markdown()
    assert re.search(r"\| draft's recycle \| +8 \| +8 \| +4 \| +50% \|", text)


def test_there_is_no_verdict_without_a_comparison() -> None:
    assert Report(FACTS, [PLAIN], runs_of(PLAIN, [1.0])).verdicts == []
    assert Report(FACTS, [PLAIN, FAST], []).verdicts == []


def test_markdown_tables_are_whole() -> None:
    text = report().markdown()
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert re.search(r"^\| fast \\\| furious \| +3\.2 ± 0\.8 \| 1\.58x \(CI", text, re.M)
    assert len(tables) > 10
    for block in text.split("\n\n"):
        if block.startswith("|"):
            bars = {line.replace("\\|", "").count("|") for line in block.splitlines()}
            assert len(bars) == 1
    assert "**geometric mean**" in text and "| chat " in text and "cpu: Abacus" in text
    assert "request_output_throughput_token_per_s" in text


def test_many_arms_are_rows() -> None:
    arms = [PLAIN, *(replace(DRAFTING, name=f"arm {n}") for n in range(5))]
    runs = [run for n, arm in enumerate(arms) for run in runs_of(arm, [1 / (1 + n)] * 4)]
    text = Report(FACTS, arms, runs).markdown()
    assert re.search(r"^\| arm 1 +\| +3\.00x \| +3\.00x \| +3\.00x \|$", text, re.M)


def test_speeds_by_hand() -> None:
    plain, fast = report().summaries
    assert plain.tok_s == pytest.approx(2.0) and plain.tok_s_sd == pytest.approx(0.0)
    assert plain.speedup is None and plain.text == "free"
    assert fast.tok_s == pytest.approx((4.0 + 2.5) / 2)
    assert fast.by_kind["chat"].value == pytest.approx(2.0)
    assert fast.by_kind["code"].value == pytest.approx(1.25)
    assert fast.text == "same"
    assert fast.spec.tokens_per_round == pytest.approx(1.5)
    assert fast.per_round == pytest.approx({"p50": 0.65, "p95": 0.8})
    assert fast.stall == pytest.approx(0.8)
    assert fast.overhead_share == pytest.approx(0.1)


def test_texts_that_differ_are_listed() -> None:
    found = report(tokens=(1, 9, 3))
    assert len(found.differences) == 8
    assert found.summaries[1].text == "differs"
    assert "## Texts that part where batches round differently" in found.markdown()
    assert "## Texts that" not in report().markdown()
    exact = replace(found, facts={"settings": {"exact": True}})
    assert "## Texts that differ where they must not" in exact.markdown()


def test_csv_has_a_row_for_each_arm_and_kind() -> None:
    rows = list(csv.DictReader(io.StringIO(report().csv())))
    assert [(row["arm"], row["kind"]) for row in rows] == [
        ("plain", "all"),
        ("fast | furious", "all"),
        ("fast | furious", "chat"),
        ("fast | furious", "code"),
    ]
    assert rows[0]["speedup"] == "" and float(rows[1]["speedup"]) == pytest.approx(1.581, abs=1e-3)


def test_json_lines_are_json() -> None:
    lines = [json.loads(json.dumps(line, allow_nan=False)) for line in report().jsonl()]
    assert [line["type"] for line in lines] == ["run"] * 16 + ["report"]
    assert lines[-1]["arms"][1]["flags"] == "--draft-max 4"
    assert lines[-1]["arms"][1]["llmperf"]["ttft_s"]["p99"] == 0.5


def test_a_forbidden_token_can_be_written() -> None:
    sampling = replace(PLAIN.params.sampling, logit_bias={7: float("-inf")})
    arm = replace(PLAIN, params=replace(PLAIN.params, sampling=sampling))
    data = Report(FACTS, [arm], runs_of(arm, [1.0])).to_dict()
    assert json.dumps(data, allow_nan=False)
    assert data["arms"][0]["params"]["sampling"]["logit_bias"] == {"7": "-inf"}


def test_remarks() -> None:
    idle = [replace(run, generation=replace(run.generation, spec=spec(3, 0, 0)))
            for run in runs_of(FAST, [1.0])]  # fmt: skip
    busy = FACTS | {"load_average_before": [3.0, 1.0, 1.0]}
    found = Report(busy, [FAST], idle, notes=["Interrupted."]).remarks
    assert found[:2] == ["Interrupted.", "fast | furious drafted nothing."]
    assert "busy" in found[2] and len(found) == 3
    assert report().remarks == []


def of_lossy_rule(run: Run) -> Run:
    generation = replace(
        run.generation, verify="typical", guarantee="Not exact: changed.", lossless=False
    )
    return replace(run, generation=generation)


def test_a_rule_that_changes_texts_is_told_in_every_form() -> None:
    runs = [of_lossy_rule(run) for run in report().runs]
    found = Report(FACTS, [PLAIN, FAST], runs)
    assert found.remarks == ["fast | furious: Not exact: changed."]  # plain decoding drafts nothing
    assert [summary.text for summary in found.summaries] == ["free", "lossy"]
    assert "- fast | furious: Not exact: changed." in found.markdown()
    assert [row["text"] for row in csv.DictReader(io.StringIO(found.csv()))][1] == "lossy"
    lines = list(found.jsonl())
    assert not any(line["lossless"] for line in lines[:-1])
    assert lines[-1]["notes"] == found.remarks and lines[-1]["arms"][1]["text"] == "lossy"
    assert found.verdicts[0].startswith("best: fast | furious (not exact) (")


@pytest.mark.usefixtures("matplotlib")
def test_a_rule_that_changes_texts_is_told_in_the_charts(tmp_path: Path) -> None:
    runs = [of_lossy_rule(run) for run in report().runs]
    files = plots.save_all(Report(FACTS, [PLAIN, FAST], runs), tmp_path)
    for file in files:
        if file.suffix == ".svg":
            assert "furious (not exact)" in file.read_text(), file


def test_a_run_without_tokens_breaks_nothing() -> None:
    runs = [make_run(PLAIN, "e", blocks=[], rate=None), make_run(FAST, "e", blocks=[], rate=None)]
    empty = Report(FACTS, [PLAIN, FAST], runs)
    assert empty.summaries[1].tok_s is None
    assert "# specllama bench" in empty.markdown()
    assert json.dumps(empty.to_dict(), allow_nan=False)
    assert empty.csv().count("\n") == 3


def test_saved_files_hold_the_same(tmp_path: Path) -> None:
    files = report().save(tmp_path / "new" / "folder")
    assert [file.name for file in files] == ["report.md", "report.json", "runs.jsonl", "table.csv"]
    assert files[0].read_text() == report().markdown()
    assert json.loads(files[1].read_text())["verdict"] == report().verdicts
    assert len(files[2].read_text().splitlines()) == 17


COSTS = CostTable(same={1: 0.010, 2: 0.011, 4: 0.016, 8: 0.030})


def with_predictions() -> Report:
    """The report of a scheduler that predicted 85 % where 60 % came true, at half the speed."""
    stats = spec(2, 1, 2)
    for n in range(5):
        stats.predict(0.85, n < 3)
    stats.forecast = Forecast(5, 10.0, 2.0, 10, 1.0)
    runs = [
        replace(run, generation=replace(run.generation, spec=stats)) if run.arm.drafts else run
        for run in report().runs
    ]
    return Report(FACTS, report().arms, runs, costs=COSTS)


def test_predictions_stand_beside_what_came() -> None:
    found = with_predictions()
    text = found.markdown()
    assert "## Acceptance predicted and observed" in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert r"| fast \| furious | 25.0% | | | | | | | | | 60% of 40 | |" in rows
    assert r"| fast \| furious | 40 | 5.0 | 10.0 | -50.0% |" in rows
    assert "| 4 | 16.0 | 1.60x |" in rows
    data = found.to_dict()
    assert data["costs"]["same"] == {"1": 0.01, "2": 0.011, "4": 0.016, "8": 0.03}
    assert data["arms"][1]["calibration_error"] == pytest.approx(0.25)
    assert data["arms"][1]["forecast_error"] == pytest.approx(-0.5)


def test_without_predictions_their_sections_are_left_out() -> None:
    text = report().markdown()
    assert "predicted" not in text and "batch of the target" not in text
    assert report().to_dict()["costs"] is None


# Charts


@pytest.fixture
def matplotlib() -> None:
    pytest.importorskip("matplotlib")


@pytest.mark.usefixtures("matplotlib")
def test_every_chart_is_a_picture(tmp_path: Path) -> None:
    files = plots.save_all(with_predictions(), tmp_path)
    assert {file.name for file in files} == {
        f"{name}.{suffix}" for name in plots.CHARTS for suffix in ("png", "svg")
    }
    for file in files:
        start = file.read_bytes()[:200]
        assert start.startswith(b"\x89PNG" if file.suffix == ".png" else b"<?xml")


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize(("name", "start"), [("all.svg", b"<?xml"), ("all.png", b"\x89PNG")])
def test_the_overview_is_one_picture(tmp_path: Path, name: str, start: bytes) -> None:
    plots.overview(report(), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.usefixtures("matplotlib")
def test_a_kind_with_dollar_signs_is_no_formula(tmp_path: Path) -> None:
    runs = [replace(run, prompt=replace(run.prompt, kind=r"$\bad$")) for run in report().runs]
    found = Report(FACTS, report().arms, runs)
    assert plots.save_all(found, tmp_path)
    plots.overview(found, tmp_path / "all.svg")


@pytest.mark.usefixtures("matplotlib")
def test_many_arms_can_be_drawn(tmp_path: Path) -> None:
    arms = [PLAIN, *(replace(DRAFTING, name=f"arm {n}") for n in range(16))]
    runs = [run for arm in arms for run in runs_of(arm, [1.0, 0.9])]
    del runs[-1]  # not every arm has every kind
    assert len(plots.save_all(Report(FACTS, arms, runs), tmp_path)) == 10


@pytest.mark.usefixtures("matplotlib")
def test_another_model_has_no_place_among_speed_ups(tmp_path: Path) -> None:
    alone = replace(PLAIN, name="draft alone", model="draft", against="plain")
    runs = [run for arm in (PLAIN, FAST, alone) for run in runs_of(arm, [1.0, 0.9])]
    files = plots.save_all(Report(FACTS, [PLAIN, FAST, alone], runs), tmp_path)
    drawn = {file.stem: file.read_text() for file in files if file.suffix == ".svg"}
    assert "draft alone" in drawn["time"]
    assert "fast" in drawn["speedup"]
    assert "draft alone" not in drawn["speedup"] + drawn["kinds"]


@pytest.mark.usefixtures("matplotlib")
def test_charts_without_figures_are_left_out(tmp_path: Path) -> None:
    files = plots.save_all(Report(FACTS, [PLAIN], runs_of(PLAIN, [1.0])), tmp_path)
    assert {file.stem for file in files} == {"tokens_per_round", "time"}


@pytest.mark.usefixtures("matplotlib")
def test_an_unknown_format_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"all\.doc"):
        plots.overview(report(), tmp_path / "all.doc")
