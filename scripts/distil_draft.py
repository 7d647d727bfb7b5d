"""Distil a small speculative draft from a llama-architecture target GGUF.

    python scripts/distil_draft.py seeds TARGET.gguf WORK       # tokenise seed prompts (CPU)
    python scripts/distil_draft.py train TARGET.gguf WORK       # GPUs (see torchrun), --minutes
    python scripts/distil_draft.py quantise WORK/draft-f16.gguf OUT.gguf

docs/distil.md explains each step; models/README.md says what this gave for the built-in draft.
"""

import argparse
import gc
import os
import time
from pathlib import Path

import gguf
import torch
from distil.export import write_gguf
from distil.generate import FIELDS, Seeds, Writer, write_text
from distil.labels import Rows, label
from distil.model import Llama, load_teacher, read_shape
from distil.parallel import join
from distil.train import GOING_ON, Batches, Schedule, Trainer, new_student, take_over

STARTED = time.monotonic()
TEXT, CHECKPOINT, DRAFT = "text-{}.pt", "student.pt", "draft-f16.gguf"


def log(message: str) -> None:
    """Print with the time; under torchrun only the first rank does."""
    if os.environ.get("RANK", "0") == "0":
        print(f"[{time.monotonic() - STARTED:6.0f}] {message}", flush=True)


def make_seeds(args: argparse.Namespace) -> None:
    """Needs llama-cpp-python; the other steps up to `quantise` do not."""
    from distil.tokens import write_tokens

    args.work.mkdir(parents=True, exist_ok=True)
    topics = args.topics.read_text("utf-8").split("\n") if args.topics else []
    topics = [topic.strip() for topic in topics if topic.strip()]
    write_tokens(args.target, args.work / "seeds.npz", args.count, args.seed, topics)


def written_rows(args: argparse.Namespace, teacher: Llama, rank: int, deadline: float) -> Rows:
    """A rank's text and labels: written anew, or an interrupted run's text labelled again."""
    file = args.work / TEXT.format(rank)
    if file.exists():
        log("labelling the text of an earlier run")
        stored = torch.load(file, map_location=teacher.head.device, weights_only=True)
        return Rows(**stored, **labelled(teacher, stored["tokens"], args.top_k))
    seeds = Seeds(args.work / "seeds.npz")
    sizes = (args.batch, args.length, args.turns, args.top_k)
    writer = Writer(teacher, seeds, *sizes, args.compiled)
    if writer.cuda:
        writer.capture()
        log("graphs captured")
    rows = write_text(writer, args.rows, deadline, args.seed + rank, log)
    torch.save({name: getattr(rows, name) for name in ("tokens", "chosen", "heat")}, file)
    return rows


