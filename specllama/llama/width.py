"""Decodes of one constant width, for devices that choose kernels by the size of a batch.

On a GPU the bits of a token's logits depend on how many tokens are decoded with it, and on how many
cells attention runs over. Here both are functions of the token's place alone, so that drafts change
neither (docs/exactness.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import compress
from typing import Any

from specllama.llama.context import Context, Row, padded
from specllama.llama.model import Model

Decode = Callable[
    [Sequence[int], Sequence[int], Sequence[tuple[int, ...]], Sequence[bool]], list[Row]
]
"""`Backend.decode`, with nothing to do meanwhile."""

_FILLER = 0
_STEP = padded(1)  # attention runs over a multiple of so many cells


class ConstantWidth(Context):
    """A context in which llama.cpp decodes exactly `width` tokens of one sequence at a time.

    What `decode` is given is split and filled up for that; each sequence has cells of its own, and
    `width` more than it can use. A memory that cannot be truncated is decoded as it comes.

    Args:
        n_ctx: cells of all sequences together.
        settings: as `Context` has them.

    Attributes:
        width: tokens of each decode; 0 where the memory allows none.
    """

    width = 0

    def __init__(
        self, model: Model, *, n_ctx: int, width: int, n_seq: int = 1, **settings: Any
    ) -> None:
        each, spare = padded(-(-n_ctx // n_seq)), padded(width)
        super().__init__(model, n_ctx=n_seq * (each + spare), n_seq=n_seq, apart=True, **settings)
        self.n_ctx -= n_seq * spare
        self.n_ctx_seq = min(self.n_ctx_seq, each)
        if model.n_places is not None:  # fillers have places behind the last token
            self.n_ctx_seq = min(self.n_ctx_seq, model.n_places - width + 1)
        self.width = width if self.rollback == "free" else 0

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, ...]],
        outputs: Sequence[bool],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Row]:
        """As `Context.decode`, in as many decodes as it takes; each token in one sequence."""
        decode = super().decode
        if not self.width or not tokens:
            return decode(tokens, positions, sequences, outputs, meanwhile)
        overran: list[bool] = []

        def each(*batch: Any) -> list[Row]:
            rows = partial(decode, meanwhile=None if overran else meanwhile)(*batch)
            overran.append(self.overran)
            return rows

        rows = decode_filled(
            each,
            self.truncate,
            self.width,
            tokens,
            positions,
            sequences,
            outputs,
        )
        self.overran = overran[0]
        return rows


def decode_filled(
    decode: Decode,
    truncate: Callable[[int, int], bool],
    width: int,
    tokens: Sequence[int],
    positions: Sequence[int],
    sequences: Sequence[tuple[int, ...]],
    outputs: Sequence[bool],
) -> list[Row]:
    """One batch by decodes of `width` tokens, all logits asked for.

    Tokens that mean nothing follow in the same sequence, as refused drafts do, and are dropped.

    Returns:
        float32 [n_vocab] for each wanted token: views where one decode was enough.
    """
    rows: list[Row] = []
    runs = list(_runs(positions, sequences, width))
    for run in runs:
        end, missing = positions[run.stop - 1] + 1, width - (run.stop - run.start)
        found = decode(
            [*tokens[run], *[_FILLER] * missing],
            [*positions[run], *range(end, end + missing)],
            [sequences[run.start]] * width,
            [True] * width,
        )
        if missing:
            truncate(sequences[run.start][0], end)
        wanted = list(compress(found, outputs[run]))
        rows += wanted if len(runs) == 1 else [row.copy() for row in wanted]
    return rows


def _runs(
    positions: Sequence[int], sequences: Sequence[tuple[int, ...]], width: int
) -> Iterator[slice]:
    """The parts of a batch that are decoded together.

    A decode from place s on uses cells up to s + width, rounded up to `_STEP` for attention: a part
    ends where that number grows, so that a token meets the same number whatever part it is in.
    """
    first = 0
    for index in range(1, len(positions)):
        if (
            index - first == width
            or sequences[index] != sequences[first]
            or (positions[index] + width) % _STEP == 1
        ):
            yield slice(first, index)
            first = index
    yield slice(first, len(positions))
