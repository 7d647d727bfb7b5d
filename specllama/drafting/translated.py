"""A draft model with another vocabulary: what it guesses reaches the target as text.

String-level exact match (Timor et al. 2025, arXiv 2502.05202, algorithm 2; universal assisted
decoding): the draft reads what the target said in its own tokens and goes on greedily; the text
of that, in the target's tokens, is the proposal. Whatever it is, the rules keep the target's law.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specllama.drafting.follower import Follower, FollowingDrafter
from specllama.drafting.protocol import Want
from specllama.errors import EngineError
from specllama.sampling.chain import Sampler
from specllama.sampling.params import SamplingParams
from specllama.text.detokenizer import whole_characters
from specllama.text.retokenizer import Retokenizer
from specllama.text.vocabulary import Vocabulary
from specllama.verification.types import Proposal

_GREEDY = Sampler(SamplingParams(temperature=0.0))


class TranslatedDrafter(FollowingDrafter):
    """Drafts a chain with a model whose tokens are not the target's.

    Args:
        follower: over the draft's own ids.
    """

    name = "model"

    def __init__(self, follower: Follower, target: Vocabulary, draft: Vocabulary) -> None:
        super().__init__(follower)
        self._to_target = Retokenizer(target)
        self._to_draft = _Translator(target, draft)
        self._draft = draft
        self._texts: dict[int, _Text] = {}

    def propose(self, wants: Sequence[Want]) -> list[Proposal]:
        """Catch up with each sequence's text, then draft for all of them in step."""
        chains = [_Chain(want, self._follow(want.key, want.ids)) for want in wants]
        eager = [chain for chain in chains if chain.text.speaks and chain.goes_on()]
        by_key = {chain.want.key: chain for chain in eager}
        own = [replace(chain.want, ids=chain.text.ids) for chain in eager]
        rows = self._follower.read(own)
        live = [by_key[w.key] for w, row in rows if self._draw(by_key[w.key], row)]
        while live:
            keys, last = [c.want.key for c in live], [c.drawn[-1:] for c in live]
            found = zip(live, self._follower.decode(keys, last), strict=True)
            live = [chain for chain, row in found if self._draw(chain, row)]
        return [self._proposal(chain) for chain in chains]

    def _draw(self, chain: _Chain, row: NDArray[np.float32]) -> bool:
        """Take the likeliest token, if it is worth it; True while the chain goes on."""
        with suppress(EngineError):  # a draft that computes nonsense drafts nothing
            token, confidence = _GREEDY.best(row, ())
            if self._says(token) and chain.want.go_on(len(chain.drawn), confidence):
                chain.drawn.append(token)
                return chain.goes_on()
        return False

    def _says(self, token: int) -> bool:
        """Whether a token of the draft is text."""
        return not (self._draft.is_control(token) or self._draft.is_eog(token))

    def _proposal(self, chain: _Chain) -> Proposal:
        """What was drawn, in the target's tokens; apart where those before it would change."""
        said = b"".join(map(self._draft.piece, chain.drawn))
        said = said[: whole_characters(said)]
        ids = chain.want.ids
        kept, tokens = self._to_target.extend(ids, said, chain.text.start)
        if kept < len(ids):
            tokens = self._to_target.inside(said)
        return Proposal.chain(tokens[: chain.want.limit], None, self.name)

    def _follow(self, key: int, ids: Sequence[int]) -> _Text:
        """A sequence's text in the draft's tokens, as far as the ids go."""
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = _Text(self._to_draft)
        changed = text.read(ids)
        if changed is not None:
            self._follower.rewind(key, changed)
        return text

    def prepare(self, key: int, ids: Sequence[int]) -> None:
        """Keep what the cache has of a prompt."""
        known = self._texts.get(key)
        if known is None or not known.begins(ids):
            self._texts.pop(key, None)
        text = self._follow(key, ids)
        if text.ids:
            self._follower.begin(key, text.ids)

    def unread(self, key: int, ids: Sequence[int]) -> int:
        """How many of its own tokens the draft's cache lacks; about as many as ids if unknown."""
        text = self._texts.get(key)
        if text is None:
            return len(ids)
        held = self._follower.cache.length(key)
        return max(0, len(text.ids) - held) + max(0, len(ids) - text.n_read)

    def read(self, key: int, ids: Sequence[int]) -> None:
        """Read about so much of a prompt, all but the last token, where less of it is held."""
        text = self._follow(key, ids)
        n_own = len(text.ids) * len(ids) // text.n_read
        if n_own > self._follower.cache.length(key):
            self._follower.read_prompt(key, text.ids[:n_own])

    def rewind(self, key: int, length: int) -> None:
        """Translate anew where ids that were read are no longer what they were."""
        text = self._texts.get(key)
        if text is not None and length < text.n_read:
            del self._texts[key]
        self._follower.rewind(key, 0)

    def forget(self) -> None:
        """Empty the cache."""
        self._texts.clear()
        super().forget()


