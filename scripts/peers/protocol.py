"""What a peer is: something that continues a prompt and says what that took.

Every peer gets the same token ids (or, where a program takes only text, the text they stand for),
the same limit of tokens and the same sampler settings. A rate counts whole rounds after the prompt:
tokens that came after the first round, by the time after it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class PeerError(Exception):
    """A peer that cannot run here or failed: a sentence for people."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch a step off."""

    temperature: float
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        text, ids: the same prompt.
        n: the most tokens.
        eager: draft whether that pays or not, where a peer has a choice: a law is tested with it.
    """

    text: str
    ids: tuple[int, ...]
    n: int
    sampling: Sampling
    seed: int
    eager: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of it.

    Attributes:
        n: tokens said.
        tok_s: decode rate; None where the reply had no second round.
        rounds: target batches after the prompt's, None where the peer does not tell.
        drafted, accepted: draft tokens, None likewise.
    """

    text: str
    n: int
    tok_s: float | None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Files:
    """The models all peers load, and how.

    Attributes:
        flash_attn: "on", "off", or "auto" for what a peer does by itself.
    """

    target: Path
    draft: Path | None
    threads: int
    n_ctx: int = 2048
    flash_attn: str = "auto"


class Peer(ABC):
    """One arm. `open` may take its time, `ask` is measured.

    Attributes:
        name: as the table has it.
        speculates: whether it drafts at all.
    """

    name: str
    speculates: bool = True

    @abstractmethod
    def open(self) -> None:
        """Get ready.

        Raises:
            PeerError: it cannot run here.
        """

    @abstractmethod
    def ask(self, request: Request) -> Reply:
        """Continue a prompt from empty caches.

        Raises:
            PeerError: it failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Free everything; fine without or after `open`."""


def rate(blocks: Sequence[tuple[int, float]]) -> float | None:
    """Tokens per second after the first of `(tokens, when)` blocks; None for a single block."""
    if len(blocks) < 2 or blocks[-1][1] <= blocks[0][1]:
        return None
    return sum(tokens for tokens, _ in blocks[1:]) / (blocks[-1][1] - blocks[0][1])
