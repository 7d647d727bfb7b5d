"""`specllama bench`: whole command lines on a decoder that follows a script, and on real models."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specllama.cli import bench as bench_command
from specllama.cli import bench_work, model_flags
from tests.bench.fakes import BenchDecoder
from tests.cli.fakes import Reply, Result, run_with, say

Bench = Callable[..., Result]

PROMPTS = "\n".join(
    json.dumps({"id": f"p{n}", "kind": kind, "prompt": f"Say {n}."})
    for n, kind in enumerate(["chat", "chat", "list", "list", "list"])
)
SLOW = Reply(delay=0.004, tok_s=40.0)
QUICK = Reply(tokens=SLOW.tokens, drafted=frozenset({1, 2}), delay=0.001, tok_s=80.0)


@pytest.fixture
def decoder() -> BenchDecoder:
    return BenchDecoder(plain=SLOW, drafting=QUICK)


@pytest.fixture
def alone() -> BenchDecoder:
    return BenchDecoder(target_name="fake-draft", draft_name=None)


@pytest.fixture
def bench(
    monkeypatch: pytest.MonkeyPatch, decoder: BenchDecoder, alone: BenchDecoder, tmp_path: Path
) -> Bench:
    facts = {"cpu": "Abacus", "target": {"name": "fake-135m", "sha256": "c0ffee"}}
    monkeypatch.setattr(bench_work, "surroundings", lambda *_: dict(facts))
    monkeypatch.setattr(bench_work, "draft_alone", lambda *_: alone)
    monkeypatch.setattr(bench_work, "give_ngrams", lambda *_: "few answers")
    monkeypatch.setattr("psutil.getloadavg", lambda: (0.0, 0.0, 0.0))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(PROMPTS)

    def invoke(*args: str, own: bool = True, **where: Any) -> Result:
        given = ("--prompts", str(prompts)) if own else ()
        return run_with(monkeypatch, decoder, "bench", *given, *args, **where)

    return invoke


def test_the_report_goes_to_stdout_and_ends_with_the_verdict(bench: Bench) -> None:
    result = bench()
    assert result.code == 0 and result.err.count("\n") == 1
    assert result.err.startswith("All arms get the same seeds, so --verify auto is coupled here")
    assert result.out.startswith("# specllama bench\n")
    last = result.out.splitlines()[-1]
    assert last.startswith("best: drafting (default settings): ")
    assert last.endswith("against plain at temperature 0.8")


def test_each_arm_runs_on_each_prompt_after_a_warm_up(bench: Bench, decoder: BenchDecoder) -> None:
    bench("-r", "3")
    assert len(decoder.chats) == 2 + 5 * 2 * 3
    assert decoder.log.count("plain") == decoder.log.count("drafting")
    assert decoder.closed


def test_the_builtin_prompts_are_the_default(bench: Bench, decoder: BenchDecoder) -> None:
    decoder.plain = decoder.drafting = Reply(tokens=("a", "b"))
    assert bench("--kinds", "maths,list", "-r", "1", own=False).code == 0
    asked = {chat[-1][1] for chat, _ in decoder.chats}
    assert len(asked) == 9 and any("multiplication table of 7" in text for text in asked)


def test_tokens_seed_and_other_settings_reach_every_run(
    bench: Bench, decoder: BenchDecoder
) -> None:
    bench("-n", "3", "-s", "40", "--top-k", "7", "-sys", "Be brief.", "-r", "1")
    assert {params.max_tokens for _, params in decoder.chats} == {3}
    assert {params.seed for _, params in decoder.chats} == {40, 41, 42, 43, 44}
    assert {params.sampling.top_k for _, params in decoder.chats} == {7}
    assert all(chat[0] == ("system", "Be brief.") for chat, _ in decoder.chats)


def test_runs_have_a_length_and_a_seed_where_nobody_says(
    bench: Bench, decoder: BenchDecoder
) -> None:
    bench("-r", "1")
    assert {params.max_tokens for _, params in decoder.chats} == {bench_work.MAX_TOKENS}
    assert all(params.seed is not None for _, params in decoder.chats)


def test_without_a_limit_replies_go_on_until_their_end(bench: Bench, decoder: BenchDecoder) -> None:
    result = bench("-n", "-1", "-r", "1", "-o", "json")
    assert {params.max_tokens for _, params in decoder.chats} == {None}
    assert json.loads(result.out)["facts"]["settings"]["max_tokens"] == -1


def test_threads_and_sampling_are_told_whoever_chose_them(bench: Bench) -> None:
    settings = json.loads(bench("-r", "1", "-o", "json").out)["facts"]["settings"]
    assert settings["threads"] == settings["threads_batch"] == settings["draft_threads"] > 0
    assert (settings["top_k"], settings["top_p"], settings["min_p"]) == (40, 0.95, 0.05)
    assert settings["seed_given"] is False and "repeat_penalty" not in settings
    out = bench("-r", "1", "-t", "3", "-td", "1", "--top-k", "7", "--repeat-penalty", "1.1").out
    for told in ("threads 3", "threads batch 3", "draft threads 1", "top k 7", "min p 0.05",
                 "repeat penalty 1.1"):  # fmt: skip
        assert f", {told}, " in out


def test_lists_are_swept(bench: Bench) -> None:
    result = bench("--draft-max", "2,4", "--temp", "0,0.8", "--json", "-r", "1")
    arms = {arm["arm"]: arm for arm in json.loads(result.out)["arms"]}
    assert list(arms) == [
        f"{name}, temp {temp}"
        for temp in ("0", "0.8")
        for name in ("plain", "draft-max 2", "draft-max 4")
    ]
    assert arms["draft-max 4, temp 0"]["params"]["draft_max"] == 4
    assert arms["draft-max 4, temp 0"]["params"]["sampling"]["temperature"] == 0


def test_shapes_of_trees_are_swept(bench: Bench) -> None:
    result = bench("--tree", "value", "--tree", "2,2,1", "-o", "csv")
    arms = [row["arm"] for row in csv.DictReader(io.StringIO(result.out)) if row["kind"] == "all"]
    assert arms == ["plain", "drafter tree, tree value", "drafter tree, tree 2,2,1"]


def test_what_decodes_cost_is_told(bench: Bench, decoder: BenchDecoder) -> None:
    decoder.costs.same.update({1: 0.01, 2: 0.0125})
    rows = [" ".join(line.split()) for line in bench().out.splitlines()]
    assert "| 2 | 12.5 | 1.25x |" in rows


def test_its_own_loading_does_not_count_as_load(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hash_for_minutes(*_: object) -> dict[str, Any]:
        monkeypatch.setattr("psutil.getloadavg", lambda: (1.0, 0.2, 0.1))
        return {}

    monkeypatch.setattr(bench_work, "surroundings", hash_for_minutes)
    result = bench("-r", "1", "-o", "json")
    found = json.loads(result.out)["facts"]
    assert (found["load_average_before"][0], found["load_average_after"][0]) == (0.0, 1.0)
    assert "busy" not in result.err


def test_drafters_and_rules_are_swept(bench: Bench) -> None:
    result = bench("--drafter", "model,suffix+model", "--verify", "block", "--json", "-r", "1")
    names = [arm["arm"] for arm in json.loads(result.out)["arms"]]
    assert names == ["plain", "verify block, drafter model", "verify block, drafter suffix+model"]


@pytest.mark.parametrize("flags", [("-o", "json"), ("--json",)])
def test_json_has_everything(bench: Bench, flags: tuple[str, ...]) -> None:
    data = json.loads(bench(*flags).out)
    assert data["facts"]["cpu"] == "Abacus"
    assert data["facts"]["settings"]["repetitions"] == 2
    assert data["facts"]["load_average_before"] == data["facts"]["load_average_after"] == [0, 0, 0]
    assert data["verdict"][0].startswith("best: ")
    assert len(data["runs"]) == 20 and data["differences"] == []


def test_json_lines_and_csv(bench: Bench) -> None:
    lines = [json.loads(line) for line in bench("-o", "jsonl", "-r", "1").out.splitlines()]
    assert [line["type"] for line in lines] == ["run"] * 10 + ["report"]
    rows = list(csv.DictReader(io.StringIO(bench("-o", "csv", "-r", "1").out)))
    assert [(row["arm"], row["kind"]) for row in rows] == [
        ("plain", "all"), ("drafting", "all"), ("drafting", "chat"), ("drafting", "list")
    ]  # fmt: skip


def test_files_and_charts(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder, chart = tmp_path / "new" / "results", tmp_path / "all.png"
    result = bench("--out", str(folder), "--plot", str(chart), "-r", "3")
    assert result.code == 0 and chart.read_bytes().startswith(b"\x89PNG")
    assert (folder / "report.md").read_text() + "\n" == result.out.rpartition("best: ")[0]
    assert {file.name for file in folder.iterdir()} >= {
        "report.json", "runs.jsonl", "table.csv", "speedup.png", "speedup.svg", "time.png"
    }  # fmt: skip
    assert f"wrote {folder / 'runs.jsonl'}\n" in result.err
    assert (folder / "acceptance.png").is_file()


def test_charts_of_an_earlier_run_do_not_stay(
    bench: Bench, decoder: BenchDecoder, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    bench("--out", str(tmp_path), "-r", "3")
    (tmp_path / "mine.png").touch()
    assert (tmp_path / "acceptance.png").is_file()
    decoder.drafting = say("no drafts at all")
    bench("--out", str(tmp_path), "-r", "3")
    assert not {"acceptance.png", "acceptance.svg"} & {file.name for file in tmp_path.iterdir()}
    assert (tmp_path / "speedup.png").is_file() and (tmp_path / "mine.png").is_file()


def test_without_matplotlib_the_folder_has_no_charts(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = bench("--out", str(tmp_path / "results"), "-r", "1")
    assert result.code == 0 and "pip install 'specllama[plot]'" in result.err
    assert (tmp_path / "results" / "report.md").is_file()


@pytest.mark.parametrize(
    ("flags", "missing"), [(("--plot", "a.png"), "matplotlib"), (("--wandb",), "wandb")]
)
def test_a_missing_package_is_told_before_measuring(
    bench: Bench, decoder: BenchDecoder, monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...], missing: str,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, missing, None)
    result = bench(*flags)
    assert result.code == 2 and f"{missing}" in result.err and "pip install" in result.err
    assert decoder.chats == []


def test_the_store_of_answers_is_off(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run of a prompt would draft from the answer of the first."""
    resolve, opened = model_flags.resolve, []

    def with_store(flags: Any) -> Any:
        run = resolve(flags)
        return replace(run, options=replace(run.options, store=True))

    def surroundings(run: Any, _decoder: object) -> dict[str, Any]:
        opened.append(run.options.store)
        return {}

    monkeypatch.setattr(model_flags, "resolve", with_store)
    monkeypatch.setattr(bench_work, "surroundings", surroundings)
    result = bench("-r", "1")
    assert result.code == 0 and "The store stays off" in result.err
    assert opened == [False]


