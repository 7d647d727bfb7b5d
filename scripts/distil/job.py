"""The steps that need PyTorch: the target's text, the training on it, the 16-bit file."""

import argparse
import gc
import time
from dataclasses import replace

import torch

from .clock import STARTED, log
from .export import write_gguf
from .generate import FIELDS, Seeds, Writer, write_text
from .labels import Rows, label
from .model import Llama, load_teacher
from .parallel import join
from .shape import open_gguf, read_shape
from .train import (
    GOING_ON,
    GRIDS,
    TABLE_STEP,
    Batches,
    Schedule,
    Trainer,
    new_student,
    take_over,
)
from .work import CHECKPOINT, DRAFT, SEEDS, TEXT, asked_shape


def written_rows(args: argparse.Namespace, teacher: Llama, rank: int, deadline: float) -> Rows:
    """A rank's text and labels: written anew, or an interrupted run's text labelled again."""
    file = args.work / TEXT.format(rank)
    if file.exists():
        log("labelling the text of an earlier run")
        stored = torch.load(file, map_location=teacher.head.device, weights_only=True)
        return Rows(**stored, **labelled(teacher, stored["tokens"], args.top_k))
    seeds = Seeds(args.work / SEEDS)
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
    shape = teacher.shape.student(*asked_shape(args))
    student = new_student(teacher, shape, args.long_length, rows.tokens[-128:].long())
    del teacher
    if args.begin_as:
        take_over(student, load_teacher(args.begin_as, 1, torch.device("cpu"), torch.float32))
    ranks.same_start(student)
    seconds = budget - ranks.clock(time.monotonic() - STARTED) - args.reserve
    plan = schedule(args, student), GRIDS.get(args.type), seconds
    trainer = Trainer(student, *plan, args.chunk, args.compiled, ranks, log)
    if (args.work / CHECKPOINT).exists():
        trainer.resume(args.work / CHECKPOINT)
        log(f"resumed at step {trainer.step}")
    short = Batches(rows, args.tokens // args.length)
    long = Batches(joined, max(1, args.tokens // args.long_length))
    trainer.run(short, long, held, args.work / CHECKPOINT)
    if ranks.first:
        save_draft(student, args)
    ranks.leave()


def schedule(args: argparse.Namespace, student: Llama) -> Schedule:
    """What suits how the student begins."""
    if args.begin_as is None:
        return Schedule()
    chosen = Schedule() if args.begin_as.samefile(args.target) else GOING_ON
    return replace(chosen, table_rate=TABLE_STEP * student.head.std().item())


def save_draft(student: Llama, args: argparse.Namespace) -> None:
    tensors = {name: t.float().cpu().numpy() for name, t in student.state_dict().items()}
    write_gguf(tensors, student.shape, args.target, args.work / DRAFT, args.name)
    log(f"{DRAFT} written")


def export(args: argparse.Namespace) -> None:
    """The draft as the last checkpoint has it."""
    state = torch.load(args.work / CHECKPOINT, map_location="cpu", weights_only=True)
    shape = read_shape(args.target, open_gguf(args.target)).student(*asked_shape(args))
    student = Llama(shape, 1)
    student.load_state_dict(state["student"])
    save_draft(student, args)
