"""The verification rules, each paired with the kind of chance it is exact with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from specllama.errors import UsageError
from specllama.sampling.noise import (
    GreedyDrafts,
    GreedyPlusOne,
    IndependentDrafts,
    RandomStream,
    SharedNoise,
)
from specllama.verification.block import block
from specllama.verification.greedy_one import greedy_one
from specllama.verification.lenient import lenient
from specllama.verification.match import match
from specllama.verification.recursive import with_replacement, without_replacement
from specllama.verification.rejection import rejection
from specllama.verification.spectr import spectr
from specllama.verification.traversal import traversal
from specllama.verification.types import Chance, CoinChance, Verify
from specllama.verification.typical import typical

C = TypeVar("C", bound=Chance)


@dataclass(frozen=True, slots=True)
class Rule(Generic[C]):
    """A verification rule and what it needs.

    Attributes:
        name: what people call it.
        verify: decides over a proposal.
        chance: seed -> the randomness of one generation, for target and drafts alike.
        uses_law: the rule reads `Proposal.laws`, so a drafter has to give the law it drew from.
        shape: the most general proposal it can judge.
        guarantee: one sentence for users; of bits that are not rounded otherwise (`promise`).
        lossless: texts are distributed as the target's own.
        of_seed: the text of a seed is the same with any drafts.
    """

    name: str
    verify: Verify[C]
    chance: Callable[[int], C]
    uses_law: bool
    shape: Literal["chain", "tree"]
    guarantee: str
    lossless: bool = True
    of_seed: bool = False

    def promise(self, *, exact: bool) -> str:
        """The guarantee, for settings under which batches have the bits of single tokens or not."""
        if exact or not self.of_seed:
            return self.guarantee
        return f"{self.guarantee.removesuffix('.')}, {ROUNDED}"


ROUNDED = "but where rounding swaps nearly equal tokens (exact mode lets none)."
IN_DISTRIBUTION = (
    "Exact in distribution: texts are distributed as the target's own; the same seed repeats one "
    "only with the same drafts."
)
# The lenience of "rejection-lenient": no token comes more than twice as often as it should.
LENIENCE = 0.5


def _drawn_tree(
    name: str, verify: Verify[CoinChance], chance: Callable[[int], CoinChance]
) -> Rule[Any]:
    return Rule(name, verify, chance, uses_law=True, shape="tree", guarantee=IN_DISTRIBUTION)


RULES: Mapping[str, Rule[Any]] = MappingProxyType(
    {
        "coupled": Rule(
            name="coupled",
            verify=match,
            chance=SharedNoise,
            uses_law=False,
            shape="tree",
            guarantee="Exact: the text is a function of model, prompt, settings and seed alone; "
            "drafting cannot change it.",
            of_seed=True,
        ),
        "match": Rule(
            name="match",
            verify=match,
            chance=GreedyDrafts,
            uses_law=False,
            shape="tree",
            guarantee="Exact: every token is the target's own draw; the same seed repeats the text "
            "with any draft.",
            of_seed=True,
        ),
        "rejection": Rule(
            name="rejection",
            verify=rejection,
            chance=RandomStream,
            uses_law=True,
            shape="chain",
            guarantee=IN_DISTRIBUTION,
        ),
        "block": Rule(
            name="block",
            verify=block,
            chance=RandomStream,
            uses_law=True,
            shape="chain",
            guarantee=IN_DISTRIBUTION,
        ),
        "rrs": _drawn_tree("rrs", without_replacement, RandomStream),
        "rrs-iid": _drawn_tree("rrs-iid", with_replacement, IndependentDrafts),
        "spectr": _drawn_tree("spectr", spectr, IndependentDrafts),
        "greedy-one": _drawn_tree("greedy-one", greedy_one, GreedyPlusOne),
        "traversal": _drawn_tree("traversal", traversal, RandomStream),
    }
)
"""The rules that leave the target's law as it is."""

LOSSY_RULES: Mapping[str, Rule[Any]] = MappingProxyType(
    {
        "typical": Rule(
            name="typical",
            verify=typical,
            chance=GreedyDrafts,
            uses_law=False,
            shape="tree",
            guarantee="Not exact: typical acceptance makes texts more probable and less varied "
            "than the target's own.",
            lossless=False,
        ),
        "rejection-lenient": Rule(
            name="rejection-lenient",
            verify=lenient(LENIENCE),
            chance=RandomStream,
            uses_law=True,
            shape="chain",
            guarantee="Not exact: lenient rejection lets a token come up to "
            f"{1 / LENIENCE:g} times as often as under the target.",
            lossless=False,
        ),
    }
)
"""Faster rules that change what the model says: only for those who ask for it."""


UNSEEDED = "block"
"""What "auto" is for chains where nobody gave a seed."""
_UNSEEDED_TREES = "greedy-one"


def choose_rule(
    verify: str, seeded: bool, lossy: bool = False, *, trees: bool = False
) -> Rule[Any]:
    """The rule of that name; "auto" is coupled when the caller gave a seed, else block.

    Args:
        lossy: the caller accepts a rule that changes what the model says.
        trees: it has to judge trees, which "auto" without a seed does by greedy-one.

    Raises:
        UsageError: no rule has that name, or it needs `lossy`.
    """
    if verify == "auto":
        return RULES["coupled" if seeded else _UNSEEDED_TREES if trees else UNSEEDED]
    if verify in RULES:
        return RULES[verify]
    if verify not in LOSSY_RULES:
        names = ", ".join(("auto", *RULES, *LOSSY_RULES))
        raise UsageError(f"Unknown verification rule {verify!r}.", f"Choose from: {names}.")
    if not lossy:
        raise UsageError(
            f"{verify} changes what the model says.",
            "Add --lossy to accept that, or choose another rule.",
        )
    return LOSSY_RULES[verify]
