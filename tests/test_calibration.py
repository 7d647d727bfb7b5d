"""Calibrating, keeping and recalling costs with the built-in pair: what a session leaves behind."""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specllama import Message, SpeculativeDecoder, calibration
from specllama.calibration import FEW_SIZES, FIRST_SIZES, Threads
from specllama.errors import OutOfMemory
from specllama.kept_costs import place_of, tables
from specllama.machine import GraphsKept
from specllama.options import GenerationParams, ModelOptions
from specllama.sampling.params import SamplingParams
from specllama.scheduling.costs import Costs
from specllama.scheduling.table import CostTable
from specllama.scheduling.typical import Typical

pytestmark = pytest.mark.model

OPTIONS = ModelOptions(n_ctx=512, threads=1)
GREEDY = GenerationParams(max_tokens=40, sampling=SamplingParams(temperature=0.0))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECLLAMA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def small(draft_file: Path, tmp_path: Path) -> Path:
    """A copy of the draft, which stands in for a target: quick, and ours to change."""
    return Path(shutil.copy(draft_file, tmp_path / "small.gguf"))


def kept(model: Path) -> dict[str, object]:
    data = json.loads(tables().path(place_of(model, None, OPTIONS)).read_text())
    table: dict[str, object] = data["table"]
    return table


def test_a_session_leaves_its_costs_to_the_next(small: Path) -> None:
    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        assert decoder.warnings == [w for w in decoder.warnings if "cost table" not in w]
        decoder.generate("Once upon a time", GREEDY)
    table = kept(small)
    assert table["how"] == "learned"
    same = table["same"]
    assert isinstance(same, dict)
    assert 0.0 < same["1"] < 10.0
    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        assert decoder.engine.scheduler.costs.measured()
        assert not any("cost table" in warning for warning in decoder.warnings)


def test_a_short_session_leaves_nothing(small: Path, own_home: Path) -> None:
    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        decoder.generate("Once", GenerationParams(max_tokens=4))
    assert not (own_home / "costs").exists()


def test_a_model_swapped_under_its_name_is_told_once(small: Path) -> None:
    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        decoder.generate("Once upon a time", GREEDY)
    os.utime(small, (1, 1))
    for told in (1, 0):
        with SpeculativeDecoder(small, options=OPTIONS) as decoder:
            warned = [w for w in decoder.warnings if "another target file" in w]
            assert len(warned) == told
            decoder.generate("Once upon a time", GREEDY)


def test_a_folder_that_cannot_be_written_stops_nobody(small: Path, own_home: Path) -> None:
    own_home.mkdir()
    (own_home / "costs").write_text("a file where the folder should be")
    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        assert decoder.generate("Once upon a time", GREEDY).tokens
    assert (own_home / "costs").read_text() == "a file where the folder should be"


def test_calibration_broken_off_keeps_what_was_measured(small: Path) -> None:
    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        calibration = decoder.calibration()
        list(islice(calibration.run(), 12))
        table = calibration.finish()
        assert table.how == "calibrated"
        assert 4 < len(table.same) < 10
        assert decoder.engine.scheduler.costs.measured(2)
        assert decoder.generate("Once", GREEDY).tokens
    assert kept(small)["how"] == "calibrated"


SIZES = {n: 1.0 + 0.1 * n for n in (1, 2, 3, 4, 8, 24, 64)}
KNOWN = CostTable(
    "calibrated",
    same=dict(SIZES),
    other={n: 2 * seconds for n, seconds in SIZES.items()},
    second={n: 3 * seconds for n, seconds in SIZES.items()},
    draft={"model": {1: 0.5, 9: 4.5}, "staged": {1: 0.5, 3: 1.5}},
    acceptance={"suffix, greedy": {"depths": [0.9]}, "model, greedy": {"depths": [0.125]}},
    threads={"plain": 3},
    exact_batch=11,
)


