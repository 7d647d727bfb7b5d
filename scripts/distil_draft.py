"""Distil a small speculative draft from a llama-architecture target GGUF.

    python scripts/distil_draft.py seeds TARGET.gguf WORK       # tokenise seed prompts (CPU)
    python scripts/distil_draft.py train TARGET.gguf WORK       # GPUs (see torchrun), --minutes
    python scripts/distil_draft.py quantise WORK/draft-f16.gguf OUT.gguf

docs/distil.md explains each step; models/README.md says what this gave for the built-in draft.
"""

import argparse
import os
import sys
from pathlib import Path

from arguments import distinct, from_1
from distil import clock  # noqa: F401  (starts to count)
from distil.kinds import FILE_TYPES, TENSOR_TYPES, TRAINED
from distil.work import BUILT_IN, SEEDS, SIZES, needed, ready_to_export, ready_to_train


def make_seeds(args: argparse.Namespace) -> None:
    """Refuses what `train` would refuse, which may run on another machine."""
    from distil.shape import open_gguf, read_shape
    from distil.tokens import write_tokens

    from specllama.errors import SpecllamaError

    needed(args.target, "Name the GGUF that the draft is for.")
    distinct(args.work / SEEDS, args.target, args.topics)
    topics = read_topics(args.topics) if args.topics else []
    read_shape(args.target, open_gguf(args.target))
    args.work.mkdir(parents=True, exist_ok=True)
    try:
        write_tokens(args.target, args.work / SEEDS, args.count, args.seed, topics)
    except SpecllamaError as error:
        raise SystemExit(f"{error}") from error


def read_topics(file: Path) -> list[str]:
    """Things to ask about, one a line.

    Raises:
        SystemExit: it is no text file.
    """
    needed(file, "Name a text file with --topics, or leave it out.")
    try:
        lines = file.read_text("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise SystemExit(f"{file} is not UTF-8 text. Convert it, e.g. with iconv.") from error
    return [line.strip() for line in lines if line.strip()]


def train(args: argparse.Namespace) -> None:
    ready_to_train(args, int(os.environ.get("RANK", "0")))
    from distil import job

    job.train(args)


def export(args: argparse.Namespace) -> None:
    ready_to_export(args)
    from distil import job

    job.export(args)


def quantise_draft(args: argparse.Namespace) -> None:
    needed(args.source, "Name what `train` wrote: WORK/draft-f16.gguf")
    distinct(args.out, args.source)
    from distil.quantise import quantise

    quantise(args.source, args.out, args.head, args.body)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    steps = top.add_subparsers(required=True)
    seeds = steps.add_parser("seeds", help="tokenise the seed prompts")
    seeds.add_argument("--count", type=from_1, default=32768, help="seeds of each sort")
    seeds.add_argument("--topics", type=Path, help="file of more things to ask about, one a line")
    seeds.set_defaults(run=make_seeds)
    trains = steps.add_parser("train", help="write text and train")
    exports = steps.add_parser("export", help="the 16-bit GGUF of the last checkpoint")
    for step in (seeds, trains, exports):
        step.add_argument("target", type=Path, help="the GGUF that the draft is for")
        step.add_argument("work", type=Path, help="folder for everything that is made")
        step.add_argument("--seed", type=int, default=0, help="of everything random")
    for step in (trains, exports):
        add_train_options(step)
    trains.set_defaults(run=train)
    exports.set_defaults(run=export)
    last = steps.add_parser("quantise", help="make the final GGUF")
    last.add_argument("source", type=Path, help="the 16-bit GGUF")
    last.add_argument("out", type=Path, help="the GGUF to make")
    head, body = "type of the tied embedding", "type of the other matrices"
    last.add_argument("--head", choices=TENSOR_TYPES, default="Q4_K", help=head)
    last.add_argument("--body", choices=FILE_TYPES, default="Q4_K", help=body)
    last.set_defaults(run=quantise_draft)
    return top


def add_train_options(trains: argparse.ArgumentParser) -> None:
    numbers: dict[str, tuple[float, str]] = {
        "minutes": (23.0, "time for everything; the schedules adapt to it"),
        "write-share": (0.25, "share of the time after which no more text is written"),
        "reserve": (20.0, "seconds kept for the last measurement and the export"),
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
    parts = "width", "layers", "attention heads", "key and value heads", "feed-forward width"
    for name, part, size in zip(SIZES, parts, BUILT_IN, strict=True):
        told = f"draft: {part} (default: that of --begin-as, or {size})"
        trains.add_argument(f"--{name.replace('_', '-')}", type=from_1, help=told)
    trains.add_argument("--name", help="general.name (default: the target's, and 'draft')")
    finished = "type of the finished file's matrices, to which 4-bit ones are rounded in training"
    trains.add_argument("--type", choices=TRAINED, default="Q4_K", help=finished)
    begin = "GGUF to begin as: an earlier draft, or TARGET itself (some of its layers)"
    trains.add_argument("--begin-as", type=Path, help=begin)
    trains.add_argument("--eager", action="store_true", help="no torch.compile")


def main() -> None:
    args = parser().parse_args()
    try:
        args.run(args)
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is not installed here. docs/distil.md says what this step needs.")
    except OSError as error:
        place = f" {error.filename}" if error.filename else ""
        sys.exit(f"Cannot use{place}: {error.strerror or error}. Mend that and run it again.")


if __name__ == "__main__":
    main()
