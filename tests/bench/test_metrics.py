"""Figures against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from specllama.bench import metrics
from specllama.bench.metrics import Block, Difference
from specllama.results import Reliability
from tests.bench.fakes import DRAFTING, PLAIN, at_temperature, make_run, spec


def test_a_round_ends_with_the_targets_own_token() -> None:
    run = make_run(blocks=[(1, 1.0), (3, 1.5), (2, 2.5)])
    assert metrics.blocks(run) == [Block(1, 1.0), Block(3, 1.5), Block(2, 2.5)]


def test_the_last_round_may_lack_its_own_token() -> None:
    run = replace(make_run(), times=(1.0, 2.0, 2.0), own=(True, False, False))
    assert metrics.blocks(run) == [Block(1, 1.0), Block(2, 2.0)]


def test_rates_are_the_engines_own() -> None:
    """Held text that comes at once would look a thousand times faster than it was decoded."""
    runs = [make_run(blocks=[(1, 1.0), (4, 1.0001)], rate=20.0), make_run(prompt="q", rate=None)]
    assert metrics.rates(runs) == {"p": 20.0}


@pytest.mark.parametrize("blocks", [[], [(1, 1.0)], [(4, 1.0)]])
def test_one_round_has_no_next_one(blocks: list[tuple[int, float]]) -> None:
    assert metrics.round_seconds(make_run(blocks=blocks)) == []


def test_rounds_and_stalls() -> None:
    run = make_run(blocks=[(1, 1.0), (3, 1.5), (2, 2.75)])
    assert metrics.round_seconds(run) == pytest.approx([0.5, 1.25])
    assert metrics.longest_stall(run) == pytest.approx(1.25)
    assert metrics.longest_stall(make_run(blocks=[(1, 1.0)])) is None


def test_llmperf_counts_the_first_wait_among_the_gaps() -> None:
    run = replace(make_run(blocks=[(1, 1.0), (3, 2.0)]), seconds=2.5)
    assert metrics.llmperf(run) == {
        "ttft_s": 1.0,
        "inter_token_latency_s": 0.5,
        "end_to_end_latency_s": 2.5,
        "request_output_throughput_token_per_s": 1.6,
    }
    assert metrics.time_per_token(run) == pytest.approx(0.5)
    assert metrics.llmperf(make_run(blocks=[])) is None
    assert metrics.time_per_token(make_run(blocks=[(1, 1.0)])) is None


def test_percentiles_interpolate() -> None:
    found = metrics.percentiles([4.0, 1.0, 3.0, 2.0])
    assert list(found) == ["p25", "p50", "p75", "p90", "p95", "p99"]
    assert (found["p25"], found["p50"], found["p90"]) == pytest.approx((1.75, 2.5, 3.7))
    assert metrics.percentiles([]) == {}


def test_speedups_are_by_prompt_over_median_repetitions() -> None:
    slow = [make_run(prompt="a", rate=1.0), make_run(prompt="b", rate=0.5)]
    fast = [
        make_run(DRAFTING, "a", rate=rate, repetition=n) for n, rate in enumerate((2.0, 2.5, 0.01))
    ]
    fast.append(make_run(DRAFTING, "c"))
    assert metrics.speedups(fast, slow) == pytest.approx({"a": 2.0})


def test_the_interval_contains_the_mean_and_is_the_same_each_time() -> None:
    ratios = [1.1, 1.3, 1.2, 0.9, 1.5, 1.4, 1.25, 1.05]
    found = metrics.bootstrap(ratios)
    assert found.value == pytest.approx(math.exp(np.log(ratios).mean()))
    assert found.low is not None and found.high is not None
    assert min(ratios) < found.low < found.value < found.high < max(ratios)
    assert found == metrics.bootstrap(ratios)


def test_equal_ratios_have_no_width_and_few_have_no_interval() -> None:
    assert metrics.bootstrap([1.5] * 5) == pytest.approx((1.5, 1.5, 1.5))
    few = metrics.bootstrap([1.0, 4.0])
    assert few.value == pytest.approx(2.0) and few.low is few.high is None


@pytest.mark.parametrize(("count", "least", "most"), [(5, 15, 50), (10, 3, 30), (40, 3, 30)])
def test_the_interval_covers_the_truth_as_often_as_it_says(
    count: int, least: int, most: int
) -> None:
    """Of 300 means, 95 % intervals miss about 15 (within 4 sigma: 30); of five prompts 30."""
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(300):
        found = metrics.bootstrap(list(np.exp(rng.normal(0.2, 0.15, count))))
        assert found.low is not None and found.high is not None
        missed += not found.low <= math.exp(0.2) <= found.high
    assert least <= missed <= most


@pytest.mark.parametrize("count", [4, 5, 10, 46])
def test_the_tails_are_those_of_the_expanded_percentiles(count: int) -> None:
    student = stats.t.ppf(0.975, count - 1)
    expected = stats.norm.cdf(-student * math.sqrt(count / (count - 1)))
    assert metrics._expanded_tail(count) == pytest.approx(expected, rel=0.12)


def test_the_best_of_twelve_equal_arms_is_seldom_faster_for_certain() -> None:
    """Uncorrected, the best of twelve arms without a gain seems one in a fifth of 100 reports."""
    rng = np.random.default_rng(7)
    seemed = corrected = 0
    for _ in range(100):
        arms = [list(np.exp(rng.normal(0.0, 0.1, 20))) for _ in range(12)]
        best = max(arms, key=lambda ratios: float(np.log(ratios).mean()))
        seemed += (metrics.bootstrap(best).low or 0.0) > 1.0
        corrected += (metrics.bootstrap(best, level=metrics.best_of(12)).low or 0.0) > 1.0
    assert seemed >= 15 and corrected <= 8
    assert metrics.best_of(1) == pytest.approx(metrics.LEVEL)


def test_a_wider_spread_has_a_wider_interval() -> None:
    near, far = metrics.bootstrap([1.1, 1.2] * 10), metrics.bootstrap([0.6, 2.2] * 10)
    assert near.high and near.low and far.high and far.low
    assert far.high - far.low > 3 * (near.high - near.low)


def test_statistics_add_up() -> None:
    runs = [make_run(stats=spec(4, 2, 3)), make_run(stats=spec(6, 3, 7))]
    total = metrics.total_spec(runs)
    assert (total.rounds, total.accepted, total.tested) == (10, 5, 10)
    assert total.tokens_per_round == pytest.approx(1.5)


def test_where_the_time_of_a_token_went() -> None:
    runs = [
        make_run(blocks=[(1, 0.0)] * 11, rate=10.0, overhead=0.2, draft=0.4),
        make_run(blocks=[(1, 0.0)] * 31, rate=10.0, overhead=0.0),
        make_run(blocks=[(1, 0.0)], rate=None),
    ]
    assert metrics.seconds_per_token(runs) == pytest.approx((0.085, 0.01, 0.005))
    assert metrics.seconds_per_token([]) == (0.0, 0.0, 0.0)


def test_the_calibration_error_weighs_bins_by_their_tokens() -> None:
    bins = [Reliability(1.0, 10, 3), Reliability(), Reliability(24.0, 30, 15)]
    assert metrics.calibration_error(bins) == pytest.approx((2 + 9) / 40)
    assert metrics.calibration_error([Reliability(4.0, 8, 4)]) == 0.0
    assert metrics.calibration_error([Reliability()]) is None


# Texts


@pytest.mark.parametrize(
    ("temperature", "rule", "base", "promised"),
    [
        (0.0, "coupled", "coupled", True),
        (0.0, "rejection", "coupled", True),
        (0.0, "spectr", "coupled", True),
        (0.0, "typical", "coupled", False),
        (0.8, "coupled", "coupled", True),
        (0.8, "match", "match", True),
        (0.8, "match", "coupled", False),
        (0.8, "rejection", "rejection", False),
        (0.8, "block", "coupled", False),
    ],
)
def test_which_rules_promise_the_same_text(
    temperature: float, rule: str, base: str, promised: bool
) -> None:
    run = make_run(at_temperature(DRAFTING, temperature), verify=rule)
    plain = make_run(at_temperature(PLAIN, temperature), verify=base)
    assert metrics.must_agree(run, plain) is promised


def test_another_model_promises_nothing() -> None:
    assert not metrics.must_agree(make_run(replace(DRAFTING, model="draft")), make_run())


def test_a_difference_has_its_place_and_gap() -> None:
    base = make_run(tokens=[1, 2, 3], logprobs=[-1.0, -0.50, -0.1])
    other = make_run(DRAFTING, tokens=[1, 9, 3], logprobs=[-1.0, -0.53, -0.2])
    found = metrics.difference(other, base)
    assert found is not None and (found.arm, found.prompt, found.position) == ("drafting", "p", 1)
    assert found.gap == pytest.approx(0.03)
    assert metrics.difference(base, base) is None


def test_a_text_that_ends_sooner_differs_where_it_ends() -> None:
    base = make_run(tokens=[1, 2, 3])
    assert metrics.difference(make_run(DRAFTING, tokens=[1, 2]), base) == Difference(
        "drafting", "p", 2, None
    )


def test_each_prompt_differs_once_and_repetitions_of_plain_decoding_count() -> None:
    arms = [replace(PLAIN, against="plain"), DRAFTING]
    runs = [
        make_run(arms[0], tokens=[1, 2]),
        make_run(arms[0], tokens=[1, 5], repetition=2),
        *(make_run(DRAFTING, tokens=[4, 2], repetition=n) for n in (1, 2)),
        make_run(DRAFTING, "other", tokens=[7, 7]),
    ]
    found, promised = metrics.differences(runs, arms)
    assert [(d.arm, d.prompt, d.position) for d in found] == [
        ("plain", "p", 1),
        ("drafting", "p", 0),
    ]
    assert promised == {"plain", "drafting"}
