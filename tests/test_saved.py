"""Conversations on disk: both models' caches, and what does not fit them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama import (
    EngineError,
    GenerationParams,
    ModelError,
    ModelOptions,
    Pool,
    SamplingParams,
    SpeculativeDecoder,
    UsageError,
)
from specllama.drafting.arrays import read_arrays, write_arrays
from specllama.saved import CONVERSATION

pytestmark = pytest.mark.model

STORY = "Once upon a time, there was a little robot who"


def said(max_tokens: int = 12, **settings: Any) -> GenerationParams:
    defaults: dict[str, Any] = {"seed": 7, "adaptive": False, "draft_max": 3, "drafter": "model"}
    greedy = SamplingParams(temperature=0.0)
    return GenerationParams(max_tokens=max_tokens, sampling=greedy, **{**defaults, **settings})


@pytest.fixture(scope="module")
def first(target_file: Path, draft_file: Path) -> Iterator[SpeculativeDecoder]:
    options = ModelOptions(threads=1, n_ctx=256)
    with SpeculativeDecoder(target_file, draft_file, options=options) as decoder:
        yield decoder


@pytest.fixture(scope="module")
def file(first: SpeculativeDecoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "robot.conversation"
    first.forget()
    first.generate(STORY, said())
    first.save(path)
    return path


def test_goes_on_where_it_was(first: SpeculativeDecoder, file: Path) -> None:
    ids = [*first._encode(STORY), *first.generate(STORY, said()).tokens]
    direct = first.generate(ids, said())
    first.forget()
    held = first.restore(file)
    again = first.generate(ids, said())
    assert held == again.usage.cached_tokens == len(ids) - 1
    assert again.tokens == direct.tokens
    assert again.spec.acceptance == direct.spec.acceptance


def test_the_drafts_cache_comes_back_too(first: SpeculativeDecoder, file: Path) -> None:
    draft = first._draft
    assert draft is not None
    first.forget()
    assert draft.follower.cache.length(0) == 0
    first.restore(file)
    saved = read_arrays(file, CONVERSATION).arrays["draft ids"]
    assert draft.follower.cache.tokens(0) == saved.tolist()
    assert len(saved) >= len(first._encode(STORY))


def test_in_another_process_of_several_slots(
    target_file: Path, first: SpeculativeDecoder, file: Path
) -> None:
    """Without a draft model, whose part is left alone; the slot that goes on is the one."""
    ids = [*first._encode(STORY), *first.generate(STORY, said()).tokens]
    options = ModelOptions(threads=1, n_ctx=256, parallel=2)
    with SpeculativeDecoder(target_file, options=options) as other:
        other.restore(file)
        with Pool(other) as pool:
            tickets = [pool.submit(prompt, said(drafter="none")) for prompt in ("Hello", ids)]
            for ticket in tickets:
                ticket.finish()
            assert tickets[1].n_cached == len(ids) - 1


def test_nothing_was_said(target_file: Path, tmp_path: Path) -> None:
    options = ModelOptions(threads=1, n_ctx=256)
    with (
        SpeculativeDecoder(target_file, options=options) as decoder,
        pytest.raises(UsageError, match="no conversation"),
    ):
        decoder.save(tmp_path / "x")


def test_nowhere_to_write(first: SpeculativeDecoder, file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot write"):
        first.save(tmp_path / "missing" / "x")


def test_a_full_context(target_file: Path, tmp_path: Path) -> None:
    """A reply that ended there comes back; there is room for one token behind it."""
    options = ModelOptions(threads=1, n_ctx=256)
    with SpeculativeDecoder(target_file, options=options) as decoder:
        prompt = [1, *range(100, 340)]
        reply = decoder.generate(prompt, said(None, drafter="none"))
        assert reply.finish_reason == "context"
        decoder.save(tmp_path / "full")
        decoder.forget()
        assert decoder.restore(tmp_path / "full") == 256


def test_a_file_that_did_not_come_back_takes_no_place(
    target_file: Path, file: Path, tmp_path: Path
) -> None:
    """Saving then does not write an empty conversation over another one."""
    broken = tmp_path / "broken"
    found = read_arrays(file, CONVERSATION)
    arrays = {**found.arrays, "target state": found.arrays["target state"][:100]}
    write_arrays(broken, CONVERSATION, found.fields, arrays)
    with SpeculativeDecoder(target_file, options=ModelOptions(threads=1, n_ctx=256)) as decoder:
        decoder.generate(STORY, said(drafter="none"))
        with pytest.raises(EngineError):
            decoder.restore(broken)
        with pytest.raises(UsageError, match="no conversation"):
            decoder.save(file)
    assert read_arrays(file, CONVERSATION).arrays.keys() == found.arrays.keys()


def changed(file: Path, to: Path, **fields: str) -> Path:
    found = read_arrays(file, CONVERSATION)
    write_arrays(to, CONVERSATION, {**found.fields, **fields}, found.arrays)
    return to


class TestForeignFiles:
    def test_damaged(self, first: SpeculativeDecoder, file: Path, tmp_path: Path) -> None:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        bad = tmp_path / "bad"
        bad.write_bytes(data)
        with pytest.raises(ModelError, match="damaged"):
            first.restore(bad)

    @pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
    def test_cut(self, first: SpeculativeDecoder, file: Path, tmp_path: Path, share: float) -> None:
        data = file.read_bytes()
        bad = tmp_path / "bad"
        bad.write_bytes(data[: int(share * len(data))])
        with pytest.raises(ModelError):
            first.restore(bad)

    def test_missing_or_something_else(
        self, first: SpeculativeDecoder, target_file: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(ModelError, match="not found"):
            first.restore(tmp_path / "none")
        with pytest.raises(ModelError, match="is not a saved conversation"):
            first.restore(target_file)

    def test_a_part_is_missing(self, first: SpeculativeDecoder, file: Path, tmp_path: Path) -> None:
        found = read_arrays(file, CONVERSATION)
        arrays = {name: part for name, part in found.arrays.items() if name != "target ids"}
        write_arrays(tmp_path / "part", CONVERSATION, found.fields, arrays)
        with pytest.raises(ModelError, match="lacks its target ids"):
            first.restore(tmp_path / "part")

    @pytest.mark.parametrize("what", ["target", "llama.cpp", "key cache", "flash attention"])
    def test_of_something_else(
        self, first: SpeculativeDecoder, file: Path, tmp_path: Path, what: str
    ) -> None:
        other = changed(file, tmp_path / "other", **{what: "another"})
        with pytest.raises(ModelError, match=f"another {what}"):
            first.restore(other)

    def test_a_state_that_is_none(
        self, first: SpeculativeDecoder, file: Path, tmp_path: Path
    ) -> None:
        """What llama.cpp refuses leaves the decoder as it was."""
        found = read_arrays(file, CONVERSATION)
        arrays = {**found.arrays, "target state": np.zeros(64, np.uint8)}
        write_arrays(tmp_path / "bad", CONVERSATION, found.fields, arrays)
        direct = first.generate(STORY, said()).tokens
        with pytest.raises(Exception, match="saved state"):
            first.restore(tmp_path / "bad")
        assert first.generate(STORY, said()).tokens == direct

    def test_longer_than_the_context(
        self, target_file: Path, first: SpeculativeDecoder, tmp_path: Path
    ) -> None:
        first.generate([100] * 250, said(3, drafter="none"))
        first.save(tmp_path / "long")
        found = read_arrays(tmp_path / "long", CONVERSATION)
        ids = np.concatenate([found.arrays["target ids"]] * 2)
        write_arrays(
            tmp_path / "longer", CONVERSATION, found.fields, {**found.arrays, "target ids": ids}
        )
        with pytest.raises(UsageError, match="the context takes 256"):
            first.restore(tmp_path / "longer")
