"""Which vocabularies go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from specllama.errors import PairMismatch
from specllama.hub.gguf import Vocabulary
from specllama.hub.pair import check_files, compare, token_bytes
from tests.hub.ggufs import WORDS, write_gguf


def vocabulary(
    texts: Sequence[str] = WORDS,
    *,
    kind: str = "gpt2",
    types: Sequence[int] = (),
    special: Mapping[str, int] | None = None,
    add_bos: bool | None = None,
) -> Vocabulary:
    encoded = [text.encode() for text in texts]
    return Vocabulary(kind, "", encoded, types, special or {}, add_bos, None)


def changed(changes: Mapping[int, str]) -> list[str]:
    return [changes.get(id, word) for id, word in enumerate(WORDS)]


def test_equal_vocabularies() -> None:
    report = compare(vocabulary(), vocabulary())

    assert report.compatible
    assert (report.shared_size, report.differing_ids, report.first_difference) == (
        len(WORDS),
        frozenset(),
        None,
    )
    assert (report.reasons, report.notes) == ((), ())


def test_padding_does_no_harm() -> None:
    report = compare(vocabulary([*WORDS, *(f"[PAD{i}]" for i in range(300))]), vocabulary())

    assert report.compatible
    assert report.shared_size == len(WORDS)
    assert report.notes == ("vocabulary sizes differ: 500 and 200",)


def test_a_few_differing_ids_are_reported_and_tolerated() -> None:
    report = compare(vocabulary(), vocabulary(changed({139: "<mask>", 150: "<pad>"})))

    assert report.compatible
    assert report.differing_ids == {139, 150}
    assert report.first_difference is not None
    assert report.first_difference.id == 139
    assert report.notes == ("2 ids mean different text and are never drafted",)


def test_strangers_are_refused_with_the_first_differing_token() -> None:
    others = vocabulary(changed({id: f"other{id}" for id in range(2, 200)}))
    report = compare(vocabulary([*WORDS, "more"]), others)

    assert not report.compatible
    with pytest.raises(PairMismatch) as caught:
        report.require()
    assert str(caught.value) == (
        'Draft cannot serve this target: token 2 is "<unk>" in the target and "other2" in the '
        "draft (vocab 201 vs 200). Use a draft of the same family, or have its guesses translated "
        "(--translate)."
    )
    assert report.require(translate=True) is report


def test_one_percent_is_the_limit() -> None:
    assert compare(vocabulary(), vocabulary(changed({5: "x", 6: "y"}))).compatible
    assert not compare(vocabulary(), vocabulary(changed({5: "x", 6: "y", 7: "z"}))).compatible


def test_an_empty_vocabulary_serves_nobody() -> None:
    for report in (compare(vocabulary(), vocabulary([])), compare(vocabulary([]), vocabulary())):
        assert not report.compatible
        with pytest.raises(PairMismatch):
            report.require(translate=True)


def test_special_tokens_that_differ_are_noted() -> None:
    report = compare(
        vocabulary(special={"bos": 0, "eos": 1}, add_bos=True),
        vocabulary(special={"bos": 0, "eos": 2}, add_bos=False),
    )

    assert report.compatible
    assert report.notes == (
        'eos differs: 1 "</s>" and 2 "<unk>"',
        "only the target starts texts with bos",
    )


def test_the_same_bytes_in_another_notation_are_the_same_token() -> None:
    bpe = vocabulary(["Ġthe", "Ċ", "Ã¤"] * 50, kind="gpt2")
    spm = vocabulary(["▁the", "<0x0A>", "ä"] * 50, kind="llama", types=[1, 6, 1] * 50)

    assert compare(bpe, spm).differing_ids == frozenset()


@pytest.mark.parametrize(
    ("text", "kind", "type", "expected"),
    [
        ("Ġhello", "gpt2", 1, b" hello"),
        ("Ã¼", "gpt2", 1, "ü".encode()),
        ("<|im_end|>", "gpt2", 3, b"<|im_end|>"),
        ("你", "gpt2", 1, "你".encode()),
        ("▁▁x", "llama", 1, b"  x"),
        ("<0xE4>", "llama", 6, b"\xe4"),
    ],
)
def test_token_bytes(text: str, kind: str, type: int, expected: bytes) -> None:
    assert token_bytes(vocabulary([text], kind=kind, types=[type]), 0) == expected


def test_files(tmp_path: Path) -> None:
    target = write_gguf(tmp_path / "t.gguf")
    draft = write_gguf(tmp_path / "d.gguf", tokens=[f"else{i}" for i in range(200)])

    assert check_files(target, target).compatible
    assert check_files(target, draft).first_difference is not None
