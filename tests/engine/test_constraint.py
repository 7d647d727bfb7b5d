"""The engine under a constraint: whatever is drafted, the text is that of the masked laws."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.drafting.follower import Follower
from specllama.drafting.model import ModelDrafter
from specllama.drafting.protocol import Want
from specllama.drafting.suffix import SuffixDrafter
from specllama.drafting.tree import TreeDrafter
from specllama.engine.engine import Engine
from specllama.sampling.chain import Sampler
from specllama.sampling.distribution import Distribution
from specllama.verification import RULES
from specllama.verification.types import Proposal
from tests.engine.fake_model import END, N_VOCAB, FakeModel, language, near
from tests.engine.harness import GREEDY, PLAIN, Script, expected, request, right, run
from tests.engine.test_law import PENALISED, PROMPT, asked, engine_law
from tests.engine.test_same_text import N_CTX, random_script, sampling
from tests.verification.enumeration import GreedyTrace, Trace, completed, total_variation


@dataclass(frozen=True)
class Table:
    """Allows random tokens, others after every text."""

    seed: int
    share: float = 0.5
    n_vocab: int = N_VOCAB
    said: tuple[int, ...] = ()

    def every(self) -> np.ndarray:
        random = np.random.default_rng([self.seed, *self.said])
        allowed = random.random(self.n_vocab) < self.share
        allowed[random.integers(self.n_vocab)] = True
        return np.flatnonzero(allowed)

    def allowed(self, ids: np.ndarray) -> np.ndarray:
        return np.isin(ids, self.every())

    def after(self, token: int) -> Table | None:
        if token not in self.every():
            return None
        return replace(self, said=(*self.said, token))


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(data=st.data())
def test_the_text_is_that_of_plain_decoding(data: st.DataObject) -> None:
    draw = data.draw
    words = language(draw(st.integers(0, 50), "words"))
    params = draw(sampling)
    params = replace(params, logit_bias={})  # else nothing may be left
    names = list(RULES) if params.temperature == 0.0 else ["coupled", "match"]
    rule = draw(st.sampled_from(names))
    seed = draw(st.integers(0, 2**64 - 1), "seed")
    trees = RULES[rule].shape == "tree" and draw(st.booleans(), "trees")
    draft = FakeModel(
        near(words, 3, draw(st.sampled_from([0.0, 0.5]), "share")), N_CTX, n_seq=4 if trees else 1
    )
    follower = Follower(draft, draw(st.sampled_from([None, 9]), "shared"))
    drafters: list[Any] = {
        "none": [],
        "model": [ModelDrafter(follower)],
        "tree": [TreeDrafter(follower, 1)] if trees else [],
        "suffix": [SuffixDrafter(lambda token: token == END, min_match=1)],
        "script": [random_script(seed % 1000, right(words, params, seed), trees)],
    }[draw(st.sampled_from(["none", "model", "tree", "suffix", "script"]), "drafter")]
    target = FakeModel(words, N_CTX, n_seq=4 if trees else 1)
    engine = Engine(target, drafters, linear=draw(st.booleans(), "linear"))
    wanted = request(
        draw(st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=9), "prompt"),
        rule,
        sampling=params,
        seed=seed,
        constraint=Table(draw(st.integers(0, 99), "constraint"), draw(st.sampled_from([0.2, 0.6]))),
        drafters=("script", "model", "tree", "suffix"),
        max_tokens=draw(st.sampled_from([None, 12]), "max_tokens"),
    )
    outcome = run(engine, wanted)
    assert (outcome.tokens, outcome.reason) == expected(words, wanted, N_CTX)


@pytest.mark.parametrize("sampling", [PLAIN, PENALISED], ids=["plain", "penalised"])
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_the_law_under_sampled_drafts(rule: str, sampling: Any) -> None:
    words, v = language(4, 3, spread=1.0), 3
    constraint = Table(6, 0.7, v)
    wanted = replace(asked(rule, sampling, 3, 2), constraint=constraint)

    def make() -> Engine:
        drafter = ModelDrafter(Follower(FakeModel(near(words, 5, 0.5, v), n_vocab=v)))
        return Engine(FakeModel(words, n_vocab=v), [drafter])

    found = engine_law(wanted, make, Trace)
    assert total_variation(found, _law(words, sampling, constraint)) < 1e-12


@pytest.mark.parametrize("rule", list(RULES))
def test_the_law_under_deterministic_drafts(rule: str) -> None:
    words, v = language(4, 3, spread=1.0), 3
    constraint = Table(6, 0.7, v)
    wanted = replace(asked(rule, PLAIN, 3, 2), constraint=constraint)

    def says(want: Want) -> Proposal:
        return Proposal.chain([len(want.ids) % 2, 1][: want.limit])

    def make() -> Engine:
        return Engine(FakeModel(words, n_vocab=v), [Script(says)])

    found = engine_law(wanted, make, GreedyTrace)
    assert total_variation(found, _law(words, PLAIN, constraint)) < 1e-12


def _law(words: Any, sampling: Any, constraint: Table) -> dict[tuple[int, ...], float]:
    sampler = Sampler(sampling)

    def after(path: tuple[int, ...]) -> Distribution:
        state: Table | None = constraint
        for token in path:
            assert state is not None
            state = state.after(token)
        ids = (*PROMPT, *path)
        return sampler.distribution(words(ids), ids, state)

    whole: dict[tuple[int, ...], float] = {}
    for path, mass in completed({(): 1.0}, after, 3).items():
        said = path[: path.index(2)] if 2 in path else path
        whole[said] = whole.get(said, 0.0) + mass
    return whole


@dataclass(frozen=True)
class Alternating:
    """Odd and even tokens in turn."""

    parity: int = 0

    def every(self) -> np.ndarray:
        return np.arange(self.parity, N_VOCAB - 1, 2)

    def allowed(self, ids: np.ndarray) -> np.ndarray:
        return np.isin(ids, self.every())

    def after(self, token: int) -> Alternating | None:
        return Alternating(1 - self.parity) if token in self.every() else None


def test_drafts_are_masked_too() -> None:
    """A draft equal to the target proposes what the target accepts: all of it."""
    words = language(3)
    drafter = ModelDrafter(Follower(FakeModel(words)))
    outcome = run(
        Engine(FakeModel(words), [drafter]),
        request([1], constraint=Alternating(), sampling=GREEDY, max_tokens=20),
    )
    assert [token % 2 for token in outcome.tokens] == [0, 1] * 10
    assert outcome.stats.acceptance == 1.0
    assert outcome.stats.rounds == 3  # 7 tokens each: none of 6 drafts was cut off


def test_forbidden_drafts_never_reach_the_target() -> None:
    words = language(3)
    target = FakeModel(words)
    tree = Proposal((0, 2, 1, 4, 5), (-1, 0, 0, 2, -1), (None,) * 6)
    script = Script(lambda want: tree if want.nodes >= 5 and want.limit >= 3 else Proposal())
    target = FakeModel(words, n_seq=4)
    outcome = run(
        Engine(target, [script]),
        request([1], constraint=Alternating(), max_tokens=4, draft_max=3),
    )
    # of the tree, 0, the 1 below it and the 4 below that may follow each other
    assert max(target.batches) == 1 + 3
    assert outcome.stats.by_source["script"].drafted % 3 == 0


def test_a_draft_without_an_allowed_token_gives_way() -> None:
    """The draft knows ids up to 2 only; where none of those is allowed the target goes on alone."""

    @dataclass(frozen=True)
    class High(Alternating):
        def every(self) -> np.ndarray:
            return np.arange(5, N_VOCAB - 1)

        def after(self, token: int) -> High | None:
            return self if token in self.every() else None

    words = language(3)
    drafter = ModelDrafter(Follower(FakeModel(words), n_shared=3))
    wanted = request([1], constraint=High(), max_tokens=6)
    outcome = run(Engine(FakeModel(words), [drafter]), wanted)
    assert len(outcome.tokens) == 6 and outcome.stats.drafted == 0
