"""The drafters of one decoder: what is missing, and what cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.decoder import SpeculativeDecoder
from specllama.errors import UsageError
from specllama.options import GenerationParams, ModelOptions

pytestmark = pytest.mark.model


def one_token(drafter: str) -> GenerationParams:
    return GenerationParams(max_tokens=1, drafter=drafter)


def test_a_drafter_with_a_model_needs_one(target_file: Path, draft_file: Path) -> None:
    options = ModelOptions(threads=1, n_ctx=256)
    with SpeculativeDecoder(target_file, options=options) as decoder:
        for name in ("model", "staged", "tree", "staged-tree", "suffix+tree"):
            with pytest.raises(UsageError, match="Name a draft model"):
                decoder.generate("Hi", one_token(name))
        decoder.set_draft(draft_file)
        assert decoder.generate("Hi", one_token("tree")).usage.completion_tokens == 1
        decoder.set_draft(None)
        with pytest.raises(UsageError, match="Name a draft model"):
            decoder.generate("Hi", one_token("tree"))
        assert decoder.generate("Hi", one_token("auto")).usage.completion_tokens == 1


def test_where_a_draft_may_be_missing_so_may_what_needs_it(target_file: Path) -> None:
    options = ModelOptions(threads=1, n_ctx=256)
    with SpeculativeDecoder(target_file, options=options, strict_draft=False) as decoder:
        assert decoder.generate("Hi", one_token("tree")).usage.completion_tokens == 1


def test_generation_goes_on_without_a_file_and_a_store_that_cannot_be_used(
    target_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, ngrams = tmp_path / "home", tmp_path / "x.ngram"
    home.write_text("No folder.")
    ngrams.write_text("No n-grams.")
    monkeypatch.setenv("SPECLLAMA_HOME", str(home))
    options = ModelOptions(threads=1, n_ctx=256, ngram=ngrams, store=True)
    with SpeculativeDecoder(target_file, options=options) as decoder:
        for drafter in ("ngram", "store", "ngram+store"):
            reply = decoder.generate("Hi", one_token(drafter))
            assert reply.usage.completion_tokens == 1
    assert any(str(ngrams) in warning for warning in decoder.warnings)
    assert any(str(home) in warning for warning in decoder.warnings)
