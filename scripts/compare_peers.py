"""specllama beside its peers: the same files, prompts, limits and samplers, taking turns.

    .venv/bin/python scripts/compare_peers.py                    all of it, into docs/performance.md
    .venv/bin/python scripts/compare_peers.py --part speed --seconds 80
    .venv/bin/python scripts/compare_peers.py --part laws        may run on a busy machine
    .venv/bin/python scripts/compare_peers.py --part report

llama.cpp's own programs are compiled first, once, where they are asked for (--programs DIR takes
ready ones). Every reply is a line of RUNS; what is there already is not done again, so that a run
may be broken off (Ctrl-C, or --seconds) and go on later. It leaves with 3 while something is still
to be done. Replies to other prompts, of other models or of another commit do not count. Arms that
cannot run or fail are told in the report; the others go on.
"""

import argparse
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from arguments import from_1
from measuring import put_between
from peers import native, report
from peers.arms import Arms, Open, first_python
from peers.protocol import Files, Peer, PeerError, Request, Sampling
from peers.runs import Runs
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from setup import SetupError

from specllama.bench import facts
from specllama.bench.laws import beginning, paths, texts
from specllama.bench.prompts import Prompt, builtin, read
from specllama.errors import SpecllamaError, UsageError
from specllama.hub.resolve import resolve
from specllama.llama.context import Context, default_threads
from specllama.llama.model import Model
from specllama.machine import cpu_name, package_version
from specllama.sampling.chain import Sampler
from specllama.sampling.distribution import Distribution
from specllama.sampling.params import SamplingParams
from specllama.text.chat import ChatTemplate, Message, chat_prompt

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
RUNS = ROOT / "build" / "peers.jsonl"
CODE = ("specllama", "scripts/compare_peers.py", "scripts/peers")
"""What a change of makes earlier replies another version's."""

MORE_TO_DO = 3
WARM_UP = "Tell me three facts about the moon."
LAW_PROMPT = "They walked through the"
"""Its likeliest continuations begin no other one, the built-in draft's law differs a lot, and the
third and fourth tokens are never closer than .37 in log-probability, so that no rounding (.2 where
batches are computed otherwise than single tokens) changes which three are left."""
LAW = Sampling(temperature=1.0, top_k=3, top_p=1.0, min_p=0.0)
"""At temperature 1 it does not matter whether a peer divides before it truncates or after."""
LAW_DEPTH = 2
LAW_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Question:
    """One measured reply: a prompt, at a temperature, for the n-th time."""

    id: str
    kind: str
    text: str
    ids: tuple[int, ...]
    temperature: float
    repetition: int
    seed: int

    def request(self, n: int) -> Request:
        return Request(self.text, self.ids, n, Sampling(self.temperature), self.seed)


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that is asked of everyone."""

    questions: tuple[Question, ...]
    warm_up: Request
    law: Request


def questions(target: Path, args: argparse.Namespace) -> Asked:
    """Prompts rendered and tokenised once, the way the target's own template has them."""
    with Model(target, vocab_only=True) as model:
        template = ChatTemplate.of(model.vocabulary)

        def chat(text: str) -> tuple[str, tuple[int, ...]]:
            messages = [Message("user", text)]
            ids = chat_prompt(model.vocabulary, messages, template)
            return template.render(messages), tuple(ids)

        asked = tuple(
            Question(prompt.id, prompt.kind, *chat(prompt.text), temperature, repetition,
                     seed=1000 * repetition + number)
            for number, prompt in enumerate(_prompts(args))
            for temperature in args.temps
            for repetition in range(1, args.repetitions + 1)
        )  # fmt: skip
        warm_up = Request(*chat(WARM_UP), 32, Sampling(0.8), 1)
        ids = model.vocabulary.tokenize(LAW_PROMPT, special=True, add_bos=model.vocabulary.add_bos)
        return Asked(
            asked, warm_up, Request(LAW_PROMPT, tuple(ids), LAW_TOKENS, LAW, 0, eager=True)
        )


def _prompts(args: argparse.Namespace) -> list[Prompt]:
    """The first few of each kind."""
    found = read(args.prompts) if args.prompts else builtin()
    kinds: dict[str, list[Prompt]] = {}
    for prompt in found:
        kinds.setdefault(prompt.kind, []).append(prompt)
    return [prompt for kind in kinds.values() for prompt in kind[: args.per_kind]]


def measure_speed(opened: Open, asked: Asked, runs: Runs, args: argparse.Namespace) -> bool:
    """Every arm on every question, each turn in the reverse order of the last; True when done."""
    work = []
    for question in asked.questions:
        turn = opened.peers if question.repetition % 2 else opened.peers[::-1]
        work += [(peer, question) for peer in turn if not runs.has(*_speed_key(peer, question))]
    deadline = time.monotonic() + args.seconds
    with _bar(len(work)) as (bar, task):
        for peer, question in work:
            if time.monotonic() > deadline:
                return False
            bar.update(task, description=f"{question.id}, {question.temperature:g}: {peer.name}")
            _speed(opened, peer, question, asked, runs, args)
            bar.advance(task)
    return True


