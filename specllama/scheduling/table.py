"""Cost tables kept on disk, so that what was measured once need not be learned again.

A table is believed only where everything it depends on is as it was: machine, llama.cpp build,
model files and settings are in the file in full and compared. A digest tells a changed file, and
numbers that no machine shows beside each other are damage, too. Whatever cannot be believed is not
used, and said so in one sentence; the costs are then measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from specllama.hub.fingerprint import file_identity
from specllama.whole_file import whole_file

FORMAT = 4
MOST_BYTES = 256 * 1024
MOST_FILES = 64
MOST_EXACT = 16
"""Up to so many tokens are tried for having the bits of single decodes."""
_LEAST_S = 1e-6
_LEAST_READING_S = 1e-9
_MOST_S = 3600.0
_MOST_TOKENS = 4096
_MOST_THREADS = 4096
_MOST_NAME = 64
_APART = 50.0

Seconds = dict[int, float]
"""By number of tokens."""


@dataclass(slots=True)
class CostTable:
    """What was measured of one pair on one machine.

    Attributes:
        how: measured by `specllama calibrate`, or learned from ordinary rounds.
        date: ISO date and time of the latest change.
        load: the machine's load average at that time, None where it has none.
        same, other, second: seconds of a target decode of n tokens after several of the same
            size, after one of another size, and after only one of the same (they differ where
            graphs are captured and replayed, and none of that size was).
        back: the same after one of another size, where a graph of this one was kept.
        draft: by drafter, seconds of n decodes of its model in a row.
        prefill: seconds a prompt token.
        acceptance: by drafter and kind of sampling, see `Acceptance.known`.
        threads: "plain" and "batched" to the thread count that was fastest, where it was tried.
        exact_batch: the most tokens whose logits have the bits of single decodes, None where that
            was not tried.
    """

    how: Literal["calibrated", "learned"] = "learned"
    date: str = ""
    load: float | None = None
    same: Seconds = field(default_factory=dict)
    other: Seconds = field(default_factory=dict)
    second: Seconds = field(default_factory=dict)
    back: Seconds = field(default_factory=dict)
    draft: dict[str, Seconds] = field(default_factory=dict)
    prefill: float | None = None
    acceptance: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)
    exact_batch: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without what `of` would not believe.

        A clock may go on while the machine sleeps.
        """
        same = _believable(_rounded(self.same))
        reads = self.prefill is not None and _is_reading(self.prefill, same)
        return {
            "how": self.how,
            "date": self.date,
            "load": self.load,
            "same": _by_text(same),
            "other": _by_text(_believable(_rounded(self.other), same)),
            "second": _by_text(_believable(_rounded(self.second), same)),
            "back": _by_text(_believable(_rounded(self.back), same)),
            "draft": {
                name: _by_text(_believable(_rounded(costs))) for name, costs in self.draft.items()
            },
            "prefill": self.prefill if reads else None,
            "acceptance": self.acceptance,
            "threads": self.threads,
            "exact_batch": self.exact_batch,
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> CostTable:
        """A table from JSON.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is none; every number is checked, by
                itself and beside the others.
        """
        how = data["how"]
        if how not in ("calibrated", "learned"):
            raise ValueError(how)
        load, prefill, exact = data["load"], data["prefill"], data["exact_batch"]
        same = _seconds(data["same"])
        return cls(
            how=how,
            date=_date(data["date"]),
            load=None if load is None else _number(load, 0.0, 1e6),
            same=same,
            other=_seconds(data["other"], same),
            second=_seconds(data["second"], same),
            back=_seconds(data["back"], same),
            draft={_name(name): _seconds(costs) for name, costs in data["draft"].items()},
            prefill=None if prefill is None else _reading(prefill, same),
            acceptance={_name(k): _shares(rates) for k, rates in data["acceptance"].items()},
            threads={_name(k): _whole(n, 1, _MOST_THREADS) for k, n in data["threads"].items()},
            exact_batch=None if exact is None else _whole(exact, 1, MOST_EXACT),
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pair's table is kept, and all it depends on.

    Attributes:
        name: of the file: the same for the same machine, model names and settings.
        identity: what has to be as it was for the table to be believed, by what it is called.
    """

    name: str
    identity: Mapping[str, str]

    @classmethod
    def of(
        cls,
        machine: str,
        build: str,
        target: Path,
        draft: Path | None,
        settings: Mapping[str, object],
    ) -> Place:
        """The place of a pair of model files (draft None: without a draft model)."""
        chosen = json.dumps(settings, sort_keys=True, default=str)
        files = (str(target.absolute()), str(draft.absolute()) if draft else "")
        digest = hashlib.sha256(json.dumps([machine, *files, chosen]).encode()).hexdigest()
        identity = {
            "machine": machine,
            "llama.cpp": build,
            "target file": _version_of(target),
            "draft file": _version_of(draft) if draft else "",
            "settings": chosen,
        }
        return cls(digest[:20], identity)


def _version_of(path: Path) -> str:
    """A model file as it is now: a table of costs need not outlive even a new copy of it."""
    return f"{file_identity(path)}, {path.stat().st_mtime_ns}"


class Tables:
    """The folder of the tables: at most `MOST_FILES`, each at most `MOST_BYTES`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, place: Place) -> Path:
        """The file of a place."""
        return self.folder / f"{place.name}.json"

    def load(self, place: Place) -> tuple[CostTable | None, str]:
        """The table kept for a place, None where there is none to believe; a warning or ""."""
        try:
            was, table = _read(self.path(place))
            if changed := _differing(was, place.identity):
                raise _NotBelieved(f"was measured with another {' and '.join(changed)}")
        except FileNotFoundError:
            return None, ""
        except _NotBelieved as why:
            return None, (
                f"The kept cost table {why}; it is not used, and costs are measured again."
            )
        return table, ""

    def beside(self, place: Place) -> list[tuple[dict[str, Any], CostTable]]:
        """The tables of the same pair, machine and build with other settings; the latest first.

        Returns:
            The settings that differ, and the table.
        """
        ours = json.loads(place.identity["settings"])
        found = []
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(FileNotFoundError, _NotBelieved):
                was, table = _read(path)
                if _differing(was, place.identity) == ["settings"]:
                    theirs = json.loads(was["settings"])
                    differing = {k: v for k, v in theirs.items() if ours.get(k) != v}
                    found.append((differing, table))
        return sorted(found, key=lambda one: one[1].date, reverse=True)

    def save(self, place: Place, table: CostTable) -> None:
        """Keep a table, whole or not at all.

        Raises:
            OSError: the folder cannot be written.
        """
        identity, content = dict(place.identity), table.to_dict()
        data = {
            "format": FORMAT,
            "digest": _digest(identity, content),
            "identity": identity,
            "table": content,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        with whole_file(self.path(place)) as part, part.open("w", encoding="utf-8") as file:
            json.dump(data, file, separators=(",", ":"))
        self._cap()

    def _cap(self) -> None:
        """Forget the tables that were not written for longest."""
        with contextlib.suppress(OSError):  # another process tidies up at the same time
            files = sorted(self.folder.glob("*.json"), key=lambda path: -path.stat().st_mtime)
            for path in files[MOST_FILES:]:
                path.unlink(missing_ok=True)


class _NotBelieved(Exception):
    """Why a kept table is not used, as the end of a sentence."""


def _read(path: Path) -> tuple[dict[str, str], CostTable]:
    """What a table depends on, and the table.

    Raises:
        FileNotFoundError, _NotBelieved.
    """
    try:
        data = json.loads(_content(path))
        if data["format"] != FORMAT:
            raise _NotBelieved("was written by another version of specllama")
        if data["digest"] != _digest(data["identity"], data["table"]):
            raise ValueError(data["digest"])
        return dict(data["identity"]), CostTable.of(data["table"])
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _NotBelieved(f"cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _NotBelieved("is damaged") from error


def _content(path: Path) -> bytes:
    """All of a file that is neither too large nor without an end, as pipes and devices are."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise _NotBelieved("is no regular file")
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError("too large")
    return content


def _digest(identity: Any, content: Any) -> str:
    return hashlib.sha256(json.dumps([identity, content], sort_keys=True).encode()).hexdigest()


def _differing(was: Mapping[str, str], identity: Mapping[str, str]) -> list[str]:
    return [key for key, value in identity.items() if was.get(key) != value]


def _rounded(costs: Seconds) -> Seconds:
    return {n: float(f"{seconds:.4g}") for n, seconds in sorted(costs.items())}


def _by_text(costs: Seconds) -> dict[str, float]:
    return {str(n): seconds for n, seconds in costs.items()}


def _believable(costs: Seconds, beside: Seconds | None = None) -> Seconds:
    """Those that a machine may show: more tokens take about as long, or as long as one by one.

    Args:
        beside: whose smallest size they are compared with; else their own.
    """
    possible = {
        n: seconds
        for n, seconds in costs.items()
        if 1 <= n <= _MOST_TOKENS and _LEAST_S <= seconds <= _MOST_S
    }
    beside = beside or possible
    least = min(beside, default=1)
    return {
        n: seconds
        for n, seconds in possible.items()
        if 1 / _APART <= seconds / beside[least] <= _APART * max(1.0, n / least)
    }


def _is_reading(seconds: float, same: Seconds) -> bool:
    """Whether a token of a prompt may take so long: hardly longer than by itself."""
    most = _APART * same[min(same)] if same else _MOST_S
    return _LEAST_READING_S <= seconds <= most


def _seconds(data: Mapping[str, Any], beside: Seconds | None = None) -> Seconds:
    costs = {int(n): _number(seconds, _LEAST_S, _MOST_S) for n, seconds in data.items()}
    if costs != _believable(costs, beside):
        raise ValueError(data)
    return costs


def _reading(value: Any, same: Seconds) -> float:
    seconds = _number(value, _LEAST_READING_S, _MOST_S)
    if not _is_reading(seconds, same):
        raise ValueError(value)
    return seconds


def _shares(data: Mapping[str, Any]) -> dict[str, list[float]]:
    return {str(key): [_number(rate, 0.0, 1.0) for rate in rates] for key, rates in data.items()}


def _date(text: Any) -> str:
    """As `isoformat` writes it, to the minute; "" where a table has none."""
    if text == "" or datetime.fromisoformat(text).isoformat(timespec="minutes") == text:
        return str(text)
    raise ValueError(text)


def _name(text: str) -> str:
    if not (text.isprintable() and len(text) <= _MOST_NAME):
        raise ValueError(text)
    return text


def _whole(value: Any, low: int, high: int) -> int:
    if not isinstance(value, int):
        raise TypeError(value)
    return int(_number(value, low, high))


def _number(value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    # no math.isfinite: a whole number may be larger than any float
    if not low <= value <= high:
        raise ValueError(value)
    return float(value)
