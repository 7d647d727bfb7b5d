"""No request is much slower than plain: scripts/simulate_scheduler.py with made-up drafts."""

from __future__ import annotations

import random
from typing import Any

import pytest
import simulate_scheduler
from simulate_scheduler import DEVICES, TOKENS, Device, Machine


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


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("calibrated", [True, False])
def test_keeps_most_of_plain_speed_whatever_drafts_are_like(
    device: Device, calibrated: bool
) -> None:
    """Good drafts, then such as are never right, then good ones again: one session."""
    chance = random.Random(1)
    machine = Machine(simulate_scheduler.replace(device, calibrated=calibrated))
    speeds = [
        machine.reply(told(chance, 0.7, honesty), ("suffix", "model"))[0]
        for honesty in (1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.3, 1.0)
    ]
    assert min(speeds) >= 0.97
    if not device.name.startswith("CPU AVX2"):  # where batches are too dear to gain anything
        assert speeds[1] > 1.1
