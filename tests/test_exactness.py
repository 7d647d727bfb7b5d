"""The promise itself, on the real pair: drafts decide how fast a text comes, not what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama import GenerationParams, ModelOptions, SamplingParams, SpeculativeDecoder
from specllama.bench.laws import chi_square, paths
from specllama.llama.context import Context
from specllama.llama.model import Model
from specllama.sampling.chain import Sampler
from specllama.sampling.distribution import Distribution
from specllama.sampling.noise import RandomStream
from specllama.verification import RULES
from specllama.verification.types import Proposal

pytestmark = pytest.mark.model

EXACT = ModelOptions(exact=True, threads=1, n_ctx=256)
PROMPTS = {
    "story": "Once upon a time there was a fox. Once upon a time there was a",
    "code": "def add(a, b):\n    return a + b\n\n\ndef add3(a, b, c):\n    return a +",
}
LENGTHS = {"suffix": (2, 7), "model": range(1, 8), "model+suffix": (3, 5), "tree": (4,)}


@pytest.fixture(scope="module")
def pair(target_file: Path, draft_file: Path) -> Iterator[SpeculativeDecoder]:
    with SpeculativeDecoder(target_file, draft_file, options=EXACT) as decoder:
        yield decoder


def text(decoder: SpeculativeDecoder, prompt: str, temperature: float, **settings: Any) -> Any:
    defaults: dict[str, Any] = {"seed": 11, "adaptive": False, "max_tokens": 16}
    sampling = SamplingParams(temperature=temperature)
    return decoder.generate(prompt, GenerationParams(sampling=sampling, **{**defaults, **settings}))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_any_draft_gives_the_same_text(
    pair: SpeculativeDecoder, prompt: str, temperature: float
) -> None:
    plain = text(pair, prompt, temperature, drafter="none")
    accepted = 0
    for drafter, lengths in LENGTHS.items():
        for length in lengths:
            drafted = text(pair, prompt, temperature, drafter=drafter, draft_max=length)
            assert drafted.text == plain.text, (drafter, length)
            assert drafted.tokens == plain.tokens
            assert drafted.logprobs == plain.logprobs, "not the same bits"
            accepted += drafted.spec.accepted
    assert text(pair, prompt, temperature, drafter="auto", adaptive=True).tokens == plain.tokens
    assert accepted > 0, "nothing was ever put to the test"


def test_look_ups_are_tested_too(pair: SpeculativeDecoder) -> None:
    drafted = text(pair, PROMPTS["story"], 0.0, drafter="suffix", draft_max=7)
    assert drafted.spec.by_source["suffix"].accepted > 0


@pytest.mark.parametrize("verify", ["rejection", "block", "match"])
def test_a_seed_repeats_the_text(pair: SpeculativeDecoder, verify: str) -> None:
    runs = [
        text(pair, PROMPTS["story"], 1.0, drafter="model", verify=verify, draft_max=3, seed=seed)
        for seed in (5, 5, 6)
    ]
    assert runs[0].tokens == runs[1].tokens
    assert runs[0].tokens != runs[2].tokens


def test_a_model_that_drafts_for_itself_is_always_right(target_file: Path) -> None:
    with SpeculativeDecoder(target_file, target_file, options=EXACT) as decoder:
        for verify in ("coupled", "rejection"):
            drafted = text(
                decoder, PROMPTS["code"], 0.0, drafter="model", verify=verify, draft_max=5
            )
            assert drafted.spec.acceptance == 1.0
        sampled = text(decoder, PROMPTS["code"], 1.0, drafter="model", draft_max=5)
        assert sampled.spec.acceptance == 1.0


# The law of the rules over real laws: logits are computed once, production rules run many times.

FEW = Sampler(SamplingParams(top_k=5, top_p=1.0, min_p=0.0, temperature=1.0))
Laws = Callable[[tuple[int, ...]], Distribution]


@pytest.fixture(scope="module")
def laws(target_file: Path, draft_file: Path) -> Iterator[Callable[[Path], Laws]]:
    """A file -> its law after the prompt and a few tokens more, each computed once."""
    opened: list[Any] = []

    @cache
    def of(path: Path) -> Laws:
        model = Model(path, gpu_layers=0)
        context = Context(model, n_ctx=256, threads=1, flash_attn="on")
        opened.extend((context, model))
        prompt = model.vocabulary.tokenize(PROMPTS["story"], special=False, add_bos=False)
        _read(context, prompt[:-1], 0)

        @cache
        def after(path: tuple[int, ...]) -> Distribution:
            context.truncate(0, len(prompt) - 1)
            row = _read(context, [prompt[-1], *path], len(prompt) - 1)
            return FEW.distribution(row, ())

        return after

    yield of
    for thing in opened:
        thing.close()


def _read(context: Context, ids: Sequence[int], start: int) -> np.ndarray:
    wanted = [False] * (len(ids) - 1) + [True]
    return context.decode(ids, range(start, start + len(ids)), [(0,)] * len(ids), wanted)[0]


def two_tokens(rule: str, target: Laws, draft: Laws, stream: RandomStream) -> tuple[int, int]:
    """What a round of two drafts emits, completed by the target to two tokens."""
    tokens: list[int] = []
    drawn: list[Distribution] = []
    for depth in range(2):
        drawn.append(draft(tuple(tokens)))
        tokens += stream.children(drawn[-1], depth, 1)
    proposal = Proposal.chain(tokens, drawn)
    verdict = RULES[rule].verify(
        proposal, lambda node: target(tuple(tokens[: node + 1])), stream, 0
    )
    said = [*(tokens[node] for node in verdict.path), verdict.token]
    if len(said) < 2:
        said.append(stream.pick(target(tuple(said)), 1))
    return said[0], said[1]


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("drafted_by", ["draft", "itself"])
def test_the_law_is_the_targets(
    laws: Callable[[Path], Laws], target_file: Path, draft_file: Path, rule: str, drafted_by: str
) -> None:
    target = laws(target_file)
    draft = target if drafted_by == "itself" else laws(draft_file)
    stream = RandomStream(2024)
    found: Counter[tuple[int, ...]] = Counter(
        two_tokens(rule, target, draft, stream) for _ in range(8000)
    )
    assert chi_square(found, paths(target, 2)) > 1e-3


def test_the_test_sees_a_wrong_law(
    laws: Callable[[Path], Laws], target_file: Path, draft_file: Path
) -> None:
    """Accepting what is merely likely is noticed."""
    target, draft = laws(target_file), laws(draft_file)
    stream = RandomStream(2024)
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(8000):
        (first,) = stream.children(draft(()), 0, 1)
        if target(()).prob(first) < 0.1:
            first = stream.pick(target(()), 0)
        found[first, stream.pick(target((first,)), 1)] += 1
    assert chi_square(found, paths(target, 2)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_the_law_of_the_whole_engine(
    pair: SpeculativeDecoder, laws: Callable[[Path], Laws], target_file: Path, rule: str
) -> None:
    """The same through prompt, caches and rounds: the first two tokens of short texts."""
    sampling = SamplingParams(top_k=5, top_p=1.0, min_p=0.0, temperature=1.0)
    found: Counter[tuple[int, ...]] = Counter()
    for seed in range(150):
        params = GenerationParams(
            max_tokens=2, sampling=sampling, seed=seed, verify=rule, drafter="model",
            draft_max=1, adaptive=False,
        )  # fmt: skip
        first, second = pair.generate(PROMPTS["story"], params).tokens
        found[first, second] += 1
    assert chi_square(found, paths(laws(target_file), 2)) > 1e-3
