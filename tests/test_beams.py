"""Beam search over the real pair: what plain beam search finds, to the bit, in fewer batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama import (
    BeamParams,
    BeamResult,
    ContextFull,
    GenerationParams,
    Message,
    ModelOptions,
    SamplingParams,
    SpeculativeDecoder,
    UsageError,
)

pytestmark = pytest.mark.model

PROMPTS = {
    "list": "List the days of the week, one a line.",
    "code": "Write a Python function that returns the largest of three numbers.",
    "copy": "Repeat this word for word: Boats came home one by one, and the women on the quay "
    "counted them aloud: one, two, three, four.",
}


@pytest.fixture(scope="module")
def decoder(target_file: Path, draft_file: Path) -> Iterator[SpeculativeDecoder]:
    options = ModelOptions(threads=1, n_ctx=1024, flash_attn="on")
    with SpeculativeDecoder(target_file, draft_file, options=options) as decoder:
        yield decoder


def search(decoder: SpeculativeDecoder, text: str, **settings: Any) -> BeamResult:
    defaults: dict[str, Any] = {"width": 4, "max_tokens": 16, "adaptive": False}
    return decoder.beam_search_chat([Message("user", text)], BeamParams(**{**defaults, **settings}))


def plain(decoder: SpeculativeDecoder, ids: list[int], width: int, steps: int) -> Any:
    """Beam search that reads every path anew, one after the other: [(logprob, tokens, ended)]."""
    backend = decoder.engine.backend
    is_end = decoder.vocabulary.is_eog

    def log_softmax(path: tuple[int, ...]) -> np.ndarray:
        text = [*ids, *path]
        backend.drop(0)
        backend.decode(text[:-1], range(len(text) - 1), [(0,)] * (len(text) - 1),
                       [False] * (len(text) - 1))  # fmt: skip
        row = backend.decode(text[-1:], [len(text) - 1], [(0,)], [True])[0].astype(np.float64)
        return row - row.max() - np.log(np.exp(row - row.max()).sum())

    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...], bool]] = []
    for _ in range(steps):
        options = []
        for logprob, path in live:
            more = log_softmax(path)
            for token in np.argsort(-more)[: 3 * width]:
                options.append((logprob + more[token], (*path, int(token))))
        options.sort(key=lambda option: -option[0])
        ended += [(p, t[:-1], True) for p, t in options[:width] if is_end(t[-1])]
        live = [option for option in options if not is_end(option[1][-1])][:width]
    found = ended + [(logprob, path, False) for logprob, path in live]
    return sorted(found, key=lambda one: -one[0] / (len(one[1]) + one[2]))


def same(one: BeamResult, other: BeamResult) -> None:
    assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]
    assert [h.text for h in one.hypotheses] == [h.text for h in other.hypotheses]
    for first, second in zip(one.hypotheses, other.hypotheses, strict=True):
        assert abs(first.score - second.score) < 1e-6
        assert first.finish_reason == second.finish_reason


def test_the_same_hypotheses_in_fewer_batches(decoder: SpeculativeDecoder) -> None:
    batches = steps = 0
    for text in PROMPTS.values():
        decoder.forget()
        wanted = search(decoder, text, drafter="none")
        assert wanted.stats.batches == wanted.stats.steps
        decoder.forget()
        found = search(decoder, text, drafter="model")
        same(found, wanted)
        batches += found.stats.batches
        steps += found.stats.steps
    assert batches <= 0.6 * steps


@pytest.mark.parametrize(
    "settings",
    [
        {"drafter": "recycle"},
        {"adaptive": True},
        {"width": 2, "length_penalty": 0.0},
        {"width": 3, "early_stopping": True, "length_penalty": 2.0},
        {"width": 1},
    ],
)
def test_other_settings(decoder: SpeculativeDecoder, settings: dict[str, Any]) -> None:
    decoder.forget()
    wanted = search(decoder, PROMPTS["list"], **{**settings, "drafter": "none"})
    decoder.forget()
    same(search(decoder, PROMPTS["list"], **settings), wanted)


def test_against_a_search_that_reads_every_path_anew(decoder: SpeculativeDecoder) -> None:
    ids = decoder.vocabulary.tokenize("One, two, three,", special=False, add_bos=False)
    params = BeamParams(width=3, max_tokens=6, length_penalty=1.0, adaptive=False)
    found = decoder.beam_search(ids, params)
    decoder.forget()
    wanted = plain(decoder, ids, 3, 6)
    decoder.engine.backend.drop(0)
    assert [tuple(one.tokens) for one in found.hypotheses] == [one[1] for one in wanted[:3]]
    for one, (logprob, _, _) in zip(found.hypotheses, wanted, strict=False):
        assert one.logprob == pytest.approx(logprob, abs=1e-4)


def test_one_beam_is_greedy_decoding(decoder: SpeculativeDecoder) -> None:
    found = search(decoder, PROMPTS["code"], width=1)
    params = GenerationParams(max_tokens=16, sampling=SamplingParams(temperature=0.0))
    assert found.hypotheses[0].text == decoder.chat(
        [Message("user", PROMPTS["code"])], params
    ).text  # fmt: skip
    assert found.usage.completion_tokens == 16


def test_generation_goes_on_afterwards(decoder: SpeculativeDecoder) -> None:
    params = GenerationParams(max_tokens=12, sampling=SamplingParams(temperature=0.0))
    before = decoder.generate("One, two, three,", params).text
    search(decoder, PROMPTS["list"])
    assert decoder.generate("One, two, three,", params).text == before


def test_breaking_off(decoder: SpeculativeDecoder) -> None:
    def on_step(steps: int) -> None:
        if steps > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoder.beam_search("Hello", BeamParams(max_tokens=9), on_step=on_step)
    assert search(decoder, PROMPTS["list"]).hypotheses


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 16}, "16 beams; there is room for 15"),
        ({"width": 0}, "width must be at least 1"),
        ({"n_best": 5}, "n_best must be between 1 and 4"),
        ({"drafter": "suffix"}, "Unknown drafter"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_cannot_be_served(
    decoder: SpeculativeDecoder, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        search(decoder, "Hi", **settings)


def test_a_prompt_that_is_too_long(decoder: SpeculativeDecoder) -> None:
    with pytest.raises(ContextFull):
        decoder.beam_search([1] * 1025)
    with pytest.raises(UsageError, match="empty"):
        decoder.beam_search("")
