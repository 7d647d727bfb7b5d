"""What a round costs, looked up."""

from __future__ import annotations

import pytest

from specllama.scheduling.scheduler import Scheduler
from specllama.scheduling.table import CostTable


class TestPadded:
    """Which size a batch is decoded at, where changing sizes is free."""

    def test_a_larger_kernel_may_be_the_faster_one(self) -> None:
        known = Scheduler()
        known.recall(CostTable(same={1: 0.02, 5: 0.0569, 6: 0.0612, 8: 0.0500, 12: 0.068}))
        assert [known.padded(n) for n in (1, 5, 6, 8, 12)] == [1, 8, 8, 8, 12]
        assert known.batch_s(6) == pytest.approx(0.05)

    def test_never_beyond_the_largest_batch(self) -> None:
        known = Scheduler(max_batch=7)
        known.recall(CostTable(same={1: 0.02, 6: 0.0612, 8: 0.0500}))
        assert known.padded(6) == 6
