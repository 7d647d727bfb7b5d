"""A vocabulary in a few lines: pieces by id, longest piece first."""

from __future__ import annotations

from collections.abc import Sequence

CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
BYTES = [bytes([value]) for value in range(256)]


class FakeVocabulary:
    """Ids 0-255 are the bytes, then come `words`, then the control tokens.

    Args:
        adds_space: puts a space before a text and after a control token, as SentencePiece
            tokenizers in llama.cpp do.
    """

    def __init__(
        self,
        words: Sequence[str | bytes] = (),
        *,
        control: Sequence[str] = CONTROL,
        add_bos: bool = False,
        adds_space: bool = False,
        chat_template: str | None = None,
    ) -> None:
        raw = [word.encode() if isinstance(word, str) else word for word in words]
        self._pieces = BYTES + raw
        self._control = list(control)
        self._adds_space = adds_space
        self._ids = {piece: token for token, piece in enumerate(self._pieces)}
        self._longest = max(map(len, self._pieces))
        self.size = len(self._pieces) + len(self._control)
        self.add_bos = add_bos
        self.chat_template = chat_template
        self.bos = self.control_id("<s>") if "<s>" in control else None
        self.eos = self.control_id("</s>") if "</s>" in control else None

    def control_id(self, text: str) -> int:
        return len(self._pieces) + self._control.index(text)

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        ids: list[int] = [self.bos] if add_bos and self.bos is not None else []
        fresh = True
        for part, is_control in self._split(text) if special else [(text, False)]:
            if is_control:
                ids.append(self.control_id(part))
            elif part:
                ids += self._greedy((" " if self._adds_space and fresh else "") + part)
            fresh = is_control
        return ids

    def _split(self, text: str) -> list[tuple[str, bool]]:
        parts: list[tuple[str, bool]] = []
        plain = ""
        while text:
            mark = next((c for c in self._control if text.startswith(c)), None)
            if mark is None:
                plain, text = plain + text[0], text[1:]
                continue
            parts += [(plain, False), (mark, True)] if plain else [(mark, True)]
            plain, text = "", text[len(mark) :]
        return [*parts, (plain, False)] if plain else parts

    def _greedy(self, text: str) -> list[int]:
        raw, ids = text.encode(), []
        while raw:
            size = next(n for n in range(self._longest, 0, -1) if raw[:n] in self._ids)
            ids.append(self._ids[raw[:size]])
            raw = raw[size:]
        return ids

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token < len(self._pieces):
            return self._pieces[token]
        return self.text_of(token).encode() if special else b""

    def is_eog(self, token: int) -> bool:
        return self.is_control(token) and self.text_of(token) in ("</s>", "<|im_end|>")

    def is_control(self, token: int) -> bool:
        return token >= len(self._pieces)

    def text_of(self, token: int) -> str:
        if self.is_control(token):
            return self._control[token - len(self._pieces)]
        return self._pieces[token].decode("utf-8", "replace")
