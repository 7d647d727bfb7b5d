"""A short name for a vocabulary: files of token ids are worth nothing under another one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from specllama.hub.gguf import Vocabulary, read


def fingerprint(vocabulary: Vocabulary) -> str:
    """32 hexadecimal digits of the SHA-256 of all token texts in order, as the file stores them."""
    digest = hashlib.sha256()
    for start in range(0, len(vocabulary), 4096):
        stop = min(start + 4096, len(vocabulary))
        texts = [bytes(vocabulary.texts[id]) for id in range(start, stop)]
        digest.update(b"".join(len(text).to_bytes(4, "little") + text for text in texts))
    return digest.hexdigest()[:32]


def fingerprint_of(model: Path) -> str:
    """The fingerprint of a GGUF file's vocabulary, from its header.

    Raises:
        NotAModel: the file is no complete GGUF file.
    """
    return fingerprint(read(model).vocabulary)
