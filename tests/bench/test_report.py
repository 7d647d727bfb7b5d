"""The report in its four forms, its verdict, and the charts."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specllama.bench import plots
from specllama.bench.report import Report
from specllama.bench.runner import Arm, Run
from specllama.errors import UsageError
from specllama.results import Forecast, SourceStats, SpecStats
from specllama.scheduling.table import CostTable
from tests.bench.fakes import DRAFTING, PLAIN, at_temperature, make_run, spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("chat", "code")
FACTS = {"cpu": "Abacus", "load_average_before": [0.0, 0.1, 0.2]}
FAST = replace(DRAFTING, name="fast | furious", params=replace(DRAFTING.params, draft_max=4))


def runs_of(arm: Arm, seconds: Sequence[float], tokens: Sequence[int] = (1, 2, 3)) -> list[Run]:
    """A run a prompt; two tokens after the first take that long."""
    drafted = spec(2, 1, 2) if arm.drafts else spec(3, 0, 0)
    return [
        make_run(arm, f"p{n}", kind=KINDS[n % 2], blocks=[(1, 0.5), (2, 0.5 + each)],
                 tokens=tokens, stats=drafted, rate=2 / each)
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
    runs = [make_run(arm, blocks=[(3, 1.0)], rate=None) for arm in (PLAIN, FAST)]
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
    (line,) = Report(FACTS, [PLAIN, idle], [*plain, *nothing], broke_off=True).verdicts
    assert line.startswith("too few prompts to tell: no arm drafted anything")
    (line,) = Report(FACTS, [PLAIN, idle], [*plain[:3], *nothing[:3]]).verdicts
    assert line.startswith("too few prompts to tell: no arm drafted anything")


def with_stats(runs: Sequence[Run], stats: SpecStats) -> list[Run]:
    return [replace(run, generation=replace(run.generation, spec=stats)) for run in runs]


def test_an_arm_whose_drafts_are_all_refused_cannot_win() -> None:
    """It can only be slower: where it is faster, that is chance."""
    vain = replace(DRAFTING, name="vain")
    refused = with_stats(runs_of(vain, [0.9] * 8), spec(3, 0, 5))
    plain = runs_of(PLAIN, [1.0] * 8)
    (line,) = Report(FACTS, [PLAIN, vain, FAST], [*plain, *refused, *runs_of(FAST, [0.95] * 8)]
                     ).verdicts  # fmt: skip
    assert line.startswith("best: fast | furious")
    (line,) = Report(FACTS, [PLAIN, vain], [*plain, *refused]).verdicts
    assert line.startswith("drafting does not pay here: no draft was accepted")


def test_the_best_of_many_needs_more_than_the_only_one() -> None:
    """Its interval holds for all arms together, so that the luckiest one is not called faster."""
    plain, fast = runs_of(PLAIN, [1.0] * 20), runs_of(FAST, [0.915, 1.03] * 10)
    (alone,) = Report(FACTS, [PLAIN, FAST], [*plain, *fast]).verdicts
    assert alone.startswith("best: fast | furious")
    others = [replace(DRAFTING, name=f"arm {n}") for n in range(11)]
    slow = [run for arm in others for run in runs_of(arm, [1.1] * 20)]
    (line,) = Report(FACTS, [PLAIN, FAST, *others], [*plain, *fast, *slow]).verdicts
    assert line.startswith("drafting makes no certain difference here: fast | furious")
    assert re.search(r"\(CI 0\.9\d-1\.\d\d, best of 12\)", line)


def test_stages_are_both_told() -> None:
    staged = replace(spec(2, 1, 2), inner=spec(9, 4, 8, source="recycle"))
    (run,) = runs_of(FAST, [1.0])
    run = replace(run, generation=replace(run.generation, spec=staged))
    text = Report(FACTS, [FAST], [run]).markdown()
    assert re.search(r"\| draft's recycle \| +8 \| +8 \| +4 \| +50% \|", text)


def test_there_is_no_verdict_without_a_comparison() -> None:
    assert Report(FACTS, [PLAIN, FAST], []).verdicts == []


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"draft_max": 0}, "no arm may draft (--draft-max 0)"),
        ({"drafter": "none"}, "no arm may draft (--drafter none)"),
        (None, "no arm that drafts can run with these models and settings"),  # it was left out
    ],
)
def test_why_nothing_was_compared_is_told(settings: dict[str, Any] | None, why: str) -> None:
    arms = [PLAIN]
    if settings is not None:
        arms.append(replace(DRAFTING, params=replace(DRAFTING.params, **settings)))
    runs = [run for arm in arms for run in runs_of(arm, [1.0] * 4)]
    assert Report(FACTS, arms, runs).verdicts == [f"nothing was compared: {why}"]


def test_an_interruption_before_any_draft_is_told() -> None:
    (line,) = Report(FACTS, [PLAIN, FAST], runs_of(PLAIN, [1.0])).verdicts
    assert line == "nothing was compared: no arm that drafts had its turn"


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
    assert [row["text"] for row in rows] == ["", "same", "", ""]
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


@pytest.mark.parametrize(("after", "busy"), [(2.3, []), (3.2, ["during the runs"])])
def test_more_load_than_the_runs_make_is_told(after: float, busy: list[str]) -> None:
    facts = FACTS | {"settings": {"threads": 1, "threads_batch": 2, "draft_threads": 1}}
    found = replace(report(), facts=facts | {"load_average_after": [after, 1.0, 1.0]}).remarks
    assert len(found) == len(busy) and all(part in found[0] for part in busy)


@pytest.mark.parametrize(
    ("measured_s", "rounds", "told"), [(3.5, 40, 1), (0.25, 40, 1), (2.0, 40, 0), (3.5, 5, 0)]
)
def test_forecasts_that_are_far_off_are_told(measured_s: float, rounds: int, told: int) -> None:
    stats = replace(spec(2, 1, 2), forecast=Forecast(rounds, 10.0, 1.0, 10, measured_s))
    runs = [*runs_of(PLAIN, [1.0]), *with_stats(runs_of(FAST, [0.5]), stats)]
    found = Report(FACTS, [PLAIN, FAST], runs).remarks
    assert len(found) == told and all("busy at times: do not publish" in note for note in found)


def seeded(
    arm: Arm, *, seed_given: bool = False, temperature: float = 0.8, **params: Any
) -> Report:
    """A report of one drafting arm at a temperature."""
    arm = at_temperature(replace(arm, params=replace(arm.params, **params)), temperature)
    facts = FACTS | {"settings": {"seed_given": seed_given}}
    return Report(facts, [PLAIN, arm], [*runs_of(PLAIN, [1.0]), *runs_of(arm, [0.5])])


def test_that_seeds_choose_the_rule_is_told_in_every_form_with_notes() -> None:
    found = seeded(FAST)
    (note,) = found.remarks
    assert "--verify auto is coupled here" in note and "--verify block measures" in note
    assert f"- {note}" in found.markdown() and found.warnings == []
    assert found.to_dict()["notes"] == list(found.jsonl())[-1]["notes"] == [note]
    (note,) = seeded(FAST, drafter="tree").remarks
    assert "--verify greedy-one measures" in note


@pytest.mark.parametrize(
    "other", [{"seed_given": True}, {"temperature": 0.0}, {"verify": "coupled"}]
)
def test_that_seeds_choose_the_rule_is_told_only_where_they_do(other: dict[str, Any]) -> None:
    assert seeded(FAST, **other).remarks == []


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


@pytest.mark.usefixtures("matplotlib")
def test_charts_turn_to_the_fonts_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a name of a kind is Chinese; what is not installed would only be warned of."""
    import matplotlib as mpl

    names = ["Malgun Gothic", "Courier", "DejaVu Sans", "Noto Sans CJK SC"]
    monkeypatch.setattr("matplotlib.font_manager.get_font_names", lambda: names)
    with plots._names_as_they_are():
        assert mpl.rcParams["font.family"] == ["DejaVu Sans", "Noto Sans CJK SC", "Malgun Gothic"]


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
    assert sorted(file.name for file in files) == sorted(plots.FILES)
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
    assert len(plots.save_all(Report(FACTS, arms, runs), tmp_path)) == 8


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
def test_replies_of_one_token_have_no_chart_of_times(tmp_path: Path) -> None:
    runs = [make_run(arm, blocks=[(1, 1.0)], rate=None) for arm in (PLAIN, FAST)]
    files = plots.save_all(Report(FACTS, [PLAIN, FAST], runs), tmp_path)
    assert {file.stem for file in files} == {"tokens_per_round"}


