"""What decodes cost on this machine, learned while running."""

from __future__ import annotations

from collections import defaultdict, deque

_OPTIMISTIC_SLOPE = 0.1
_RECENT = 5
_AGREEMENT = 0.25
_FIRST_PATIENCE = 16
_LAST_PATIENCE = 256


class Costs:
    """Seconds of a target decode by number of tokens, and of one drafted token by drafter.

    A measured table with linear interpolation: costs are not monotone on real machines, so nothing
    is fitted. Sizes never seen are taken to be cheap, so that they get tried.
    """

    def __init__(self) -> None:
        self._target: dict[int, float] = {}
        self._draft: dict[str, float] = {}
        self._level: dict[str, float] = {}
        self._recent: dict[int | str, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
        self._since_plain = 0
        self._patience = _FIRST_PATIENCE

    def observe_target(self, n_tokens: int, seconds: float) -> None:
        """One target decode of `n_tokens`. A size's first does not count: it may be a hiccup."""
        typical = self._typical(n_tokens, seconds)
        if len(self._recent[n_tokens]) > 1:
            self._target[n_tokens] = typical
        self._since_plain += 1
        if n_tokens == 1 and abs(seconds - typical) <= _AGREEMENT * typical:
            if self.stale:
                self._patience = min(2 * self._patience, _LAST_PATIENCE)
            self._since_plain = 0

    def observe_draft(self, name: str, n_drafted: int, seconds: float) -> None:
        """One proposal of `n_drafted` tokens (a decode more or less is the drafter's affair)."""
        self._draft[name] = self._typical(name, seconds / max(1, n_drafted))

    def _typical(self, what: int | str, seconds: float) -> float:
        """The lower median of the latest: hiccups of a busy machine do not count, drift does."""
        recent = self._recent[what]
        recent.append(seconds)
        return sorted(recent)[(len(recent) - 1) // 2]

    def observe_level(self, name: str, n_levels: int, seconds: float) -> None:
        """One proposal of `n_levels` tokens in a row, however many beside each other."""
        self._level[name] = self._typical(f"{name}, level", seconds / max(1, n_levels))

    def measured(self, n_tokens: int) -> bool:
        """Whether target decodes of this size were measured."""
        return n_tokens in self._target

    @property
    def known(self) -> bool:
        """Whether plain decoding was measured."""
        return 1 in self._target

    @property
    def stale(self) -> bool:
        """Whether plain decoding, the yardstick of all drafts, has to be measured again.

        Drafting that seems to pay would otherwise never put a wrong yardstick right. It stays due
        until a measurement agrees with the table.
        """
        return self._since_plain > self._patience

    def target_s(self, n_tokens: int) -> float:
        """Expected seconds of a target decode of `n_tokens` (`known` must hold)."""
        seen = self._target
        if n_tokens in seen:
            return seen[n_tokens]
        below = max(n for n in seen if n < n_tokens)
        above = min((n for n in seen if n > n_tokens), default=None)
        if above is None:
            return seen[below] + (n_tokens - below) * _OPTIMISTIC_SLOPE * seen[1]
        share = (n_tokens - below) / (above - below)
        return seen[below] + share * (seen[above] - seen[below])

    def level_s(self, name: str) -> float:
        """Expected seconds of one level of a drafted tree; 0 until measured."""
        return self._level.get(name, 0.0)

    def draft_s(self, name: str) -> float:
        """Expected seconds of one drafted token; 0 until measured."""
        return self._draft.get(name, 0.0)
