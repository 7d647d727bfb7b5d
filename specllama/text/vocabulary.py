"""What text handling needs to know of a model's vocabulary, without knowing the model."""

from __future__ import annotations

from typing import Protocol


class Vocabulary(Protocol):
    """Token ids and what they stand for. specllama/llama/model.py has it over llama.cpp."""

    @property
    def size(self) -> int:
        """Number of tokens; ids are 0 to size - 1."""

    @property
    def bos(self) -> int | None:
        """Beginning-of-sequence token, None where the model has none."""

    @property
    def eos(self) -> int | None:
        """End-of-sequence token, None where the model has none."""

    @property
    def add_bos(self) -> bool:
        """Whether the model expects `bos` in front of a prompt."""

    @property
    def chat_template(self) -> str | None:
        """Jinja source from the model file, None where it has none."""

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        """Ids of a text; with `special`, control tokens written in it are read as such."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of a token, possibly only part of a character; b"" for control tokens unless
        `special`."""

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation."""

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token, never text."""

    def text_of(self, token: int) -> str:
        """The token as the vocabulary writes it, such as "<|im_end|>"."""
