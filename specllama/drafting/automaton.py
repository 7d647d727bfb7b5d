"""A suffix automaton over token ids (Blumer et al., "The smallest automaton recognizing the
subwords of a text", 1985), built token by token.

It answers one question at any time: which is the longest suffix of the tokens so far that also
occurs earlier, and what followed its latest occurrence? Several documents may share an automaton;
an occurrence never spans two of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

ROOT = 0
BORDER = -1
REACH = 64
"""How many of the suffixes that a new token completes learn of it as their latest occurrence,
longest first. Real text has fewer; only in a long run of one period would the walk be quadratic."""


class SuffixAutomaton:
    """All substrings of the tokens, in at most 2n states; a token costs amortised O(1).

    Attributes:
        tokens: all tokens, with BORDER between documents.
        match_length: length of the longest suffix that occurs earlier, 0 for none.
        match_end: index in `tokens` of what followed its latest earlier occurrence. In text so
            repetitive that more than REACH of its suffixes recur differently, it may be an earlier
            occurrence than the latest.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        # Per state: transitions; the state of its longest suffix with other occurrences; the
        # longest length of its substrings; the index behind their latest occurrence.
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]
        self._last = ROOT
        self.match_length = 0
        self.match_end = 0
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens (ids of 0 and above) to the current document."""
        for token in tokens:
            self._append(token)

    def begin_document(self) -> None:
        """End the current document: what follows is a text of its own."""
        self.tokens.append(BORDER)
        self._last = ROOT
        self.match_length = self.match_end = 0

    def continuation(self) -> Iterator[int]:
        """What followed the latest earlier occurrence of the longest suffix, token by token.

        It ends with its document. Where the occurrence reaches up to the present, the repetition
        goes on, without end: after "abcabca" come b, c, a, b, ...
        """
        if not self.match_length:
            return
        period = len(self.tokens) - self.match_end
        place = 0
        while (token := self.tokens[self.match_end + place % period]) != BORDER:
            yield token
            place += 1

    def _append(self, token: int) -> None:
        """Add the state of the whole current document, `token` now at its end.

        The beginning of a later document may have a state already; it gets a second one, which
        nothing leads to, and so the match is always the state's link.
        """
        self.tokens.append(token)
        transitions, link = self._next, self._link
        new = len(transitions)
        transitions.append({})
        self._length.append(self._length[self._last] + 1)
        self._end.append(len(self.tokens))
        link.append(ROOT)
        state = self._last
        while state >= 0 and token not in transitions[state]:
            transitions[state][token] = new
            state = link[state]
        if state >= 0:
            link[new] = self._only_with(state, token, transitions[state][token])
        self._last = new
        self._take_match(link[new])

    def _only_with(self, state: int, token: int, target: int) -> int:
        """The state of just those substrings of `target` that are one of `state` plus `token`."""
        transitions, link = self._next, self._link
        if self._length[target] == self._length[state] + 1:
            return target
        clone = len(transitions)
        transitions.append(transitions[target].copy())
        self._length.append(self._length[state] + 1)
        self._end.append(self._end[target])
        link.append(link[target])
        link[target] = clone
        while state >= 0 and transitions[state].get(token) == target:
            transitions[state][token] = clone
            state = link[state]
        return clone

    def _take_match(self, state: int) -> None:
        """Read the match off its state, before the present becomes its latest occurrence."""
        end, link, here = self._end, self._link, len(self.tokens)
        self.match_length = self._length[state]
        self.match_end = end[state]
        for _ in range(REACH):
            if state <= ROOT:
                break
            end[state] = here
            state = link[state]
