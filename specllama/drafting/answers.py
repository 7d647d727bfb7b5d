"""Past answers on disk, one folder for each model and vocabulary, safe to share and to crash.

New answers are appended to a journal, each with its length and checksum, so that a crash loses no
more than the one being written. A journal that has grown becomes a segment, an indexed file that
never changes. Neighbouring segments of similar size are merged, so that there are few; the oldest
go when the folder is full. Whoever reads or writes holds the folder's lock.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from specllama.drafting.arrays import Kind, read_arrays, write_arrays
from specllama.drafting.suffix_index import SuffixIndex
from specllama.errors import ModelError, SpecllamaError

Ids = NDArray[np.uint32]

_REMEDY = "It is left out. `specllama store clear` removes the store."
SEGMENT = Kind(magic=b"SPECSEGM", version=1, what="a segment of the store", remedy=_REMEDY)
JOURNAL_TOKENS = 1 << 16
SHORTEST = 8
"""Answers of fewer tokens are not worth keeping."""
DEFAULT_CAP = 64_000_000
_JOURNAL = "answers.journal"
_JOURNAL_VERSION = 1
_LOCK = "lock"
_LOCK_S = 10.0
_HEADER = struct.Struct("<8sI32s")
_RECORD = struct.Struct("<4sII")
_MARK = b"\xfe\xff\xff\xff"
"""In front of each answer; no bytes of ids below 2^24 look like it."""
_SEGMENT_NAME = re.compile(r"(\d{8})-(\d{8})\.segment")
_DRAFT_NAME = re.compile(rf"\.{_SEGMENT_NAME.pattern}\.\d+")
"""What `write_arrays` calls a segment until it is whole."""
_BYTES_A_TOKEN = 8


@dataclass(frozen=True, slots=True)
class Segment:
    """An open segment; its name says which journals it was made of."""

    path: Path
    first: int
    last: int
    index: SuffixIndex


@dataclass(slots=True)
class Folder:
    """What was found in a folder.

    Attributes:
        segments: oldest first.
        journal: the answers not yet in a segment, oldest first.
        unread: the numbers of segments that cannot be opened.
        warnings: one or two sentences for each file that is not what it should be.
        folded: the journal's first answers are in a segment already, and left out.
        damaged: not all of the journal could be read.
        foreign: the journal is not ours to add to.
    """

    segments: list[Segment] = field(default_factory=list)
    journal: list[Ids] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    folded: bool = False
    damaged: bool = False
    foreign: bool = False


class Answers:
    """The answers kept for one model and vocabulary.

    Trouble with files never ends a generation: `warnings` tells of it, and what is whole is used.

    Args:
        folder: where they are; made when needed.
        fingerprint: of the vocabulary, see `hub.fingerprint`.
        cap: the most bytes on disk.

    Attributes:
        indexes: everything that can be searched, oldest first.
        warnings: one sentence each.
    """

    def __init__(self, folder: Path, fingerprint: str, cap: int = DEFAULT_CAP) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        self._fingerprint = fingerprint
        self._cap = cap
        self._writable = True
        self._segments: list[Segment] = []
        self._recent: list[list[Ids]] = []
        self._recent_indexes: list[SuffixIndex] = []
        self._n_recent = 0
        with self._telling():
            self._tidy()

    @property
    def indexes(self) -> list[SuffixIndex]:
        """Everything that can be searched, oldest first."""
        return [*(segment.index for segment in self._segments), *self._recent_indexes]

    def remember(self, ids: Sequence[int]) -> None:
        """Keep an answer, with as much of its prompt as it should be found by."""
        if len(ids) < SHORTEST:
            return
        answer = np.array(ids[-self._most_tokens :], np.uint32)
        self._add_recent([answer])
        if not self._writable:
            self._bound_recent()
            return
        with self._telling():
            with _locked(self.folder):
                _append(self.folder / _JOURNAL, self._fingerprint, answer)
            if self._n_recent > self._most_in_journal:
                self._tidy()

    @property
    def _most_tokens(self) -> int:
        """Of a segment: a quarter of the store, so that a little is forgotten at a time."""
        return max(SHORTEST, self._cap // (4 * _BYTES_A_TOKEN))

    @property
    def _most_in_journal(self) -> int:
        """Tokens; reading and indexing them takes 50 ms."""
        return min(JOURNAL_TOKENS, self._most_tokens // 4)

    def _tidy(self) -> None:
        """Read the folder, and fold, merge and drop what is due."""
        with _locked(self.folder):
            _delete_drafts(self.folder)
            found = _read_folder(self.folder, self._fingerprint)
            self.warnings += [text for text in found.warnings if text not in self.warnings]
            self._writable = not found.foreign
            is_full = _length(found.journal) > self._most_in_journal
            if found.damaged or found.folded or is_full:
                self._fold(found)
            if not found.foreign:
                self._merge(found)
            self._drop_oldest(found)
        self._segments = found.segments
        self._recent, self._recent_indexes, self._n_recent = [], [], 0
        if found.journal:
            self._add_recent(found.journal)

    def _fold(self, found: Folder) -> None:
        """Make a segment of the journal."""
        if found.journal:
            number = _next_number(self.folder)
            found.segments.append(self._write(number, number, found.journal))
        (self.folder / _JOURNAL).unlink(missing_ok=True)
        found.journal = []

    def _merge(self, found: Folder) -> None:
        """Merge from the end while the older segment is less than twice the newer one."""
        segments = found.segments
        while len(segments) > 1:
            older, newer = segments[-2:]
            if any(older.last < number < newer.first for number in found.unread):
                return
            if len(older.index) >= 2 * len(newer.index):
                return
            if len(older.index) + len(newer.index) > self._most_tokens:
                return
            documents = [*older.index.documents(), *newer.index.documents()]
            merged = self._write(older.first, newer.last, documents)
            for segment in (older, newer):
                _delete(segment.path)
            segments[-2:] = [merged]

    def _write(self, first: int, last: int, documents: list[Ids]) -> Segment:
        index = SuffixIndex.build(documents)
        path = self.folder / f"{first:08}-{last:08}.segment"
        fields = {
            "fingerprint": self._fingerprint,
            "n_answers": len(documents),
            "n_tokens": sum(map(len, documents)),
        }
        write_arrays(path, SEGMENT, fields, index.arrays)
        return Segment(path, first, last, index)

    def _drop_oldest(self, found: Folder) -> None:
        """Delete segments, oldest first, until there is room for them and a full journal."""
        paths = [path for path, _, _ in _segment_files(self.folder)]
        sizes = {path: path.stat().st_size for path in paths}
        room = self._cap - _BYTES_A_TOKEN * self._most_in_journal
        while paths and sum(sizes.values()) > room:
            path = paths.pop(0)
            del sizes[path]
            _delete(path)
            found.segments = [segment for segment in found.segments if segment.path != path]

    def _add_recent(self, answers: list[Ids]) -> None:
        """Index answers in memory; groups are merged so that there are few, as on disk."""
        while self._recent and _length(self._recent[-1]) < 2 * _length(answers):
            answers = [*self._recent.pop(), *answers]
            self._recent_indexes.pop()
        self._recent.append(answers)
        self._recent_indexes.append(SuffixIndex.build(answers))
        self._n_recent = sum(map(_length, self._recent))

    def _bound_recent(self) -> None:
        """Forget the oldest answers that only the memory has: no segment will take them over."""
        while self._n_recent > self._most_tokens:
            self._n_recent -= _length(self._recent.pop(0))
            self._recent_indexes.pop(0)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn trouble with the folder into a warning, and leave the disk alone from then on."""
        try:
            yield
        except Timeout:
            self._tell(f"The store {self.folder} is in use; it is left alone this time.")
        except OSError as error:
            self._tell(f"The store {self.folder} cannot be used: {error.strerror or error}.")

    def _tell(self, warning: str) -> None:
        self._writable = False
        self.warnings.append(warning)