def _speed_key(peer: Peer, question: Question) -> tuple[str, ...]:
    return "speed", peer.name, question.id, f"{question.temperature:g}", str(question.repetition)


def _speed(
    opened: Open, peer: Peer, question: Question, asked: Asked, runs: Runs, args: argparse.Namespace
) -> None:
    fresh = not opened.is_open(peer)
    if not opened.ready(peer):
        return
    try:
        if fresh:
            peer.ask(asked.warm_up)
        load = os.getloadavg()[0]
        reply = peer.ask(question.request(args.tokens))
    except PeerError as error:
        opened.broke(peer, error)
        return
    told = {"kind": question.kind, "load": round(load, 2), "date": date.today().isoformat()}
    runs.add(*_speed_key(peer, question), **told, **reply.to_dict())


def sample_laws(opened: Open, asked: Asked, runs: Runs, args: argparse.Namespace) -> bool:
    """Short replies of every arm that drafts, counted by how they begin; True when done."""
    law = true_law(args.files.target, asked.law, args.threads)
    missing = {peer.name: args.law_samples - len(list(runs.of("law", peer.name)))
               for peer in opened.peers if peer.speculates}  # fmt: skip
    deadline = time.monotonic() + args.seconds
    with _bar(sum(max(0, n) for n in missing.values())) as (bar, task):
        for peer in opened.peers:
            bar.update(task, description=f"law: {peer.name}")
            for number in range(args.law_samples):
                if time.monotonic() > deadline:
                    return False
                if not peer.speculates or runs.has("law", peer.name, str(number)):
                    continue
                if not opened.ready(peer):
                    break
                try:
                    reply = peer.ask(replace(asked.law, seed=1 + number))
                except PeerError as error:
                    opened.broke(peer, error)
                    break
                runs.add("law", peer.name, str(number), begins=beginning(reply.text, law))
                bar.advance(task)
    return True


def true_law(target: Path, request: Request, threads: int) -> dict[str, float]:
    """The exact law of how a reply to the law's prompt begins, from the target's own logits."""
    sampler = Sampler(SamplingParams(**LAW.to_dict()))  # type: ignore[arg-type]
    with Model(target) as model:
        context = Context(model, n_ctx=256, threads=threads)
        try:

            def after(path: tuple[int, ...]) -> Distribution:
                ids = [*request.ids, *path]
                context.truncate(0, 0)
                wanted = [False] * (len(ids) - 1) + [True]
                row = context.decode(ids, range(len(ids)), [(0,)] * len(ids), wanted)[0]
                return sampler.distribution(row, ())

            pieces = model.vocabulary.piece
            law = paths(after, LAW_DEPTH)
            return texts(law, lambda ids: b"".join(map(pieces, ids)).decode())
        finally:
            context.close()


@contextmanager
def _bar(total: int) -> Iterator[tuple[Progress, TaskID]]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("{task.description}", markup=False))  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        yield bar, bar.add_task("", total=total)


def _setting(args: argparse.Namespace, *, timed: bool) -> dict[str, Any]:
    """What has to be equal for replies to be compared; a law does not depend on how they ran."""
    files = args.files
    names = {"target": files.target, "draft": files.draft}
    models = {role: facts.model_file(path.name, path)["sha256"] for role, path in names.items()
              if path is not None}  # fmt: skip
    return {
        **models,
        **(_timed(args) if timed else {"prompts": LAW_PROMPT, "sampling": LAW.to_dict()}),
        "n_ctx": files.n_ctx,
        "flash attention": files.flash_attn,
        "specllama": package_version("specllama"),
        "llama-cpp-python": package_version("llama-cpp-python"),
        "commit": commit(),
    }


def _timed(args: argparse.Namespace) -> dict[str, Any]:
    """A temperature and a repetition are told apart by a reply's key."""
    prompts = json.dumps([asdict(prompt) for prompt in _prompts(args)]).encode()
    sampling = {k: v for k, v in Sampling(0.0).to_dict().items() if k != "temperature"}
    return {
        "tokens": args.tokens,
        "threads": args.threads,
        "cpu": cpu_name(),
        "prompts": _digest(prompts),
        "sampling": sampling,
    }


@cache
def commit() -> str:
    """The checkout's commit, with a digest of what was changed since; "" where there is none."""
    head = _git("rev-parse", "--short=12", "HEAD").decode().strip()
    changes = _git("diff", "HEAD", "--", *CODE)
    return f"{head}+{_digest(changes)}" if head and changes else head


