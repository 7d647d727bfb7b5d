"""Drafters that were given nothing to draft from."""

from __future__ import annotations

import pytest

from specllama.drafting.needs import WITH_DRAFT_MODEL, check_given
from specllama.errors import UsageError
from specllama.options import AUTO_DRAFTERS, DRAFTER_NAMES, ModelOptions


@pytest.mark.parametrize("name", DRAFTER_NAMES)
def test_what_needs_something_is_refused_without_it(name: str) -> None:
    everything = ModelOptions(ngram="x.ngram", store=True)
    check_given([name], everything, has_draft=True)
    if name in ("suffix", "text", "recycle"):  # of the text only a reply knows, see below
        return check_given([name], ModelOptions(), has_draft=False)
    with pytest.raises(UsageError, match=f"The drafter '{name}' has nothing to draft from"):
        check_given(["suffix", name], ModelOptions(), has_draft=False)


def test_a_draft_is_all_that_its_drafters_need() -> None:
    check_given(WITH_DRAFT_MODEL, ModelOptions(), has_draft=True)


def test_only_chains_come_from_a_draft_with_another_vocabulary() -> None:
    check_given(["suffix", "model"], ModelOptions(), has_draft=True, is_foreign=True)
    for name in ("tree", "staged", "staged-tree"):
        with pytest.raises(UsageError, match=f"'{name}' needs a draft with the target's vocab"):
            check_given(["suffix", name], ModelOptions(), has_draft=True, is_foreign=True)


def test_a_text_is_needed_by_who_asks_for_nothing_else() -> None:
    none = ModelOptions()
    check_given(["text"], none, has_draft=False, has_text=True)
    check_given(["text", "suffix"], none, has_draft=False, has_text=False)
    with pytest.raises(UsageError, match=r"'text' has nothing to draft from.*--predict-file"):
        check_given(["text"], none, has_draft=False, has_text=False)


@pytest.mark.parametrize("names", [AUTO_DRAFTERS, ()])
def test_nothing_asked_for_by_name_needs_nothing(names: tuple[str, ...]) -> None:
    check_given(names, ModelOptions(), has_draft=False)
