"""What a round of each model-free drafter costs, how fast their files open, and what trees cost.

    .venv/bin/python scripts/measure_drafters.py                 all of them, some minutes
    .venv/bin/python scripts/measure_drafters.py suffix recycle  only these
    .venv/bin/python scripts/measure_drafters.py ngram --file F  with an n-gram file of yours

Each drafter follows a text of made-up tokens in which passages come again with differences, as in
edits and conversations: per round, the time of `propose` for a chain of up to 16 tokens ("chain")
and for a tree with 8 branches ("tree"). No model is loaded. CASES is the table: one line a drafter.
"trees" is the bookkeeping of a draft model's trees, rule by rule (measuring_trees.py).
"""

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import measuring_trees
import numpy as np
from measuring import facts, median, print_facts, print_json

from specllama.drafting.answers import Answers
from specllama.drafting.ngram import LEAST, NgramDrafter
from specllama.drafting.ngram_file import NgramFile, save
from specllama.drafting.ngram_train import train
from specllama.drafting.protocol import Drafter, Seen, Want
from specllama.drafting.recycle import RecycleDrafter
from specllama.drafting.shapes import FixedShape
from specllama.drafting.store import StoreDrafter
from specllama.drafting.suffix import SuffixDrafter
from specllama.drafting.text import TextDrafter

N_VOCAB = 49_152
HISTORY = 32_000
ROUNDS = 400
LIMIT = 16
STORE_BYTES = 100_000_000
ANSWER_TOKENS = 500
ANSWERS_AT_ONCE = 1600
"""So many answers are remembered as one, which saves most of the work of merging segments."""
OPENINGS = 5
TREES = "trees"


@dataclass
class Case:
    """A drafter ready to follow a text.

    Attributes:
        history: the ids so far.
        rest: the ids to come, one a round.
        begin: what is done when the history has been read.
        found: figures of its own.
    """

    drafter: Drafter
    history: list[int]
    rest: Sequence[int]
    begin: Callable[[], None] = lambda: None
    found: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    """Measure and print."""
    args = _arguments()
    known = facts()
    print_facts(known)
    results: dict[str, Any] = {}
    print(f"{'drafter':<10} rounds {'median µs':>9} {'p95 µs':>9} {'worst µs':>9} {'drafted':>8}")
    for name in args.drafters or (*CASES, TREES):
        if name == TREES:
            results[name] = trees()
            continue
        with tempfile.TemporaryDirectory() as folder:
            case = CASES[name](Path(folder), args)
            results[name] = case.found | {
                kind: follow(name, kind, case, branches)
                for kind, branches in (("chain", 0), ("tree", 8))
            }
            for what, value in case.found.items():
                print(f"{name:<10} {what}: {value}", flush=True)
    print_json(known | {"load_average_after": facts()["load_average"], "drafters": results})


def trees() -> list[dict[str, Any]]:
    """Median microseconds of a round with 32 nodes."""
    found = []
    print(
        f"{'trees':<12} {'rule':<12} {'propose':>9} {'verify':>9} {'round µs':>9} {'with laws':>9}"
    )
    for row in measuring_trees.measure(N_VOCAB):
        found.append(row)
        parts = [row["bookkeeping"][part] for part in ("propose", "verify", "round")]
        figures = " ".join(f"{figure:>9.1f}" for figure in (*parts, row["with laws"]["round"]))
        print(f"{row['truncation']:<12} {row['rule']:<12} {figures}", flush=True)
    return found


def follow(name: str, kind: str, case: Case, branches: int) -> dict[str, float]:
    """Microseconds of a round while the drafter follows the rest of its text."""
    ids = list(case.history)
    case.drafter.rewind(0, 0)
    case.drafter.prepare(0, ids)
    case.drafter.read(0, ids)
    case.begin()
    micros, drafted = [], []
    for token in itertools.islice(case.rest, ROUNDS):
        ids.append(token)
        asked = [want(ids, branches)]
        started = time.perf_counter()
        (proposal,) = case.drafter.propose(asked)
        micros.append(1e6 * (time.perf_counter() - started))
        drafted.append(len(proposal))
    micros.sort()
    found = {
        "median_us": median(micros),
        "p95_us": round(micros[int(0.95 * len(micros))], 1),
        "worst_us": round(micros[-1], 1),
        "drafted": round(sum(drafted) / len(drafted), 2),
    }
    print(
        f"{name:<10} {kind:<6} {found['median_us']:>9.1f} {found['p95_us']:>9.1f} "
        f"{found['worst_us']:>9.1f} {found['drafted']:>8.2f}",
        flush=True,
    )
    return found


def want(ids: Sequence[int], branches: int) -> Want:
    """What the engine asks under a rule that reads no laws."""
    return Want(
        key=0,
        ids=ids,
        limit=LIMIT,
        nodes=32,
        branches=branches,
        shape=FixedShape((1,)),
        law=_none,
        chance=_none,
        keeps_laws=False,
        go_on=lambda drafted, confidence: True,
    )


def _none(*_arguments: object) -> Any:
    raise AssertionError("A model-free drafter computes no laws.")


def is_end(token: int) -> bool:
    """Made-up texts have no turns."""
    return token == N_VOCAB


