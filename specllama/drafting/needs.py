"""What drafters must be given before they can draft anything."""

from __future__ import annotations

from collections.abc import Sequence

from specllama.errors import UsageError
from specllama.options import AUTO_DRAFTERS, ModelOptions

WITH_DRAFT_MODEL = ("model", "staged", "tree", "staged-tree")
"""Those that draft nothing without a draft model."""
_REMEDIES = {
    **dict.fromkeys(WITH_DRAFT_MODEL, "Name a draft model (-md MODEL), or take another drafter."),
    "ngram": "Give its file with --ngram FILE (specllama ngram build makes one).",
    "store": "Turn the store on with --store.",
    "text": "Say what the reply will resemble: --predict-file FILE, or --copy-input.",
}


def check_given(
    names: Sequence[str],
    options: ModelOptions,
    *,
    has_draft: bool,
    is_foreign: bool = False,
    has_text: bool = True,
) -> None:
    """Refuse a drafter that was asked for and given nothing to draft from.

    A file or store that was given and cannot be used is no mistake of that kind: a warning tells
    of it, and generation goes on.

    Args:
        names: `GenerationParams.drafters()`; of `AUTO_DRAFTERS` none is asked for by name.
        has_draft: whether there is a draft model.
        is_foreign: its vocabulary is not the target's.
        has_text: whether the reply is said to resemble a text; only who asks for nothing but the
            drafter "text" needs one.

    Raises:
        UsageError: says which, and what it needs.
    """
    if tuple(names) == AUTO_DRAFTERS:
        return
    given = {
        **dict.fromkeys(WITH_DRAFT_MODEL, has_draft),
        "ngram": options.ngram is not None,
        "store": options.store,
        "text": has_text or len(names) > 1,
    }
    for name in names:
        if is_foreign and name in WITH_DRAFT_MODEL and name != "model":
            raise UsageError(
                f"The drafter {name!r} needs a draft with the target's vocabulary.",
                "With --translate there is the drafter 'model'.",
            )
        if not given.get(name, True):
            raise UsageError(f"The drafter {name!r} has nothing to draft from.", _REMEDIES[name])
