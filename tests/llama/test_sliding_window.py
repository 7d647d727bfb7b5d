"""A model with a sliding window: what has left a sequence's window may be gone from the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama import GenerationParams, ModelOptions, Pool, SamplingParams, SpeculativeDecoder
from tests.llama.tiny import SPECIAL, write_gemma3

pytestmark = pytest.mark.model

OPTIONS = ModelOptions(n_ctx=256, threads=1)
FIRST = [40 + n % 50 for n in range(100)]
SECOND = [90 + n % 60 for n in range(100)]
OTHER = [200 - n % 60 for n in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, llama_cpp: None) -> Path:
    return write_gemma3(tmp_path_factory.mktemp("gemma3") / "target.gguf", window=32)


@pytest.fixture(scope="module")
def fresh(model: Path) -> Iterator[SpeculativeDecoder]:
    """Reads every prompt from its beginning, if told to forget."""
    with SpeculativeDecoder(model, options=OPTIONS) as decoder:
        yield decoder


def params(n_tokens: int) -> GenerationParams:
    never_ends = dict.fromkeys(range(len(SPECIAL)), -100.0)
    sampling = SamplingParams(temperature=0.0, logit_bias=never_ends)
    return GenerationParams(max_tokens=n_tokens, seed=1, drafter="none", sampling=sampling)


@pytest.mark.parametrize("cut", [100, 90, 60, 50])
def test_an_edited_conversation_beside_another(
    model: Path, fresh: SpeculativeDecoder, cut: int
) -> None:
    options = ModelOptions(n_ctx=256, threads=1, parallel=2)
    with SpeculativeDecoder(model, options=options) as decoder, Pool(decoder) as pool:
        pool.submit(FIRST, params(5)).finish()
        pool.submit(SECOND, params(5)).finish()
        pool.submit(OTHER, params(200)).finish()  # in the first one's slot
        context, cache = decoder._target.context, decoder.engine.cache
        (slot,) = (slot for slot in (0, 1) if cache.tokens(slot)[:100] == SECOND)
        assert not context.reaches(slot, 60), "nothing of it was taken by another"
        assert context.reaches(slot, cache.length(slot))
        edited = [*SECOND[:cut], 77, 78]
        reply = pool.submit(edited, params(12)).finish()
    fresh.forget()
    assert reply.tokens == fresh.generate(edited, params(12)).tokens


def test_another_slot_gives_only_what_it_still_has(model: Path, fresh: SpeculativeDecoder) -> None:
    options = ModelOptions(n_ctx=256, threads=1, parallel=3)
    begun = [*SECOND[:40], 77]
    with SpeculativeDecoder(model, options=options) as decoder, Pool(decoder) as pool:
        pool.submit(FIRST, params(5)).finish()
        said = pool.submit(SECOND, params(5)).finish().tokens
        pool.submit([3], params(5)).finish()
        pool.submit(OTHER, params(200)).finish()  # in the first one's slot
        pool.submit([*SECOND, *said, 5], params(5)).finish()  # in its own, which is the latest now
        reply = pool.submit(begun, params(12)).finish()
        assert sum(decoder.engine.cache.tokens(slot)[:40] == SECOND[:40] for slot in range(3)) == 2
    fresh.forget()
    assert reply.tokens == fresh.generate(begun, params(12)).tokens


def test_a_restored_conversation_cut_shorter(
    model: Path, fresh: SpeculativeDecoder, tmp_path: Path
) -> None:
    edited = [*FIRST[:60], 77]
    fresh.forget()
    expected = fresh.generate(edited, params(12)).tokens
    with SpeculativeDecoder(model, options=OPTIONS) as decoder:
        decoder.generate(FIRST, params(12))
        decoder.save(tmp_path / "conversation")
        decoder.forget()
        decoder.restore(tmp_path / "conversation")
        assert decoder.generate(edited, params(12)).tokens == expected


def test_without_a_window_all_is_there(target_file: Path) -> None:
    options = ModelOptions(n_ctx=256, threads=1)
    with SpeculativeDecoder(target_file, options=options) as decoder:
        decoder.generate(FIRST, params(1))
        assert decoder._target.context.reaches(0, 1)
