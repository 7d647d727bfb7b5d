"""Asking drafters as the engine does, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from specllama.drafting.protocol import Drafter, Want
from specllama.drafting.shapes import FixedShape


class NoChance:
    """A deterministic draft draws nothing."""

    def pick(self, law: object, position: int) -> int:
        raise AssertionError

    def children(self, law: object, position: int, count: int) -> list[int]:
        raise AssertionError


def no_law(row: object, path: Sequence[int]) -> None:
    raise AssertionError


def want(
    ids: Sequence[int],
    limit: int = 16,
    *,
    key: int = 0,
    nodes: int = 64,
    branches: int = 0,
    go_on: Callable[[int, float | None], bool] = lambda drafted, confidence: True,
) -> Want:
    """A want of a drafter that computes no laws."""
    return Want(
        key=key,
        ids=ids,
        limit=limit,
        nodes=nodes,
        branches=branches,
        shape=FixedShape((1,)),
        law=no_law,  # type: ignore[arg-type]
        chance=NoChance(),
        keeps_laws=False,
        go_on=go_on,
    )


def replay(
    drafter: Drafter, prompt: Sequence[int], reply: Sequence[int], limit: int = 16
) -> list[int]:
    """Let a drafter guess a reply that is known; the tokens it drafted in each round."""
    ids, whole = list(prompt), [*prompt, *reply]
    drafted = []
    while len(ids) < len(whole):
        left = len(whole) - len(ids)
        tokens: Sequence[int] = ()
        if left > 1:
            (proposal,) = drafter.propose([want(ids, min(limit, left - 1))])
            tokens = proposal.tokens
        accepted = 0
        while accepted < len(tokens) and tokens[accepted] == whole[len(ids)]:
            ids.append(tokens[accepted])
            accepted += 1
        ids.append(whole[len(ids)])
        drafted.append(len(tokens))
    return drafted


def grown(drafter: Drafter, turns: Sequence[tuple[int, Sequence[int]]]) -> Iterator[list[int]]:
    """One list of at most 60 ids after every turn, which cuts it to so many and adds its own."""
    ids: list[int] = []
    for kept, new in turns:
        if kept < len(ids):
            drafter.rewind(0, kept)
            del ids[kept:]
        ids += new
        del ids[60:]
        yield ids
