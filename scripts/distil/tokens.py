"""Turn seed prompts into token ids once, so that the GPU side needs no tokenizer.

Needs llama-cpp-python.  The result is one .npz file of a few megabytes.
"""

from collections.abc import Iterable
from pathlib import Path

import llama_cpp
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .prompts import (
    SYSTEMS,
    WRITERS,
    add_topics,
    make_openers,
    make_prompts,
    make_starts,
    make_wraps,
)

MARKS = ("@user@", "@answer@", "@again@")
SENTENCE_ENDS = (".", ".\n", "\n", "!", "?", ".\n\n", "\n\n")


class Tokenizer:
    """A GGUF's vocabulary and chat template, without its weights."""

    def __init__(self, path: Path) -> None:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ValueError(f"{path} is not a GGUF file that llama.cpp can read")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        template = llama_cpp.llama_model_chat_template(self._model, None)
        if not template:
            raise ValueError(f"{path} has no chat template")
        self._template = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True
        ).from_string(template.decode())

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of text; special tokens are recognised only if asked for."""
        raw = text.encode()
        ids = (llama_cpp.llama_token * (len(raw) + 8))()
        count = llama_cpp.llama_tokenize(self._vocab, raw, len(raw), ids, len(ids), False, special)
        return list(ids[:count])

    def end_tokens(self) -> list[int]:
        """Ids that end a generation."""
        count = llama_cpp.llama_vocab_n_tokens(self._vocab)
        return [i for i in range(count) if llama_cpp.llama_vocab_is_eog(self._vocab, i)]

    def frame(self, system: str | None) -> list[list[int]]:
        """The template's text before a request, between request and answer, and between turns."""
        messages = [{"role": "system", "content": system}] if system else []
        roles = ("user", "assistant", "user")
        messages += [{"role": r, "content": m} for r, m in zip(roles, MARKS, strict=True)]
        bos = llama_cpp.llama_vocab_get_text(
            self._vocab, max(0, llama_cpp.llama_vocab_bos(self._vocab))
        ).decode()
        text = self._template.render(messages=messages, add_generation_prompt=True, bos_token=bos)
        parts = []
        for mark in MARKS:
            part, text = text.split(mark, 1)
            parts.append(self.encode(part, special=True))
        return parts


def ragged(name: str, lists: Iterable[list[int]]) -> dict[str, np.ndarray]:
    """Two arrays for lists of unequal length: the ids one after another, and where each ends."""
    lists = list(lists)
    ends = np.cumsum([len(ids) for ids in lists], dtype=np.int64)
    flat = np.fromiter((i for ids in lists for i in ids), np.int32, count=int(ends[-1]))
    return {f"{name}_ids": flat, f"{name}_ends": ends}


def write_tokens(target: Path, out: Path, count: int, seed: int, topics: list[str]) -> None:
    """Tokenise `count` seeds of each sort for one target."""
    tokenizer = Tokenizer(target)
    add_topics(topics)
    made = make_prompts(count, seed)
    around = make_wraps(count, seed + 1)
    head, to_answer, to_user = tokenizer.frame(None)
    writer_class = {kind: i for i, kinds in enumerate(WRITERS.values()) for kind in kinds}
    classes = list(WRITERS)
    np.savez_compressed(
        out,
        to_answer=np.array(to_answer, np.int32),
        to_user=np.array(to_user, np.int32),
        end_tokens=np.array(tokenizer.end_tokens(), np.int32),
        sentence_ends=np.array(
            sorted({i for e in SENTENCE_ENDS for i in tokenizer.encode(e)[-1:]}), np.int32
        ),
        prompt_class=np.array([writer_class.get(kind, -1) for kind, _ in made], np.int8),
        wrap_class=np.array([classes.index(w.passage_class) for w in around], np.int8),
        **ragged("heads", [head, *(tokenizer.frame(s)[0] for s in SYSTEMS)]),
        **ragged("prompts", (tokenizer.encode(prompt) for _, prompt in made)),
        **ragged("openers", (tokenizer.encode(opener) for opener in make_openers(count, seed + 2))),
        **ragged("starts", (tokenizer.encode(start) for start in make_starts(count, seed + 3))),
        **ragged("before", (tokenizer.encode(w.before) for w in around)),
        **ragged("after", (tokenizer.encode(w.after) for w in around)),
    )
