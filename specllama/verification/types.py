"""What the verification rules share: a proposal goes in, a verdict comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, TypeVar

from specllama.sampling.distribution import Distribution

ROOT = -1
SHAPES = 256
"""So many shapes of trees are remembered with what follows from them."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A tree of draft tokens below the last emitted token (a chain is a tree without branches).

    Attributes:
        tokens: token id of each node; parents come before their children.
        parents: index of each node's parent, ROOT (-1) for the first level.
        laws: `laws[node + 1]` is the law the children of `node` were really drawn from, in the
            order of their index, or None if they were chosen deterministically; `laws[0]` belongs
            to the root.
        source: name of the drafter, for statistics.
        values: the draft's probability of each node's path, empty where it has none to tell.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    laws: tuple[Distribution | None, ...] = (None,)
    source: str = "none"
    values: tuple[float, ...] = ()
    # children by parent, looked up once: rules that walk a chain ask for each node's
    _below: Mapping[int, Sequence[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_below", _children(self.parents))

    @classmethod
    def chain(
        cls,
        tokens: tuple[int, ...] | list[int],
        laws: list[Distribution] | None = None,
        source: str = "none",
    ) -> Proposal:
        """A single path. `laws[i]` is what `tokens[i]` was drawn from; None: deterministic."""
        known: list[Distribution | None] = [None] * len(tokens) if laws is None else list(laws)
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), (*known, None), source)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_drawn(self) -> bool:
        """Whether tokens were drawn from laws that a rule reads: none may be left out then."""
        return any(law is not None for law in self.laws)

    def law(self, node: int) -> Distribution | None:
        """The law the children of `node` were drawn from (ROOT for the first level)."""
        return self.laws[node + 1]

    def children(self, node: int) -> Sequence[int]:
        """Indices of the children of `node`, in drawn order."""
        return self._below.get(node, ())

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that carries `token`, or None."""
        for child in self.children(node):
            if self.tokens[child] == token:
                return child
        return None

    def depths(self) -> Sequence[int]:
        """Per node, the tokens on the path from the root, the node included (first level: 1)."""
        return _depths(self.parents)

    def only(self, nodes: list[int]) -> Proposal:
        """The tree of some nodes, rising, which hold the parents of all of them."""
        if len(nodes) == len(self.tokens):
            return self
        place = {node: index for index, node in enumerate(nodes)} | {ROOT: ROOT}
        return Proposal(
            tokens=tuple(self.tokens[node] for node in nodes),
            parents=tuple(place[self.parents[node]] for node in nodes),
            laws=tuple(self.laws[node + 1] for node in (ROOT, *nodes)),
            source=self.source,
            values=tuple(self.values[node] for node in nodes) if self.values else (),
        )

    def path(self, node: int) -> list[int]:
        """Tokens from the first level down to `node`; empty for ROOT."""
        path: list[int] = []
        while node != ROOT:
            path.append(self.tokens[node])
            node = self.parents[node]
        return path[::-1]


# Trees are of the same few shapes round after round.
@lru_cache(maxsize=SHAPES)
def _children(parents: tuple[int, ...]) -> Mapping[int, Sequence[int]]:
    below: dict[int, list[int]] = {}
    for child, parent in enumerate(parents):
        below.setdefault(parent, []).append(child)
    return below


@lru_cache(maxsize=SHAPES)
def _depths(parents: tuple[int, ...]) -> tuple[int, ...]:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return tuple(depths)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule decided.

    Attributes:
        path: accepted nodes from the first level downwards; may be empty.
        token: the token emitted after the path: *recovered* where a draft was refused, *bonus*
            where the path was accepted to its end.
        tested: how many depths were tested; a draft token behind a refusal was not.
    """

    path: tuple[int, ...]
    token: int
    tested: int


Rows = Callable[[int], Distribution]
"""The target's law after a node (ROOT: after the last emitted token); computed when asked for."""


class Chance(Protocol):
    """Where draws come from. Rules and drafters use `pick` and `children` alone: tests enumerate
    it."""

    @property
    def place(self) -> int:
        """How much of it was used up."""

    def go_back(self, place: int) -> None:
        """Draw again what was drawn from that place on, since a round broke off."""

    def pick(self, law: Distribution, position: int) -> int:
        """Draw a token for an absolute position of the sequence."""

    def children(self, law: Distribution, position: int, count: int) -> list[int]:
        """Draw up to `count` (at least 1) distinct draft tokens for a position, best first."""


class CoinChance(Chance, Protocol):
    """Chance for the rules that test a draft with a coin.

    Its picks are independent of its children. Noise shared by target and drafts is not, which
    is why `Chance` has no coin: pairing such a rule with such noise is then a type error.
    """

    def flip(self, probability: float) -> bool:
        """True with the given probability (clamped to 0..1)."""


C_contra = TypeVar("C_contra", bound=Chance, contravariant=True)


class Verify(Protocol[C_contra]):
    """A rule. `position` is the absolute position of the first drafted token.

    Of an empty proposal it makes one `chance.pick` of the root's law: plain decoding.
    """

    def __call__(
        self, proposal: Proposal, rows: Rows, chance: C_contra, position: int, /
    ) -> Verdict: ...
