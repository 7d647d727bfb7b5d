"""The whole engine by exhaustion: every outcome of every draw, added up.

Over three tokens, for every trace of the request's chance: prompt, rounds, drafts, refusals, caches
and limits as in production. What is emitted must have the target's law, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from specllama.drafting.follower import Follower
from specllama.drafting.model import ModelDrafter
from specllama.drafting.protocol import Want
from specllama.engine.engine import Engine
from specllama.engine.request import EndEvent, Request
from specllama.sampling.chain import Sampler
from specllama.sampling.distribution import Distribution
from specllama.sampling.params import SamplingParams
from specllama.verification import RULES
from specllama.verification.types import Proposal
from tests.engine.fake_model import FakeModel, Language, Tokens, language, near
from tests.engine.harness import PLAIN, Script, check, go_ahead
from tests.verification.enumeration import (
    GreedyTrace,
    Law,
    Trace,
    completed,
    law_of,
    total_variation,
)

PROMPT = (1, 0)
V = 3
END = 2

PENALISED = SamplingParams(
    top_k=0, top_p=0.9, min_p=0.0, temperature=0.8, repeat_penalty=1.7, repeat_last_n=2
)


def target_law(words: Language, sampling: SamplingParams, length: int) -> Law:
    """The law of the next `length` tokens, or fewer where END comes (which is left out)."""
    sampler = Sampler(sampling)

    def after(path: Tokens) -> Distribution:
        ids = (*PROMPT, *path)
        return sampler.distribution(words(ids), ids)

    whole: Law = {}
    for path, mass in completed({(): 1.0}, after, length).items():
        said = path[: path.index(END)] if END in path else path
        whole[said] = whole.get(said, 0.0) + mass
    return whole


def engine_law(asked: Request, make: Any, trace: type[Trace]) -> Law:
    """The law of what the engine emits. `make` gives a fresh engine for every trace."""

    def run(chance: Trace) -> Tokens:
        rule = replace(asked.rule, chance=lambda seed: chance)
        engine = make()
        live = engine.add(replace(asked, rule=rule))
        said: list[int] = []
        while True:
            for event in engine.step():
                if isinstance(event, EndEvent):
                    return tuple(said)
                said.append(event.id)
            check(engine, [live])

    return law_of(run, trace)


def asked(rule: str, sampling: SamplingParams, length: int, draft_max: int) -> Request:
    return Request(
        ids=PROMPT,
        sampling=sampling,
        rule=RULES[rule],
        seed=0,
        is_end=lambda token: token == END,
        max_tokens=length,
        drafters=("model", "script"),
        draft_max=draft_max,
        adaptive=False,
    )


def wrongness(request: Request, words: Language, make: Any) -> float:
    """Total variation between what the engine emits and the target's law."""
    found = engine_law(request, make, Trace)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    assert request.max_tokens is not None
    return total_variation(found, target_law(words, request.sampling, request.max_tokens))


@pytest.mark.parametrize("rollback", ["free", "checkpoint"])
@pytest.mark.parametrize("sampling", [PLAIN, PENALISED], ids=["plain", "penalised"])
@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize(("length", "draft_max"), [(3, 1), (3, 2)])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_sampled_drafts(
    rule: str, sampling: SamplingParams, length: int, draft_max: int, share: float, rollback: Any
) -> None:
    words = language(4, V, spread=1.0)
    draft = near(words, 5, share, V)

    def make() -> Engine:
        drafter = ModelDrafter(Follower(FakeModel(draft, n_vocab=V, rollback=rollback)))
        return Engine(FakeModel(words, n_vocab=V, rollback=rollback), [drafter])

    assert wrongness(asked(rule, sampling, length, draft_max), words, make) < 1e-12


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_longer_drafts(rule: str) -> None:
    words = language(4, V, spread=1.0)
    draft = near(words, 5, 0.5, V)

    def make() -> Engine:
        drafter = ModelDrafter(Follower(FakeModel(draft, n_vocab=V)))
        return Engine(FakeModel(words, n_vocab=V), [drafter])

    assert wrongness(asked(rule, PENALISED, 4, 2), words, make) < 1e-12


TWO_WORDS = language(4, 2, spread=1.0)
THEIR_DRAFT = near(TWO_WORDS, 5, 0.5, 2)


