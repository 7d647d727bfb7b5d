"""What decodes cost on this machine, learned while running."""

from __future__ import annotations

from collections import defaultdict, deque

_OPTIMISTIC_SLOPE = 0.1
_RECENT = 5
_AGREEMENT = 0.25
_FIRST_PATIENCE = 16
_LAST_PATIENCE = 256


class _Yardstick:
    """When plain decoding of so many sequences was last measured; ever more seldom is enough."""

    __slots__ = ("at", "patience")

    def __init__(self) -> None:
        self.at = 0
        self.patience = _FIRST_PATIENCE


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
        self._yardsticks: dict[int, _Yardstick] = defaultdict(_Yardstick)
        self._n_decodes = 0
        self._reading: float | None = None

    def observe_target(self, n_tokens: int, seconds: float, n_lives: int = 1) -> None:
        """One target decode of `n_tokens` for `n_lives` sequences, plain where these are equal.

        A size's first does not count: it may be a hiccup.
        """
        typical = self._typical(n_tokens, seconds)
        if len(self._recent[n_tokens]) > 1:
            self._target[n_tokens] = typical
        self._n_decodes += 1
        if n_tokens == n_lives and abs(seconds - typical) <= _AGREEMENT * typical:
            yardstick = self._yardsticks[n_lives]
            if self.stale(n_lives):
                yardstick.patience = min(2 * yardstick.patience, _LAST_PATIENCE)
            yardstick.at = self._n_decodes

    def observe_reading(self, n_tokens: int, seconds: float) -> None:
        """`n_tokens` of a prompt read by the target, and by drafters along with it."""
        self._reading = self._typical("reading", seconds / n_tokens)

    def readable(self, seconds: float, least: int) -> int:
        """How many tokens of a prompt can be read in so many seconds; at least `least`."""
        return least if not self._reading else max(least, int(seconds / self._reading))

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

    def known(self, n_lives: int = 1) -> bool:
        """Whether plain decoding of so many sequences was measured."""
        return n_lives in self._target

    def stale(self, n_lives: int = 1) -> bool:
        """Whether plain decoding, the yardstick of all drafts, has to be measured again.

        Drafting that seems to pay would otherwise never put a wrong yardstick right. It stays due
        until a measurement agrees with the table.
        """
        yardstick = self._yardsticks[n_lives]
        return self._n_decodes - yardstick.at > yardstick.patience

    def target_s(self, n_tokens: int) -> float:
        """Expected seconds of a target decode of `n_tokens` (some size must be known)."""
        seen = self._target
        if n_tokens in seen:
            return seen[n_tokens]
        least = min(seen)
        below = max((n for n in seen if n < n_tokens), default=0)
        above = min((n for n in seen if n > n_tokens), default=None)
        if above is None:
            return seen[below] + (n_tokens - below) * _OPTIMISTIC_SLOPE * seen[least] / least
        share = (n_tokens - below) / (above - below)
        start = seen.get(below, 0.0)
        return start + share * (seen[above] - start)

    def level_s(self, name: str) -> float:
        """Expected seconds of one level of a drafted tree; 0 until measured."""
        return self._level.get(name, 0.0)

    def draft_s(self, name: str) -> float:
        """Expected seconds of one drafted token; 0 until measured."""
        return self._draft.get(name, 0.0)
