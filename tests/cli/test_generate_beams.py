"""`specllama generate --beams`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from specllama.cli.main import run
from specllama.options import BeamParams
from specllama.results import BeamResult, BeamStats, Hypothesis, Usage

from .fakes import FakeDecoder, FakeText

FOUND = BeamResult(
    hypotheses=[
        Hypothesis("Seven.", [5, 6], -0.5, -1.5, "stop"),
        Hypothesis("Seven", [5], -0.75, -1.5, "length"),
    ],
    usage=Usage(9, 3),
    stats=BeamStats(steps=8, batches=4, draft_batches=6, drafted=20, used=9),
    wall_s=0.5,
)


@dataclass
class Searching(FakeDecoder):
    """Finds the same always, and notes what was asked."""

    searches: list[tuple[Any, BeamParams]] = field(default_factory=list)

    def beam_search(self, text: str, params: BeamParams, **_: Any) -> BeamResult:
        self.searches.append((text, params))
        return FOUND

    def beam_search_chat(self, messages: Any, params: BeamParams, **_: Any) -> BeamResult:
        return self.beam_search([(one.role, one.content) for one in messages], params)


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Searching:
    decoder = Searching()
    monkeypatch.setattr("specllama.cli.model_flags.open_decoder", lambda *_: decoder)
    monkeypatch.setattr("sys.stdin", FakeText(tty=True))
    return decoder


def test_the_best_answer_is_printed(decoder: Searching, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "Days?", "--beams", "3", "-n", "20", "-sys", "Be brief."]) == 0
    assert capsys.readouterr().out == "Seven.\n"
    ((messages, params),) = decoder.searches
    assert messages == [("system", "Be brief."), ("user", "Days?")]
    assert (params.width, params.n_best, params.max_tokens) == (3, None, 20)


def test_an_answer_that_the_full_context_cut_off_is_told(
    decoder: Searching, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", "Days?", "--beams", "2"]) == 0
    assert "context" not in capsys.readouterr().err
    full = replace(FOUND, hypotheses=[replace(FOUND.hypotheses[0], finish_reason="context")])
    monkeypatch.setattr(decoder, "beam_search", lambda *_: full)
    assert run(["generate", "Days?", "--beams", "2"]) == 0
    assert "The context is full (8192 tokens)" in capsys.readouterr().err


def test_all_settings(decoder: Searching) -> None:
    options = ["--n-best", "2", "--length-penalty", "0", "--early-stopping", "--drafter", "none"]
    more = ["--draft-max", "5", "--no-adaptive", "--raw"]
    assert run(["generate", "Days?", "--beams", "3", *options, *more]) == 0
    ((text, params),) = decoder.searches
    assert text == "Days?"
    assert params == BeamParams(
        width=3, n_best=2, length_penalty=0.0, early_stopping=True, drafter="none", draft_max=5,
        adaptive=False,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "used"), [("suffix", "auto"), ("recycle", "recycle")])
def test_a_configured_drafter_counts_where_it_can(
    decoder: Searching, monkeypatch: pytest.MonkeyPatch, name: str, used: str
) -> None:
    monkeypatch.setenv("SPECLLAMA_DRAFTER", name)
    assert run(["generate", "Days?", "--beams", "2"]) == 0
    assert decoder.searches[0][1].drafter == used


def test_json_has_all_of_them(decoder: Searching, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "Days?", "--beams", "2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [one["text"] for one in data["hypotheses"]] == ["Seven.", "Seven"]
    assert data["hypotheses"][0]["score"] == -0.5
    assert data["stats"]["batches"] == 4
    assert data["settings"]["width"] == 2


def test_stats(decoder: Searching, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "Days?", "--beams", "2", "--stats"]) == 0
    assert "8 steps in 4 target batches (0.50 a step)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--temp", "1"], ["--top-k", "5"], ["-s", "1"], ["--verify", "match"], ["--stop", "x"],
        ["-j", "{}"], ["--grammar", 'root ::= "a"'], ["-l", "5+1"], ["--repeat-penalty", "1.1"],
        ["--jsonl"], ["--show-draft"], ["--json", "--logprobs"], ["--tree", "2,2"],
        ["--ngram", "x.ngram"], ["--store"],
    ],
)  # fmt: skip
def test_what_belongs_to_sampling_is_refused(
    decoder: Searching, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert run(["generate", "Days?", "--beams", "2", *options]) == 2
    assert "--beams cannot be used together" in capsys.readouterr().err
    assert not decoder.searches


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-best", "2"], "--n-best needs --beams"),
        (["--length-penalty", "0"], "--length-penalty needs --beams"),
        (["--early-stopping"], "--early-stopping needs --beams"),
        (["--beams", "0"], "width must be at least 1"),
        (["--beams", "2", "--n-best", "3"], "n_best must be between 1 and 2"),
        (["--beams", "2", "--drafter", "suffix"], "Unknown drafter"),
    ],
)
def test_other_usage_errors(
    decoder: Searching, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(["generate", "Days?", *options]) == 2
    assert message in capsys.readouterr().err
