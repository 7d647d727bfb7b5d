"""Proof by exhaustion: run the production code over every outcome of its random choices.

A rule touches randomness only through `Chance`, and so does the drafting. `Trace` replays a list of
choices and then takes the first open one; `law_of` visits all traces and adds up their
probabilities. What a round emits is completed with the target's own law to a fixed length and
compared with the target's law on all strings of that length: an identity up to rounding, with no
statistics in it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np

from specllama.sampling.distribution import Distribution
from specllama.verification.types import Chance, CoinChance, Proposal, Verdict, Verify

Tokens = tuple[int, ...]
Law = dict[Tokens, float]
Model = Callable[[Tokens], Distribution]
C = TypeVar("C", bound=Chance)
Drafter = Callable[[Model, CoinChance, Tokens], Proposal]


@dataclass
class Trace:
    """A `CoinChance` that replays `choices`, then takes the first possible outcome each time."""

    choices: list[int] = field(default_factory=list)
    probability: float = 1.0
    used: int = 0
    untried: list[list[int]] = field(default_factory=list)

    def flip(self, probability: float) -> bool:
        heads = min(max(probability, 0.0), 1.0)
        return self._choose([1.0 - heads, heads]) == 1

    def pick(self, law: Distribution, position: int) -> int:
        return int(law.ids[self._choose(list(law.probs))])

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        drawn = []
        rest: Distribution | None = law
        while rest is not None and len(drawn) < count:
            drawn.append(self.pick(rest, position))
            rest = rest.without(drawn[-1])
        return drawn

    @property
    def place(self) -> int:
        return self.used

    def go_back(self, place: int) -> None:
        raise AssertionError("no round breaks off here")

    def _choose(self, probabilities: list[float]) -> int:
        if self.used == len(self.choices):
            possible = [c for c, p in enumerate(probabilities) if p > 0.0]
            self.untried += [[*self.choices, other] for other in possible[1:]]
            self.choices = [*self.choices, possible[0]]
        choice = self.choices[self.used]
        self.used += 1
        self.probability *= probabilities[choice]
        return choice


class GreedyTrace(Trace):
    """The same with deterministic drafts, as `GreedyDrafts`."""

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        return law.top(count)


def law_of(run: Callable[[Trace], Tokens], trace: type[Trace] = Trace) -> Law:
    """The exact law of what `run` returns."""
    law: Law = {}
    open_traces: list[list[int]] = [[]]
    while open_traces:
        chance = trace(open_traces.pop())
        _add(law, run(chance), chance.probability)
        open_traces += chance.untried
    return law


def one_round(
    verify: Verify[C], proposal: Proposal, target: Model, chance: C, context: Tokens
) -> tuple[Tokens, Verdict]:
    """The tokens a round emits after `context`, and the verdict behind them."""

    def tokens_to(node: int) -> Tokens:
        return () if node < 0 else (*tokens_to(proposal.parents[node]), proposal.tokens[node])

    verdict = verify(proposal, lambda node: target(context + tokens_to(node)), chance, len(context))
    return (*(proposal.tokens[node] for node in verdict.path), verdict.token), verdict


def completed(law: Law, target: Model, length: int) -> Law:
    """The law on strings of `length`: shorter ones go on with the target, longer ones are cut."""
    by_length: list[Law] = [{} for _ in range(length + 1)]
    for tokens, probability in law.items():
        _add(by_length[min(len(tokens), length)], tokens[:length], probability)
    for shorter, longer in pairwise(by_length):
        for tokens, probability in shorter.items():
            after = target(tokens)
            for token, p in zip(after.ids, after.probs, strict=True):
                _add(longer, (*tokens, int(token)), probability * float(p))
    return by_length[length]


def _add(law: Law, tokens: Tokens, probability: float) -> None:
    law[tokens] = law.get(tokens, 0.0) + probability


def total_variation(law: Law, other: Law) -> float:
    return 0.5 * sum(abs(law.get(s, 0.0) - other.get(s, 0.0)) for s in law.keys() | other.keys())


def distance(law: Law, target: Model, length: int) -> float:
    """Total variation between emitted strings, completed to `length`, and the target's own."""
    plain = completed({(): 1.0}, target, length)
    return total_variation(completed(law, target, length), plain)


def round_distance(
    verify: Verify[Trace],
    drafter: Drafter,
    target: Model,
    draft: Model,
    length: int,
    trace: type[Trace] = Trace,
) -> float:
    """How far one round of rule and drafter is from the target's law."""

    def run(chance: Trace) -> Tokens:
        return one_round(verify, drafter(draft, chance, ()), target, chance, ())[0]

    return distance(law_of(run, trace), target, length)


def expected_tokens(verify: Verify[Trace], drafter: Drafter, target: Model, draft: Model) -> float:
    """Tokens a round emits on average."""

    def run(chance: Trace) -> Tokens:
        return one_round(verify, drafter(draft, chance, ()), target, chance, ())[0]

    return sum(len(tokens) * p for tokens, p in law_of(run).items())


def law(probabilities: list[float]) -> Distribution:
    """A Distribution from a dense vector."""
    found = Distribution.from_weights(np.arange(len(probabilities)), np.array(probabilities))
    assert found is not None
    return found