class _Chain:
    """What is drawn for one sequence, in the draft's tokens."""

    __slots__ = ("drawn", "text", "want")

    def __init__(self, want: Want, text: _Text) -> None:
        self.want = want
        self.text = text
        self.drawn: list[int] = []

    def goes_on(self) -> bool:
        """Whether another look is worth it."""
        n_drawn = len(self.drawn)
        return n_drawn < self.want.limit and self.want.go_on(n_drawn, None)


class _Translator:
    """What tokens of the target are to the draft."""

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._target = target
        self._draft = draft
        self._controls: dict[int, list[int]] = {}
        self.retokenizer = Retokenizer(draft)
        self.opening = [draft.bos] if draft.add_bos and draft.bos is not None else []
        self.piece = target.piece

    def control(self, token: int) -> list[int]:
        """The draft's control token of the same name, if it has one."""
        known = self._controls.get(token)
        if known is None:
            named = self._draft.tokenize(self._target.text_of(token), special=True, add_bos=False)
            same = len(named) == 1 and self._draft.is_control(named[0])
            known = self._controls[token] = named if same else []
        return known


class _Text:
    """The ids of a sequence in the draft's tokens.

    Attributes:
        ids: the draft's tokens.
        n_read: so many of the target's are in them.
        start: the first of the target's behind its last control token.
    """

    __slots__ = ("_open", "_read", "_run", "_translator", "ids", "start")

    def __init__(self, translator: _Translator) -> None:
        self._translator = translator
        self.ids: list[int] = list(translator.opening)
        self.start = 0
        self._read: list[int] = []
        self._run = len(self.ids)
        self._open = b""

    @property
    def n_read(self) -> int:
        return len(self._read)

    @property
    def speaks(self) -> bool:
        """Whether something can be drafted: there is text, and it ends with a whole character."""
        return bool(self.ids) and not self._open

    def begins(self, ids: Sequence[int]) -> bool:
        """Whether what was read is how these ids begin."""
        return list(ids[: len(self._read)]) == self._read

    def read(self, ids: Sequence[int]) -> int | None:
        """Take the ids that are new; from where on the draft's are others now, None if nowhere."""
        before = kept = len(self.ids)
        text, self._open = self._open, b""
        for place in range(len(self._read), len(ids)):
            token = ids[place]
            self._read.append(token)
            piece = self._translator.piece(token)
            if piece:
                text += piece
                continue
            kept = min(kept, self._write(text))
            text = b""
            own = self._translator.control(token)
            if own != self.ids:  # a draft that begins with its own needs no second one
                self.ids += own
            self._run, self.start = len(self.ids), place + 1
        whole = whole_characters(text)
        kept = min(kept, self._write(text[:whole]))
        self._open = text[whole:]
        return kept if kept < before else None

    def _write(self, text: bytes) -> int:
        """Append text; how many of the tokens before it stayed."""
        kept, tokens = self._translator.retokenizer.extend(self.ids, text, self._run)
        self.ids[kept:] = tokens
        return kept
