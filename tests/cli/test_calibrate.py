"""`specllama calibrate` and `--explain`: what people and programs get to read."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specllama.calibration import Threads
from specllama.cli import doctor, model_flags, settings
from specllama.cli.cost_view import bar, table_lines
from specllama.kept_costs import place_of, tables
from specllama.scheduling.table import CostTable
from tests.cli.conftest import Result
from tests.cli.fakes import TABLE, FakeDecoder, run_with
from tests.cli.fakes import Result as Said
from tests.hub.ggufs import write_gguf

Cli = Callable[..., Result]


@dataclass
class FakeCalibration:
    """Measures nothing; breaks off after so many steps.

    Attributes:
        presses: how often Ctrl-C is pressed while it ends, finishes and advises, each time.
        number: of the signal that breaks it off.
        tidied: whether its steps came to their own end.
    """

    steps: int = 3
    interrupt_after: int | None = None
    presses: int = 0
    number: int = signal.SIGINT
    threads: Threads = field(
        default_factory=lambda: Threads({1: 0.02, 2: 0.012}, {1: 0.1, 2: 0.06})
    )
    finished: int = 0
    trouble: str = ""
    tidied: bool = False

    def run(self) -> Iterator[tuple[float, str]]:
        try:
            for step in range(self.steps):
                if step == self.interrupt_after:
                    signal.raise_signal(self.number)
                yield step / self.steps, "batches"
        finally:
            if self.interrupt_after is not None:
                self.press()
            self.tidied = True

    def finish(self) -> CostTable:
        self.finished += 1
        self.press()
        return CostTable() if self.interrupt_after == 0 else TABLE

    def advice(self) -> list[str]:
        self.press()
        return ["-t 2 makes plain decoding 1.67 times as fast as -t 1."]

    def press(self) -> None:
        for _ in range(self.presses):
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def load(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The load average, which tests may change."""
    load = [0.5, 3.0, 3.0]
    monkeypatch.setattr("psutil.getloadavg", lambda: tuple(load))
    return load


