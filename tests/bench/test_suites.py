"""Sweeps and suites: which arms there are, and what each is compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specllama.bench import suites
from specllama.bench.suites import Row, Sweep, flags
from specllama.errors import UsageError
from specllama.options import GenerationParams

BASE = GenerationParams()


def names(**sweep: Any) -> list[str]:
    return [arm.name for arm in Sweep(BASE, **sweep).arms()]


def test_nothing_swept_is_plain_against_drafting() -> None:
    plain, drafting = Sweep(BASE).arms()
    assert (plain.name, plain.drafts, plain.against) == ("plain", False, "")
    assert (drafting.name, drafting.params, drafting.against) == ("drafting", BASE, "plain")


def test_a_sweep_has_every_combination() -> None:
    assert names(drafters=["model", "suffix"], draft_maxes=[2, 4]) == [
        "plain",
        "drafter model, draft-max 2",
        "drafter model, draft-max 4",
        "drafter suffix, draft-max 2",
        "drafter suffix, draft-max 4",
    ]


def test_shapes_are_for_drafters_that_make_trees() -> None:
    assert names(trees=["value", "2,2,1"]) == [
        "plain",
        "drafter tree, tree value",
        "drafter tree, tree 2,2,1",
    ]
    assert names(drafters=["model", "suffix+tree"], trees=["3,1"], draft_maxes=[4]) == [
        "plain",
        "drafter model, draft-max 4",
        "drafter suffix+tree, tree 3,1, draft-max 4",
    ]


def test_each_temperature_has_its_own_baseline() -> None:
    arms = Sweep(BASE, temps=[0.0, 0.8], draft_maxes=[4]).arms()
    assert [arm.name for arm in arms] == [
        "plain, temp 0",
        "draft-max 4, temp 0",
        "plain, temp 0.8",
        "draft-max 4, temp 0.8",
    ]
    assert [arm.params.sampling.temperature for arm in arms] == [0.0, 0.0, 0.8, 0.8]
    assert [arm.against for arm in arms] == ["", "plain, temp 0", "", "plain, temp 0.8"]


def test_one_temperature_needs_no_label() -> None:
    arms = Sweep(BASE, temps=[0.3]).arms()
    assert [arm.name for arm in arms] == ["plain", "drafting"]
    assert arms[0].params.sampling.temperature == 0.3


def test_plain_decoding_uses_the_rule_its_text_is_compared_under() -> None:
    plain, *_ = Sweep(BASE, verifies=["match"]).arms()
    assert plain.params.verify == "match"


def test_twice_the_same_is_one_arm() -> None:
    assert names(draft_maxes=[4, 4]) == ["plain", "draft-max 4"]


@pytest.mark.parametrize(
    "wrong", [{"drafters": ["nobody"]}, {"verifies": ["hope"]}, {"draft_maxes": [-1]}]
)
def test_unknown_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Sweep(BASE, **wrong).arms()


def test_the_seeds_suite_has_the_named_baselines_that_run_here() -> None:
    arms, notes = Sweep(BASE).suite("seeds", has_draft=True)
    found = {arm.name: arm for arm in arms}
    assert {"plain", "draft alone", "naive, greedy draft", "naive, sampled draft"} <= set(found)
    assert {"prompt look-up", "specllama"} <= set(found)
    assert found["draft alone"].model == "draft" and not found["draft alone"].drafts
    assert all(arm.against == "plain" for arm in arms[1:])
    left_out = {note.partition(" is left out: ")[0] for note in notes}
    rows = {row.name for row in suites.SUITES["seeds"]}
    assert left_out | set(found) - {"plain"} == rows and not left_out & set(found)


def test_what_this_installation_does_not_know_is_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = (Row("new", {"drafter": "oracle"}), Row("rule", {"verify": "oracle"}), Row("old"))
    monkeypatch.setattr(suites, "SUITES", {"own": rows})
    arms, notes = Sweep(BASE, temps=[0.0, 0.8]).suite("own", has_draft=True)
    assert [arm.name for arm in arms] == [
        "plain, temp 0", "old, temp 0", "plain, temp 0.8", "old, temp 0.8"
    ]  # fmt: skip
    assert len(notes) == 2
    assert notes[0].startswith("new is left out: Unknown drafter 'oracle'.")


def test_without_a_draft_model_its_arms_are_left_out() -> None:
    arms, notes = Sweep(BASE).suite("seeds", has_draft=False)
    assert {"plain", "prompt look-up", "specllama"} <= {arm.name for arm in arms}
    assert not any(arm.model == "draft" for arm in arms)
    assert any(note.startswith("naive, greedy draft is left out: there is no") for note in notes)


def test_a_suite_cannot_be_swept() -> None:
    with pytest.raises(UsageError, match="its own drafters"):
        Sweep(BASE, draft_maxes=[4]).suite("seeds", has_draft=True)
    with pytest.raises(UsageError, match="Unknown suite 'x'") as error:
        Sweep(BASE).suite("x", has_draft=True)
    assert "seeds" in error.value.hint


def test_flags_repeat_an_arm() -> None:
    assert flags(BASE) == ""
    params = replace(BASE, drafter="suffix", draft_max=4, verify="block", adaptive=False)
    assert flags(params) == "--drafter suffix --draft-max 4 --verify block --no-adaptive"
    params = replace(BASE, drafter="text", copy_input=True, verify="typical", lossy=True)
    assert flags(params) == "--drafter text --verify typical --copy-input --lossy"
