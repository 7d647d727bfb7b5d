"""`ngram`: n-gram models that draft, made out of text or of a model's own answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specllama.cli.common import check_writable, group
from specllama.cli.output import out, size
from specllama.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specllama.drafting.ngram_file import Facts
    from specllama.hub.resolve import ResolvedModel

CHUNK = 1 << 18
"""Characters that are tokenised at a time; the bar moves after each."""


def build(
    texts: Annotated[
        list[Path] | None,
        typer.Argument(help="UTF-8 text files.", exists=True, dir_okay=False, show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "-m", "--target", "--model", metavar="MODEL", help="The model it is to draft for."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")
    ] = None,
    answers: Annotated[
        bool, typer.Option("--answers", help="Train on the model's answers in the store, too.")
    ] = False,
    order: Annotated[int, typer.Option(min=2, max=4, help="The longest n-gram.")] = 4,
    min_count: Annotated[
        int, typer.Option(min=1, help="Leave out longer contexts that go on less often.")
    ] = 2,
) -> None:
    """Train an n-gram model that drafts for a model.

    The texts have to fit into memory: 65 bytes a token of text, some 2 GB for 100 MB.
    """
    from specllama.cli import settings
    from specllama.drafting.ngram_file import NgramFile
    from specllama.drafting.ngram_train import build as build_file
    from specllama.hub import builtin
    from specllama.hub.fingerprint import fingerprint
    from specllama.hub.resolve import resolve

    path = _checked_output(output)
    if not texts and not answers:
        raise UsageError("Nothing to train on.", "Give text files, or --answers.")
    name = settings.load({"target": model})["target"]
    target = resolve(builtin.TARGET if name is None else name, "target")
    vocabulary = target.header.vocabulary
    with _Bar() as bar:
        documents = _tokenise(texts or [], target.path, bar)
        if answers:
            documents += _answers(target)
        n_tokens = sum(map(len, documents))
        if n_tokens < order:
            raise UsageError(f"There are only {n_tokens} tokens to train on.", "Give more text.")
        build_file(
            path,
            documents,
            fingerprint=fingerprint(vocabulary),
            model=target.path.name,
            n_vocab=len(vocabulary),
            order=order,
            min_count=min_count,
            on_share=bar.count,
        )
    facts = NgramFile.open(path).facts
    out.status(f"Wrote {path}: {sum(facts.ngrams)} n-grams, {size(facts.n_bytes)}.")
    if out.mode == "json":
        out.json({"path": str(path)} | asdict(facts))


def _checked_output(path: Path | None) -> Path:
    """Where to write, looked at before the work is done."""
    from specllama.drafting.ngram_file import KIND

    if path is None:
        raise UsageError("No file to write.", "Name one: -o FILE")
    if not path.parent.is_dir():
        raise UsageError(f"There is no folder {path.parent}.", "Make it first.")
    if path.exists() and not (path.is_file() and _begins_with(path, KIND.magic)):
        raise UsageError(f"{path} is there, and is not an n-gram file.", "Choose another name.")
    check_writable(path)
    return path


def _begins_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def show(
    file: Annotated[Path, typer.Argument(help="An n-gram file.", metavar="FILE")],
) -> None:
    """Say what an n-gram file is."""
    from specllama.drafting.ngram_file import NgramFile

    facts = NgramFile.open(file).facts
    out.result({"path": str(file)} | asdict(facts), lambda: _print(file, facts))


def _print(file: Path, facts: Facts) -> None:
    lines = {
        "file": str(file),
        "size": size(facts.n_bytes),
        "model": facts.model,
        "vocabulary": f"{facts.n_vocab} tokens ({facts.fingerprint})",
        "order": str(facts.order),
        "trained on": f"{facts.n_tokens} tokens",
        "min count": str(facts.min_count),
        "contexts": " + ".join(map(str, facts.contexts)),
        "n-grams": " + ".join(map(str, facts.ngrams)),
    }
    for name, value in lines.items():
        out.line(f"{name:<11} {value}")


def _tokenise(texts: Sequence[Path], model: Path, bar: _Bar) -> list[NDArray[np.uint32]]:
    """The ids of each text, control tokens read as text."""
    import numpy as np

    from specllama.cli.model_flags import read_text
    from specllama.llama.model import Model

    if not texts:
        return []
    bar.start(sum(text.stat().st_size for text in texts))
    documents = []
    with Model(model, vocab_only=True) as loaded:
        for text in texts:
            parts = [np.zeros(0, np.uint32)]
            for chunk in chunks(read_text(text)):
                ids = loaded.vocabulary.tokenize(chunk, special=False, add_bos=False)
                parts.append(np.array(ids, np.uint32))
                bar.read(len(chunk.encode()))
            documents.append(np.concatenate(parts))
    return documents


def chunks(text: str) -> Iterator[str]:
    """A text in parts of at least CHUNK characters, cut behind ends of lines where there are any.

    A word cut in two would give tokens that no text has.
    """
    start = 0
    while start < len(text):
        line_end = text.find("\n", start + CHUNK, start + 2 * CHUNK) + 1
        end = line_end or start + 2 * CHUNK
        yield text[start:end]
        start = end


def _answers(target: ResolvedModel) -> list[NDArray[np.uint32]]:
    """The answers that the store has of a model; what is wrong with it is told."""
    from specllama.drafting.answers import look_into
    from specllama.drafting.store import folder_of
    from specllama.hub.fingerprint import fingerprint

    own = fingerprint(target.header.vocabulary)
    folder = folder_of(target.path, own)
    if not folder.is_dir():
        raise UsageError(f"The store has no answers of {target.name}.", "Generate with --store.")
    found = look_into(folder, own)
    for warning in found.warnings:
        out.warn(warning)
    stored = [text for segment in found.segments for text in segment.index.documents()]
    return stored + found.journal


class _Bar:
    """Two bars, one for reading and one for counting, each as long as the texts have bytes."""

    def __init__(self) -> None:
        self._progress = out.progress()
        self._total = 1
        self._reading: Any = None
        self._counting: Any = None

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def start(self, total: int) -> None:
        """Texts of that many bytes are read."""
        self._total = max(1, total)
        self._reading = self._progress.add_task("reading ", total=self._total)

    def read(self, n_bytes: int) -> None:
        """That many more are read."""
        self._progress.advance(self._reading, n_bytes)

    def count(self, share: float) -> None:
        """That share of the counting is done."""
        if self._counting is None:
            self._counting = self._progress.add_task("counting", total=self._total)
        self._progress.update(self._counting, completed=int(share * self._total))


app = group("N-gram models that draft: trained once, no draft model.", build=build, show=show)
