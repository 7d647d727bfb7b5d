"""Settings are checked where they are made."""

import math
from typing import Any

import pytest

from specllama.errors import UsageError
from specllama.sampling.params import SamplingParams


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": math.inf},
        {"temperature": 1e31},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 1.01},
        {"min_p": -0.01},
        {"typical_p": 2.0},
        {"repeat_last_n": -2},
        {"repeat_penalty": 0.0},
        {"repeat_penalty": 1e-38},
        {"repeat_penalty": 1e7},
        {"frequency_penalty": 2.5},
        {"presence_penalty": -2.5},
        {"logit_bias": {1: math.inf}},
        {"logit_bias": {1: 1e39}},
        {"logit_bias": {1: -1e39}},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {2**31: 1.0}},
        {"logit_bias": {2**70: 1.0}},
        {"temperature": 10**400},
        {"temperature": "0"},
        {"top_p": None},
        {"top_k": 1.5},
        {"repeat_last_n": 2.0},
        {"logit_bias": {1.5: 1.0}},
        {"logit_bias": {"5": 1.0}},
        {"logit_bias": {5: None}},
        {"logit_bias": [5]},
    ],
    ids=str,
)
def test_values_out_of_range_are_usage_errors_that_name_the_option(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_the_edges_of_the_ranges_are_allowed() -> None:
    edges: list[dict[str, Any]] = [
        {"temperature": 0.0, "top_k": 0, "top_p": 0.0, "min_p": 1.0, "typical_p": 0.0},
        {"repeat_last_n": -1, "frequency_penalty": -2.0, "presence_penalty": 2.0},
        {"logit_bias": {0: -math.inf, 2**31 - 1: 1.0}},
        {"top_k": 10**400, "repeat_last_n": 10**400},
    ]
    for edge in edges:
        params = SamplingParams(**edge)
        assert {name: getattr(params, name) for name in edge} == edge


@pytest.mark.parametrize(
    ("settings", "penalises"),
    [
        ({}, False),
        ({"repeat_penalty": 1.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, False),
    ],
)
def test_penalises(settings: dict[str, Any], penalises: bool) -> None:
    assert SamplingParams(**settings).penalises is penalises