def axes_of(chart: Callable[[Axes, Report], None], found: Report) -> Axes:
    """A chart, drawn."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    chart(axes, found)
    return axes


@pytest.mark.usefixtures("matplotlib")
def test_places_with_few_tested_tokens_are_left_out_and_equal_arms_apart() -> None:
    depths = [SourceStats(20, 20, 15), SourceStats(12, 12, 6), SourceStats(3, 3, 3)]
    arms = [replace(DRAFTING, name="one"), replace(DRAFTING, name="two")]
    stats = replace(spec(9, 24, 35), by_depth=depths)
    runs = [run for arm in arms for run in with_stats(runs_of(arm, [1.0]), stats)]
    one, two = axes_of(plots.acceptance, Report(FACTS, arms, runs)).lines
    assert list(one.get_ydata()) == list(two.get_ydata()) == [0.75, 0.5]
    assert [round(x) for x in one.get_xdata()] == [round(x) for x in two.get_xdata()] == [1, 2]
    assert all(b - a > 0.1 for a, b in zip(one.get_xdata(), two.get_xdata(), strict=True))


@pytest.mark.usefixtures("matplotlib")
def test_batches_have_whole_tokens() -> None:
    few = replace(with_predictions(), costs=CostTable(same={1: 0.01, 2: 0.011, 3: 0.016}))
    assert all(tick == int(tick) for tick in axes_of(plots.costs, few).get_xticks())


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize("n_arms", [1, 8])
def test_names_of_kinds_may_be_long_or_in_any_script(tmp_path: Path, n_arms: int) -> None:
    """A warning of matplotlib's would be an error here."""
    arms = [PLAIN, *(replace(FAST, name=f"arm {n}") for n in range(n_arms))]
    runs = [
        replace(run, prompt=replace(run.prompt, kind=kind))
        for arm in arms
        for run, kind in zip(runs_of(arm, [0.5, 0.8]), ["中文问题", "long " * 40], strict=True)
    ]
    found = Report(FACTS, arms, runs)
    axes = axes_of(plots.kinds, found)
    labels = [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    assert max(map(len, labels)) < 30 and any(label.endswith("…") for label in labels)
    plots.save_all(found, tmp_path)
    plots.overview(found, tmp_path / "all.png")


@pytest.mark.usefixtures("matplotlib")
def test_charts_name_models_and_machine(tmp_path: Path) -> None:
    facts = FACTS | {
        "target": {"name": "big"}, "draft": {"name": "small"}, "date": "2026-11-29T12:00:00+00:00"
    }  # fmt: skip
    files = plots.save_all(replace(report(), facts=facts), tmp_path)
    assert all(
        "target big, draft small, Abacus, 2026-11-29" in file.read_text()
        for file in files
        if file.suffix == ".svg"
    )


@pytest.mark.usefixtures("matplotlib")
def test_long_names_of_arms_make_a_figure_wider(tmp_path: Path) -> None:
    widths = []
    for name in ("short", "a name of sixty characters that leaves little of a figure itself"):
        arm = replace(FAST, name=name)
        found = Report(FACTS, [PLAIN, arm], [*runs_of(PLAIN, [1.0]), *runs_of(arm, [0.5])])
        plots.overview(found, tmp_path / "all.png")
        data = (tmp_path / "all.png").read_bytes()
        widths.append(int.from_bytes(data[16:20], "big"))
    assert widths[0] == 1650 and widths[1] > 2500


def test_only_charts_are_removed(tmp_path: Path) -> None:
    others = [tmp_path / name for name in ("mine.png", "report.md", "time.txt")]
    for file in (*others, *(tmp_path / name for name in plots.FILES)):
        file.touch()
    plots.remove_all(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)


@pytest.mark.usefixtures("matplotlib")
def test_an_unknown_format_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"all\.doc"):
        plots.overview(report(), tmp_path / "all.doc")
