"""Turn seed prompts into token ids once, so that the GPU side needs no tokenizer.

Needs specllama.  The result is one .npz file of a few megabytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specllama.errors import ModelError
from specllama.hub.gguf import read
from specllama.llama.model import Model
from specllama.text.chat import ChatTemplate, Message, chat_prompt
from specllama.text.detokenizer import adds_space_prefix
from specllama.text.vocabulary import Vocabulary

from .prompts import (
    SYSTEMS,
    WRITERS,
    add_topics,
    make_openers,
    make_prompts,
    make_starts,
    make_wraps,
)

USER, ANSWER, AGAIN = "@user@", "@answer@", "@again@"
SENTENCE_ENDS = (".", ".\n", "\n", "!", "?", ".\n\n", "\n\n")


@dataclass(frozen=True, slots=True)
class Frame:
    """What the chat template puts around the texts of a conversation, as token ids.

    Attributes:
        head: before the first request.
        to_answer: between a request and its answer.
        to_user: between an answer and the next request.
        lead: blanks before a request, which belong to its own first token.
    """

    head: list[int]
    to_answer: list[int]
    to_user: list[int]
    lead: str


class Tokenizer:
    """A GGUF's vocabulary and chat template, without its weights.

    Raises:
        ModelError: it is no model, or has no chat template.
    """

    def __init__(self, path: Path) -> None:
        read(path)  # whose errors are short sentences
        self._vocabulary = Model(path, vocab_only=True).vocabulary
        self._template = ChatTemplate.of(self._vocabulary)
        if self._template.is_fallback:
            raise ModelError(f"{path} has no chat template.", "Choose a target with one.")
        self._inside = _Inside(self._vocabulary)

    @property
    def bos(self) -> list[int]:
        """What begins a text that the template does not make."""
        bos = self._vocabulary.bos if self._vocabulary.add_bos else None
        return [] if bos is None else [bos]

    def plain(self, text: str) -> list[int]:
        """Ids of a text of its own."""
        return self._vocabulary.tokenize(text, special=False, add_bos=self._vocabulary.add_bos)

    def inside(self, text: str) -> list[int]:
        """Ids of a text behind another one: SentencePiece puts no space before it."""
        return self._inside.encode(text, special=False)

    def chat(self, request: str) -> list[int]:
        """Ids of a request up to where the answer is to begin, as specllama has them."""
        return chat_prompt(self._vocabulary, [Message("user", request)], self._template)

    def end_tokens(self) -> list[int]:
        """Ids that end a generation."""
        return [i for i in range(self._vocabulary.size) if self._vocabulary.is_eog(i)]

    def frame(self, system: str | None) -> Frame:
        """The template's text around requests and answers."""
        before = [Message("system", system)] if system else []
        asked = [*before, Message("user", USER)]
        head, to_answer = _around(self._template.render(asked), USER)
        turns = [*asked, Message("assistant", ANSWER), Message("user", AGAIN)]
        to_user = _around(_around(self._template.render(turns), ANSWER)[1], AGAIN)[0]
        start, to_user = head.rstrip(" "), to_user.rstrip(" ")
        return Frame(
            self._start(start), self._special(to_answer), self._special(to_user), head[len(start) :]
        )

    def _start(self, text: str) -> list[int]:
        bos = self._template.bos
        add_bos = self._vocabulary.add_bos and not (bos and text.startswith(bos))
        return self._vocabulary.tokenize(text, special=True, add_bos=add_bos)

    def _special(self, text: str) -> list[int]:
        return self._inside.encode(text, special=True)


class _Inside:
    """Encodes what stands behind other text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # takes the space that SentencePiece adds, and merges with nothing
        self._mark = "\x01" if adds_space_prefix(vocabulary) else ""
        self._n_mark = len(self._tokens(self._mark, special=False))

    def encode(self, text: str, *, special: bool) -> list[int]:
        return self._tokens(self._mark + text, special=special)[self._n_mark :] if text else []

    def _tokens(self, text: str, *, special: bool) -> list[int]:
        return self._vocabulary.tokenize(text, special=special, add_bos=False)


def _around(text: str, mark: str) -> tuple[str, str]:
    """What stands before and behind a mark.

    Raises:
        ModelError: the template dropped it.
    """
    before, found, behind = text.partition(mark)
    if not found:
        raise ModelError("The chat template drops a turn.", "Choose a target whose does not.")
    return before, behind


def ragged(name: str, lists: Iterable[list[int]]) -> dict[str, np.ndarray]:
    """Two arrays for lists of unequal length: the ids one after another, and where each ends."""
    lists = list(lists)
    ends = np.cumsum([len(ids) for ids in lists], dtype=np.int64)
    flat = np.fromiter((i for ids in lists for i in ids), np.int32, count=int(ends[-1]))
    return {f"{name}_ids": flat, f"{name}_ends": ends}


def write_tokens(target: Path, out: Path, count: int, seed: int, topics: list[str]) -> None:
    """Tokenise `count` seeds of each sort for one target."""
    tokenizer = Tokenizer(target)
    inside = tokenizer.inside
    add_topics(topics)
    made = make_prompts(count, seed)
    around = make_wraps(count, seed + 1)
    frame = tokenizer.frame(None)
    systems = [tokenizer.frame(system).head for system in SYSTEMS]
    writer_class = {kind: i for i, kinds in enumerate(WRITERS.values()) for kind in kinds}
    classes = list(WRITERS)

    def request(text: str) -> list[int]:
        return inside(frame.lead + text) if text else []

    np.savez_compressed(
        out,
        bos=np.array(tokenizer.bos, np.int32),
        to_answer=np.array(frame.to_answer, np.int32),
        to_user=np.array(frame.to_user, np.int32),
        end_tokens=np.array(tokenizer.end_tokens(), np.int32),
        sentence_ends=np.array(
            sorted({i for e in SENTENCE_ENDS for i in inside(e)[-1:]}), np.int32
        ),
        prompt_class=np.array([writer_class.get(kind, -1) for kind, _ in made], np.int8),
        wrap_class=np.array([classes.index(w.passage_class) for w in around], np.int8),
        **ragged("heads", [frame.head, *systems]),
        **ragged("prompts", (request(prompt) for _, prompt in made)),
        **ragged("openers", (request(opener) for opener in make_openers(count, seed + 2))),
        **ragged("starts", map(tokenizer.plain, make_starts(count, seed + 3))),
        **ragged("before", (request(w.before) for w in around)),
        **ragged("after", (inside(w.after) for w in around)),
    )
