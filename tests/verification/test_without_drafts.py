"""Without a proposal every rule is one draw from the target's law, as plain decoding is."""

import numpy as np
import pytest

from specllama.sampling.distribution import Distribution
from specllama.verification import LOSSY_RULES, RULES
from specllama.verification.types import Proposal

ALL = {**RULES, **LOSSY_RULES}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", [1, 40, 1000])
def test_no_proposal_is_one_pick(name: str, size: int) -> None:
    rule = ALL[name]
    probs = np.random.default_rng(size).dirichlet(np.ones(size))
    law = Distribution(np.arange(size) * 3, probs)
    ruled, plain = rule.chance(7), rule.chance(7)
    for position in range(20):
        verdict = rule.verify(Proposal(), lambda node: law, ruled, position)
        assert (verdict.path, verdict.tested) == ((), 0)
        assert verdict.token == plain.pick(law, position)