def labelled(teacher: Llama, tokens: torch.Tensor, k: int) -> dict[str, torch.Tensor]:
    rows_a_step = max(1, 65536 // tokens.shape[1])
    ids, log_probs = label(teacher, tokens.long(), k, rows_a_step)
    return {"ids": ids, "log_probs": log_probs}


def long_rows(teacher: Llama, rows: Rows, count: int, length: int, k: int) -> Rows:
    """Random short rows joined to long ones, scored as one text each (positions up to length)."""
    each = length // rows.tokens.shape[1]
    pick = torch.randperm(len(rows), device=rows.tokens.device)[: count * each]
    pick = pick[: len(pick) // each * each]
    joined = {
        name: getattr(rows, name)[pick].reshape(-1, length) for name in ("tokens", "chosen", "heat")
    }
    return Rows(**joined, **labelled(teacher, joined["tokens"], k))


def part(rows: Rows, which: slice) -> Rows:
    return Rows(*(getattr(rows, name)[which] for name in FIELDS))


def train(args: argparse.Namespace) -> None:
    """Write text, train on it, save the draft as a 16-bit GGUF: all within --minutes.

    Under torchrun every rank writes and trains on its own text; the first saves and logs.
    """
    ranks = join()
    torch.manual_seed(args.seed + ranks.rank)
    torch.set_float32_matmul_precision("high")
    cuda = ranks.device.type == "cuda"
    args.compiled = cuda and not args.eager
    longest = max(args.length, args.long_length)
    half = torch.float16 if cuda else torch.float32
    teacher = load_teacher(args.target, longest, ranks.device, half)
    log(f"teacher on {ranks.count} x {ranks.device.type}: {teacher.shape}")
    budget = args.minutes * 60
    rows = written_rows(args, teacher, ranks.rank, STARTED + budget * args.write_share)
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
        log(f"{torch.cuda.max_memory_allocated() / 2**30:.0f} GiB at most while writing")
    held, rows = part(rows, slice(-args.held, None)), part(rows, slice(0, -args.held))
    joined = long_rows(teacher, rows, args.long_rows, args.long_length, args.top_k)
    log(f"{len(rows)} rows of {args.length}, {len(joined)} of {args.long_length} a rank")
    shape = teacher.shape.student(args.width, args.layers, args.heads, args.kv_heads, args.ffn)
    student = new_student(teacher, shape, args.long_length, rows.tokens[-128:].long())
    del teacher
    if args.start:
        take_over(student, load_teacher(args.start, 1, torch.device("cpu"), torch.float32))
    ranks.same_start(student)
    seconds = budget - ranks.clock(time.monotonic() - STARTED) - args.reserve
    schedule = GOING_ON if args.start else Schedule()
    trainer = Trainer(student, schedule, seconds, args.chunk, args.compiled, ranks, log)
    if (args.work / CHECKPOINT).exists():
        trainer.resume(args.work / CHECKPOINT)
        log(f"resumed at step {trainer.step}")
    short = Batches(rows, args.tokens // args.length)
    long = Batches(joined, max(1, args.tokens // args.long_length))
    trainer.run(short, long, held, args.work / CHECKPOINT)
    if ranks.first:
        save_draft(student, args)
    ranks.leave()


def save_draft(student: Llama, args: argparse.Namespace) -> None:
    tensors = {name: t.float().cpu().numpy() for name, t in student.state_dict().items()}
    write_gguf(tensors, student.shape, args.target, args.work / DRAFT, args.name)
    log(f"{DRAFT} written")


def export(args: argparse.Namespace) -> None:
    """The draft as the last checkpoint has it."""
    state = torch.load(args.work / CHECKPOINT, map_location="cpu", weights_only=True)
    shape = read_shape(gguf.GGUFReader(args.target))
    shape = shape.student(args.width, args.layers, args.heads, args.kv_heads, args.ffn)
    student = Llama(shape, 1)
    student.load_state_dict(state["student"])
    save_draft(student, args)


def quantise_draft(args: argparse.Namespace) -> None:
    from distil.quantise import quantise

    quantise(args.source, args.out, args.head, args.body)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = top.add_subparsers(required=True)
    seeds = steps.add_parser("seeds", help="tokenise the seed prompts")
    seeds.add_argument("--count", type=int, default=32768, help="seeds of each sort")
    seeds.add_argument("--topics", type=Path, help="file of more things to ask about, one a line")
    seeds.set_defaults(run=make_seeds)
    trains = steps.add_parser("train", help="write text and train")
    exports = steps.add_parser("export", help="the 16-bit GGUF of the last checkpoint")
    for step in (seeds, trains, exports):
        step.add_argument("target", type=Path, help="the GGUF that the draft is for")
        step.add_argument("work", type=Path, help="folder for everything that is made")
        step.add_argument("--seed", type=int, default=0)
    for step in (trains, exports):
        add_train_options(step)
    trains.set_defaults(run=train)
    exports.set_defaults(run=export)
    last = steps.add_parser("quantise", help="make the final GGUF")
    last.add_argument("source", type=Path)
    last.add_argument("out", type=Path)
    last.add_argument("--head", default="Q4_K", help="type of the tied embedding")
    last.add_argument("--body", default="Q4_K", help="type of the other matrices")
    last.set_defaults(run=quantise_draft)
    return top


def add_train_options(trains: argparse.ArgumentParser) -> None:
    numbers: dict[str, tuple[float, str]] = {
        "minutes": (23.0, "time for everything; the schedules adapt to it"),
        "write-share": (0.25, "share of the time after which no more text is written"),
        "reserve": (20.0, "seconds kept for the last measurement and the export"),
        "width": (256, "draft: width (a multiple of 256 for a K-quant head)"),
        "layers": (7, "draft: layers"),
        "heads": (4, "draft: attention heads"),
        "kv-heads": (2, "draft: key and value heads"),
        "ffn": (768, "draft: feed-forward width"),
        "batch": (2048, "chats written at once"),
        "length": (512, "tokens of a row"),
        "rows": (212992, "rows of text at most (about 0.13 MB each with their labels)"),
        "turns": (16384, "requests to choose from in one wave"),
        "top-k": (64, "teacher probabilities kept a position"),
        "long-rows": (512, "long rows made of short ones"),
        "long-length": (8192, "their length: the longest trained position"),
        "held": (256, "rows kept for measuring"),
        "tokens": (65536, "tokens of a training step on each GPU"),
        "chunk": (4096, "positions scored against the vocabulary at once"),
    }
    for name, (default, text) in numbers.items():
        trains.add_argument(f"--{name}", type=type(default), default=default, help=text)
    trains.add_argument("--name", default="SmolLM2 135M Instruct draft", help="general.name")
    trains.add_argument("--start", type=Path, help="earlier draft (GGUF) to go on from")
    trains.add_argument("--eager", action="store_true", help="no torch.compile")


def main() -> None:
    args = parser().parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
