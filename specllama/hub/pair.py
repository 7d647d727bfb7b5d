"""Can a draft serve a target: do the same token ids mean the same bytes?

Only headers are read. Nothing else has to agree: the rules keep the target's law whatever the
draft says, so a different size, end token or template costs acceptance at worst. Ids that mean
something else in the draft are reported and never drafted (their q is 0); ids from
`shared_size` on exist in one model only, so the draft can neither be fed nor propose them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specllama.errors import PairMismatch
from specllama.hub.gguf import Vocabulary, read_language_model

TOLERATED_SHARE = 0.01
"""Share of the common ids that may differ. Families differ in reserved tokens (Llama 3 and 3.2 in
a few of 128,256, Gemma 2's sizes in one); strangers agree on next to nothing."""

_BYTE, _BPE, _SENTENCEPIECE = 6, "gpt2", "llama"


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """The first id that means different text in the two models, and both texts."""

    id: int
    target: str
    draft: str


@dataclass(frozen=True, slots=True)
class PairReport:
    """Whether a draft can serve a target, and why.

    Attributes:
        compatible: the draft may be used, never proposing `differing_ids`.
        target_size, draft_size: tokens in each vocabulary.
        shared_size: ids below it exist in both.
        differing_ids: ids below `shared_size` that mean different bytes.
        first_difference: the lowest of them, None if there is none.
        reasons: why the pair cannot work; empty if it can.
        notes: differences that do no harm but may surprise (sizes, special tokens).
    """

    compatible: bool
    target_size: int
    draft_size: int
    shared_size: int
    differing_ids: frozenset[int]
    first_difference: TokenDifference | None
    reasons: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def translatable(self) -> bool:
        """Whether the draft's guesses can reach the target as text."""
        return min(self.target_size, self.draft_size) > 0

    def require(self, *, translate: bool = False) -> PairReport:
        """This report.

        Args:
            translate: different vocabularies are no reason against the pair.

        Raises:
            PairMismatch: the pair cannot work; names the first differing token and both texts.
        """
        if self.compatible or (translate and self.translatable):
            return self
        raise PairMismatch(
            f"Draft cannot serve this target: {self.reasons[0]} "
            f"(vocab {self.target_size} vs {self.draft_size}).",
            "Use a draft of the same family, or have its guesses translated (--translate).",
        )


def check_files(target: Path, draft: Path) -> PairReport:
    """Compare the vocabularies of two GGUF files.

    Raises:
        NotAModel, ModelNotFound: either file cannot be read as a language model.
    """
    return compare(read_language_model(target).vocabulary, read_language_model(draft).vocabulary)


def compare(target: Vocabulary, draft: Vocabulary) -> PairReport:
    """Compare two vocabularies id by id."""
    shared = min(len(target), len(draft))
    differing = _differing(target, draft)
    first = None
    if differing:
        lowest = differing[0]
        first = TokenDifference(lowest, target.text(lowest), draft.text(lowest))
    compatible = shared > 0 and len(differing) <= TOLERATED_SHARE * shared
    return PairReport(
        compatible=compatible,
        target_size=len(target),
        draft_size=len(draft),
        shared_size=shared,
        differing_ids=frozenset(differing),
        first_difference=first,
        reasons=() if compatible else (_reason(first),),
        notes=tuple(_notes(target, draft, len(differing) if compatible else 0)),
    )


def token_bytes(vocabulary: Vocabulary, id: int) -> bytes:
    """The bytes that a token stands for in a text, whatever the tokenizer's way of writing them."""
    text = bytes(vocabulary.texts[id])
    kind = vocabulary.types[id] if id < len(vocabulary.types) else 0
    if kind == _BYTE:
        return bytes([int(text[3:5], 16)])
    if vocabulary.kind == _BPE and kind != 3:
        return _from_byte_level(text.decode("utf-8", "replace"))
    if vocabulary.kind == _SENTENCEPIECE:
        return text.replace("▁".encode(), b" ")
    return text


def _differing(target: Vocabulary, draft: Vocabulary) -> list[int]:
    """Ids whose bytes differ; stored texts are compared first, their meaning only in doubt."""
    same_kind = target.kind == draft.kind
    return [
        id
        for id, texts in enumerate(zip(target.texts, draft.texts, strict=False))
        if (texts[0] != texts[1] or not same_kind)
        and token_bytes(target, id) != token_bytes(draft, id)
    ]


def _reason(first: TokenDifference | None) -> str:
    if first is None:
        return "one of them has no tokens"
    return f'token {first.id} is "{first.target}" in the target and "{first.draft}" in the draft'


def _notes(target: Vocabulary, draft: Vocabulary, n_differing: int) -> list[str]:
    notes = []
    if len(target) != len(draft):
        notes.append(f"vocabulary sizes differ: {len(target)} and {len(draft)}")
    if n_differing:
        notes.append(f"{n_differing} ids mean different text and are never drafted")
    for name in ("bos", "eos", "eot"):
        mine, other = target.special.get(name), draft.special.get(name)
        if mine != other:
            notes.append(f"{name} differs: {_named(target, mine)} and {_named(draft, other)}")
    if (target.add_bos is not None and draft.add_bos is not None) and (
        target.add_bos != draft.add_bos
    ):
        notes.append(f"only the {'target' if target.add_bos else 'draft'} starts texts with bos")
    return notes


def _named(vocabulary: Vocabulary, id: int | None) -> str:
    if id is None:
        return "none"
    return f'{id} "{vocabulary.text(id)}"' if 0 <= id < len(vocabulary) else f"{id} (no such token)"


def _from_byte_level(text: str) -> bytes:
    """Undo GPT-2's byte-level alphabet; characters outside it stand for themselves."""
    table = _byte_level_alphabet()
    if all(char in table for char in text):
        return bytes(table[char] for char in text)
    return text.encode()


@cache
def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: Latin-1's visible characters are themselves, the rest 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {
        chr(256 + i): byte for i, byte in enumerate(hidden)
    }
