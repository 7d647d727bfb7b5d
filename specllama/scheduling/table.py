"""Cost tables kept on disk, so that what was measured once need not be learned again.

A table is believed only where everything it depends on is as it was: machine, llama.cpp build,
model files and settings are in the file in full and compared. Whatever cannot be believed is not
used, and said so in one sentence; the costs are then measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from specllama.hub.fingerprint import file_identity
from specllama.whole_file import whole_file

FORMAT = 2
MOST_BYTES = 256 * 1024
MOST_FILES = 64
_MOST_S = 3600.0
_MOST_TOKENS = 4096

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
            graphs are captured and replayed).
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
    draft: dict[str, Seconds] = field(default_factory=dict)
    prefill: float | None = None
    acceptance: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)
    exact_batch: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "how": self.how,
            "date": self.date,
            "load": self.load,
            "same": _rounded(self.same),
            "other": _rounded(self.other),
            "second": _rounded(self.second),
            "draft": {name: _rounded(costs) for name, costs in self.draft.items()},
            "prefill": self.prefill,
            "acceptance": self.acceptance,
            "threads": self.threads,
            "exact_batch": self.exact_batch,
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> CostTable:
        """A table from JSON.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is none; every number is checked.
        """
        how = data["how"]
        if how not in ("calibrated", "learned"):
            raise ValueError(how)
        load, prefill, exact = data["load"], data["prefill"], data["exact_batch"]
        return cls(
            how=how,
            date=str(data["date"])[:32],
            load=None if load is None else _number(load, 0.0, 1e6),
            same=_seconds(data["same"]),
            other=_seconds(data["other"]),
            second=_seconds(data["second"]),
            draft={str(name): _seconds(costs) for name, costs in data["draft"].items()},
            prefill=None if prefill is None else _number(prefill, 0.0, _MOST_S),
            acceptance={str(k): _shares(rates) for k, rates in data["acceptance"].items()},
            threads={str(k): int(_number(n, 1, 4096)) for k, n in data["threads"].items()},
            exact_batch=None if exact is None else int(_number(exact, 1, _MOST_TOKENS)),
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
        path = self.path(place)
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ValueError("too large")
            data = json.loads(path.read_bytes())
            if data["format"] != FORMAT:
                return None, _not_believed("was written by another version of specllama")
            was = data["identity"]
            changed = [key for key, value in place.identity.items() if was[key] != value]
            if changed:
                return None, _not_believed(f"was measured with another {' and '.join(changed)}")
            return CostTable.of(data["table"]), ""
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            return None, _not_believed(f"cannot be read ({error.strerror})")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None, _not_believed("is damaged")

    def save(self, place: Place, table: CostTable) -> None:
        """Keep a table, whole or not at all.

        Raises:
            OSError: the folder cannot be written.
        """
        data = {"format": FORMAT, "identity": dict(place.identity), "table": table.to_dict()}
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


def _not_believed(why: str) -> str:
    return f"The kept cost table {why}; it is not used, and costs are measured again."


def _rounded(costs: Seconds) -> dict[str, float]:
    """Without what `_seconds` would not believe: a clock may go on while the machine sleeps."""
    return {
        str(n): float(f"{seconds:.4g}")
        for n, seconds in sorted(costs.items())
        if n <= _MOST_TOKENS and seconds <= _MOST_S
    }


def _seconds(data: Mapping[str, Any]) -> Seconds:
    return {int(_number(int(n), 1, _MOST_TOKENS)): _cost(s) for n, s in data.items()}


def _cost(value: Any) -> float:
    seconds = _number(value, 0.0, _MOST_S)
    if seconds <= 0.0:
        raise ValueError(value)
    return seconds


def _shares(data: Mapping[str, Any]) -> dict[str, list[float]]:
    return {str(key): [_number(rate, 0.0, 1.0) for rate in rates] for key, rates in data.items()}


def _number(value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    # no math.isfinite: a whole number may be larger than any float
    if not low <= value <= high:
        raise ValueError(value)
    return float(value)
