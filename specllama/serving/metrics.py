"""What Prometheus reads: the counters that vLLM and llama.cpp share, under our prefix."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from specllama.pool import Pool, PoolStats

PREFIX = "specllama:"
_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BETWEEN_TOKENS_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)


class Metrics:
    """The registry of one server. Acceptance = accepted / draft tokens; tokens a round =
    1 + accepted / drafts (of the rounds that drafted)."""

    def __init__(self, pool: Pool) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_PoolFigures(pool))
        self._first = Histogram(
            f"{PREFIX}time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            buckets=_FIRST_TOKEN_S,
            registry=self._registry,
        )
        self._between = Histogram(
            f"{PREFIX}inter_token_latency_seconds",
            "Time a token takes after the first; a round's tokens share its time.",
            buckets=_BETWEEN_TOKENS_S,
            registry=self._registry,
        )

    def render(self) -> bytes:
        """The text that is scraped; may wait for a round to end."""
        return generate_latest(self._registry)

    def follow(self) -> TokenTimes:
        """A stop watch for one request that has just arrived."""
        return TokenTimes(self._first, self._between)


class TokenTimes:
    """Notes when the tokens of one request come."""

    def __init__(self, first: Histogram, between: Histogram) -> None:
        self._first = first
        self._between = between
        self._last = time.perf_counter()
        self._started = False

    def tokens(self, count: int) -> None:
        """So many have come, after those before."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        if not self._started:
            self._started = True
            self._first.observe(seconds)
            return
        for _ in range(count):
            self._between.observe(seconds / count)


class _PoolFigures(Collector):
    """The pool's own figures, taken when they are asked for."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        stats = self._pool.stats()
        yield from _counters(stats)
        yield from _by_label(stats)
        yield _gauge("requests_processing", "Requests that run.", stats.processing)
        yield _gauge("requests_deferred", "Requests that wait for a slot.", stats.deferred)
        usage = stats.used_cells / stats.cells if stats.cells else 0.0
        yield _gauge("kv_cache_usage_ratio", "Share of the target's cache in use.", usage)


def _counters(stats: PoolStats) -> Iterator[Metric]:
    spec = stats.spec
    for name, meaning, value in (
        ("spec_decode_num_drafts", "Rounds with a draft.", spec.drafts),
        ("spec_decode_num_draft_tokens", "Drafted tokens.", spec.drafted),
        ("spec_decode_num_accepted_tokens", "Accepted draft tokens.", spec.accepted),
        ("prompt_tokens", "Tokens of prompts.", stats.prompt_tokens),
        ("prompt_tokens_cached", "Those that were in the cache.", stats.cached_tokens),
        ("tokens_predicted", "Generated tokens.", stats.completion_tokens),
        ("prompt_seconds", "Time spent reading prompts.", stats.prompt_s),
        ("tokens_predicted_seconds", "Time spent in rounds.", stats.decode_s),
    ):
        yield CounterMetricFamily(f"{PREFIX}{name}", meaning, value=float(value))


def _by_label(stats: PoolStats) -> Iterator[Metric]:
    depths = CounterMetricFamily(
        f"{PREFIX}spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens by place in the draft.",
        labels=["position"],
    )
    for position, depth in enumerate(stats.spec.by_depth):
        depths.add_metric([str(position)], depth.accepted)
    yield depths
    ended = CounterMetricFamily(
        f"{PREFIX}requests", "Ended requests, by how they ended.", labels=["finished_reason"]
    )
    for reason, count in stats.finished.items():
        ended.add_metric([reason], count)
    ended.add_metric(["error"], stats.failed)
    yield ended


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}{name}", meaning, value=value)