@pytest.fixture
def calibrate(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def invoke(calibration: FakeCalibration, *args: str) -> Result:
        decoder = FakeDecoder()
        decoder.calibration = lambda prompts: calibration  # type: ignore[attr-defined]
        monkeypatch.setattr(model_flags, "open_decoder", lambda run, on_progress=None: decoder)
        result = cli("calibrate", *args)
        assert decoder.closed
        return result

    return invoke


def test_prints_the_table_and_what_to_use(calibrate: Callable[..., Result]) -> None:
    result = calibrate(FakeCalibration())
    assert result.code == 0
    assert "fake-135m with fake-draft: calibrated 2026-11-28 12:00, load average 0.5" in result.out
    assert "     2   19.90      1.69" in result.out
    assert "bit-exact with --exact: batches of up to 7 tokens" in result.out
    assert result.err == "-t 2 makes plain decoding 1.67 times as fast as -t 1.\n"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_busy_machine_is_told(
    calibrate: Callable[..., Result], load: list[float], options: list[str]
) -> None:
    load[0] = 3.5
    result = calibrate(FakeCalibration(), *options)
    told = "The machine is busy (load average 3.5), so costs may be measured too dear. "
    assert result.code == 0
    assert result.err.startswith(f"Warning: {told}Calibrate again when nothing else runs.\n")
    if options:
        assert json.loads(result.out)["warnings"][0].startswith(told)


def test_json(calibrate: Callable[..., Result]) -> None:
    data = json.loads(calibrate(FakeCalibration(), "--json").out)
    assert data["table"] == TABLE.to_dict()
    assert data["threads_tried"]["plain"] == {"1": 0.02, "2": 0.012}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_and_prints_what_there_is(
    calibrate: Callable[..., Result], number: int
) -> None:
    calibration = FakeCalibration(interrupt_after=1, number=number)
    before = signal.getsignal(number)
    result = calibrate(calibration)
    assert (result.code, signal.getsignal(number)) == (130, before)
    assert calibration.finished == 1
    assert "19.90" in result.out


@pytest.mark.parametrize("interrupt_after", [1, None])
def test_later_ctrl_c_waits_for_what_there_is(
    calibrate: Callable[..., Result], interrupt_after: int | None
) -> None:
    before = signal.getsignal(signal.SIGINT)
    calibration = FakeCalibration(interrupt_after=interrupt_after, presses=2)
    result = calibrate(calibration)
    assert (result.code, calibration.finished, calibration.tidied) == (130, 1, True)
    assert "19.90" in result.out and "1.67 times" in result.err
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_before_anything(calibrate: Callable[..., Result]) -> None:
    result = calibrate(FakeCalibration(interrupt_after=0))
    assert (result.code, result.out) == (130, "")
    assert "before anything was measured" in result.err


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_does_not_take_the_figures(
    calibrate: Callable[..., Result], options: list[str]
) -> None:
    result = calibrate(FakeCalibration(trouble="The table is not kept: no space."), *options)
    assert result.code == 1
    assert "Warning: The table is not kept: no space." in result.err
    if options:
        data = json.loads(result.out)
        assert data["table"] == TABLE.to_dict()
        assert data["warnings"] == ["The table is not kept: no space."]
    else:
        assert "19.90" in result.out


def test_options_that_would_do_nothing_are_refused(cli: Cli) -> None:
    result = cli("calibrate", "--temp", "0")
    assert result.code == 2 and "No such option: --temp" in result.err
    said = cli("calibrate", "--help").out
    assert "--exact" in said and "--threads" in said and "--ctx-size" in said
    assert "--top-k" not in said and "--drafter" not in said and "--system" not in said


def test_its_answers_are_not_kept(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def open_decoder(run: model_flags.Run, on_progress: object = None) -> FakeDecoder:
        opened.append(run.options.store)
        decoder = FakeDecoder()
        decoder.calibration = lambda prompts: FakeCalibration()  # type: ignore[attr-defined]
        return decoder

    monkeypatch.setenv("SPECLLAMA_STORE", "true")
    monkeypatch.setattr(model_flags, "open_decoder", open_decoder)
    assert cli("calibrate").code == 0
    assert opened == [False]


def test_an_empty_table_is_no_lines() -> None:
    assert table_lines(CostTable()) == []


def test_costs_after_another_size_have_their_column() -> None:
    lines = table_lines(CostTable(same={1: 0.003, 2: 0.0032}, other={1: 0.0044}))
    assert "changed" in lines[0]
    assert "4.40" in lines[1]
    assert "4.40" not in lines[2]


def test_sizes_are_in_order() -> None:
    costs = {1: 0.003, 17: 0.02, 4: 0.004}
    lines = table_lines(CostTable(same=costs, draft={"model": costs}))
    assert [line.split()[0] for line in lines[1:4]] == ["1", "4", "17"]
    assert "1: 3.00, 4: 4.00, 17: 20.00 ms" in lines[4]


def test_bars() -> None:
    assert [bar(share, 2) for share in (0.0, 0.25, 0.5, 1.0)] == ["", "▌", "█", "██"]


class TestExplain:
    @pytest.fixture
    def say(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
        return lambda *args, **where: run_with(monkeypatch, FakeDecoder(), *args, **where)

    def test_generate(self, say: Callable[..., Said]) -> None:
        result = say("generate", "Hi", "--explain")
        assert result.out == "Hello, world.\n"
        assert "A batch of 2 costs 1.69 single tokens here" in result.err
        assert "drafting 1 token would give" in result.err

    def test_generate_json(self, say: Callable[..., Said]) -> None:
        data = json.loads(say("generate", "Hi", "--explain", "--json").out)["explain"]
        assert data["costs"]["same"]["1"] == 0.0118
        assert data["drafters"][0]["name"] == "model"
        assert "A batch of 2 costs" in data["text"][0]
        assert "explain" not in json.loads(say("generate", "Hi", "--json").out)

    def test_chat(self, say: Callable[..., Said]) -> None:
        result = say("chat", "--explain", stdin="Hi\n")
        assert "A batch of 2 costs" in result.err
        assert "A batch of 2 costs" not in result.out


class TestDoctor:
    def test_shows_the_kept_table(self, cli: Cli, tmp_path: Path, llama_cpp: None) -> None:
        model = write_gguf(tmp_path / "model.gguf")
        options = settings.load({}).model_options()
        tables().save(place_of(model, None, options), TABLE)
        result = cli("doctor", "-m", str(model), "-md", "none")
        assert "calibrated 2026-11-28 12:00, load average 0.5" in result.out
        assert "     2   19.90      1.69" in result.out
        data = json.loads(cli("doctor", "-m", str(model), "-md", "none", "--json").out)
        assert data["cost table"] == TABLE.to_dict()

    def test_shows_what_was_measured_with_options(
        self, cli: Cli, tmp_path: Path, llama_cpp: None
    ) -> None:
        model = write_gguf(tmp_path / "model.gguf")
        pair = ("-m", str(model), "-md", "none")
        flags = (
            "-ngl",
            "0",
            "--tensor-split",
            "3,1",
            "-t",
            "7",
            "-tb",
            "5",
            "-td",
            "7",
            "-fa",
            "on",
        )
        own = settings.load(
            {
                "gpu_layers": 0,
                "tensor_split": [3, 1],
                "threads": 7,
                "threads_batch": 5,
                "flash_attn": "on",
            }
        )
        tables().save(place_of(model, None, own.model_options()), TABLE)
        said = cli("doctor", *pair).out
        assert "none yet; specllama calibrate measures one" in said
        line = next(line for line in said.splitlines() if "other options" in line)
        assert line.split(" -")[0].split() == ["other", "options"]
        assert line.endswith(": calibrated 2026-11-28 12:00, load average 0.5")
        named = line.removeprefix("  other options     ").split(": ")[0]
        assert named == (
            "--draft-threads 7 --flash-attn on --gpu-layers 0 --tensor-split 3.0,1.0 "
            "--threads 7 --threads-batch 5"
        )
        for options in (flags, named.split()):
            data = json.loads(cli("doctor", *pair, *options, "--json").out)
            assert data["cost table"] == TABLE.to_dict()

    def test_has_a_name_for_every_setting(self, tmp_path: Path, llama_cpp: None) -> None:
        """Each one that tables depend on is an option that leads to the table."""
        model = write_gguf(tmp_path / "model.gguf")
        options = settings.load({}).model_options()
        known = json.loads(place_of(model, None, options).identity["settings"])
        assert known.keys() <= settings.BY_FIELD.keys()
        changed = {"threads": 1, "exact": True, "device": None, "tensor_split": []}
        assert doctor._options(changed) == "--threads 1 --exact (no --device) (no --tensor-split)"

    def test_says_where_there_is_none(self, cli: Cli, tmp_path: Path, llama_cpp: None) -> None:
        model = write_gguf(tmp_path / "model.gguf")
        result = cli("doctor", "-m", str(model), "-md", "none")
        assert "none yet; specllama calibrate measures one" in result.out
        assert json.loads(cli("doctor", "--json").out)["cost table"] is None
