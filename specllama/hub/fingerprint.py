"""Short names for vocabularies and model files: what belongs to one is worth nothing elsewhere."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from specllama.hub.gguf import Vocabulary, read

_EDGE = 1 << 20


def file_identity(model: Path) -> str:
    """Size and a hash of both ends of a model file: its metadata, and weights.

    Raises:
        OSError: it cannot be read.
    """
    size = model.stat().st_size
    with model.open("rb") as file:
        digest = hashlib.sha256(file.read(_EDGE))
        file.seek(max(0, size - _EDGE), os.SEEK_SET)
        digest.update(file.read(_EDGE))
    return f"{size} bytes, {digest.hexdigest()[:32]}"


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