def test_the_report_is_printed_even_where_it_cannot_be_written(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "report.md")

    monkeypatch.setattr("specllama.bench.report.Report.save", full)
    result = bench("--out", str(tmp_path / "results"), "-r", "1")
    assert result.code == 1 and "report.md" in result.err
    assert result.out.splitlines()[-1].startswith("best: ")
    result = bench("--json", "--out", str(tmp_path / "results"), "-r", "1")
    assert result.code == 1 and "report.md" in result.err
    assert json.loads(result.out)["runs"], "one document, whatever fails behind it"


def test_the_report_is_written_even_where_it_cannot_be_printed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench_command, "_print", full)
    result = bench("--out", str(tmp_path / "results"), "-r", "1")
    assert result.code == 1 and "Error: No space left on device." in result.err
    assert len((tmp_path / "results" / "runs.jsonl").read_text().splitlines()) == 11


# Texts


@pytest.mark.parametrize("flags", [("--temp", "0"), ("--verify", "coupled")])
def test_a_difference_is_told_and_strict_fails(
    bench: Bench, decoder: BenchDecoder, flags: tuple[str, ...]
) -> None:
    decoder.drafting = Reply(tokens=("Hello", ","), drafted=frozenset({1}))
    result = bench("-r", "1", *flags)
    assert result.code == 0
    assert "5 texts differ from plain decoding's, first " in result.err
    assert "--exact avoids it" in result.err
    assert " on p0 at token 3" in result.err
    assert bench("-r", "1", "--strict", *flags).code == 1


