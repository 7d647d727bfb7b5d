"""What speculation gives on a CUDA card, where the targets are large.

    LLAMA_CPP_LIB_PATH=LIBS LD_LIBRARY_PATH=LIBS:BINS python scripts/gpu_bench.py \
        --source SmolLM2.gguf --programs BINS --work /dev/shm --out OUT --seconds 480

Targets of 8B and 70B cost are made of the source (scripts/widen_gguf.py): the text is the small
model's, and so is what a draft of it is worth; the time is the large model's. Arms take turns on
the same prompts; where two large models do not fit onto the card, native programs follow ours. The
most telling parts come first, each is written down when it is done, and what fails is told and does
not stop the others.

Writes OUT/runs.jsonl (a line a reply), OUT/parts.json (cost tables, exactness, failures) and
OUT/report.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from arguments import distinct, from_1
from compare_peers import Asked, Question, questions
from numpy.typing import NDArray
from peers.arms import BASELINE, OURS, Open
from peers.native import Program, Server
from peers.ours import Engine, Ours
from peers.protocol import Files, Peer, PeerError
from peers.report import rates, ratio
from peers.runs import Runs
from widen_gguf import SHAPES

from specllama.bench import facts
from specllama.errors import SpecllamaError
from specllama.hub.resolve import resolve
from specllama.llama.cache import Backend
from specllama.llama.context import Context
from specllama.llama.library import describe
from specllama.llama.model import Model
from specllama.llama.width import ConstantWidth
from specllama.loading import EXACT_WIDTH
from specllama.verification import UNSEEDED

SCRIPTS = Path(__file__).parent
CARD_DRAFT = SCRIPTS.parent / "models" / "smollm2-135m-card-draft.gguf"
PLAIN = "specllama, plain"
DEPTH = 256
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 20, 24)
DRAFT_SIZES = (1, 2, 4, 8)
N_TIMED = 9
WIDTHS = (0, 2, 4, 8)
MOST_UNFILLED = 4
EXACT_CELLS = 8448
EXACT_DEPTHS = (100, 240, 2284, 4076, 8172)
"""Tokens before those that are compared, which then cross a multiple of 256."""
N_EXACT = 40
FLAGS = ("-ngl 99 -ngld 99", "-ngl 99 -ngld 0")
EXACT = (
    "--exact --drafter none",
    "--exact",
    "--exact --drafter model --no-adaptive --draft-max 5",
)
SAMPLINGS = ("--temp 0", "--temp 0.8 --seed 7")
FLAGS_S = 90
FLAGS_ASKED = "Name the three laws of robotics."
ON_ONE_CARD = 20e9
"""Bytes of a target that fits onto the card several times."""


def ours(engine: Engine) -> list[Peer]:
    """Our arms; lengths that nobody chose stand beside those the scheduler chooses."""
    tree = {"drafter": "tree", "verify": "coupled"}
    fixed = {"drafter": "model", "adaptive": False, "verify": UNSEEDED}
    arms: dict[str, dict[str, Any]] = {
        PLAIN: {"drafter": "none"},
        OURS: {"verify": UNSEEDED},
        "specllama, tree": tree,
        "specllama, seeded": {"verify": "coupled"},
        "specllama, staged": {"drafter": "staged", "verify": UNSEEDED},
        "specllama, suffix": {"drafter": "suffix+text"},
        "specllama, chain of 2": fixed | {"draft_max": 2},
        "specllama, chain of 3": fixed | {"draft_max": 3},
        "specllama, tree of 15, fixed": tree | {"tree": "3,2,1", "adaptive": False},
    }
    return [Ours(name, engine, **settings) for name, settings in arms.items()]


def native(programs: Path, files: Files) -> list[Peer]:
    """llama-server's arms."""
    server = programs / "llama-server"
    drafting = ["--spec-type", "draft-simple", "--spec-draft-n-max"]
    return [
        Server(BASELINE, server, files, ()),
        *(Server(f"llama-server, draft-simple {n}", server, files, [*drafting, str(n)])
          for n in (3, 2)),
    ]  # fmt: skip


