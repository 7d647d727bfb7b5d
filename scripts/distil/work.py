"""The files of WORK, and what a step must find there."""

from argparse import Namespace
from pathlib import Path

from arguments import distinct

SEEDS, TEXT, CHECKPOINT, DRAFT = "seeds.npz", "text-{}.pt", "student.pt", "draft-f16.gguf"


def needed(file: Path, how: str) -> None:
    """Refuse to go on without a file.

    Raises:
        SystemExit: it is not there.
    """
    if not file.is_file():
        raise SystemExit(f"{file} is not there. {how}")


def ready_to_train(args: Namespace, rank: int) -> None:
    """What `train` reads is there, before anything takes time.

    Raises:
        SystemExit: something is not.
    """
    needed(args.target, "Name the GGUF that the draft is for.")
    if args.start is not None:
        needed(args.start, "Name an earlier draft with --start, or leave it out.")
    if not (args.work / TEXT.format(rank)).is_file():
        needed(args.work / SEEDS, "Make it first: distil_draft.py seeds TARGET WORK")
    distinct(args.work / DRAFT, args.target, args.start)
    if args.start is not None:
        from .shape import check_start, open_gguf, read_shape

        shape = read_shape(args.target, open_gguf(args.target)).student(*asked_shape(args))
        check_start(args.start, shape)


def asked_shape(args: Namespace) -> tuple[int, int, int, int, int]:
    """The student's, as `Shape.student` takes it."""
    return args.width, args.layers, args.heads, args.kv_heads, args.ffn


def ready_to_export(args: Namespace) -> None:
    """The same for `export`."""
    needed(args.target, "Name the GGUF that the draft is for.")
    needed(args.work / CHECKPOINT, "Train first: distil_draft.py train TARGET WORK")
    distinct(args.work / DRAFT, args.target)
