"""The store: what it drafts, what it keeps, and what damage, crashes and company do to it."""

from __future__ import annotations

import multiprocessing
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.drafting import answers as module
from specllama.drafting.answers import Answers, clear, files, look_into
from specllama.drafting.store import StoreDrafter, folder_of, open_store
from specllama.errors import SpecllamaError
from tests.drafting.test_suffix_index import brute_force
from tests.drafting.wants import want
from tests.hub.ggufs import write_gguf

END = 9
VOCABULARY = "0123456789abcdef" * 2
SMALL = 40_000
"""A cap so small that a journal takes 312 tokens and a segment 1250."""
TEXT = st.lists(st.sampled_from([0, 1, 2, END]), min_size=8, max_size=40)


def store(folder: Path, cap: int = SMALL, fingerprint: str = VOCABULARY) -> Answers:
    return Answers(folder / "store", fingerprint, cap)


def drafter(answers: Answers, min_match: int = 2, factor: float = 1.0) -> StoreDrafter:
    return StoreDrafter(answers, lambda token: token == END, min_match=min_match, factor=factor)


def draft(answers: Answers, ids: Sequence[int], limit: int = 16, min_match: int = 2) -> list[int]:
    (proposal,) = drafter(answers, min_match).propose([want(ids, limit)])
    return list(proposal.tokens)


def texts(count: int, length: int = 50, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(10, 1000) for _ in range(length)] for _ in range(count)]


def kept(answers: Answers) -> list[list[int]]:
    """All answers that can be found, oldest first."""
    return [list(text) for index in answers.indexes for text in index.documents()]


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fresh")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(known=st.lists(TEXT, max_size=6), ids=TEXT, limit=st.integers(1, 8), least=st.integers(1, 5))
def test_drafts_what_followed_the_longest_match(
    tmp_path: Path, known: list[list[int]], ids: list[int], limit: int, least: int
) -> None:
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    answers = store(tmp_path)
    for text in known:
        answers.remember(text)
    length, rests = brute_force(known, ids)
    tokens = draft(answers, ids, limit, least)
    if length < least:
        assert tokens == []
        return
    assert len(tokens) <= min(limit, length)
    if len(rests) > 8:
        return
    ways = Counter(rest[0] for rest in rests)
    if tokens:
        assert ways[tokens[0]] == max(ways.values())
        assert any(rest[: len(tokens)] == tokens for rest in rests)
    else:
        assert ways[END] == max(ways.values())


def test_a_tree_by_counts(tmp_path: Path) -> None:
    answers = store(tmp_path)
    for last in (5, 6, 5, 7, 5, 6, 8):
        answers.remember([0, 1, 2, 3, 4, 11, last, 12, 13, 14])
    (proposal,) = drafter(answers).propose([want([0, 1, 2, 3, 4, 11], branches=1)])
    assert proposal.source == "store"
    assert [proposal.tokens[node] for node in proposal.children(-1)] == [5, 6]
    assert proposal.tokens == (5, 12, 13, 14, 6, 12, 13, 14)
    assert set(proposal.laws) == {None}


def test_of_equal_counts_the_latest_answer_goes_first(tmp_path: Path) -> None:
    answers = store(tmp_path)
    answers.remember([*range(10, 20), 1, 2, 3])
    answers.remember([*range(10, 20), 4, 5, 6])
    assert draft(answers, range(10, 20)) == [4, 5, 6]


def test_answers_survive(tmp_path: Path) -> None:
    known = texts(3)
    first = store(tmp_path)
    for text in known:
        first.remember(text)
    assert draft(first, known[1][:10]) == known[1][10:20]
    again = store(tmp_path)
    assert again.warnings == []
    assert kept(again) == known
    assert draft(again, known[1][:10]) == known[1][10:20]


def test_short_answers_are_not_kept(tmp_path: Path) -> None:
    answers = store(tmp_path)
    answers.remember([1] * 7)
    assert kept(answers) == kept(store(tmp_path)) == []


@pytest.mark.parametrize("length", [34, 50])
def test_the_oldest_go_when_it_is_full(tmp_path: Path, length: int) -> None:
    known = texts(400, length)
    answers = store(tmp_path)
    for text in known:
        answers.remember(text)
        assert sum(path.stat().st_size for path in files(answers.folder)) <= SMALL
    for holder in (answers, store(tmp_path)):
        found = kept(holder)
        assert 40 < len(found) < 400
        assert found == known[-len(found) :]
    assert len(answers.indexes) < 16


def test_an_answer_larger_than_a_segment_keeps_its_end(tmp_path: Path) -> None:
    (text,) = texts(1, length=5000)
    answers = store(tmp_path)
    answers.remember(text)
    assert kept(answers) == kept(store(tmp_path)) == [text[-1250:]]


def test_two_at_a_time(tmp_path: Path) -> None:
    known = texts(40)
    first, second = store(tmp_path), store(tmp_path)
    for number, text in enumerate(known):
        (first if number % 2 else second).remember(text)
    assert sorted(kept(store(tmp_path))) == sorted(known)


