"""A draft model that is itself drafted for: staged speculative decoding (Spector and Re 2023).

A guesser without a model guesses what the draft model will say; the draft model reads all guesses
in one batch and draws its own tokens as long as they were guessed. What reaches the target is the
very chain that the draft model would have drawn one decode at a time, token for token, with the
same laws and the same randomness, only sooner: to the target's rule nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.follower import Follower, FollowingDrafter
from specllama.drafting.protocol import Drafter, Seen, Want
from specllama.results import SourceStats, SpecStats
from specllama.sampling.distribution import Distribution
from specllama.verification.types import ROOT, Proposal


class GuessedDrafter(FollowingDrafter):
    """A drafter whose model reads ahead what guessers foresee.

    Args:
        follower: the draft model's cache.
        guessers: drafters without a model, by preference. One that learns is taught by the draft
            model.

    Attributes:
        stages: per sequence, the speculation inside the draft model in the current generation; its
            rounds are the draft model's decodes.
    """

    def __init__(self, follower: Follower, guessers: Sequence[Drafter]) -> None:
        super().__init__(follower)
        self._guessers = list(guessers)
        self.stages: dict[int, SpecStats] = {}

    def inner_stats(self, key: int) -> SpecStats | None:
        """The speculation inside the draft model in the current generation."""
        return self.stages.get(key)

    def prepare(self, key: int, ids: Sequence[int]) -> None:
        """Begin the statistics of a generation; show the guessers its prompt."""
        self.stages[key] = SpecStats()
        for guesser in self._guessers:
            guesser.prepare(key, ids)
        super().prepare(key, ids)

    def _guessed(self, want: Want) -> Proposal:
        """What the first guesser with an idea says that the draft model knows; may be empty."""
        n_vocab = self._follower.backend.n_vocab
        for guesser in self._guessers:
            (proposal,) = guesser.propose([want])
            known: list[int] = []
            for node, (token, parent) in enumerate(
                zip(proposal.tokens, proposal.parents, strict=True)
            ):
                if token < n_vocab and (parent == ROOT or parent in known):
                    known.append(node)
            if known:
                return proposal.only(known)
        return Proposal()

    def _teach(self, key: int, seen: Sequence[Seen]) -> None:
        """Show the guessers that learn what the draft model said."""
        for guesser in self._guessers:
            if guesser.learns:
                guesser.observe(key, seen)

    def rewind(self, key: int, length: int) -> None:
        """Compare the cache with the ids again from `length` on."""
        super().rewind(key, length)
        self._rewind_guessers(key, length)

    def _rewind_guessers(self, key: int, length: int) -> None:
        for guesser in self._guessers:
            guesser.rewind(key, length)

    def forget(self) -> None:
        """Forget everything, the guessers too."""
        super().forget()
        for guesser in self._guessers:
            guesser.forget()
        self.stages.clear()


class StagedDrafter(GuessedDrafter):
    """Drafts with a model, several tokens a decode where a guesser foresees them.

    The guessers are shown drafted tokens, and rewound behind each proposal: that has to be cheap.
    """

    name = "staged"

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        """Draft for all sequences in step, each at its own rate."""
        chains = [_Chain(want) for want in wants]
        eager = [want for want in wants if want.go_on(0, None)]
        able = {
            want.key for want in self._follower.able(eager, self._follower.backend.n_batch // 2)
        }
        live = [chain for chain in chains if chain.want.key in able]
        while live:
            for chain in live:
                self._guess(chain)
            for group in self._batches(live):
                self._advance(group)
            live = [chain for chain in live if chain.goes_on()]
        for chain in chains:
            if chain.shown:
                self._rewind_guessers(chain.want.key, len(chain.want.ids))
        return [chain.proposal(self.name) for chain in chains]

    def _guess(self, chain: _Chain) -> None:
        """Guess what the draft model says next: one token less than it may still draw."""
        want, backend = chain.want, self._follower.backend
        pending = len(chain.ids) - self._follower.cache.length(want.key)
        room = min(backend.n_batch - pending, backend.n_outputs - 1)
        limit = min(want.limit - len(chain.tokens) - 1, room)
        chain.guess, chain.source = [], ""
        if limit < 1:
            return
        asked = replace(want, ids=chain.ids, limit=limit, nodes=limit, branches=0, go_on=_always)
        chain.shown = len(chain.tokens)
        guess = self._guessed(asked)
        chain.guess, chain.source = list(guess.tokens), guess.source

    def _batches(self, live: Sequence[_Chain]) -> Iterator[list[_Chain]]:
        """Chains that fit into one decode together, in order."""
        backend, cache = self._follower.backend, self._follower.cache
        group: list[_Chain] = []
        n_tokens = n_rows = 0
        for chain in live:
            rows = len(chain.guess) + 1
            tokens = len(chain.ids) - cache.length(chain.want.key) + len(chain.guess)
            if group and (n_tokens + tokens > backend.n_batch or n_rows + rows > backend.n_outputs):
                yield group
                group, n_tokens, n_rows = [], 0, 0
            group.append(chain)
            n_tokens, n_rows = n_tokens + tokens, n_rows + rows
        yield group

    def _advance(self, group: Sequence[_Chain]) -> None:
        """One decode: the draft model judges the guesses of some chains."""
        cache = self._follower.cache
        for chain in group:
            if cache.length(chain.want.key) < len(chain.want.ids):
                cache.guard(chain.want.key, chain.want.ids[:-1])
        rows = self._decode(group)
        for chain, own in zip(group, rows, strict=True):
            before = len(chain.ids)
            accepted = self._draw(chain, own)
            said = chain.ids[before - 1 : before + accepted]
            self._teach(
                chain.want.key, [Seen(token, row) for token, row in zip(said, own, strict=False)]
            )
            cache.truncate(chain.want.key, before + accepted)

    def _decode(self, group: Sequence[_Chain]) -> list[list[NDArray[np.float32]]]:
        """Read pending tokens and guesses; per chain the logits after its end and each guess."""
        cache = self._follower.cache
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[tuple[int, ...]] = []
        outputs: list[bool] = []
        for chain in group:
            held = cache.length(chain.want.key)
            run = [*chain.ids[held:], *chain.guess]
            tokens += run
            positions += range(held, held + len(run))
            sequences += [(chain.want.key,)] * len(run)
            outputs += [held + place >= len(chain.ids) - 1 for place in range(len(run))]
        rows = self._follower.backend.decode(tokens, positions, sequences, outputs)
        found, first = [], 0
        for chain in group:
            cache.record(chain.want.key, [*chain.ids[cache.length(chain.want.key) :], *chain.guess])
            found.append(rows[first : first + len(chain.guess) + 1])
            first += len(chain.guess) + 1
        return found

    def _draw(self, chain: _Chain, rows: list[NDArray[np.float32]]) -> int:
        """Draw the draft model's own tokens while they were guessed; how many were.

        A guess that the chain ends before is not tested.
        """
        accepted = tested = 0
        for place, row in enumerate(rows):
            token = chain.draw(self._follower.law(chain.want, row, chain.tokens))
            if token is None or place == len(chain.guess):
                break
            tested += 1
            if token != chain.guess[place]:
                break
            accepted += 1
        stats = self.stages.setdefault(chain.want.key, SpecStats())
        _count(stats, chain, tested, accepted)
        return accepted


@dataclass(slots=True)
class _Chain:
    """A chain while it is drafted, and the guess about what comes next.

    Attributes:
        ids: the sequence's ids and the drafted tokens.
        shown: how many of those the guessers have seen.
        ended: a law said that no further token is worth it, or there was no law.
    """

    want: Want
    tokens: list[int] = field(default_factory=list)
    laws: list[Distribution] = field(default_factory=list)
    guess: list[int] = field(default_factory=list)
    source: str = ""
    shown: int = 0
    ended: bool = False
    ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = list(self.want.ids)

    def draw(self, law: Distribution | None) -> int | None:
        """Draw the next token as a lone draft model would; None where the chain ends before it."""
        want = self.want
        if law is None or not want.go_on(len(self.tokens), law.highest):
            self.ended = True
            return None
        (token,) = want.chance.children(law, want.position + len(self.tokens), 1)
        self.tokens.append(token)
        self.ids.append(token)
        if want.keeps_laws:
            self.laws.append(law)
        return token

    def goes_on(self) -> bool:
        """Whether another decode is worth it."""
        drafted = len(self.tokens)
        return not self.ended and drafted < self.want.limit and self.want.go_on(drafted, None)

    def proposal(self, source: str) -> Proposal:
        """The chain for the target; its laws are the draft model's."""
        return Proposal.chain(self.tokens, self.laws if self.want.keeps_laws else None, source)


def _always(drafted: int, confidence: float | None) -> bool:
    """A wrong guess costs next to nothing: it shares the decode of the token before it."""
    return True


def _count(stats: SpecStats, chain: _Chain, tested: int, accepted: int) -> None:
    """Add one decode of the draft model to its statistics."""
    stats.rounds += 1
    if not chain.guess:
        return
    for part in (stats, stats.by_source.setdefault(chain.source, SourceStats())):
        part.drafted += len(chain.guess)
        part.tested += tested
        part.accepted += accepted
    stats.by_depth += [SourceStats() for _ in range(len(chain.guess) - len(stats.by_depth))]
    for depth, part in enumerate(stats.by_depth[: len(chain.guess)]):
        part.drafted += 1
        part.tested += depth < tested
        part.accepted += depth < accepted