def look_into(folder: Path, fingerprint: str | None = None) -> Folder:
    """Open what is in a folder.

    Args:
        fingerprint: of the vocabulary that counts; None takes any.

    Raises:
        OSError: the folder cannot be read.
        SpecllamaError: another process is writing to it all the time.
    """
    with _not_in_use(folder):
        return _read_folder(folder, fingerprint)


def clear(folder: Path) -> None:
    """Forget all answers of a folder.

    Raises:
        OSError: a file cannot be deleted.
        SpecllamaError: another process is writing to it all the time.
    """
    with _not_in_use(folder):
        for path in files(folder):
            path.unlink(missing_ok=True)


def files(folder: Path) -> list[Path]:
    """A folder's files of answers, whatever their state."""
    return [path for path in sorted(folder.iterdir()) if path.is_file() and path.name != _LOCK]


@contextmanager
def _not_in_use(folder: Path) -> Iterator[None]:
    try:
        with _locked(folder):
            yield
    except Timeout as error:
        raise SpecllamaError(f"{folder} is in use.", "Try again in a moment.") from error


def _read_folder(folder: Path, fingerprint: str | None) -> Folder:
    found = Folder()
    for path, first, last in _segment_files(folder):
        try:
            found.segments.append(_open(path, first, last, fingerprint))
        except ModelError as error:
            found.unread.append(first)
            found.warnings.append(str(error))
    journal = folder / _JOURNAL
    if journal.exists():
        _read_journal(journal, fingerprint, found)
        _leave_out_folded(found)
    return found