def passages(rng: random.Random, n_tokens: int, seen_before: float = 0.6) -> list[int]:
    """Tokens as rare as words are; `seen_before` of them in passages that were there already."""
    ids = [_word(rng) for _ in range(200)]
    while len(ids) < n_tokens:
        length = rng.randrange(5, 60)
        if rng.random() < seen_before:
            start = rng.randrange(len(ids) - 60)
            ids += ids[start : start + length]
        else:
            ids += [_word(rng) for _ in range(length)]
    return ids[:n_tokens]


def _word(rng: random.Random) -> int:
    """Zipf's law: the logarithm of the rank is uniform."""
    return int(N_VOCAB ** rng.random()) % N_VOCAB


def suffix(folder: Path, args: argparse.Namespace) -> Case:
    """32,000 tokens of conversation."""
    ids = passages(random.Random(1), HISTORY + ROUNDS)
    return Case(SuffixDrafter(is_end), ids[:HISTORY], ids[HISTORY:])


def recycle(folder: Path, args: argparse.Namespace) -> Case:
    """The successors of all tokens of the text are known."""
    ids = passages(random.Random(1), HISTORY + ROUNDS)
    drafter = RecycleDrafter(N_VOCAB)
    rng = np.random.default_rng(0)
    for token in set(ids):
        drafter.observe(0, [Seen(token, rng.standard_normal(N_VOCAB, np.float32))])
    row = rng.standard_normal(N_VOCAB, np.float32)
    started = time.perf_counter()
    drafter.observe(0, [Seen(ids[0], row)] * 100)
    seconds = time.perf_counter() - started
    found = {"observe_us": round(1e4 * seconds, 1)}
    return Case(drafter, ids[:HISTORY], ids[HISTORY:], found=found)


def text(folder: Path, args: argparse.Namespace) -> Case:
    """A predicted text of 32,000 tokens, each 20th of which turns out otherwise."""
    rng = random.Random(1)
    predicted = passages(rng, HISTORY)
    reply = [_word(rng) if rng.random() < 0.05 else token for token in predicted[:ROUNDS]]
    drafter = TextDrafter()
    return Case(drafter, predicted[:200], reply, begin=lambda: drafter.predict(0, predicted))


def ngram(folder: Path, args: argparse.Namespace) -> Case:
    """A file of 10 million n-grams, 3,000 tokens of conversation."""
    ids = passages(random.Random(1), 2_700_000, seen_before=0.3)
    path: Path = args.file or folder / "model.ngram"
    found: dict[str, Any] = {}
    if args.file is None:
        started = time.perf_counter()
        levels = train([np.array(ids, np.uint32)], N_VOCAB, min_count=1)
        found["train_s"] = round(time.perf_counter() - started, 1)
        fields = {"fingerprint": "", "model": "none", "order": 4, "n_vocab": N_VOCAB}
        save(path, levels, fields | {"n_tokens": len(ids), "min_count": 1})
    model, found["open_ms"] = opened(lambda: NgramFile.open(path))
    found |= {"file_mb": round(model.facts.n_bytes / 1e6, 1), "ngrams": sum(model.facts.ngrams)}
    start = len(ids) // 2
    return Case(
        NgramDrafter(model, is_end, least=args.least),
        ids[start : start + 3000],
        ids[start + 3000 :],
        found=found,
    )


def store(folder: Path, args: argparse.Namespace) -> Case:
    """100 MB of past answers; the text is one of them with each 20th token another."""
    rng = random.Random(1)
    pool = passages(rng, 2_000_000)
    answers = Answers(folder / "store", "0" * 32, STORE_BYTES)
    started = time.perf_counter()
    for _ in range(STORE_BYTES // (8 * ANSWER_TOKENS * ANSWERS_AT_ONCE)):
        series: list[int] = []
        for begin in rng.choices(range(len(pool) - ANSWER_TOKENS), k=ANSWERS_AT_ONCE):
            series += [*pool[begin : begin + ANSWER_TOKENS - 1], _word(rng)]
        answers.remember(series)
    found: dict[str, Any] = {"fill_s": round(time.perf_counter() - started, 1)}
    answers, found["open_ms"] = opened(lambda: Answers(folder / "store", "0" * 32, STORE_BYTES))
    found |= {
        "mb": round(sum(p.stat().st_size for p in answers.folder.iterdir()) / 1e6, 1),
        "indexes": len(answers.indexes),
    }
    begin = rng.randrange(len(pool) - 1000)
    ids = [_word(rng) if rng.random() < 0.05 else token for token in pool[begin : begin + 1000]]
    return Case(StoreDrafter(answers, is_end), ids[:400], ids[400:], found=found)


def opened(opening: Callable[[], Any]) -> tuple[Any, float]:
    """What is opened, and the median milliseconds it takes with the file in the page cache."""
    millis = []
    for _ in range(OPENINGS):
        started = time.perf_counter()
        thing = opening()
        millis.append(1e3 * (time.perf_counter() - started))
    return thing, median(millis)


CASES: dict[str, Callable[[Path, argparse.Namespace], Case]] = {
    "suffix": suffix,
    "recycle": recycle,
    "text": text,
    "ngram": ngram,
    "store": store,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("drafters", nargs="*", choices=[*CASES, TREES, []], metavar="DRAFTER")
    parser.add_argument("--file", type=Path, help="n-gram file to open instead of training one")
    parser.add_argument("--least", type=float, default=LEAST, help="of the n-gram drafter")
    return parser.parse_args()


if __name__ == "__main__":
    main()
