"""The verification rules, each paired with the kind of chance it is exact with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from specllama.errors import UsageError
from specllama.sampling.noise import GreedyDrafts, RandomStream, SharedNoise
from specllama.verification.block import block
from specllama.verification.match import match
from specllama.verification.rejection import rejection
from specllama.verification.types import Chance, Verify

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
        guarantee: one sentence for users.
    """

    name: str
    verify: Verify[C]
    chance: Callable[[int], C]
    uses_law: bool
    shape: Literal["chain", "tree"]
    guarantee: str


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
        ),
        "match": Rule(
            name="match",
            verify=match,
            chance=GreedyDrafts,
            uses_law=False,
            shape="tree",
            guarantee="Exact: every token is the target's own draw; the same seed repeats the text "
            "with any draft.",
        ),
        "rejection": Rule(
            name="rejection",
            verify=rejection,
            chance=RandomStream,
            uses_law=True,
            shape="chain",
            guarantee="Exact in distribution: texts are distributed as the target's own; the same "
            "seed repeats one only with the same drafts.",
        ),
        "block": Rule(
            name="block",
            verify=block,
            chance=RandomStream,
            uses_law=True,
            shape="chain",
            guarantee="Exact in distribution: texts are distributed as the target's own; the same "
            "seed repeats one only with the same drafts.",
        ),
    }
)


def choose_rule(verify: str, seeded: bool) -> Rule[Any]:
    """The rule of that name; "auto" is coupled when the caller gave a seed, else rejection.

    Raises:
        UsageError: no rule has that name.
    """
    if verify == "auto":
        return RULES["coupled" if seeded else "rejection"]
    if verify not in RULES:
        raise UsageError(
            f"Unknown verification rule {verify!r}.", f"Choose from: auto, {', '.join(RULES)}."
        )
    return RULES[verify]