@dataclass
class Bench:
    """One run: where things are, how long it may take, what was found."""

    args: argparse.Namespace
    asked: Asked
    started: float = field(default_factory=time.monotonic)
    parts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runs = Runs(self.args.out / "runs.jsonl", {"source": self.args.source.name})

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    def chosen(self, peers: Sequence[Peer]) -> list[Peer]:
        """The arms that were asked for, all if none was."""
        return [peer for peer in peers if not self.args.arms or peer.name in self.args.arms]

    def target(self, size: str) -> Path:
        """The widened model's file."""
        return widened(self.args.work, size)

    def files(self, size: str) -> Files:
        """What all arms of a size load."""
        return Files(self.target(size), self.args.draft, self.args.threads, self.args.ctx)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part of the work: timed, its failure told, the report written after it."""
        began = self.seconds
        try:
            yield
        except (PeerError, SpecllamaError, OSError, subprocess.SubprocessError) as error:
            self.notes.append(f"{name} failed: {error}")
        self.parts[f"{name}: seconds"] = round(self.seconds - began, 1)
        print(f"[{self.seconds:5.0f} s] {name}", flush=True)
        self.write()

    def write(self) -> None:
        """Everything so far."""
        parts = json.dumps(self.parts | {"notes": self.notes}, indent=1)
        (self.args.out / "parts.json").write_text(parts, encoding="utf-8")
        (self.args.out / "report.md").write_text("\n".join(report(self)), encoding="utf-8")


def widened(work: Path, size: str) -> Path:
    """Where a widened model is put."""
    return work / f"widened-{size}.gguf"


def widening(bench: Bench, size: str) -> subprocess.Popen[bytes]:
    """Start to write a widened model."""
    shape = ["--as", size] if size in SHAPES else size.split()
    command = [sys.executable, str(SCRIPTS / "widen_gguf.py")]
    return subprocess.Popen([*command, str(bench.args.source), str(bench.target(size)), *shape])


def wait(process: subprocess.Popen[bytes]) -> None:
    """Until it is written.

    Raises:
        PeerError: it failed.
    """
    if process.wait() != 0:
        raise PeerError(f"it left with {process.returncode}.")


def take_turns(bench: Bench, size: str, peers: Sequence[Peer], until: float) -> None:
    """Every arm on every question, in time; the order turns round with each block of questions.

    An arm answers a block in a row, behind a question that does not count: the device's captured
    graph and what was learned are then as its own use leaves them, not as another arm's did.
    """
    opened = Open(peers, lambda arm, why: bench.notes.append(f"{size}, {arm}: {why}"))
    try:
        for turn, block in enumerate(_blocks(bench)):
            for peer in peers[::-1] if turn % 2 else peers:
                if not opened.ready(peer):
                    continue
                peer.ask(bench.asked.warm_up)
                for question in block:
                    if bench.seconds > until:
                        bench.notes.append(f"{size}: no time left at {peer.name}, {question.id}.")
                        return
                    if opened.ready(peer):
                        _ask(bench, size, opened, peer, question)
    finally:
        opened.close()


def _blocks(bench: Bench) -> list[list[Question]]:
    """The questions of a temperature in two halves, then those of the next one."""
    alike = [
        [asked for asked in bench.asked.questions if asked.temperature == temperature]
        for temperature in bench.args.temps
    ]
    return [half for asked in alike for half in (asked[::2], asked[1::2])]


def _ask(bench: Bench, size: str, opened: Open, peer: Peer, question: Question) -> None:
    try:
        reply = peer.ask(question.request(bench.args.tokens))
    except PeerError as error:
        opened.broke(peer, error)
        return
    more: dict[str, Any] = {}
    if isinstance(peer, Ours) and peer.told is not None:
        more = {
            "outside": peer.told.timings.overhead_share,
            "ttft_s": peer.told.timings.ttft_s,
            "spec": peer.told.spec.to_dict(),
        }
    key = (size, peer.name, question.id, f"{question.temperature:g}")
    bench.runs.add(*key, kind=question.kind, load=os.getloadavg()[0], **reply.to_dict(), **more)


def batch_costs(backend: Backend, sizes: Sequence[int], depth: int = DEPTH) -> dict[int, float]:
    """Median milliseconds of a decode of n tokens behind `depth` others, with all logits.

    Uses the last sequence id, which must be empty, and empties it again.
    """
    seq, costs = backend.n_seq - 1, {}
    _decode(backend, seq, 0, _some_ids(depth, backend.n_vocab), every=False)
    for n in (size for size in sizes if size <= backend.n_outputs):
        ids, seconds = _some_ids(n, backend.n_vocab), []
        for _ in range(N_TIMED):
            began = time.perf_counter()
            _decode(backend, seq, depth, ids)
            seconds.append(time.perf_counter() - began)
            backend.truncate(seq, depth)
        costs[n] = round(1000 * statistics.median(seconds[2:]), 3)
    backend.drop(seq)
    return costs


def _some_ids(count: int, n_vocab: int) -> list[int]:
    return [(7919 * place + 11) % n_vocab for place in range(count)]


def _decode(
    backend: Backend, seq: int, place: int, ids: Sequence[int], *, every: bool = True
) -> list[NDArray[np.float32]]:
    positions = range(place, place + len(ids))
    return backend.decode(ids, positions, [(seq,)] * len(ids), [every] * len(ids))


def measure_costs(bench: Bench, size: str, engine: Engine) -> None:
    """The cost tables of both models of a pair."""
    decoder = engine.acquire()
    try:
        costs = {"target": batch_costs(decoder.engine.backend, SIZES)}
        drafts = [d.backend for d in decoder.engine.drafters if d.backend is not None]
        if drafts:
            costs["draft"] = batch_costs(drafts[0], DRAFT_SIZES)
        bench.parts[f"{size}: ms a decode"] = costs
    finally:
        engine.release()


def measure_exactness(bench: Bench, size: str) -> None:
    """Whether rows have the same bits whatever else is in the batch, at each constant width.

    Contexts beside a multiple of 256 cells count: there the number of cells that attention reads
    can differ between a token's two batches.
    """
    found = bench.parts.setdefault(f"{size}: largest difference", [])
    random = np.random.default_rng(3)
    with Model(bench.target(size)) as model:
        for cache_type in ("f16", "bf16"):
            context = Context(
                model, n_ctx=1024, n_seq=2, threads=bench.args.threads, flash_attn="on",
                cache_type_k=cache_type, cache_type_v=cache_type,
            )  # fmt: skip
            for width in WIDTHS:
                for depth in (100, 240, 300, 500):
                    difference = ragged_difference(context, depth, width, random)
                    found.append({"kv": cache_type, "width": width, "context": depth,
                                  "difference": difference})  # fmt: skip
            context.close()
        found += exact_differences(bench, model, random)


def exact_differences(
    bench: Bench, model: Model, random: np.random.Generator
) -> list[dict[str, Any]]:
    """The same in the context of `--exact`, and far into it: attention divides its work then."""
    context = ConstantWidth(
        model, n_ctx=2 * EXACT_CELLS, n_seq=2, width=EXACT_WIDTH, threads=bench.args.threads,
        flash_attn="on", cache_type_k="bf16", cache_type_v="bf16",
    )  # fmt: skip
    try:
        return [
            {"kv": "bf16", "width": "as --exact", "context": depth,
             "difference": ragged_difference(context, depth, 0, random)}
            for depth in EXACT_DEPTHS
        ]  # fmt: skip
    finally:
        context.close()


def ragged_difference(
    context: Context, depth: int, width: int, random: np.random.Generator
) -> float:
    """Between tokens decoded one by one, and in batches that also hold refused drafts.

    Args:
        width: every batch is filled up to so many tokens; 0 fills none.
    """
    ids = _some_ids(depth + N_EXACT, context.n_vocab)
    _decode(context, 0, 0, ids[:depth], every=False)
    singles = [
        _decode_filled(context, place, ids[place : place + 1], width)[0].copy()
        for place in range(depth, len(ids))
    ]
    context.truncate(0, depth)
    place, difference = depth, 0.0
    while place < len(ids):
        size = int(random.integers(1, (width or MOST_UNFILLED) + 1))
        right = min(int(random.integers(1, size + 1)), len(ids) - place)
        batch = [*ids[place : place + right], *[5] * (size - right)]
        rows = _decode_filled(context, place, batch, width)[:right]
        expected = singles[place - depth : place - depth + right]
        difference = max(difference, float(np.abs(np.subtract(rows, expected)).max()))
        place += right
        context.truncate(0, place)
    context.drop(0)
    return difference


def _decode_filled(
    context: Context, place: int, ids: Sequence[int], width: int
) -> list[NDArray[np.float32]]:
    """All rows of a batch of sequence 0, filled up with tokens of sequence 1 (then dropped)."""
    missing = max(0, width - len(ids))
    n = len(ids) + missing
    rows = context.decode(
        [*ids, *[0] * missing],
        [*range(place, place + len(ids)), *range(missing)],
        [*[(0,)] * len(ids), *[(1,)] * missing],
        [True] * n,
    )
    context.drop(1)
    return rows[: len(ids)]


def check_flags(bench: Bench, size: str) -> None:
    """specllama's own command line on the card: all layers, some layers, and exact mode."""
    found = bench.parts.setdefault(f"{size}: specllama generate", {})
    for flags in FLAGS:
        found[flags] = generated(bench, size, f"{flags} -n 64 --temp 0")
    for sampling in SAMPLINGS:
        for flags in EXACT:
            found[f"{flags} {sampling}"] = generated(bench, size, f"{flags} -n 256 {sampling}")
    found["exact: same text"] = all(
        same_text([found[f"{flags} {sampling}"] for flags in EXACT]) for sampling in SAMPLINGS
    )


