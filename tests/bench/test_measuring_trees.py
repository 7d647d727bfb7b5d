"""The script that times tree rounds: its models that take no time are all that drafters ask for."""

from __future__ import annotations

import measuring_trees
import pytest

from specllama.verification import RULES


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.shape == "tree"])
@pytest.mark.parametrize("given", [True, False])
def test_rounds_are_run(monkeypatch: pytest.MonkeyPatch, rule: str, given: bool) -> None:
    monkeypatch.setattr(measuring_trees, "ROUNDS", 4)
    monkeypatch.setattr(measuring_trees, "WARM_UP", 1)
    rows = measuring_trees.logits(500, 0.5, 1), measuring_trees.logits(500, 0.5, 2)
    sampling = measuring_trees.SAMPLINGS["untruncated"]
    found = measuring_trees._round_times(rule, sampling, rows, given=given)
    assert found["round"] > 0.0
    assert 1.0 <= found["tokens a round"] <= 4.0
