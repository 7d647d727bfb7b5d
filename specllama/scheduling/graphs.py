"""Which decodes find a captured graph, and what those pay that do not (CUDA).

What a decode takes more than one of the same size behind it is told in parts: its *first* has no
graph to replay, its *second* captures one, and the first after others of another size goes *back*
to a graph that was kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Literal

from specllama.machine import LARGEST_KEPT, MOST_KEPT, GraphsKept

Part = Literal["first", "second", "back"]
Parts = tuple[Part, ...]
Phase = Part | Literal["same"]
CHANGING = 2
"""So many decodes of a size cost more: one finds no graph, one captures it."""


class Graphs(ABC):
    """The graphs that a device has captured.

    Attributes:
        size: of the latest decode; 0 before any, and where no graph fits any more.
        block: of cells, up to which decodes attend.
        behind_prompt: whether a prompt was read since then.
        phase: of the latest decode.
        changes: whether the latest decode paid for being of another size than those before it.
    """

    def __init__(self) -> None:
        self.size = self.block = 0
        self.behind_prompt = True
        self.phase: Phase = "first"
        self._moved = False

    def decode(self, n_tokens: int) -> None:
        """A decode of that size was made."""
        if self.behind_prompt or n_tokens != self.size:
            self._moved = n_tokens != self.size != 0
        self.phase = self._next(n_tokens)
        self._count(n_tokens)
        self.size, self.behind_prompt = n_tokens, False

    def read_prompt(self) -> None:
        """A prompt was read: the next decode is built anew."""
        self.behind_prompt = True

    def enter(self, block: int) -> None:
        """What comes next attends to cells up to another block: no graph of this one fits."""
        self.block = block
        self.size, self.behind_prompt = 0, True

    def lose(self) -> None:
        """No graph fits any more: whatever is decoded next is new."""
        self._forget()
        self.size, self.behind_prompt = 0, True

    @property
    def changes(self) -> bool:
        return self._moved and self.phase != "same"

    def pays(self, n_tokens: int) -> Parts:
        """What a decode of that size would pay now."""
        return self._pays(n_tokens, moved=self.behind_prompt or n_tokens != self.size)

    @abstractmethod
    def _next(self, n_tokens: int) -> Phase:
        """The phase that a decode of that size would have now."""

    @abstractmethod
    def _count(self, n_tokens: int) -> None:
        """Such a decode was made."""

    @abstractmethod
    def _forget(self) -> None:
        """All graphs are gone."""

    @abstractmethod
    def _pays(self, n_tokens: int, *, moved: bool) -> Parts:
        """What a decode would pay, being of another size than the latest or not."""

    @abstractmethod
    def captures(self, n_tokens: int) -> bool:
        """Whether a decode of that size would capture its graph now."""

    @abstractmethod
    def dues(self, n_tokens: int) -> tuple[Parts, Parts]:
        """What the first two of many decodes of that size pay behind a prompt."""

    @abstractmethod
    def move(self, n_tokens: int, before: int, kept: int) -> Parts:
        """What a decode pays behind one of size `before`, where many of size `kept` follow."""

    @abstractmethod
    def toll(self, n_tokens: int, *, away: bool = False) -> Parts:
        """What all decodes pay until they replay the graph of that size.

        Args:
            away: another size was decoded before.
        """


class Latest(Graphs):
    """The device keeps the graph of the latest size alone.

    Behind a prompt a decode is built anew, but a graph that was captured before still fits.
    """

    def __init__(self) -> None:
        super().__init__()
        self._in_a_row = 0

    def enter(self, block: int) -> None:
        super().enter(block)
        self._forget()

    def _next(self, n_tokens: int) -> Phase:
        if self.behind_prompt or n_tokens != self.size:
            return "first"
        return "second" if self.captures(n_tokens) else "same"

    def _count(self, n_tokens: int) -> None:
        self._in_a_row = self._in_a_row + 1 if n_tokens == self.size else 1

    def _forget(self) -> None:
        self._in_a_row = 0

    def _pays(self, n_tokens: int, *, moved: bool) -> Parts:
        first: Parts = ("first",) if moved else ()
        return (*first, "second") if self.captures(n_tokens) else first

    def captures(self, n_tokens: int) -> bool:
        return n_tokens == self.size and self._in_a_row == 1

    def dues(self, n_tokens: int) -> tuple[Parts, Parts]:
        return ("first",), () if n_tokens == self.size else ("second",)

    def move(self, n_tokens: int, before: int, kept: int) -> Parts:
        return ("first",) if n_tokens != before else ()

    def toll(self, n_tokens: int, *, away: bool = False) -> Parts:
        return ("first", "second") if away or n_tokens != self.size else ()


class Sized(Graphs):
    """The device keeps a graph of each size in each block of cells (`llama.graphs`), once captured.

    The latest `MOST_KEPT`, that is. Sizes above `LARGEST_KEPT` are new each time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._n_decodes: dict[int, int] = {}

    def _next(self, n_tokens: int) -> Phase:
        parts = self.pays(n_tokens)
        return parts[0] if parts else "same"

    def _count(self, n_tokens: int) -> None:
        if n_tokens <= LARGEST_KEPT:
            self._seen[self.block, n_tokens] = min(self._of(n_tokens) + 1, CHANGING)
            self._seen.move_to_end((self.block, n_tokens))
        if len(self._seen) > MOST_KEPT:
            self._seen.popitem(last=False)
        self._n_decodes[self.block] = min(self._n_decodes.get(self.block, 0) + 1, CHANGING)

    def _of(self, n_tokens: int) -> int:
        """How many decodes of that size there were, as far as it makes a difference."""
        return self._seen.get((self.block, n_tokens), 0)

    def _forget(self) -> None:
        self._seen.clear()
        self._n_decodes.clear()

    def _pays(self, n_tokens: int, *, moved: bool) -> Parts:
        if not self._of(n_tokens):
            return ("first",)
        back: Parts = ("back",) if moved else ()
        return ("second", *back) if self.captures(n_tokens) else back

    def captures(self, n_tokens: int) -> bool:
        return self._of(n_tokens) == 1

    def dues(self, n_tokens: int) -> tuple[Parts, Parts]:
        # whatever was decoded: had it all been of that size, its graph would be there
        dues: dict[int, tuple[Parts, Parts]] = {
            0: (("first",), ("second",)),
            1: (("second", "back"), ()),
            CHANGING: (("back",), ()),
        }
        return dues[self._n_decodes.get(self.block, 0)]

    def move(self, n_tokens: int, before: int, kept: int) -> Parts:
        moved = n_tokens != before
        if n_tokens == kept:  # its graph is worth capturing
            return ("back",) if moved else ()
        return self._pays(n_tokens, moved=moved)

    def toll(self, n_tokens: int, *, away: bool = False) -> Parts:
        now = self._pays(n_tokens, moved=away or n_tokens != self.size)
        return now if self._of(n_tokens) else (*now, "second")


def of(kept: GraphsKept) -> Graphs:
    """For a device that keeps such graphs."""
    return Sized() if kept == "sized" else Latest()