class TestAhead:
    """The draft goes on while the target is at work, and what it drew is used later, or never."""

    def wrongness(self, request: Request, kind: type[ModelDrafter]) -> tuple[float, int]:
        """How wrong what the engine emits is, and how often drafts began with ready tokens."""
        n_ready = 0

        class Counting(kind):  # type: ignore[misc, valid-type]
            def ready(self, key: int, ids: Sequence[int]) -> int:
                nonlocal n_ready
                count: int = super().ready(key, ids)
                n_ready += count > 0
                return count

        def make() -> Engine:
            drafter = Counting(Follower(FakeModel(THEIR_DRAFT, n_vocab=2)))
            return go_ahead(Engine(FakeModel(TWO_WORDS, n_vocab=2), [drafter]), 2)

        return wrongness(request, TWO_WORDS, make), n_ready

    @pytest.mark.parametrize("sampling", [PLAIN, PENALISED], ids=["plain", "penalised"])
    @pytest.mark.parametrize("rule", ["rejection", "block"])
    def test_the_law_is_the_targets(self, rule: str, sampling: SamplingParams) -> None:
        wrong, n_ready = self.wrongness(asked(rule, sampling, 4, 1), ModelDrafter)
        assert wrong < 1e-12
        assert n_ready > 50

    def test_also_where_a_sure_draft_alone_goes_on(self) -> None:
        """What is ready is asked about as if it were looked at now, whatever was drawn."""
        unsure = replace(asked("rejection", PLAIN, 4, 1), draft_p_min=0.6)
        wrong, n_ready = self.wrongness(unsure, ModelDrafter)
        assert wrong < 1e-12
        assert n_ready > 50

    def test_the_harness_catches_a_choice_by_what_was_drawn(self) -> None:
        class Choosy(ModelDrafter):
            def _begin(self, want: Want, resumed: list[Want]) -> Any:
                old = self._chains.get(want.key)
                behind = old.behind(want.ids) if old is not None else []
                if behind and behind[0].token == 0:
                    self._chains.pop(want.key)
                return super()._begin(want, resumed)

        assert self.wrongness(asked("rejection", PLAIN, 4, 1), Choosy)[0] > 1e-4


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_drafts_that_leave_tokens_out(rule: str) -> None:
    """Ids that the draft must not say: its law is what is left, and that is what it states."""
    words = language(4, V, spread=1.0)

    def make() -> Engine:
        follower = Follower(FakeModel(near(words, 5, 0.5, V), n_vocab=V), never=(1,))
        return Engine(FakeModel(words, n_vocab=V), [ModelDrafter(follower)])

    found = engine_law(asked(rule, PLAIN, 3, 2), make, Trace)
    assert total_variation(found, target_law(words, PLAIN, 3)) < 1e-12


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_drafts_that_stop_when_unsure(rule: str) -> None:
    words = language(4, V, spread=1.0)
    draft = near(words, 5, 0.5, V)

    def make() -> Engine:
        return Engine(
            FakeModel(words, n_vocab=V), [ModelDrafter(Follower(FakeModel(draft, n_vocab=V)))]
        )

    unsure = replace(asked(rule, PLAIN, 3, 2), draft_p_min=0.5)
    found = engine_law(unsure, make, Trace)
    assert total_variation(found, target_law(words, PLAIN, 3)) < 1e-12


@pytest.mark.parametrize("rule", list(RULES))
def test_deterministic_drafts(rule: str) -> None:
    """A look-up's chain under every rule; a trace has no noise, so coupled is match here."""
    words = language(4, V, spread=1.0)

    def says(want: Want) -> Proposal:
        return Proposal.chain([len(want.ids) % 2, 1][: want.limit])

    def make() -> Engine:
        return Engine(FakeModel(words, n_vocab=V), [Script(says)])

    found = engine_law(asked(rule, PLAIN, 4, 2), make, GreedyTrace)
    assert total_variation(found, target_law(words, PLAIN, 4)) < 1e-12


def test_trees() -> None:
    words = language(4, V, spread=1.0)

    def says(want: Want) -> Proposal:
        if want.limit < 2:
            return Proposal()
        return Proposal((0, 1, 0, 1), (-1, -1, 1, 1), (None,) * 5)

    def make() -> Engine:
        return Engine(FakeModel(words, n_vocab=V, n_seq=3), [Script(says)])

    found = engine_law(asked("match", PLAIN, 4, 2), make, GreedyTrace)
    assert total_variation(found, target_law(words, PLAIN, 4)) < 1e-12


def test_a_wrong_law_is_seen() -> None:
    """The instrument itself: drafts that are not drawn from the law they state."""
    words = language(4, V, spread=1.0)
    flat = Distribution.from_weights([0, 1, 2], [1.0, 1.0, 1.0])  # type: ignore[arg-type]
    assert flat is not None

    def make() -> Engine:
        return Engine(
            FakeModel(words, n_vocab=V), [Script(lambda want: Proposal.chain([0], [flat]))]
        )

    found = engine_law(asked("rejection", PLAIN, 2, 1), make, Trace)
    assert total_variation(found, target_law(words, PLAIN, 2)) > 1e-3