def test_calibration_broken_off_forgets_nothing_that_was_known(small: Path) -> None:
    """What it did not come to is as many times as dear as what it measured is now."""
    tables().save(place_of(small, None, OPTIONS), KNOWN)
    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        calibration = decoder.calibration()
        run = calibration.run()
        while len(calibration.table().same) < 3:
            next(run)
        measured = calibration.table()
        table = calibration.finish()
    assert (table.threads, table.exact_batch) == ({"plain": 3}, 11)
    assert table.acceptance == KNOWN.acceptance
    pace = sorted(measured.same[n] / SIZES[n] for n in (1, 2, 3))[1]
    assert pace < 0.5
    for name in ("same", "other", "second"):
        now, before, known = (getattr(one, name) for one in (table, measured, KNOWN))
        assert now.keys() == known.keys()
        assert {n: now[n] for n in (1, 2, 3)} == before
        assert now[64] / now[4] == pytest.approx(known[64] / known[4])
    assert table.same[64] == pytest.approx(pace * SIZES[64])
    assert table.draft["staged"] == pytest.approx({1: 0.5 * pace, 3: 1.5 * pace})


def test_calibration_keeps_what_it_does_not_measure(small: Path, draft_file: Path) -> None:
    tables().save(place_of(small, draft_file, OPTIONS), KNOWN)
    with SpeculativeDecoder(small, draft_file, options=OPTIONS) as decoder:
        calibration = decoder.calibration(["Say hello."])
        list(calibration.run())
        table = calibration.finish()
    assert set(range(1, 10)) == table.draft["model"].keys()
    assert table.draft["model"][9] < 0.5
    assert table.draft["staged"][3] == pytest.approx(3 * table.draft["staged"][1])
    assert table.draft["staged"][3] < 0.5
    assert table.acceptance["suffix, greedy"] == {"depths": [0.9]}
    assert table.acceptance["model, greedy"]["depths"][0] > 0.125, "every token is accepted here"
    assert "model, sampled" in table.acceptance
    assert 64 in table.same


@pytest.mark.parametrize("options", [OPTIONS, replace(OPTIONS, exact=True)])
@pytest.mark.parametrize("n_batch", [2, 16])
def test_batches_may_be_smaller_than_what_is_tried(
    small: Path, n_batch: int, options: ModelOptions
) -> None:
    with SpeculativeDecoder(small, options=replace(options, n_batch=n_batch)) as decoder:
        calibration = decoder.calibration()
        for _, what in calibration.run():
            assert what != "batches" or decoder.engine.backend.length(0) == 128
        table = calibration.finish()
    assert max(table.same) == min(n_batch, 14)
    assert table.prefill and table.exact_batch
    with SpeculativeDecoder(small, options=options) as decoder:
        calibration = decoder.calibration()
        list(calibration.run())
        assert calibration.finish().exact_batch == table.exact_batch