def generated(bench: Bench, size: str, flags: str) -> dict[str, Any] | str:
    """What `specllama generate` says with such flags; why it failed."""
    command = [sys.executable, "-m", "specllama", "generate", *flags.split()]
    command += ["-m", str(bench.target(size)), "-md", str(bench.args.draft), "-c", "512"]
    command += ["-t", str(bench.args.threads), "--json", FLAGS_ASKED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FLAGS_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {FLAGS_S} s"
    if done.returncode != 0:
        return done.stderr[-600:]
    told = json.loads(done.stdout)
    return {key: told.get(key) for key in ("text", "timings", "warnings", "usage", "spec")}


def same_text(told: Sequence[dict[str, Any] | str]) -> bool:
    """Whether all said something, and the same; not unless some drafts were accepted."""
    replies = [one for one in told if isinstance(one, dict)]
    drafted = any(reply["spec"]["accepted"] for reply in replies)
    same = len({reply["text"] for reply in replies}) == 1
    return len(replies) == len(told) and drafted and same


def simple(bench: Bench, size: str) -> None:
    """llama-speculative-simple, which loads the models anew for each reply: few prompts."""
    spec = ["--spec-type", "draft-simple", "--spec-draft-n-max", "3"]
    path = bench.args.programs / "llama-speculative-simple"
    peer = Program("llama-speculative-simple 3", path, bench.files(size), spec)
    opened = Open([peer], lambda arm, why: bench.notes.append(f"{size}, {arm}: {why}"))
    for question in bench.asked.questions[: bench.args.simple]:
        if opened.ready(peer):
            _ask(bench, size, opened, peer, question)


def measure(bench: Bench, size: str, until: float) -> None:
    """All arms of a size together, or ours and then program by program where one fills the card."""
    engine = Engine(bench.files(size))
    with bench.part(f"{size}: costs"):
        engine.acquire()  # stays open for the arms
        measure_costs(bench, size, engine)
    programs = bench.chosen(native(bench.args.programs, bench.files(size)))
    groups = [bench.chosen(ours(engine)), *([program] for program in programs)]
    if bench.target(size).stat().st_size < ON_ONE_CARD:
        groups = [[peer for group in groups for peer in group]]
    for number, group in enumerate(groups):
        left = len(groups) - number - 1
        share = (0.6 if number == 0 else 1 / (left + 1)) if left else 1.0
        end = bench.seconds + share * (until - bench.seconds)
        with bench.part(f"{size}: arms, group {number + 1}"):
            take_turns(bench, size, group, end)
        if number == 0:
            engine.release()


def run(bench: Bench) -> None:
    """The parts, by what they tell."""
    first, *others = bench.args.sizes
    total = bench.args.seconds
    with bench.part(f"{first}: widening"):
        wait(widening(bench, first))
    measure(bench, first, total * (0.5 if others else 0.8))
    writers = {size: widening(bench, size) for size in others}
    extras: tuple[Callable[[Bench, str], None], ...] = (measure_exactness, check_flags, simple)
    for extra in () if bench.args.arms else extras:
        if bench.seconds > total * (0.65 if others else 1.0):
            bench.notes.append(f"{first}: no time left for {extra.__name__}.")
            continue
        with bench.part(f"{first}: {extra.__name__}"):
            extra(bench, first)
    for size, writer in writers.items():
        with bench.part(f"{size}: widening"):
            wait(writer)
        measure(bench, size, total)


def report(bench: Bench) -> list[str]:
    """The Markdown page."""
    told = ", ".join(f"{name} {value}" for name, value in bench.parts.get("facts", {}).items())
    lines = [told, ""]
    for size in bench.args.sizes:
        for temperature in bench.args.temps:
            key = f"{temperature:g}"
            chosen = [
                line for line in bench.runs if (line["key"][0], line["key"][3]) == (size, key)
            ]
            if chosen:
                lines += [f"**{size}, temperature {key}**", "", *_table(chosen), ""]
        costs = bench.parts.get(f"{size}: ms a decode", {})
        lines += [*_costs(costs), ""] if costs else []
    return [*lines, *(f"- {note}" for note in bench.notes), ""]


def _table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    arms = list(dict.fromkeys(line["key"][1] for line in lines))
    by_arm = {arm: rates(lines, arm) for arm in arms}
    table = [
        "| arm | prompts | tok/s | over plain specllama | its worst prompt | "
        "over plain llama-server | accepted | tokens a round | outside llama.cpp |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arm in arms:
        told = [line for line in lines if line["key"][1] == arm]
        cells = [
            arm,
            str(len(by_arm[arm])),
            f"{statistics.median(by_arm[arm].values()):.1f}" if by_arm[arm] else "",
            _over(by_arm, arm, PLAIN),
            _worst(by_arm[arm], by_arm.get(PLAIN, {})),
            _over(by_arm, arm, BASELINE),
            _share(told, "accepted", "drafted"),
            _tokens_a_round(told),
            _outside(told),
        ]
        table.append(f"| {' | '.join(cells)} |")
    return table


def _over(by_arm: Mapping[str, Mapping[str, float]], arm: str, plain: str) -> str:
    found = ratio(by_arm[arm], by_arm.get(plain, {})) if arm != plain else None
    return f"{found.value:.2f}x" if found else ""


def _worst(speeds: Mapping[str, float], plain: Mapping[str, float]) -> str:
    ratios = [speed / plain[key] for key, speed in speeds.items() if plain.get(key)]
    return f"{min(ratios):.2f}x" if ratios and speeds is not plain else ""


def _share(told: Sequence[Mapping[str, Any]], part: str, whole: str) -> str:
    total = sum(line[whole] or 0 for line in told)
    return f"{sum(line[part] or 0 for line in told) / total:.0%}" if total else ""


def _tokens_a_round(told: Sequence[Mapping[str, Any]]) -> str:
    rounds = sum(line["rounds"] or 0 for line in told)
    return f"{1 + sum(line['accepted'] or 0 for line in told) / rounds:.2f}" if rounds else ""


def _outside(told: Sequence[Mapping[str, Any]]) -> str:
    shares = [line["outside"] for line in told if "outside" in line]
    return f"{statistics.median(shares):.1%}" if shares else ""


def _costs(costs: Mapping[str, Mapping[int, float]]) -> list[str]:
    table = []
    for model, found in costs.items():
        table += [
            "",
            f"| {model}, tokens | {' | '.join(map(str, found))} |",
            f"| --- |{' ---: |' * len(found)}",
            f"| ms | {' | '.join(map(str, found.values()))} |",
        ]
    return table


def _card() -> str:
    """The card's name and driver."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "no NVIDIA card"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--source", type=Path, help="a small llama GGUF (default: the built-in target)")
    add("--draft", default=str(CARD_DRAFT), help="as for specllama (default: the one for cards)")
    add("--programs", type=Path, required=True, help="llama.cpp's programs")
    add("--work", type=Path, required=True, help="where widened models are put")
    add("--out", type=Path, required=True, help="where replies and report are put")
    add("--seconds", type=float, default=480.0, help="for everything (default: %(default)s)")
    add("--sizes", type=lambda text: text.split(","), default="8b,70b",
        help="names, or widen_gguf's size flags (default: %(default)s)")  # fmt: skip
    add("--temps", type=lambda text: [float(t) for t in text.split(",")], default="0,0.8",
        help="temperatures, separated by commas (default: %(default)s)")  # fmt: skip
    add("--arms", type=lambda text: text.split(";"), default=[],
        help="these alone (A;B;C), and nothing else but costs")  # fmt: skip
    add("--per-kind", type=from_1, default=1, help="prompts of each kind (default: %(default)s)")
    add("--tokens", type=from_1, default=128, help="the most of a reply (default: %(default)s)")
    add("--simple", type=int, default=4,
        help="replies of the one-shot program (default: %(default)s)")  # fmt: skip
    add("--threads", type=from_1, default=4, help="of every arm (default: %(default)s)")
    add("--ctx", type=from_1, default=2048, help="tokens of context (default: %(default)s)")
    args = parser.parse_args()
    args.source = args.source or resolve("smollm2-135m", "target").path
    args.draft = resolve(args.draft, "draft").path
    return args


def prepare(args: argparse.Namespace) -> None:
    """Make the folders.

    Raises:
        SystemExit: they cannot be made, or a widened model would replace a given one.
    """
    for folder in (args.work, args.out):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SystemExit(
                f"Cannot make the folder {folder}: {error.strerror}. Name another one."
            ) from error
    for size in args.sizes:
        distinct(widened(args.work, size), args.source, args.draft)


def main() -> None:
    """Measure and report."""
    args = _arguments()
    prepare(args)
    plan = Namespace(prompts=None, per_kind=args.per_kind, temps=args.temps, repetitions=1)
    bench = Bench(args, questions(args.source, plan))
    files = bench.files(args.sizes[0])
    peers = [*ours(Engine(files)), *native(args.programs, files)]
    if wrong := set(args.arms) - {peer.name for peer in peers}:
        raise SystemExit(f"No such arm: {'; '.join(wrong)}.")
    machine = facts.machine() | {"card": _card(), "load_average": facts.load_average()}
    bench.parts["facts"] = machine
    bench.parts["llama.cpp"] = {name: str(value) for name, value in describe().items()}
    run(bench)
    print((args.out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    try:
        main()
    except SpecllamaError as error:
        sys.exit(f"{error}")