def test_in_exact_mode_no_text_may_differ(bench: Bench, decoder: BenchDecoder) -> None:
    decoder.drafting = Reply(tokens=("Hello", ","), drafted=frozenset({1}))
    result = bench("-r", "1", "--temp", "0", "--exact")
    assert "5 texts differ where that must not be, first " in result.err


def test_strict_is_content_with_equal_texts(bench: Bench) -> None:
    assert bench("-r", "1", "--strict", "--temp", "0").code == 0


def test_strict_asks_nothing_of_rules_that_promise_only_a_law(
    bench: Bench, decoder: BenchDecoder
) -> None:
    decoder.drafting = Reply(tokens=("Hello", ","), drafted=frozenset({1}))
    assert bench("-r", "1", "--strict", "--temp", "0.8", "--verify", "block").code == 0


# Suites


def test_the_seeds_suite(bench: Bench, decoder: BenchDecoder, alone: BenchDecoder) -> None:
    result = bench("--suite", "seeds", "-r", "1", "-o", "json")
    names = [arm["arm"] for arm in json.loads(result.out)["arms"]]
    assert names[:2] == ["plain", "draft alone"] and names[-1] == "specllama"
    assert "n-gram" in names and "n-gram, then draft" in names
    assert len(alone.chats) == 6 and alone.closed and decoder.closed
    assert json.loads(result.out)["facts"]["settings"]["ngram"] == "few answers"


