"""The drafters of one decoder: built from its options, told what they are to know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specllama.drafting.model import ModelDrafter
from specllama.drafting.needs import check_given
from specllama.drafting.ngram import NgramDrafter
from specllama.drafting.ngram_file import NgramFile
from specllama.drafting.protocol import Drafter
from specllama.drafting.recycle import RecycleDrafter
from specllama.drafting.staged import StagedDrafter
from specllama.drafting.staged_tree import StagedTreeDrafter
from specllama.drafting.store import StoreDrafter, open_store
from specllama.drafting.suffix import SuffixDrafter
from specllama.drafting.suffix_index import DEPTH
from specllama.drafting.text import TextDrafter
from specllama.drafting.translated import TranslatedDrafter
from specllama.drafting.tree import TreeDrafter
from specllama.errors import SpecllamaError
from specllama.hub.fingerprint import fingerprint_of
from specllama.loading import DraftModel, TargetModel
from specllama.options import GenerationParams, ModelOptions


class Drafters:
    """What a target can be drafted for with, and what of it is at hand.

    A file or store that cannot be used is noted in `warnings`; generation goes on without it.

    Args:
        strict_draft: asking by name for a drafter with a model is an error without one.

    Attributes:
        warnings: one sentence each.
        recycle: the one that is always at hand.
    """

    def __init__(
        self, target: TargetModel, options: ModelOptions, *, strict_draft: bool = True
    ) -> None:
        self.warnings: list[str] = []
        self._target = target
        self._n_slots = options.parallel
        self._strict_draft = strict_draft
        self._draft: DraftModel | None = None
        self._is_end = target.model.vocabulary.is_eog
        self._ngrams = self._open_ngrams(options.ngram)
        self._text = TextDrafter()
        self._suffix = SuffixDrafter(self._is_end)
        self._store = self._open_store() if options.store else None
        self.recycle = RecycleDrafter(target.model.n_vocab)

    def set_ngrams(self, path: str | Path) -> None:
        """Draft from an n-gram file; see `all` for the drafters that do.

        Raises:
            SpecllamaError: it cannot be used.
        """
        self._ngrams = self._read_ngrams(path)

    def _read_ngrams(self, path: str | Path) -> NgramFile:
        return NgramFile.open(Path(path), fingerprint_of(self._target.model.path))

    def _open_ngrams(self, path: str | Path | None) -> NgramFile | None:
        if path is None:
            return None
        try:
            return self._read_ngrams(path)
        except SpecllamaError as error:
            self.warnings.append(f"No n-grams: {error}")
            return None

    def _open_store(self) -> StoreDrafter | None:
        try:
            store = StoreDrafter(open_store(self._target.model.path), self._is_end)
            self.warnings += store.warnings
            return store
        except (SpecllamaError, OSError) as error:
            self.warnings.append(f"No store of answers: {error}")
            return None

    def all(self, draft: DraftModel | None) -> list[Drafter]:
        """Every drafter at hand, those without a model first."""
        self._draft = draft
        free = [self._text, self._suffix, self._store, self._by_ngrams(), self.recycle]
        return [drafter for drafter in (*free, *self._with_model(draft)) if drafter is not None]

    def _by_ngrams(self) -> NgramDrafter | None:
        return None if self._ngrams is None else NgramDrafter(self._ngrams, self._is_end)

    def _with_model(self, draft: DraftModel | None) -> list[Drafter]:
        if draft is None:
            return []
        follower = draft.follower
        if draft.is_foreign:
            own = draft.model.vocabulary
            return [TranslatedDrafter(follower, self._target.model.vocabulary, own)]
        ngrams, recycle = self._by_ngrams(), RecycleDrafter(draft.model.n_vocab)
        guessers = [recycle] if ngrams is None else [ngrams, recycle]
        return [
            ModelDrafter(follower),
            StagedDrafter(follower, guessers),
            TreeDrafter(follower, first_branch=self._n_slots),
            StagedTreeDrafter(follower, self._n_slots, guessers),
        ]

    def require(self, params: GenerationParams, options: ModelOptions) -> None:
        """Raise UsageError for a drafter that was asked for and given nothing to draft from."""
        check_given(
            params.drafters(),
            options,
            has_draft=self._draft is not None or not self._strict_draft,
            is_foreign=self._draft is not None and self._draft.is_foreign,
            has_text=params.has_text,
        )

    def predict(self, key: int, text: Sequence[int]) -> None:
        """Expect the reply of a sequence that was just added to resemble these ids."""
        self._text.predict(key, text)

    def remember(self, ids: Sequence[int], n_prompt: int) -> None:
        """Keep a finished answer and the end of its prompt, if there is a store."""
        if self._store is not None:
            self._store.remember(ids[max(0, n_prompt - DEPTH) :])
