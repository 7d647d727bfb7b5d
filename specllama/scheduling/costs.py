"""What decodes cost on this machine: kept from earlier sessions, corrected while running."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace

from specllama.machine import GraphsKept
from specllama.scheduling import graphs
from specllama.scheduling.graphs import Part, Parts, Phase
from specllama.scheduling.table import CostTable, Seconds
from specllama.scheduling.typical import Typical

_CHEAP_SHARE = 0.1
_OPTIMISM = 0.5
_PACES = 9
_AGREEMENT = 0.25
_FIRST_PATIENCE = 16
_LAST_PATIENCE = 256
_PATIENT = 16
_BELIEVED = 64
_LONG_BELIEVED = 1024
_HOPE = 0.6
_LEAST_PAIRS = 3
_LEAST_SWITCH = 0.05
_DRAFT_GUESS = 0.25
_MATERIAL = 0.1
_NEWS = 0.03
_RENEWAL = 32
FEW_UNREAD = 8
"""A draft model reads so many tokens behind the last look in the time of that look."""
_BLOCK = 256
_CONFIRMED = 2
_LEAST_STEADY = 0.5
_TRUSTED = 3


class _Yardstick:
    """When plain decoding of so many sequences was last measured; ever more seldom is enough."""

    __slots__ = ("at", "patience")

    def __init__(self) -> None:
        self.at = 0
        self.patience = _FIRST_PATIENCE


class Costs:
    """Seconds of a target decode by number of tokens, and of drafting by drafter and length.

    A measured table with linear interpolation: costs are not monotone on real machines, so nothing
    is fitted. Sizes never seen are taken to be cheap, so that they get tried, and to be dear
    (`worst_s`) where something is at risk. A size that seems dear would not be tried again, though
    the machine was busy when it was seen: after a while it is hoped to be cheaper (`hoped_s`).

    Where graphs are captured and replayed (CUDA), a decode of another size than the one before
    costs more (`scheduling.graphs`). Where no such cost is seen, all decodes teach one table.

    Args:
        kept: the table of earlier sessions. Its sizes count at the pace of what is measured now
            (a busy machine, a longer context), until they are measured themselves.
        kept_graphs: what the device keeps of captured graphs. Where none, sizes are never taken to
            cost for being other ones: the noise of a CPU looks like that often enough.

    Attributes:
        extra_s: what the parts of a change cost (`scheduling.graphs`).
        n_decodes: of rounds that drafts were possible in, timed or not.
        version, draft_version: change when prices of decodes and of drafting do, by more than a
            little; until then they may be remembered.
    """

    def __init__(
        self, kept: CostTable | None = None, *, kept_graphs: GraphsKept = "latest"
    ) -> None:
        self._replays = kept_graphs != "none"
        self._sized = kept_graphs == "sized"
        self._graphs = graphs.of(kept_graphs)
        self._kept = kept or CostTable()
        if not self._replays:
            same = self._kept.other | self._kept.same
            self._kept = replace(self._kept, same=same, other={}, second={}, back={})
        self._all: dict[int, Typical] = defaultdict(Typical)
        self._times: dict[Phase, dict[int, Typical]] = {
            phase: defaultdict(Typical) for phase in ("same", "first", "second", "back")
        }
        self._draft: dict[tuple[str, int], dict[int, Typical]] = {}
        self._looks: dict[tuple[str, int], Seconds] = {}
        self._paces: deque[float] = deque(maxlen=_PACES)
        self._reading = Typical()
        self._catching_up = Typical()
        self._yardsticks: dict[int, _Yardstick] = defaultdict(_Yardstick)
        self._measured_at: dict[int, int] = {}
        self._believed_for = _BELIEVED
        self._n_cells: int | None = None
        self.n_decodes = 0
        self._steady: Seconds = {}
        self._hoped: Seconds = {}
        self._cheap_s = self._dear_s = 0.0
        self._pace = 1.0
        self.version = self.draft_version = 0
        self.extra_s: dict[Part, float] = {
            "first": _extra_s(self._kept.same, self._kept.other),
            "second": _extra_s(self._kept.same, self._kept.second),
            "back": _extra_s(self._kept.same, self._kept.back),
        }
        self._renew()

    # what happened

    def observe_target(self, n_tokens: int, seconds: float, n_lives: int = 1) -> None:
        """One target decode of `n_tokens` for `n_lives` sequences, plain where these are equal.

        A size's first does not count: it may be a hiccup.
        """
        self.comes_next(n_tokens)
        parts = self._graphs.pays(n_tokens)
        self._count(n_tokens)
        alike, usual = self._times[self._graphs.phase], self._times["same"]
        is_plausible = alike[n_tokens].observe(seconds)
        steady = alike is usual
        pays = self.switch_s and not steady
        if pays and is_plausible and (least := alike[n_tokens].value) < usual[n_tokens].value:
            # a burst of hiccups was measured: decodes that pay for changing take no less
            usual[n_tokens].cap(max(least - self._sum(parts), _LEAST_STEADY * least))
        believed = self._all[n_tokens].observe(seconds)
        expected = self._kept_s(n_tokens) if steady or not self.switch_s else None
        if believed and expected:
            self._paces.append(seconds / expected)
        self.n_decodes += 1
        due = alike[n_tokens].count == _CONFIRMED or self.n_decodes % _RENEWAL == 0
        due |= self._check_doubted(n_tokens, seconds)
        if due or self._is_news(n_tokens):
            self._learn_switch()
            self._renew()
        if n_tokens == n_lives:
            self._check_yardstick(n_lives, seconds, steady)

    def pass_by(self, n_tokens: int) -> None:
        """A decode whose time says nothing that anybody needs."""
        self.comes_next(n_tokens)
        self._count(n_tokens)

    def _count(self, n_tokens: int) -> None:
        self._graphs.decode(n_tokens)
        if self._sized and self._graphs.phase in ("first", "second"):
            self.version += 1  # what a size costs depends on whether it has a graph

    def lost_graphs(self) -> None:
        """No graph fits any more: the next size is a new one, whichever it is."""
        self._graphs.lose()
        self.version += self._sized

    def reach(self, n_cells: int) -> None:
        """The next decode comes behind so many cells, which are attended to in blocks.

        Where it reaches into another block, none of those captured in this one fits it; until its
        size is known, that of the latest decode is as good as any.
        """
        self._n_cells = n_cells
        self.comes_next(max(1, self.size))

    def comes_next(self, n_tokens: int) -> None:
        """The next decode is of that size, which with the cells before it says its block."""
        if self._n_cells is None or not self._replays:
            return
        block = (self._n_cells + n_tokens - 1) // _BLOCK
        if block != self._graphs.block:
            self._graphs.enter(block)
            self.version += self._sized

    def _is_news(self, n_tokens: int) -> bool:
        """Whether prices are no longer what they were taken to be."""
        times = self._times["same"] if self.switch_s else self._all
        typical = times.get(n_tokens)
        if typical is None or typical.count < 2:
            return self._is_off(self.pace, self._pace)
        known = self._steady.get(n_tokens)
        return known is None or self._is_off(typical.value, known)

    @staticmethod
    def _is_off(now: float, known: float) -> bool:
        return abs(now - known) > _NEWS * known

    def _renew(self) -> None:
        """Take what is typical now for the prices."""
        self._pace = self.pace
        self._steady = self._typical_steady()
        self._hoped = self._hopes()
        self._cheap_s, self._dear_s = _beyond(self._steady)
        self.version += 1

    def _kept_s(self, n_tokens: int) -> float | None:
        """The kept table's own figure."""
        return self._kept.same.get(n_tokens, self._kept.other.get(n_tokens))

    def _learn_switch(self) -> None:
        if not self._replays:
            return
        same = _values(self._times["same"])
        for part, known in self.extra_s.items():
            self.extra_s[part] = _corrected(known, same, _values(self._times[part]))

    def _check_doubted(self, n_tokens: int, seconds: float) -> bool:
        """Whether the size was hoped to be cheaper; where it is not, doubt all more seldom."""
        believed = self._steady.get(n_tokens, 0.0)
        was_hoped = self._hoped.get(n_tokens, believed) < believed
        if was_hoped:
            is_cheaper = seconds < (1.0 - _AGREEMENT) * believed
            longer = min(2 * self._believed_for, _LONG_BELIEVED)
            self._believed_for = _BELIEVED if is_cheaper else longer
        self._measured_at[n_tokens] = self.n_decodes
        return was_hoped

    def _check_yardstick(self, n_lives: int, seconds: float, steady: bool) -> None:
        if self.switch_s and not steady:
            return
        typical = self._all[n_lives].value if self._all[n_lives].count else seconds
        if abs(seconds - typical) <= _AGREEMENT * typical:
            yardstick = self._yardsticks[n_lives]
            if self.stale(n_lives):
                yardstick.patience = min(2 * yardstick.patience, _LAST_PATIENCE)
            yardstick.at = self.n_decodes

    def observe_reading(self, n_tokens: int, seconds: float) -> None:
        """`n_tokens` of a prompt read by the target, and by drafters along with it."""
        self._reading.observe(seconds / n_tokens)
        self._graphs.read_prompt()

    def observe_catching_up(self, n_tokens: int, seconds: float) -> None:
        """A draft model read so many tokens without drafting; few say nothing of many."""
        if n_tokens >= FEW_UNREAD:
            self._catching_up.observe(seconds / n_tokens)

    def observe_draft(self, name: str, n_looks: int, seconds: float, n_lives: int = 1) -> None:
        """Drafting that looked at so many positions (of each of `n_lives` sequences in step)."""
        if n_looks > 0:
            which = name, n_lives
            table = self._draft.setdefault(which, defaultdict(Typical))
            if table[n_looks].observe(seconds):
                table[n_looks] = table.pop(n_looks)  # the latest comes last
            before, now = self._looks.get(which, {}), _plausible(table)
            self._looks[which] = now
            if any(self._is_off(s, before.get(n, 0.0)) for n, s in now.items()):
                self.draft_version += 1

    # what to expect

    @property
    def is_changing(self) -> bool:
        """Whether the latest decode still paid for being of another size than those before."""
        return self._graphs.changes and self.switch_s > 0.0

    @property
    def size(self) -> int:
        """Of the latest decode, 0 where no graph fits any more."""
        return self._graphs.size

    @property
    def behind_prompt(self) -> bool:
        """Whether a prompt was read since then."""
        return self._graphs.behind_prompt

    @property
    def switch_s(self) -> float:
        """What going over to another size costs, once and for all, where it has been before."""
        extra = self.extra_s
        return extra["back"] if self._sized else extra["first"] + extra["second"]

    def _sum(self, parts: Parts) -> float:
        return sum(map(self.extra_s.__getitem__, parts), 0.0)

    def change_s(self, n_tokens: int) -> float:
        """What a decode of some size would pay now for being of another size, or new."""
        return self._sum(self._graphs.pays(n_tokens))

    def captures(self, n_tokens: int) -> bool:
        """Whether a decode of some size would capture a graph now."""
        return self._graphs.captures(n_tokens)

    def dues_s(self, n_tokens: int) -> tuple[float, float]:
        """What of that the first two of many decodes of a size pay behind a prompt."""
        now, later = self._graphs.dues(n_tokens)
        return self._sum(now), self._sum(later)

    def move_s(self, n_tokens: int, before: int, kept: int) -> float:
        """What a decode pays behind one of size `before`, where many of size `kept` follow."""
        return self._sum(self._graphs.move(n_tokens, before, kept))

    def toll_s(self, n_tokens: int, *, away: bool = False) -> float:
        """What decodes of a size pay in all until they cost what they usually do.

        Args:
            away: another size was decoded before.
        """
        return self._sum(self._graphs.toll(n_tokens, away=away))

    def readable(self, seconds: float, least: int) -> int:
        """How many tokens of a prompt can be read in so many seconds; at least `least`."""
        each = self._reading.value if self._reading.count else self._kept.prefill
        return least if not each else max(least, int(seconds / each))

    def catching_up_s(self, n_tokens: int, guess_s: float = 0.0) -> float:
        """Seconds of a draft model to read what it was not asked about: a look pays for a few.

        Args:
            guess_s: of each, where that was never measured.
        """
        each = self._catching_up.value if self._catching_up.count else guess_s
        return max(0, n_tokens - FEW_UNREAD) * each

    @property
    def pace(self) -> float:
        """How many times as long decodes take now as in the kept table."""
        if len(self._paces) < 2:
            return 1.0
        return sorted(self._paces)[(len(self._paces) - 1) // 2]

    def measured(self, n_tokens: int = 1) -> bool:
        """Whether target decodes of this size were measured, now or earlier."""
        return n_tokens in self.steady()

    def stale(self, n_lives: int = 1) -> bool:
        """Whether plain decoding, the yardstick of all drafts, has to be measured again.

        Drafting that seems to pay would otherwise never put a wrong yardstick right. It stays due
        until a measurement agrees with the table. Where changing the size costs, so does measuring.
        """
        yardstick = self._yardsticks[n_lives]
        patience = yardstick.patience * (_PATIENT if self.switch_s else 1)
        return self.n_decodes - yardstick.at > patience

    def steady(self) -> Seconds:
        """Seconds by size, each after a decode of the same size."""
        return self._steady

    def _typical_steady(self) -> Seconds:
        pace = self._pace
        if not self.switch_s:
            kept = {n: s * pace for n, s in (self._kept.other | self._kept.same).items()}
            # a first measurement may be a hiccup's, but no hiccup makes a decode shorter
            shorter = {n: s for n, s in _values(self._all, 1).items() if s < kept.get(n, 0.0)}
            return kept | shorter | _values(self._all)
        seen = {
            n: seconds - extra
            for part, extra in self.extra_s.items()
            for n, seconds in _values(self._times[part]).items()
            if part != "second" and seconds > extra
        }
        kept = {n: s * pace for n, s in self._kept.same.items()}
        return seen | kept | _values(self._times["same"])

    def target_s(self, n_tokens: int) -> float:
        """Expected seconds of a target decode of as many tokens as before (some size is known)."""
        return _interpolated(self._steady, n_tokens, self._cheap_s)

    def hoped_s(self, n_tokens: int) -> float:
        """The same where sizes not measured for long may cost less than they did."""
        return _interpolated(self._hoped, n_tokens, self._cheap_s)

    def _hopes(self) -> Seconds:
        if self.switch_s or 1 not in self._steady:
            return self._steady
        one = self._steady[1]
        return {
            n: min(seconds, one + _HOPE * one * (n - 1)) if self._is_doubted(n) else seconds
            for n, seconds in self._steady.items()
        }

    def _is_doubted(self, n_tokens: int) -> bool:
        return self.n_decodes - self._measured_at.get(n_tokens, 0) > self._believed_for

    def worst_s(self, n_tokens: int) -> float:
        """The same with a dear guess for unseen sizes: a batch costs no more than its tokens."""
        return _interpolated(self._steady, n_tokens, self._dear_s)

    def draft_s(self, name: str, n_looks: int, n_lives: int = 1, *, worst: bool = False) -> float:
        """Expected seconds of looking at so many positions, for all of `n_lives` sequences.

        0 where it was never measured (`worst`: a quarter of a plain decode each).
        """
        if n_looks < 1:
            return 0.0
        table, share = self._draft_table(name, n_lives)
        if not table:
            guess = self.target_s(1) * _DRAFT_GUESS if worst and self.steady() else 0.0
            return guess * n_looks * n_lives
        kept = self._kept.draft.get(name, {})
        alone = min((seconds / n for n, seconds in kept.items()), default=math.inf)
        return share * _in_a_row(table, n_looks, alone * self.pace)

    def _draft_table(self, name: str, n_lives: int) -> tuple[Seconds, float]:
        """The table of that many sequences, else of one that is known, and by what to multiply."""
        known = self._looks.items()
        tables = {lives: seen for (whose, lives), seen in known if whose == name and seen}
        if n_lives in tables:
            return tables[n_lives], 1.0
        if tables:
            nearest = min(tables, key=lambda lives: abs(lives - n_lives))
            return tables[nearest], n_lives / nearest
        return self._kept.draft.get(name, {}), n_lives * self.pace

    # what to keep

    def table(self) -> CostTable:
        """What is known now, for the next session.

        A calibrated table keeps its level: what was learned since then goes in at its pace, and
        only where it differs materially.
        """
        kept = self._kept
        level = self.pace if kept.how == "calibrated" else 1.0
        same, other, second, back = map(_values, self._times.values())
        if not self.switch_s:
            same, other, second, back = _values(self._all), {}, {}, {}
        return CostTable(
            how=kept.how,
            date=kept.date,
            load=kept.load,
            same=self._merged(kept.same, same, level),
            other=self._merged(kept.other, other, level),
            second=self._merged(kept.second, second, level),
            back=self._merged(kept.back, back, level),
            draft=kept.draft
            | {
                name: self._merged(kept.draft.get(name, {}), _values(table), level)
                for (name, lives), table in self._draft.items()
                if lives == 1
            },
            prefill=self._reading.value if self._reading.count else kept.prefill,
            threads=dict(kept.threads),
            exact_batch=kept.exact_batch,
        )

    def _merged(self, kept: Seconds, live: Seconds, level: float) -> Seconds:
        pace = self.pace / level
        merged = {n: seconds * pace for n, seconds in kept.items()}
        for n, seconds in live.items():
            if n not in kept or _differs(seconds / level, merged[n]):
                merged[n] = seconds / level
        return merged

    @property
    def changed(self) -> bool:
        """Whether the table to keep differs materially from the one that was kept."""
        new, kept = self.table(), self._kept
        pairs = [(new.same, kept.same), (new.other, kept.other)]
        pairs += [(new.second, kept.second), (new.back, kept.back)]
        pairs += [(costs, kept.draft.get(name, {})) for name, costs in new.draft.items()]
        return any(
            n not in old or _differs(seconds, old[n])
            for costs, old in pairs
            for n, seconds in costs.items()
        )


def _values(times: dict[int, Typical], least: int = _CONFIRMED) -> Seconds:
    return {n: typical.value for n, typical in times.items() if typical.count >= least}


def _plausible(times: dict[int, Typical]) -> Seconds:
    """Seconds of looks in a row, none dearer for its number than shorter ones measured since.

    Later looks never cost more than the first ones: times that are longer are a hiccup's, and
    would stay, since a length that seems dear is not tried again. Where the drafter became slow,
    it is the shorter ones that are out of date; a few times alone are no sign of that. Nor does
    any number cost more than a larger one, whose looks begin with its own.

    Args:
        times: in the order in which they were last measured.
    """
    found: Seconds = {}
    each = {n: typical.latest / n for n, typical in times.items() if typical.count}
    since: Seconds = {}
    for n in reversed(each):
        shorter = each if times[n].count < _TRUSTED else since
        cheapest = min((seconds for m, seconds in shorter.items() if m < n), default=math.inf)
        found[n] = min(times[n].value, n * cheapest)
        since[n] = each[n]
    most = math.inf
    for n in sorted(found, reverse=True):
        most = found[n] = min(found[n], most)
    return found


def _differs(one: float, other: float) -> bool:
    return abs(one - other) > _MATERIAL * other


def _extra_s(same: Seconds, other: Seconds, known: float = 0.0) -> float:
    """What a decode costs more than usual; 0 where that is not seen at nearly every size.

    Two of three are enough where it is known to: a burst of hiccups at one size denies nothing.
    """
    extra = sorted(other[n] - same[n] for n in same.keys() & other.keys())
    if len(extra) < _LEAST_PAIRS:
        return 0.0
    least, middle = extra[len(extra) // (3 if known else 4)], extra[len(extra) // 2]
    return middle if least > _LEAST_SWITCH * same[min(same)] else 0.0


def _corrected(known: float, same: Seconds, other: Seconds) -> float:
    """The same, learned from enough sizes, or from the dearest in use where it is known to be.

    Fewer sizes reveal nothing: a CPU's first decode of another size is slow now and then.
    """
    sizes = same.keys() & other.keys()
    if len(sizes) >= _LEAST_PAIRS:
        return _extra_s(same, other, known)
    if not (known and sizes):
        return known
    extra = max(other[n] - same[n] for n in sizes)
    return extra if extra > _LEAST_SWITCH * same[min(same)] else known


def _beyond(seen: Seconds) -> tuple[float, float]:
    """Seconds of each token beyond the largest size that was seen: a cheap guess and a dear one.

    Cheap is half of what the latest tokens cost, dear what a token costs by itself.
    """
    if not seen:
        return 0.0, 0.0
    *_, last = sizes = sorted(seen)
    dear = seen[sizes[0]] / sizes[0]
    if len(sizes) == 1:
        return _CHEAP_SHARE * dear, dear
    slope = (seen[last] - seen[sizes[-2]]) / (last - sizes[-2])
    return _OPTIMISM * max(0.0, slope), dear


def _interpolated(seen: Seconds, n_tokens: int, slope: float) -> float:
    """Between the sizes that were seen; beyond them, `slope` seconds a token."""
    if n_tokens in seen:
        return seen[n_tokens]
    below = _nearest((n for n in seen if n < n_tokens), most=True)
    above = _nearest((n for n in seen if n > n_tokens), most=False)
    start = seen.get(below, 0.0)
    if not above:
        return start + (n_tokens - below) * slope
    share = (n_tokens - below) / (above - below)
    return start + share * (seen[above] - start)


def _nearest(sizes: Iterable[int], *, most: bool) -> int:
    return max(sizes, default=0) if most else min(sizes, default=0)


def _in_a_row(table: Seconds, n_looks: int, alone: float) -> float:
    """Seconds of so many looks one after the other: the first often costs more than later ones.

    Args:
        alone: seconds of a decode of the draft by itself: what a look further costs at least.
    """
    if n_looks in table:
        return table[n_looks]
    first, last = min(table), max(table)
    if n_looks < first:
        return table[first] * n_looks / first
    if n_looks < last:
        return _interpolated(table, n_looks, 0.0)
    if last > first:
        each = (table[last] - table[first]) / (last - first)
    else:
        each = min(table[last] / last, alone)
    return table[last] + max(0.0, each) * (n_looks - last)