def test_arms_unknown_here_are_left_out_with_a_sentence(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specllama.bench import suites

    rows = (suites.Row("dreams", {"drafter": "oracle"}), suites.Row("own"))
    monkeypatch.setattr(suites, "SUITES", {"seeds": rows})
    result = bench("--suite", "seeds", "-r", "1", "-o", "json")
    assert result.err.startswith("Warning: dreams is left out: Unknown drafter 'oracle'.")
    assert [arm["arm"] for arm in json.loads(result.out)["arms"]] == ["plain", "own"]


def test_without_a_draft_model_the_suite_goes_on(bench: Bench, decoder: BenchDecoder) -> None:
    decoder.draft_name = None
    result = bench("--suite", "seeds", "-r", "1", "-o", "json")
    assert result.code == 0
    assert "draft alone is left out: there is no draft model" in result.err


# Ctrl-C


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_measured(bench: Bench, decoder: BenchDecoder, number: int) -> None:
    """So does the end of a time limit."""
    decoder.drafting = replace(decoder.drafting, number=number)
    decoder.plain = replace(decoder.plain, number=number)
    decoder.interrupt_at = 2 + 13
    before = signal.getsignal(number)
    result = bench("-o", "json")
    assert (result.code, signal.getsignal(number)) == (130, before)
    assert "Interrupted after 12 of 20 runs." in result.err
    assert len(json.loads(result.out)["runs"]) == 12
    assert decoder.closed


def test_ctrl_c_before_the_first_run_prints_no_report(bench: Bench, decoder: BenchDecoder) -> None:
    decoder.interrupt_at = 1
    result = bench()
    assert (result.code, result.out) == (130, "")
    assert "Interrupted after 0 of 20 runs." in result.err


def test_ctrl_c_while_a_prompt_is_read(bench: Bench, decoder: BenchDecoder) -> None:
    decoder.plain = Reply(interrupt_prompt=True)
    assert bench().code == 130


def test_a_second_ctrl_c_loses_nothing(
    bench: Bench, decoder: BenchDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while decoders are closed, and another one while the report is printed."""
    decoder.interrupt_at = 2 + 13
    close, prints = decoder.close, bench_command._print

    def close_slowly() -> None:
        signal.raise_signal(signal.SIGINT)
        close()

    def print_slowly(*given: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        prints(*given)

    monkeypatch.setattr(decoder, "close", close_slowly)
    monkeypatch.setattr(bench_command, "_print", print_slowly)
    before = signal.getsignal(signal.SIGINT)
    result = bench("-o", "json")
    assert result.code == 130 and len(json.loads(result.out)["runs"]) == 12
    assert "Interrupted after 12 of 20 runs." in result.err
    assert signal.getsignal(signal.SIGINT) == before


def test_a_second_ctrl_c_while_the_bar_goes_loses_nothing(
    bench: Bench, decoder: BenchDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = bench_work._bar

    @contextmanager
    def slow_to_go() -> Iterator[Any]:
        with bar() as shown:
            try:
                yield shown
            finally:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(bench_work, "_bar", slow_to_go)
    decoder.interrupt_at = 2 + 13
    result = bench("-o", "json")
    assert result.code == 130 and len(json.loads(result.out)["runs"]) == 12


def test_after_few_prompts_nothing_is_said_of_drafting(bench: Bench, decoder: BenchDecoder) -> None:
    decoder.drafting = say("no drafts at all")
    decoder.interrupt_at = 2 + 18
    assert bench().out.splitlines()[-1].startswith("too few prompts to tell: no arm drafted")


def test_a_failure_keeps_what_was_measured(bench: Bench, decoder: BenchDecoder) -> None:
    decoder.fail_at = 2 + 13
    result = bench("--json")
    assert result.code == 1 and "Error: The memory is gone." in result.err
    data = json.loads(result.out)
    assert len(data["runs"]) == 12 and decoder.closed
    assert "Failed after 12 of 20 runs: The memory is gone." in data["notes"]


def test_a_failure_of_the_first_run_is_all_there_is(bench: Bench, decoder: BenchDecoder) -> None:
    decoder.fail_at = 2 + 1
    result = bench("--json")
    assert result.code == 1 and json.loads(result.out)["error"]["message"] == "The memory is gone."


# What cannot be served


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--draft-max", "2,x"), "--draft-max 2,x is not a list of numbers."),
        (("--temp", "hot"), "--temp hot is not a list of numbers."),
        (("--temp", "0,-1"), "temperature must be at least 0"),
        (("--temp", "nan"), "temperature must be at least 0"),
        (("--drafter", "model,nobody"), "Unknown drafter 'nobody'."),
        (("--verify", "hope"), "Unknown verify 'hope'."),
        (("--kinds", "chat,war"), "No prompt is of the kind 'war'."),
        (("--kinds", ","), "--kinds , names nothing."),
        (("--drafter", ""), "--drafter  names nothing."),
        (("--temp", ","), "--temp , names nothing."),
        (("--suite", "all"), "Unknown suite 'all'."),
        (("--suite", "seeds", "--draft-max", "4"), "A suite brings its own drafters"),
        (("-n", "1"), "A rate takes at least 2 tokens a run."),
        (("-r", "0"), "Invalid value for '-r'"),
        (("-o", "xml"), "Invalid value for '-o'"),
        (("--plot", "a.doc"), "Cannot write a plot as a.doc."),
        (("--plot", "/nowhere/a.png"), "There is no folder /nowhere."),
        (("--plot", "/"), "/ is a folder."),
        (("--plot", "/dev/full"), "/dev/full is there, and cannot be written over."),
        (("--plot", "/proc/a.png"), "Cannot write /proc/a.png: "),
        (("--out", "/proc"), "Cannot write /proc/report.md: "),
        (("--out", "/proc/new"), "Cannot make the folder /proc/new: "),
        (("--out", __file__), "test_bench.py is no folder. --out takes one"),
    ],
)
def test_wrong_requests_are_sentences(
    bench: Bench, decoder: BenchDecoder, args: tuple[str, ...], sentence: str
) -> None:
    result = bench(*args)
    assert result.code == 2 and sentence in " ".join(result.err.split("\n"))
    assert result.out == "" and decoder.chats == []


@pytest.mark.parametrize("name", ["report.json", "speedup.svg"])
def test_a_folder_in_a_files_place_is_found_before_measuring(
    bench: Bench, decoder: BenchDecoder, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    result = bench("--out", str(tmp_path))
    assert result.code == 2 and f"{name} is there, and cannot be written over." in result.err
    assert decoder.chats == [] and [file.name for file in tmp_path.iterdir() if file.is_file()] == [
        "prompts.jsonl"
    ]


@pytest.mark.parametrize("flags", [("--draft-max", "0"), ("--drafter", "none")])
def test_that_nothing_was_compared_is_the_last_line(bench: Bench, flags: tuple[str, ...]) -> None:
    result = bench("-r", "1", *flags)
    assert result.code == 0
    last = result.out.splitlines()[-1]
    assert last == f"nothing was compared: no arm may draft ({' '.join(flags)})"


def test_json_is_one_form_of_several(bench: Bench, decoder: BenchDecoder) -> None:
    result = bench("--json", "-o", "csv")
    assert result.code == 2 and decoder.chats == []
    assert "--json and -o csv cannot be used together." in result.err


def test_a_malformed_prompt_file_is_named_with_its_line(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\noops\n')
    result = bench("--prompts", str(tmp_path / "bad.jsonl"), own=False)
    assert result.code == 2
    assert f"{tmp_path / 'bad.jsonl'}, line 2 is not JSON." in result.err


def test_a_prompt_that_does_not_fit_is_left_out(
    bench: Bench, decoder: BenchDecoder, tmp_path: Path
) -> None:
    long = json.dumps({"id": "long", "prompt": "word " * 30})
    (tmp_path / "p.jsonl").write_text(f'{long}\n{{"id": "short", "prompt": "Hi"}}\n')
    decoder.n_ctx = 20
    result = bench("--prompts", str(tmp_path / "p.jsonl"), "-n", "4", "-o", "json", own=False)
    assert result.code == 0 and "Prompt long is left out: too long." in result.err
    assert {run["prompt"] for run in json.loads(result.out)["runs"]} == {"short"}
    decoder.n_ctx = 3
    result = bench("--prompts", str(tmp_path / "p.jsonl"), "-n", "4", own=False)
    assert result.code == 2 and "No prompt fits into the context" in result.err


def test_an_arm_that_never_drafts_is_told(bench: Bench, decoder: BenchDecoder) -> None:
    decoder.drafting = say("no drafts at all")
    assert "Warning: drafting drafted nothing.\n" in bench("-r", "1").err


def test_a_bar_shows_on_a_terminal_only(bench: Bench) -> None:
    assert "10/10" in bench("-r", "1", tty=["stderr"]).err
    assert bench("-r", "1", "-q", tty=["stderr"]).err == ""


@pytest.mark.parametrize("width", [40, 80])
def test_long_names_leave_the_bar_where_it_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    shown = bench("-r", "1", "--verify", "block", "--drafter", "suffix+model", "--draft-max", "16",
                  "-s", "1", tty=["stderr"]).err  # fmt: skip
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown))
    drawn = [line for line in lines if "10/10" in line]
    assert drawn and all("━━━" in line and "…" in line and len(line) <= width for line in drawn)


# Real models


@pytest.mark.model
@pytest.mark.slow
def test_the_real_pair_end_to_end(
    cli: Callable[..., Result], target_file: Path, draft_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "two.jsonl").write_text(
        '{"id": "sky", "prompt": "Why is the sky blue?"}\n'
        '{"id": "echo", "prompt": "Repeat three times: one two three four five."}\n'
    )
    result = cli(
        "bench", "-m", str(target_file), "-md", str(draft_file), "-c", "512", "-t", "1", "-tb", "1",
        "-td", "1", "--prompts", str(tmp_path / "two.jsonl"), "-n", "12", "-r", "1", "--temp", "0",
        "--draft-max", "3", "--no-adaptive", "--exact", "--strict", "-o", "json",
    )  # fmt: skip
    assert result.code == 0, result.err
    data = json.loads(result.out)
    plain, drafting = data["arms"]
    assert plain["spec"]["tokens_per_round"] == 1.0
    assert drafting["spec"]["drafted"] > 0 and drafting["text"] == "same"
    assert data["facts"]["target"]["bytes"] == target_file.stat().st_size
    assert len(data["facts"]["draft"]["sha256"]) == 12
    by_prompt = [
        {run["text"] for run in data["runs"] if run["prompt"] == p} for p in ("sky", "echo")
    ]
    assert [len(texts) for texts in by_prompt] == [1, 1]
