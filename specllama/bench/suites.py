"""Which arms run: sweeps over what people ask for, and suites as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import MappingProxyType
from typing import Any

from specllama.bench.runner import Arm, Role
from specllama.drafting.needs import WITH_DRAFT_MODEL
from specllama.errors import UsageError
from specllama.options import TREE_DRAFTERS, GenerationParams

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a suite: settings over the person's own, by field of `GenerationParams`."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: Role = "target"


def _fixed(drafter: str, verify: str, gamma: int = 4) -> dict[str, Any]:
    """A rule and a drafter at a fixed length, as the papers have it."""
    return {"drafter": drafter, "verify": verify, "draft_max": gamma, "adaptive": False}


SUITES: Mapping[str, tuple[Row, ...]] = MappingProxyType(
    {
        "seeds": (
            Row("draft alone", {"drafter": "none"}, "draft"),
            Row("naive, greedy draft", _fixed("model", "match")),
            Row("naive, sampled draft", _fixed("model", "rejection")),
            Row("block", _fixed("model", "block")),
            Row("coupled", _fixed("model", "coupled")),
            Row("prompt look-up", _fixed("suffix", "coupled", 10)),
            Row("input copied", _fixed("text", "coupled", 16) | {"copy_input": True}),
            Row("n-gram", _fixed("ngram", "coupled")),
            Row("n-gram, then draft", _fixed("ngram+model", "coupled")),
            Row("token recycling", _fixed("recycle", "coupled")),
            Row("staged", _fixed("staged", "coupled")),
            Row("tree", _fixed("tree", "coupled")),
            Row("staged tree", _fixed("staged-tree", "coupled")),
            Row("SpecTr", _fixed("tree", "spectr")),
            Row("recursive rejection", _fixed("tree", "rrs")),
            Row("greedy + 1 sampled", _fixed("tree", "greedy-one")),
            Row("traversal", _fixed("tree", "traversal")),
            Row("specllama", {"drafter": "auto", "adaptive": True}),
        ),
    }
)
"""The named baselines of the field; plain decoding of the target goes before each suite."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to vary; an empty list keeps the setting of `base`."""

    base: GenerationParams
    temps: Sequence[float] = ()
    verifies: Sequence[str] = ()
    drafters: Sequence[str] = ()
    draft_maxes: Sequence[int] = ()
    trees: Sequence[str] = ()

    def arms(self) -> list[Arm]:
        """Plain decoding and every combination, temperature by temperature.

        Raises:
            UsageError: a value that `GenerationParams` refuses.
        """
        arms: list[Arm] = []
        for base, label in self.by_temperature():
            rule: dict[str, Any] = {"verify": self.verifies[0]} if self.verifies else {}
            plain = plain_arm(replace(base, **rule), label)
            arms.append(plain)
            for given in self._combinations():
                name = ", ".join(f"{key.replace('_', '-')} {value}" for key, value in given.items())
                params = replace(base, **given)
                arms.append(Arm(_join(name or "drafting", label), params, against=plain.name))
        return _unique(arms)

    def suite(self, name: str, *, has_draft: bool) -> tuple[list[Arm], list[str]]:
        """Plain decoding and a suite's arms, with a sentence for each that cannot run here.

        Raises:
            UsageError: no suite has that name, or a swept setting is the suite's own.
        """
        if name not in SUITES:
            raise UsageError(f"Unknown suite {name!r}.", f"Choose from: {', '.join(SUITES)}.")
        if self.verifies or self.drafters or self.draft_maxes or self.trees:
            raise UsageError(
                "A suite brings its own drafters, rules and lengths.",
                "Leave out --suite, or --drafter, --verify, --draft-max and --tree.",
            )
        arms: list[Arm] = []
        notes: list[str] = []
        for base, label in self.by_temperature():
            plain = plain_arm(base, label)
            arms.append(plain)
            for row in SUITES[name]:
                try:
                    params = _row_params(base, row, has_draft=has_draft)
                except UsageError as error:
                    notes.append(f"{row.name} is left out: {error}")
                    continue
                arms.append(Arm(_join(row.name, label), params, row.model, plain.name))
        return arms, list(dict.fromkeys(notes))

    def by_temperature(self) -> Iterable[tuple[GenerationParams, str]]:
        """The settings at each temperature, and how arms are labelled with it."""
        for temp in self.temps or (self.base.sampling.temperature,):
            sampling = replace(self.base.sampling, temperature=temp)
            label = f"temp {temp:g}" if len(self.temps) > 1 else ""
            yield replace(self.base, sampling=sampling), label

    def _combinations(self) -> Iterator[dict[str, Any]]:
        """What is set, by arm; shapes of trees only where a drafter makes trees."""
        drafters = self.drafters or (["tree"] if self.trees else [])
        for verify, drafter, draft_max in product(
            [{"verify": verify} for verify in self.verifies] or [{}],
            [{"drafter": drafter} for drafter in drafters] or [{}],
            [{"draft_max": draft_max} for draft_max in self.draft_maxes] or [{}],
        ):
            trees = self.trees if TREE_DRAFTERS & set(drafter.get("drafter", "").split("+")) else ()
            for tree in [{"tree": tree} for tree in trees] or [{}]:
                yield verify | drafter | tree | draft_max


def plain_arm(base: GenerationParams, label: str = "") -> Arm:
    """Plain decoding with the settings of `base`."""
    return Arm(_join(PLAIN, label), replace(base, drafter="none"))


def _row_params(base: GenerationParams, row: Row, *, has_draft: bool) -> GenerationParams:
    params = replace(base, **row.settings)
    named = set() if params.drafter == "auto" else set(params.drafters())
    if not has_draft and (row.model == "draft" or named & {*WITH_DRAFT_MODEL}):
        raise UsageError("there is no draft model (-md MODEL gives one).")
    return params


def _join(name: str, label: str) -> str:
    return f"{name}, {label}" if label else name


def _unique(arms: list[Arm]) -> list[Arm]:
    """Arms without repetitions: `--draft-max 4,4` is one arm."""
    return list({arm.name: arm for arm in arms}.values())


def flags(params: GenerationParams) -> str:
    """The drafting flags that give these settings; "" for the defaults."""
    default = GenerationParams()
    parts = [
        f"--{name.replace('_', '-')} {getattr(params, name)}"
        for name in ("drafter", "tree", "draft_max", "draft_p_min", "verify")
        if getattr(params, name) != getattr(default, name)
    ]
    switches = {
        "--copy-input": params.copy_input,
        "--lossy": params.lossy,
        "--no-adaptive": not params.adaptive,
    }
    return " ".join([*parts, *(switch for switch, on in switches.items() if on)])
