"""The lines of /stats."""

from __future__ import annotations

from specllama.cli.generate_stats import Totals
from specllama.results import Generation, SourceStats, SpecStats, Timings, Usage


def _generation(spec: SpecStats) -> Generation:
    return Generation(
        text="",
        tokens=[],
        logprobs=[],
        finish_reason="stop",
        usage=Usage(1, 20),
        timings=Timings(0.0, 0.1, None, 40.0, 1.0, 0.0),
        spec=spec,
        seed=1,
        verify="match",
        guarantee="",
    )


def _spec(name: str, tested: int, accepted: int) -> SpecStats:
    source = SourceStats(drafted=tested, tested=tested, accepted=accepted)
    return SpecStats(10, tested, tested, accepted, by_source={name: source})


def test_staged_drafting_shows_both_stages() -> None:
    spec, totals = _spec("staged", 20, 15), Totals()
    spec.inner = _spec("recycle", 10, 4)
    totals.add(_generation(spec), setup="staged")
    lines = totals.report()
    assert "  staged    75% (15/20)" in lines
    assert "  recycle   40% (4/10) of guesses for the draft model" in lines