def test_reading_a_prompt_is_a_lower_median(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time loads weights."""
    times = iter([60.0, 1.28, 1.92])
    monkeypatch.setattr(calibration, "_read", lambda context: next(times))
    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        measuring = decoder.calibration()
        list(islice(measuring.run(), 5))
        assert measuring.table().prefill == pytest.approx(0.015)
        assert next(times, None) is None


def test_interrupted_before_it_knows_a_token_nothing_is_kept(
    small: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    times = iter([0.1, 0.1])

    def interrupted(*_: object, **__: object) -> float:
        if (seconds := next(times, None)) is None:
            raise KeyboardInterrupt
        return seconds

    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        measuring = decoder.calibration()
        run = measuring.run()
        while next(run)[1] != "batches":
            pass
        monkeypatch.setattr(calibration, "_decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(run)
        assert measuring.finish().same == {}
    assert not (own_home / "costs").exists()


def test_advice_says_how_many_times_as_fast(small: Path) -> None:
    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        measuring = decoder.calibration()
        measuring.threads = Threads({1: 0.167, 2: 0.01}, {1: 0.06, 2: 0.1})
        assert measuring.advice() == ["-t 2 makes plain decoding 16.7 times as fast as -t 1."]


def test_calibration_that_cannot_be_kept_is_not_lost(small: Path, own_home: Path) -> None:
    own_home.mkdir()
    (own_home / "costs").write_text("a file where the folder should be")
    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        calibration = decoder.calibration()
        assert [share for share, _ in calibration.run()][-1] == 1.0
        table = calibration.finish()
    assert table.how == "calibrated" and table.date
    assert calibration.trouble.startswith(f"The table is not kept: {own_home / 'costs'}: ")


def test_calibration_that_fails_late_keeps_what_was_measured(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: object) -> None:
        raise OutOfMemory("Not enough memory for a context.")

    monkeypatch.setattr(calibration.Calibration, "_find_exact_range", failing)
    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        measuring = decoder.calibration()
        with pytest.raises(OutOfMemory):
            list(measuring.run())
        assert kept(small)["how"] == "calibrated"


def test_nothing_of_one_pair_is_believed_of_a_file_that_cannot_be_read(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "draft.gguf")

    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        scheduler = decoder.engine.scheduler
        assert scheduler.costs.measured()
        monkeypatch.setattr("specllama.kept_costs.place_of", unreadable)
        told = decoder._costs.recall(scheduler, small, None, OPTIONS)
        assert told == ["No cost table is kept: draft.gguf cannot be read (Permission denied)."]
        assert not scheduler.costs.measured()


def test_calibration_to_its_end(small: Path, draft_file: Path) -> None:
    options = ModelOptions(n_ctx=512, threads=1)
    with SpeculativeDecoder(small, draft_file, options=options) as decoder:
        expected = decoder.generate("Once upon a time", GREEDY).tokens
        calibration = decoder.calibration(["Say hello."])
        shares = [share for share, _ in calibration.run()]
        assert shares == sorted(shares)
        table = calibration.finish()
        assert set(range(1, 9)) <= table.same.keys()
        assert table.same.keys() == table.other.keys() == table.second.keys()
        assert set(range(1, 9)) == table.draft["model"].keys()
        assert table.prefill is not None
        assert table.exact_batch is not None
        assert "model, greedy" in table.acceptance
        assert decoder.generate("Once upon a time", GREEDY).tokens == expected
        held = decoder.engine.cache.length(0)
        assert held == decoder.engine.backend.length(0) > 0


def test_what_was_said_while_calibrating_is_gone(small: Path) -> None:
    with SpeculativeDecoder(small, options=OPTIONS) as decoder:
        calibration = decoder.calibration(["Say hello."])
        for _ in calibration.run():
            pass
        calibration.finish()
        assert decoder.engine.cache.length(0) == decoder.engine.backend.length(0) == 0
        greeting = [Message("user", "Say hello.")]
        said = decoder.chat(greeting, GREEDY)
        assert said.usage.cached_tokens == 0


class Device:
    """Decodes that take what a device with captured graphs takes, in `_decode`'s stead."""

    def __init__(self, plain: float = 0.003, kept: GraphsKept = "latest") -> None:
        self.plain = plain
        self.kept = kept
        self.size = 0
        self.made: dict[int, int] = {}
        self.asked: list[int] = []

    def decode(self, context: object, n_tokens: int, depth: int, **_: object) -> float:
        """A size's first decode costs 1.3 ms more, its second 4.7, going back .5; a load 1 s."""
        loaded = n_tokens in self.asked
        self.asked.append(n_tokens)
        moved, self.size = n_tokens != self.size, n_tokens
        if moved and self.kept != "sized":
            self.forget()
        count = self.made[n_tokens] = self.made.get(n_tokens, 0) + 1
        extra = {1: 0.0013, 2: 0.0047}.get(count, 0.0005 * moved)
        return self.plain + 0.0001 * n_tokens + extra + (not loaded)

    def forget(self) -> None:
        """No graph fits any more."""
        self.made.clear()


def look(
    monkeypatch: pytest.MonkeyPatch, device: Device, *, replays: bool, **limits: int
) -> CostTable:
    monkeypatch.setattr(calibration, "_decode", device.decode)
    limits = {"n_batch": 512, "n_outputs": 64} | limits
    kept: GraphsKept = device.kept if replays else "none"
    context: Any = SimpleNamespace(kept_graphs=kept, forget_graphs=device.forget, **limits)
    return calibration.first_look(context, None)


def test_the_first_look_sees_what_changing_sizes_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    table = look(monkeypatch, Device(), replays=True)
    assert list(table.same) == [1, 2, 3, 4, 5, 8, 16]
    assert table.same == pytest.approx({n: 0.003 + 0.0001 * n for n in table.same})
    costs = Costs(table)
    assert costs.extra_s["first"] == pytest.approx(0.0013)
    assert costs.extra_s["second"] == pytest.approx(0.0047)


def test_the_first_look_sees_what_going_back_to_a_graph_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = look(monkeypatch, Device(kept="sized"), replays=True)
    costs = Costs(table, kept_graphs="sized")
    assert costs.extra_s == pytest.approx({"first": 0.0013, "second": 0.0047, "back": 0.0005})
    assert table.same == pytest.approx({n: 0.003 + 0.0001 * n for n in table.same})
    assert look(monkeypatch, Device(), replays=True).back == {}


@pytest.mark.parametrize(
    ("kept", "anew", "measured"),
    [
        ("latest", True, {"other": 1, "second": 1, "same": 1}),
        ("latest", False, {"other": 1, "second": 1, "same": 1}),
        ("sized", True, {"other": 1, "second": 1, "same": 1}),
        ("sized", False, {"back": 1, "same": 2}),
    ],
)
def test_calibration_measures_what_a_decode_is(
    kept: GraphsKept, anew: bool, measured: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where graphs are kept, the second time round none is new."""
    monkeypatch.setattr(calibration, "_decode", lambda *_: 0.003)
    own: Any = SimpleNamespace(_target=SimpleNamespace(context=SimpleNamespace(kept_graphs=kept)))
    for name in ("same", "other", "second", "back"):
        setattr(own, f"_{name}", defaultdict(Typical))
    calibration.Calibration._measure(own, 3, anew=anew)
    counts = {
        name: getattr(own, f"_{name}")[3].count for name in ("same", "other", "second", "back")
    }
    assert {name: count for name, count in counts.items() if count} == measured


def test_the_first_look_is_short_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    table = look(monkeypatch, device, replays=False)
    assert device.asked == [1] * 4 + [2] * 4 + [4] * 4
    assert (list(table.same), table.other, table.second) == ([1, 2, 4], {}, {})


@pytest.mark.parametrize("limits", [{"n_batch": 3}, {"n_outputs": 3}])
@pytest.mark.parametrize(("replays", "sizes"), [(True, [1, 2, 3]), (False, [1, 2])])
def test_the_first_look_decodes_no_more_than_can_be(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], replays: bool, sizes: list[int]
) -> None:
    assert list(look(monkeypatch, Device(), replays=replays, **limits).same) == sizes


@pytest.mark.parametrize("replays", [True, False])
@pytest.mark.parametrize(("plain", "most"), [(0.6, 1), (0.3, 3), (0.1, 8)])
def test_the_first_look_gives_up_where_tokens_take_long(
    monkeypatch: pytest.MonkeyPatch, replays: bool, plain: float, most: int
) -> None:
    """No size is looked at of which as many single tokens would take more than a second."""
    sizes = [size for size in (FIRST_SIZES if replays else FEW_SIZES) if size <= most]
    device = Device(plain=plain)
    assert list(look(monkeypatch, device, replays=replays).same) == sizes
    assert sorted({*device.asked}) == sizes, "nor is a kernel loaded for it"


def test_the_fastest_thread_counts() -> None:
    threads = Threads({1: 0.02, 2: 0.012, 4: 0.05}, {1: 0.1})
    assert threads.best() == {"plain": 2}


@pytest.mark.parametrize("measured", [1, 3, 12, None])
@pytest.mark.parametrize("calibrated_exact", [True, False])
def test_exact_mode_decodes_as_many_as_were_measured(
    small: Path, measured: int | None, calibrated_exact: bool
) -> None:
    options = replace(OPTIONS, exact=True)
    place = place_of(small, None, replace(options, exact=calibrated_exact))
    tables().save(place, CostTable(exact_batch=measured))
    with SpeculativeDecoder(small, options=options) as decoder:
        assert decoder.engine.max_batch == (measured or 7)
        assert any("token by token" in warning for warning in decoder.warnings) == (measured == 1)
        copy = replace(GREEDY, drafter="suffix", adaptive=False)
        reply = decoder.generate("One, two, three, one, two, three, one, two,", copy)
        assert len(reply.tokens) == 40
        assert (reply.spec.drafted == 0) == (measured == 1)


def test_an_exact_range_of_a_pair(small: Path, draft_file: Path) -> None:
    options = replace(OPTIONS, exact=True)
    tables().save(place_of(small, draft_file, OPTIONS), CostTable(exact_batch=5))
    with SpeculativeDecoder(small, draft_file, options=options) as decoder:
        assert decoder.engine.max_batch == 5
    with SpeculativeDecoder(small, options=options) as decoder:
        assert decoder.engine.max_batch == 7