def _length(answers: list[Ids]) -> int:
    return sum(map(len, answers))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(folder / _LOCK, timeout=_LOCK_S)
    try:
        lock.acquire()
    except NotImplementedError as error:
        raise OSError(errno.ENOTSUP, "its file system has no locks") from error
    try:
        yield
    finally:
        lock.release()


def _delete(path: Path) -> None:
    """Delete a file; where another process has it open on Windows, it goes another time."""
    try:
        path.unlink(missing_ok=True)
    except PermissionError:
        if os.name != "nt":
            raise


def _delete_drafts(folder: Path) -> None:
    """Delete what crashes have left of segments; whoever writes one holds the lock."""
    for path in folder.iterdir():
        if _DRAFT_NAME.fullmatch(path.name):
            _delete(path)


def _segment_files(folder: Path) -> list[tuple[Path, int, int]]:
    """The segments and the journals they are made of, oldest first.

    A crash after a merge leaves segments whose journals another one has too; they are deleted.
    """
    names = [(path, _SEGMENT_NAME.fullmatch(path.name)) for path in folder.iterdir()]
    files = [(path, int(name[1]), int(name[2])) for path, name in names if name]
    files.sort(key=lambda file: (file[1], -file[2]))
    whole: list[tuple[Path, int, int]] = []
    for path, first, last in files:
        if whole and last <= whole[-1][2]:
            _delete(path)
        else:
            whole.append((path, first, last))
    return whole


def _next_number(folder: Path) -> int:
    files = _segment_files(folder)
    return files[-1][2] + 1 if files else 1


def _open(path: Path, first: int, last: int, fingerprint: str | None) -> Segment:
    found = read_arrays(path, SEGMENT)
    if fingerprint is not None and found.fields["fingerprint"] != fingerprint:
        raise ModelError(f"{path} belongs to another vocabulary.", _REMEDY)
    return Segment(path, first, last, SuffixIndex(found.arrays))


def _append(path: Path, fingerprint: str, answer: Ids) -> None:
    """Add an answer in one write; another process may have made a segment of the journal."""
    payload = answer.astype("<u4").tobytes()
    record = _RECORD.pack(_MARK, len(answer), zlib.crc32(payload)) + payload
    with open(path, "ab", opener=_private) as file:
        if file.tell() < _HEADER.size:
            file.truncate(0)  # half a header is what a crash leaves
            record = _HEADER.pack(b"SPECJRNL", _JOURNAL_VERSION, fingerprint.encode()) + record
        file.write(record)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _read_journal(path: Path, fingerprint: str | None, found: Folder) -> None:
    """Read the answers; where one is damaged, go on with the next."""
    data = path.read_bytes()
    if (why := _foreign(data, fingerprint)) is not None:
        found.foreign = True
        found.warnings.append(f"{path} {why}, so nothing is remembered. {_REMEDY}")
        return
    at = _HEADER.size
    found.damaged = len(data) < at
    while 0 <= at < len(data):
        _, count, crc = _RECORD.unpack(data[at : at + _RECORD.size].ljust(_RECORD.size, b"\0"))
        start, end = at + _RECORD.size, at + _RECORD.size + 4 * count
        if data.startswith(_MARK, at) and end <= len(data) and zlib.crc32(data[start:end]) == crc:
            found.journal.append(np.frombuffer(data, "<u4", count, start))
            at = end
        else:
            found.damaged = True
            at = data.find(_MARK, at + 1)
    if found.damaged:
        found.warnings.append(f"{path} was damaged, perhaps by a crash. What is whole was kept.")


def _leave_out_folded(found: Folder) -> None:
    """A crash may come between the two steps of making a segment of a journal: what the segment
    has is not taken from the journal as well."""
    if not found.segments or found.segments[-1].first != found.segments[-1].last:
        return
    folded = list(found.segments[-1].index.documents())
    first = found.journal[: len(folded)]
    if len(first) == len(folded) and all(map(np.array_equal, folded, first)):
        found.folded = True
        del found.journal[: len(folded)]


def _foreign(data: bytes, fingerprint: str | None) -> str | None:
    """Why a journal cannot be read at all; half a header is what a crash leaves, and is ours."""
    if len(data) < _HEADER.size:
        return None
    magic, version, owner = _HEADER.unpack_from(data)
    if magic != b"SPECJRNL":
        return "is not a journal of the store"
    if version != _JOURNAL_VERSION:
        return f"has format {version}, where this specllama reads {_JOURNAL_VERSION}"
    if fingerprint is not None and owner != fingerprint.encode():
        return "belongs to another vocabulary"
    return None