def _write_many(folder: Path, seed: int) -> None:
    answers = store(folder, cap=4_000_000)
    for text in texts(60, seed=seed):
        answers.remember(text)
    assert answers.warnings == []


@pytest.mark.slow
def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_many, args=(tmp_path, seed)) for seed in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(kept(store(tmp_path, cap=4_000_000))) == sorted(
        texts(60, seed=1) + texts(60, seed=2)
    )


def test_a_crash_in_the_middle_of_an_answer(tmp_path: Path, fresh: Path) -> None:
    known = texts(5)
    answers = store(tmp_path)
    for text in known:
        answers.remember(text)
    (journal,) = files(answers.folder)
    data = journal.read_bytes()
    for size in (0, 10, 44, 60, len(data) - 100, len(data) - 1):
        shutil.rmtree(fresh / "store", ignore_errors=True)
        shutil.copytree(tmp_path / "store", fresh / "store")
        (fresh / "store" / journal.name).write_bytes(data[:size])
        again = store(fresh)
        assert kept(again) == known[: max(0, (size - 44) // 212)]
        again.remember(known[0])
        last = store(fresh)
        assert kept(last)[-1] == known[0]
        assert last.warnings == []


def test_a_crash_beside_somebody_who_goes_on(tmp_path: Path) -> None:
    known = texts(3)
    answers = store(tmp_path)
    answers.remember(known[0])
    (journal,) = files(answers.folder)
    with journal.open("ab") as file:
        file.write(module._RECORD.pack(module._MARK, 50, 0) + b"half")
    answers.remember(known[1])
    again = store(tmp_path)
    assert kept(again) == known[:2]
    assert str(journal) in again.warnings[0]


def test_half_a_header_beside_somebody_who_goes_on(tmp_path: Path) -> None:
    known = texts(2)
    answers = store(tmp_path)
    header = module._HEADER.pack(b"SPECJRNL", 1, VOCABULARY.encode())
    (answers.folder / "answers.journal").write_bytes(header[:20])
    for text in known:
        answers.remember(text)
    again = store(tmp_path)
    assert (kept(again), again.warnings) == (known, [])


@pytest.mark.parametrize("n_more", [0, 2, 20])
def test_a_crash_after_the_journal_became_a_segment(tmp_path: Path, n_more: int) -> None:
    known = texts(7 + n_more)
    answers = store(tmp_path)
    for text in known[:7]:
        answers.remember(text)
    (segment,) = files(answers.folder)
    for text in known[:7]:
        module._append(answers.folder / "answers.journal", VOCABULARY, np.array(text, np.uint32))
    assert look_into(answers.folder).journal == []
    for text in known[7:]:
        answers.remember(text)
    again = store(tmp_path)
    assert sorted(kept(again)) == sorted(known)
    assert segment.exists() or n_more == 20


def test_what_a_crash_leaves_of_a_segment_is_deleted(tmp_path: Path) -> None:
    answers = store(tmp_path)
    draft = answers.folder / ".00000001-00000001.segment.99999"
    draft.write_bytes(b"x" * 100_000)
    others = answers.folder / ".notes.1"
    others.write_bytes(b"x")
    store(tmp_path)
    assert not draft.exists() and others.exists()


@pytest.mark.parametrize("victim", [0, -1])
def test_a_damaged_segment_does_not_end_merging(tmp_path: Path, victim: int) -> None:
    cap = 400_000
    answers = store(tmp_path, cap)
    known = texts(800)
    for text in known[:130]:
        answers.remember(text)
    segments = sorted(answers.folder.glob("*.segment"))
    data = bytearray(segments[victim].read_bytes())
    data[-5] ^= 1
    segments[victim].write_bytes(data)
    again = store(tmp_path, cap)
    for text in known[130:]:
        again.remember(text)
    assert segments[victim].read_bytes() == data, "it may be of use to somebody"
    assert len(list(answers.folder.glob("*.segment"))) < 9
    found = kept(store(tmp_path, cap))
    assert known[130:] == found[-670:]


def test_segments_on_both_sides_of_a_damaged_one_stay_apart(tmp_path: Path) -> None:
    """Merged, they would claim to hold it, and it would be deleted."""
    known = texts(14)
    answers = store(tmp_path)
    for text in known[:7]:
        answers.remember(text)
    damaged = answers.folder / "00000002-00000002.segment"
    damaged.write_bytes(b"x" * 50)
    for text in known[7:]:
        answers.remember(text)
    again = store(tmp_path)
    assert kept(again) == known
    assert str(damaged) in again.warnings[0]
    assert damaged.exists() and len(files(again.folder)) == 3


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    answers = store(tmp_path)
    (warning,) = answers.warnings
    assert "no locks" in warning
    (text,) = texts(1)
    answers.remember(text)
    assert draft(answers, text[:10]) == text[10:20]
    with pytest.raises(OSError, match="no locks"):
        clear(answers.folder)


def test_a_crash_after_a_merge(tmp_path: Path) -> None:
    known = texts(14)
    answers = store(tmp_path)
    for text in known[:7]:
        answers.remember(text)
    (first,) = files(answers.folder)
    data = first.read_bytes()
    for text in known[7:]:
        answers.remember(text)
    (merged,) = files(answers.folder)
    assert merged.name == "00000001-00000002.segment"
    first.write_bytes(data)
    assert kept(store(tmp_path)) == known
    assert files(answers.folder) == [merged]


def test_damage_anywhere_is_told_and_the_rest_is_used(tmp_path: Path, fresh: Path) -> None:
    """Bytes flipped and files cut: never an exception, never an answer that was not given."""
    known = texts(60)
    answers = store(tmp_path)
    for text in known:
        answers.remember(text)
    names = [path.name for path in files(answers.folder)]
    assert len(names) > 1
    rng = random.Random(0)
    told = 0
    for _ in range(60):
        shutil.rmtree(fresh / "store", ignore_errors=True)
        shutil.copytree(tmp_path / "store", fresh / "store")
        victim = fresh / "store" / rng.choice(names)
        data = bytearray(victim.read_bytes())
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        victim.write_bytes(data)
        again = store(fresh)
        assert all(text in known for text in kept(again))
        assert all(str(victim) in warning for warning in again.warnings)
        assert again.warnings or len(kept(again)) == len(kept(answers)) or not data
        told += bool(again.warnings)
        again.remember(known[0])
        drafter(again).propose([want(known[3][:20])])
    assert told > 45


@pytest.mark.parametrize("kind", ["segment", "journal"])
def test_files_of_another_vocabulary_or_version(tmp_path: Path, kind: str) -> None:
    known = texts(14 if kind == "segment" else 2)
    answers = store(tmp_path)
    for text in known:
        answers.remember(text)
    foreign = store(tmp_path, fingerprint="f" * 32)
    assert kept(foreign) == []
    assert any("another vocabulary" in warning and kind in warning for warning in foreign.warnings)
    victim = next(path for path in files(answers.folder) if kind in path.name)
    data = bytearray(victim.read_bytes())
    data[8] += 1
    victim.write_bytes(data)
    newer = store(tmp_path)
    assert any("has format 2" in warning and str(victim) in warning for warning in newer.warnings)
    assert "specllama store clear" in newer.warnings[0]
    newer.remember(known[0])
    assert known[0] in kept(newer)
    assert victim.read_bytes() == data


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    answers = store(tmp_path)
    (warning,) = answers.warnings
    assert str(tmp_path / "store") in warning
    (text,) = texts(1)
    answers.remember(text)
    assert draft(answers, text[:10]) == text[10:20]
    assert answers.warnings == [warning]


def test_a_store_that_cannot_be_written_does_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    answers = store(tmp_path)
    for text in (known := texts(200)):
        answers.remember(text)
        assert sum(map(len, kept(answers))) <= 1250, "as many as of a segment"
    assert known[-1] in kept(answers)


def test_somebody_who_never_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOCK_S", 0.05)
    answers = store(tmp_path)
    with FileLock(answers.folder / "lock"):
        busy = store(tmp_path)
        assert "is in use" in busy.warnings[0]
        with pytest.raises(SpecllamaError, match="is in use"):
            clear(answers.folder)
    assert store(tmp_path).warnings == []


def test_clear_forgets_everything_also_what_is_damaged(tmp_path: Path) -> None:
    answers = store(tmp_path)
    for text in texts(30):
        answers.remember(text)
    for path in files(answers.folder):
        path.write_bytes(b"x" * 50)
    clear(answers.folder)
    assert files(answers.folder) == []
    again = store(tmp_path)
    assert (again.warnings, kept(again)) == ([], [])
    assert look_into(answers.folder).segments == []


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    answers = store(tmp_path)
    answers.remember(texts(1)[0])
    assert answers.folder.stat().st_mode & 0o777 == 0o700
    assert files(answers.folder)[0].stat().st_mode & 0o777 == 0o600


def test_each_model_and_vocabulary_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLLAMA_HOME", str(tmp_path))
    models = [
        write_gguf(tmp_path / "a b.gguf"),
        write_gguf(tmp_path / "c.gguf"),
        write_gguf(tmp_path / "other" / "c.gguf", tokens=["x", *map(str, range(199))]),
    ]
    folders = [open_store(model).folder for model in models]
    assert len(set(folders)) == 3
    assert all(folder.parent == tmp_path / "answers" for folder in folders)
    assert folders[0].name.startswith("a-b-")
    assert open_store(models[0]).folder == folders[0]


def test_remember_and_warnings_through_the_drafter(tmp_path: Path) -> None:
    lookup = drafter(store(tmp_path))
    (text,) = texts(1)
    lookup.remember(np.array(text).tolist())
    (proposal,) = lookup.propose([want(text[:12])])
    assert list(proposal.tokens) == text[12:24]
    assert lookup.warnings == []
    assert folder_of(Path("x/m.gguf"), "0123456789abcdef").name == "m-0123456789ab"
