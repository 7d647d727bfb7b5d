"""Random models, settings, drafts and memories: the text is the one that plain decoding gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.drafting.follower import Follower
from specllama.drafting.model import ModelDrafter
from specllama.drafting.protocol import Want
from specllama.drafting.suffix import SuffixDrafter
from specllama.engine.engine import Engine
from specllama.sampling.params import SamplingParams
from specllama.verification import RULES
from specllama.verification.types import ROOT, Proposal
from tests.engine.fake_model import END, N_VOCAB, FakeModel, language, near
from tests.engine.harness import Script, expected, go_ahead, request, right, run

N_CTX = 40
AHEAD = [None, 0, 1, 3, 8]

sampling = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 2, 5]),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    min_p=st.sampled_from([0.0, 0.1]),
    typical_p=st.sampled_from([1.0, 0.8]),
    repeat_penalty=st.sampled_from([1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    presence_penalty=st.sampled_from([0.0, -0.5]),
    # windows of 1 to 3 tokens begin inside a draft, -1 takes all
    repeat_last_n=st.sampled_from([0, 1, 3, 64, -1]),
    logit_bias=st.dictionaries(
        st.integers(0, N_VOCAB - 1), st.sampled_from([-np.inf, -2.0, 3.0]), max_size=3
    ),
)


def random_script(seed: int, oracle: Any, trees: bool) -> Script:
    """Chains or trees of any shape, of tokens that are often right."""
    random = np.random.default_rng(seed)

    def says(want: Want) -> Proposal:
        tokens: list[int] = []
        parents: list[int] = []
        leaves = 0
        ends: list[tuple[int, list[int]]] = [(ROOT, [])]
        for _ in range(int(random.integers(0, want.nodes + 1))):
            branch = int(random.integers(len(ends))) if trees else -1
            parent, path = ends[branch]
            grown = parent == ROOT or parent not in parents
            if len(path) == want.limit or (not grown and leaves > want.branches):
                continue
            if parent == ROOT and leaves > want.branches:
                continue
            (true,) = oracle([*want.ids, *path], 1)
            token = true if random.random() < 0.7 else int(random.integers(N_VOCAB))
            siblings = [tokens[n] for n, p in enumerate(parents) if p == parent]
            if token in siblings or (siblings and not trees):
                continue
            leaves += bool(siblings) or parent == ROOT
            ends.append((len(tokens), [*path, token]))
            tokens.append(token)
            parents.append(parent)
        return Proposal(tuple(tokens), tuple(parents), (None,) * (len(tokens) + 1))

    return Script(says)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(data=st.data())
def test_any_setting(data: st.DataObject) -> None:
    draw = data.draw
    words = language(draw(st.integers(0, 50), "words"))
    params = draw(sampling)
    names = list(RULES) if params.temperature == 0.0 else ["coupled", "match"]
    rule = draw(st.sampled_from(names))
    seed = draw(st.integers(0, 2**64 - 1), "seed")
    rollback = draw(st.sampled_from(["free", "checkpoint"]))
    kind = draw(st.sampled_from(["model", "suffix", "both", "chains", "trees", "none"]))
    trees = kind == "trees" and RULES[rule].shape == "tree"
    n_batch = draw(st.integers(4, 16), "n_batch")
    target = FakeModel(
        words,
        N_CTX,
        n_batch,
        n_seq=4 if trees else 1,
        rollback=rollback,
        kept_graphs=draw(st.sampled_from(["none", "latest", "sized"]), "kept graphs"),
        answers_later=draw(st.booleans(), "later"),
    )
    drafters: list[Any] = []
    if kind in ("model", "both"):
        draft = near(words, 3, draw(st.sampled_from([0.0, 0.4, 1.0]), "share"))
        drafters.append(
            ModelDrafter(
                Follower(
                    FakeModel(draft, N_CTX, draw(st.integers(2, 8), "batch"), rollback=rollback),
                    draw(st.sampled_from([None, 12]), "shared"),
                    draw(st.sampled_from([(), (1, 3)]), "never"),
                )
            )
        )
    if kind in ("suffix", "both"):
        drafters.append(SuffixDrafter(lambda token: token == END, min_match=1))
    if kind in ("chains", "trees"):
        drafters.append(random_script(seed % 1000, right(words, params, seed), trees))
    engine = Engine(
        target,
        drafters,
        max_batch=draw(st.sampled_from([None, 3])),
        linear=draw(st.booleans(), "linear"),
    )
    go_ahead(engine, draw(st.sampled_from(AHEAD), "ahead"))
    prompt = draw(st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=20), "prompt")
    for _ in range(2):
        asked = request(
            prompt,
            rule,
            sampling=params,
            seed=seed,
            max_tokens=draw(st.sampled_from([None, 1, 10, 17]), "max_tokens"),
            draft_max=draw(st.integers(0, 7), "draft_max"),
            draft_p_min=draw(st.sampled_from([0.0, 0.2]), "p_min"),
            adaptive=draw(st.booleans(), "adaptive"),
        )
        outcome = run(engine, asked)
        assert (outcome.tokens, outcome.reason) == expected(words, asked, N_CTX)
        kept = draw(st.integers(1, len(outcome.live.ids)), "kept")
        prompt = [*outcome.live.ids[:kept], 4][:N_CTX]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    words=st.integers(0, 50),
    params=sampling,
    seed=st.integers(0, 2**64 - 1),
    rule=st.sampled_from(["rejection", "block"]),
    rollback=st.sampled_from(["free", "checkpoint"]),
    ahead=st.sampled_from(AHEAD),
)
def test_a_seed_repeats_the_text(
    words: int, params: SamplingParams, seed: int, rule: str, rollback: Any, ahead: int | None
) -> None:
    """Rules with coins promise less: the same text for the same seed and the same drafts."""

    def once() -> list[int]:
        target = language(words)
        draft = FakeModel(near(target, 3, 0.5), rollback=rollback)
        engine = Engine(FakeModel(target, rollback=rollback), [ModelDrafter(Follower(draft))])
        asked = request([3, 1, 4], rule, sampling=params, seed=seed)
        return run(go_ahead(engine, ahead), asked).tokens

    assert once() == once()


def test_seeds_differ() -> None:
    """Else a seed that is ignored would pass everything above."""
    flat = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    words = language(0)
    texts = {
        tuple(run(Engine(FakeModel(words)), request([1], rule, sampling=flat, seed=seed)).tokens)
        for seed in range(5)
        for rule in RULES
    }
    assert len(texts) > 5
