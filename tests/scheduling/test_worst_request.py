"""No request is much slower than plain: scripts/simulate_scheduler.py with made-up drafts."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest
import simulate_scheduler
from simulate_scheduler import DEVICES, TOKENS, Device, Machine

from specllama.scheduling.account import BUDGET_S, BUDGET_SHARE

HONESTY = (1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.3, 1.0)
"""Good drafts, then such as are never right, then good ones again: one session."""


def told(chance: random.Random, acceptance: float, honesty: float) -> dict[str, Any]:
    """A reply, and a draft that is right as often as it says, times `honesty`."""
    confidences = [chance.betavariate(2 * acceptance, 2 * (1 - acceptance)) for _ in range(TOKENS)]
    reply = [chance.randrange(1000) for _ in range(TOKENS)]
    drafted = [
        token if chance.random() < honesty * sure else 1000
        for token, sure in zip(reply, confidences, strict=True)
    ]
    ids = [chance.randrange(1000) for _ in range(20)]
    said = {"ids": ids, "reply": reply, "drafted": drafted, "confidences": confidences}
    return said | {"temperature": 0.0, "kind": "made up"}


def session(device: Device, seed: int) -> list[float]:
    """The speed of each reply against plain decoding."""
    chance, machine = random.Random(seed), Machine(device)
    return [
        machine.reply(told(chance, 0.7, honesty), ("suffix", "model"))[0] for honesty in HONESTY
    ]


def lost_s(device: Device, speeds: list[float]) -> list[float]:
    """Seconds beyond plain decoding, which captures a graph in its first reply as well."""
    plain = plain_s(device)
    first, *later = (plain / speed - plain for speed in speeds)
    capturing = (device.first + device.second) / 1000 - device.begin_s
    return [first - capturing, *later]


def plain_s(device: Device) -> float:
    return TOKENS * device.plain_s + device.begin_s


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("calibrated", [True, False])
def test_keeps_most_of_plain_speed_whatever_drafts_are_like(
    device: Device, calibrated: bool, seed: int
) -> None:
    """Within 3 %, or the budget where tokens are so fast that a change of size is more."""
    device = simulate_scheduler.replace(device, calibrated=calibrated)
    speeds = session(device, seed)
    assert max(lost_s(device, speeds)) <= BUDGET_SHARE * plain_s(device) + BUDGET_S
    if not device.first:
        assert min(speeds) >= 0.97
    if not device.name.startswith("CPU AVX2"):  # where batches are too dear to gain anything
        # one of them may begin where going over to drafts is more than the budget bears
        assert statistics.fmean(speeds[:2]) > 1.3


def test_the_budget_is_what_was_promised() -> None:
    assert (BUDGET_SHARE, BUDGET_S) == (0.02, 0.02)
