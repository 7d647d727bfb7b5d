"""Does this machine compute a batch exactly as it computes single tokens?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specllama.llama.cache import Backend


def batch_difference(backend: Backend, n_tokens: int, n_slots: int = 1) -> float:
    """The largest difference between logits of a batch and of single decodes; 0: the same bits.

    Decodes a few arbitrary tokens in sequence 0, and of several slots also in a batch that they
    share; all must be empty, and are empty again. (Longer contexts take other paths in some
    kernels: scripts/measure_exactness.py tries those.)
    """
    tokens, singles = _singles(backend, n_tokens)
    difference = _difference(backend, tokens, singles)
    return max(difference, _company_difference(backend, tokens, singles, n_slots))


def exact_range(backend: Backend, most: int) -> int:
    """The largest batch up to `most` such that it and all smaller ones have the bits of singles."""
    tokens, singles = _singles(backend, most)
    for n_tokens in range(2, most + 1):
        if _difference(backend, tokens[:n_tokens], singles[:n_tokens]) > 0.0:
            return n_tokens - 1
    return most


def _singles(backend: Backend, n_tokens: int) -> tuple[list[int], list[NDArray[np.float32]]]:
    """A few arbitrary tokens, and the logits after each, decoded one by one."""
    tokens = [(7 * place + 11) % backend.n_vocab for place in range(n_tokens)]
    singles = []
    for place, token in enumerate(tokens):
        singles.append(backend.decode([token], [place], [(0,)], [True])[0].copy())
    backend.drop(0)
    return tokens, singles


def _difference(backend: Backend, tokens: list[int], singles: list[NDArray[np.float32]]) -> float:
    """The largest difference of any logit of one batch."""
    count = len(tokens)
    rows = backend.decode(tokens, range(count), [(0,)] * count, [True] * count)
    difference = float(np.abs(np.stack(rows) - np.stack(singles)).max())
    backend.drop(0)
    return difference


def _company_difference(
    backend: Backend, tokens: list[int], singles: list[NDArray[np.float32]], n_slots: int
) -> float:
    """The same for batches that hold the next tokens of several sequences."""
    difference = 0.0
    width = min(n_slots, len(tokens))
    for place in range(len(tokens)) if width > 1 else ():
        batch = [tokens[place]] * width
        rows = backend.decode(batch, [place] * width, [(s,) for s in range(width)], [True] * width)
        difference = max(difference, float(np.abs(np.stack(rows) - singles[place]).max()))
    for slot in range(width):
        backend.drop(slot)
    return difference
