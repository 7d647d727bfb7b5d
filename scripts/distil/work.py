"""The files of WORK, and what a step must find there."""

from argparse import Namespace
from pathlib import Path

from arguments import distinct

from .kinds import TRAINED

SIZES = "width", "layers", "heads", "kv_heads", "ffn"
BUILT_IN = 256, 7, 4, 2, 768
"""The built-in draft's sizes."""
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
    if args.begin_as is not None:
        needed(args.begin_as, "Name an earlier draft with --begin-as, or leave it out.")
    if not (args.work / TEXT.format(rank)).is_file():
        needed(args.work / SEEDS, "Make it first: distil_draft.py seeds TARGET WORK")
    distinct(args.work / DRAFT, args.target, args.begin_as)
    fill_in_sizes(args)
    check_heads(args)
    check_type(args)
    if args.begin_as is not None:
        from .shape import check_start, open_gguf, read_shape

        shape = read_shape(args.target, open_gguf(args.target)).student(*asked_shape(args))
        check_start(args.begin_as, shape)


def fill_in_sizes(args: Namespace) -> None:
    """The student's sizes that nobody named are those of what it begins as, or the built-in's.

    Raises:
        SystemExit: it begins as the target, with as many layers.
    """
    usual = BUILT_IN
    if args.begin_as is not None:
        from .shape import open_gguf, read_shape

        shape = read_shape(args.begin_as, open_gguf(args.begin_as))
        usual = tuple(getattr(shape, name) for name in SIZES)
        if args.layers is None and args.begin_as.samefile(args.target):
            raise SystemExit(
                f"A draft of all {shape.layers} layers would be the target. "
                "Say with --layers how many to begin as."
            )
    for name, size in zip(SIZES, usual, strict=True):
        if getattr(args, name) is None:
            setattr(args, name, size)


def check_heads(args: Namespace) -> None:
    """Whether the width is that of so many heads, whose numbers are rotated in pairs.

    Raises:
        SystemExit: it is not.
    """
    if args.width % (2 * args.heads):
        raise SystemExit(
            f"--width {args.width} cannot be {args.heads} heads of an even width. "
            "Choose --heads that fit."
        )
    if args.heads % args.kv_heads:
        raise SystemExit(
            f"--heads {args.heads} is no multiple of --kv-heads {args.kv_heads}. "
            "Choose one that is."
        )


def check_type(args: Namespace) -> None:
    """Whether matrices of these widths can be of the type that is trained for.

    Raises:
        SystemExit: they cannot.
    """
    block = TRAINED[args.type]
    odd = [name for name in ("width", "ffn") if getattr(args, name) % block]
    if odd:
        others = " or ".join(name for name, size in TRAINED.items() if size < block)
        raise SystemExit(
            f"--{odd[0]} {getattr(args, odd[0])} is no multiple of {block}, as {args.type} needs. "
            f"Choose one that is{f', or --type {others}' if others else ''}."
        )


def asked_shape(args: Namespace) -> tuple[int, int, int, int, int]:
    """The student's, as `Shape.student` takes it."""
    return args.width, args.layers, args.heads, args.kv_heads, args.ffn


def ready_to_export(args: Namespace) -> None:
    """The same for `export`."""
    needed(args.target, "Name the GGUF that the draft is for.")
    needed(args.work / CHECKPOINT, "Train first: distil_draft.py train TARGET WORK")
    distinct(args.work / DRAFT, args.target)
    fill_in_sizes(args)
