"""`prune`: a draft out of a target, by leaving layers out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specllama.cli.common import check_writable
from specllama.cli.output import out, size
from specllama.errors import UsageError

if TYPE_CHECKING:
    from specllama.hub.gguf import Header

NOTE = """\
A pruned model is seldom a good draft before it is trained again: SmolLM2-135M with 27 of its 30
layers says what the whole model says in 44 % of the places, with 23 layers in 6 %."""


def prune(
    model: Annotated[str, typer.Argument(help="A GGUF path, a name or user/repo[:QUANT].")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write the draft.")
    ],
    keep_layers: Annotated[
        str | None,
        typer.Option("--keep-layers", metavar="LIST", help="Layers to keep, such as 0-5,28,29."),
    ] = None,
    drop: Annotated[
        int | None,
        typer.Option("--drop", min=1, metavar="N", help="Drop so many from the middle instead."),
    ] = None,
    quant: Annotated[
        str | None,
        typer.Option("--quant", metavar="TYPE", help="Convert, to Q4_0 for example; else copied."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Make a draft by leaving layers of a model out.

    Layers are numbered from 0. Nothing is trained: this is for large targets and experiments.
    """
    from specllama.hub.resolve import resolve
    from specllama.llama.quantize import file_bytes, layer_count
    from specllama.llama.quantize import prune as write

    header = resolve(model, "target").header
    n_layers = layer_count(header)
    dropped = _dropped(n_layers, keep_layers, drop)
    file_type = _file_type(quant)
    _check_output(output, header, force=force)
    kept = n_layers - len(dropped)
    expected = file_bytes(header, dropped, file_type)
    about = f"{'about' if file_type is None else 'at least'} {size(expected)}"
    out.status(f"Keeping {kept} of {n_layers} layers of {header.name}, {about}.")
    with out.progress() as bar:
        task = bar.add_task(output.name, total=expected if file_type is None else None)
        write(
            header,
            output,
            dropped,
            file_type=file_type,
            on_progress=lambda done: bar.update(task, completed=done),
        )
    _report(model, output, [layer for layer in range(n_layers) if layer not in dropped])


def _report(model: str, output: Path, kept: list[int]) -> None:
    from specllama.hub.gguf import read

    header = read(output)
    data = {
        "path": str(output),
        "layers": kept,
        "parameters": header.n_params,
        "quantization": header.quantization,
        "bytes": header.file_size,
    }
    out.result(data, lambda: out.line(str(output)))
    out.status(NOTE)
    out.hint(f"Measure it: specllama generate -m {model} -md {output} --stats PROMPT")


def _dropped(n_layers: int, keep_layers: str | None, drop: int | None) -> list[int]:
    """The layers to leave out.

    Raises:
        UsageError: neither or both ways to choose were given, or the choice leaves nothing to do.
    """
    if (keep_layers is None) == (drop is None):
        raise UsageError("Which layers?", "Give either --keep-layers LIST or --drop N.")
    if keep_layers is not None:
        kept = parse_layers(keep_layers, n_layers)
        dropped = [layer for layer in range(n_layers) if layer not in kept]
    else:
        dropped = _middle(n_layers, drop or 0)
    if not dropped:
        raise UsageError(f"That keeps all {n_layers} layers.", "Leave some out.")
    return dropped


def _middle(n_layers: int, count: int) -> list[int]:
    """The first and the last layers do the most, so the middle goes."""
    if count >= n_layers:
        raise UsageError(f"The model has {n_layers} layers.", f"Drop at most {n_layers - 1}.")
    first = (n_layers - count + 1) // 2
    return list(range(first, first + count))


def parse_layers(text: str, n_layers: int) -> set[int]:
    """ "0-5,28" -> {0, 1, 2, 3, 4, 5, 28}.

    Raises:
        UsageError: no such list, or a layer the model does not have.
    """
    layers: set[int] = set()
    for part in text.split(","):
        first, dash, last = (end.strip() for end in part.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last):
            raise UsageError(f"{text!r} is no list of layers.", "Write it like 0-5,28,29.")
        if int(last) >= n_layers:
            raise UsageError(
                f"There is no layer {last}.", f"The model has layers 0 to {n_layers - 1}."
            )
        layers.update(range(int(first), int(last) + 1))
    return layers


def _file_type(quant: str | None) -> int | None:
    from specllama.hub.ggml_types import FILE_TYPES

    if quant is None:
        return None
    numbers = {name: number for number, name in FILE_TYPES.items()}
    if quant.upper() not in numbers:
        raise UsageError(
            f"There is no quantisation {quant!r}.", "Q4_0, Q4_K_M, Q8_0 and F16 are usual ones."
        )
    return numbers[quant.upper()]


def _check_output(output: Path, header: Header, *, force: bool) -> None:
    from specllama.hub.gguf import parts_of

    if not output.parent.is_dir():
        raise UsageError(f"There is no folder {output.parent}.", "Make it first.")
    if output.is_dir():
        raise UsageError(f"{output} is a folder.", "Name a file in it: -o DRAFT.gguf")
    check_writable(output)
    if not output.exists():
        return
    if not output.is_file():
        raise UsageError(f"{output} is not a regular file.", "Name another: -o DRAFT.gguf")
    if any(output.samefile(part) for part in parts_of(header.path)):
        raise UsageError(f"{output} is the model itself.", "Write to another file.")
    if not force:
        raise UsageError(f"{output} exists.", "Add --force to replace it.")
