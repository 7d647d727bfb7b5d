"""Answers in OpenAI's and llama.cpp's words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specllama.results import Generation, SourceStats, SpecStats, StreamEvent, Timings, Usage
from specllama.serving.formats import TextFormat, timings, usage
from tests.text.fakes import FakeVocabulary

SAID = Generation(
    text="a",
    tokens=[1],
    logprobs=[],
    finish_reason="stop",
    usage=Usage(10, 5, 4),
    timings=Timings(0.0, 0.1, 100.0, 40.0, 0.2, 0.05),
    spec=SpecStats(),
    seed=1,
    verify="coupled",
    guarantee="",
    lossless=True,
)


def test_counts_times_and_rates_agree() -> None:
    found = timings(SAID)
    assert (found["prompt_n"], found["predicted_n"], found["cache_n"]) == (6, 5, 4)
    for what in ("prompt", "predicted"):
        rate = 1000 * found[f"{what}_n"] / found[f"{what}_ms"]
        assert found[f"{what}_per_second"] == pytest.approx(rate)
    assert found["prompt_per_second"] == 100.0


def test_what_was_not_measured_is_0() -> None:
    """A prompt that was cached, a reply of one round: clients with types take no null."""
    times = replace(SAID.timings, prompt_tok_s=None, decode_tok_s=None)
    found = timings(replace(SAID, timings=times))
    assert (found["prompt_ms"], found["prompt_per_second"]) == (0.0, 0.0)
    assert (found["predicted_ms"], found["predicted_per_second"]) == (pytest.approx(100.0), 0.0)


def test_no_more_of_a_prediction_is_accepted_than_was_said() -> None:
    spec = SpecStats(by_source={"text": SourceStats(drafted=9, tested=8, accepted=7)})
    details = usage(replace(SAID, spec=spec), predicted=True)["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == 5
    assert details["rejected_prediction_tokens"] == 4


class TestLogprobs:
    """The older form, whose dictionaries have tokens for keys."""

    def told(self, *events: StreamEvent) -> dict[str, list[object]]:
        form = TextFormat("model", FakeVocabulary(("ab",)), predicted=False)
        found: dict[str, list[object]] = form.piece(events)["choices"][0]["logprobs"]
        return found

    def test_parts_of_characters_are_told_apart(self) -> None:
        top = ((0xE4, -0.1), (0xBD, -1.0), (256, -2.0))
        found = self.told(StreamEvent(0xE4, "", -0.1, False, "", top))
        assert found["tokens"] == ["bytes:\\xe4"]
        assert found["top_logprobs"] == [{"bytes:\\xe4": -0.1, "bytes:\\xbd": -1.0, "ab": -2.0}]

    def test_what_was_said_is_one_of_them(self) -> None:
        found = self.told(StreamEvent(97, "a", -5.0, False, "", ((256, -0.1),)))
        assert found["top_logprobs"] == [{"ab": -0.1, "a": -5.0}]