def _git(*arguments: str) -> bytes:
    """What git says of the checkout, b"" where there is no git or no checkout."""
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])

    def add(*names: str, help: str, **settings: Any) -> None:
        shown = settings.get("default") is not None
        help += " (default: %(default)s)" if shown else ""
        parser.add_argument(*names, help=help, **settings)

    add("--target", default="smollm2-135m", help="as for specllama")
    add("--draft", default="smollm2-135m-draft", help="as for specllama; none for none")
    add("--prompts", type=Path, help="own prompts, as for specllama bench (default: its own)")
    add("--per-kind", type=from_1, default=1, help="prompts of each kind")
    add("-n", "--tokens", type=from_1, default=64, help="the most tokens of a reply")
    add("--temps", type=_numbers, default="0,0.8", help="temperatures, separated by commas")
    add("-r", "--repetitions", type=from_1, default=2, help="replies of each arm to each prompt")
    add("-t", "--threads", type=from_1, default=default_threads(), help="of every arm")
    add("--flash-attn", choices=("auto", "on", "off"), default="auto",
        help="of every arm but transformers'; auto is what each does by itself, and some of"
        " llama.cpp's once more the other way")  # fmt: skip
    add("--arms", help="only arms whose name has one of these words (commas; default: all)")
    add("--law-samples", type=int, default=200, help="replies of each arm for the test of its law")
    add("--part", choices=("all", "build", "speed", "laws", "report"), default="all",
        help="what to do")  # fmt: skip
    add("--programs", type=Path,
        help="folder with llama.cpp's programs (default: they are compiled)")  # fmt: skip
    add("--torch-python", type=Path, help="an interpreter with torch, transformers, gguf and"
        " accelerate (default: this one, or .work/torchenv's)")  # fmt: skip
    add("--seconds", type=float, help="stop after so long; the next run goes on (default: never)")
    add("--runs", type=Path, default=RUNS, help="JSON lines of what is done")
    add("--dry-run", action="store_true", help="print the table, write no page")
    args = parser.parse_args()
    args.seconds = math.inf if args.seconds is None else args.seconds
    draft = None if args.draft == "none" else resolve(args.draft, "draft").path
    target = resolve(args.target, "target").path
    args.files = Files(target, draft, args.threads, flash_attn=args.flash_attn)
    return args


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _peers(args: argparse.Namespace, notes: list[str]) -> list[Peer]:
    """The arms that are asked for.

    Raises:
        UsageError: there are none of these names.
    """

    def programs() -> Path | None:
        try:
            return args.programs or native.build()
        except SetupError as error:
            notes.append(f"llama.cpp's programs are left out: {error}")
            return None

    def torch() -> Path | None:
        own = [Path(sys.executable), ROOT / ".work" / "torchenv" / "bin" / "python"]
        found = first_python([args.torch_python] if args.torch_python else own)
        if found is None:
            notes.append(
                "transformers is left out: no interpreter with torch, transformers, gguf and "
                "accelerate (--torch-python names one)."
            )
        return found

    words = [word.strip() for word in (args.arms or "").split(",") if word.strip()]
    arms = Arms(args.files, words, programs, torch, Path(sys.executable))
    if not arms.names():
        everything = replace(arms, words=()).names()
        raise UsageError(f"No arm has {args.arms} in its name.", f"There are: {everything}.")
    return arms.all()


def main() -> int:
    """Build, measure and report; the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # close the servers then, too
    args = _arguments()
    notes: list[str] = []
    asked = questions(args.files.target, args)
    speed = Runs(args.runs, _setting(args, timed=True))
    laws = Runs(args.runs, _setting(args, timed=False))
    for sentence in filter(None, (speed.others("speed"), laws.others("law"))):
        print(sentence, file=sys.stderr)
    peers = [] if args.part == "report" else _peers(args, notes)
    if args.part == "build":
        print("\n".join(notes))
        return 1 if notes else 0
    done = True
    opened = Open(peers, lambda arm, why: speed.add("failure", arm, sentence=why))
    try:
        if args.part in ("all", "speed"):
            done = measure_speed(opened, asked, speed, args)
        if done and args.part in ("all", "laws"):
            done = sample_laws(opened, asked, laws, args)
    finally:
        opened.close()
    if not done:
        return MORE_TO_DO
    return _report(args, speed, laws, notes)


def _report(args: argparse.Namespace, speed: Runs, laws: Runs, notes: list[str]) -> int:
    law = true_law(args.files.target, questions(args.files.target, args).law, args.threads)
    known = facts.machine()
    names = ("cpu", "cores", "python", "specllama", "llama-cpp-python")
    told = {name: known[name] for name in names} | {
        "models": f"{args.files.target.name} and {args.files.draft and args.files.draft.name}",
        "at most": f"{args.tokens} tokens a reply",
        "threads": args.threads,
        "flash attention": args.files.flash_attn,
    }
    if version := commit():
        told["commit"] = version
    lines = report.markdown(speed, laws, law, told, notes)
    print("\n".join(lines))
    if not args.dry_run:
        put_between(PAGE, BEGIN, END, lines)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpecllamaError as error:
        sys.exit(f"{error}")
    except KeyboardInterrupt:
        print("Interrupted: the same command goes on from here.", file=sys.stderr)
        sys.exit(130)
