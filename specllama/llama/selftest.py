"""Does this machine compute a batch exactly as it computes single tokens?"""

from __future__ import annotations

import numpy as np

from specllama.llama.cache import Backend


def batch_difference(backend: Backend, n_tokens: int) -> float:
    """The largest difference between logits of a batch and of single decodes; 0: the same bits.

    Decodes a few arbitrary tokens in sequence 0, which must be empty, and empties it again. (Longer
    contexts take other paths in some kernels: scripts/measure_exactness.py tries those.)
    """
    tokens = [(7 * place + 11) % backend.n_vocab for place in range(n_tokens)]
    singles = []
    for place, token in enumerate(tokens):
        singles.append(backend.decode([token], [place], [(0,)], [True])[0].copy())
    backend.drop(0)
    rows = backend.decode(tokens, range(n_tokens), [(0,)] * n_tokens, [True] * n_tokens)
    difference = float(np.abs(rows - np.stack(singles)).max())
    backend.drop(0)
    return difference
