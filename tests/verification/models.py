"""Toy language models over three tokens: (target, draft) pairs with every awkward relation."""

from functools import cache

import numpy as np

from specllama.sampling.chain import Sampler
from specllama.sampling.distribution import Distribution
from specllama.sampling.params import SamplingParams

from .enumeration import Model, Tokens, law

V = 3


def _weights(kind: str, seed: int, context: Tokens) -> tuple[list[float], list[float]]:
    random = np.random.default_rng([seed, len(context), *context])
    p, q = random.dirichlet(np.ones(V)), random.dirichlet(np.ones(V))
    if kind == "equal":
        q = p
    elif kind == "zeros":
        p, q = _punched(p, random), _punched(q, random)
    elif kind == "disjoint":
        own = int(random.integers(V))
        p, q = np.where(np.arange(V) == own, 0.0, p), np.eye(V)[own]
        if random.random() < 0.5:
            p, q = q, p
    elif kind == "one-hot":
        p, q = np.eye(V)[random.integers(V)], np.eye(V)[random.integers(V)]
    elif kind == "near":
        q = 0.8 * p + 0.2 * q
    return list(p), list(q)


def _punched(weights: np.ndarray, random: np.random.Generator) -> np.ndarray:
    kept = random.random(V) < 0.6
    kept[random.integers(V)] = True
    return np.where(kept, weights, 0.0)


def _truncated(seed: int) -> tuple[Model, Model]:
    """Both laws come out of the real sampling chain, with different truncation and penalties."""
    of_target = Sampler(SamplingParams(top_k=0, top_p=0.9, min_p=0.0, repeat_penalty=1.3))
    of_draft = Sampler(SamplingParams(top_k=2, top_p=0.8, temperature=0.6))

    def logits(context: Tokens, model: int) -> np.ndarray:
        random = np.random.default_rng([seed, model, len(context), *context])
        return random.normal(0.0, 1.5, V).astype(np.float32)

    return (
        cache(lambda context: of_target.distribution(logits(context, 0), context)),
        cache(lambda context: of_draft.distribution(logits(context, 1), context)),
    )


KINDS = ("random", "near", "equal", "zeros", "disjoint", "one-hot", "truncated")


def pair(kind: str, seed: int) -> tuple[Model, Model]:
    """(target, draft) of one kind; laws depend on the whole context."""
    if kind == "truncated":
        return _truncated(seed)

    @cache
    def both(context: Tokens) -> tuple[Distribution, Distribution]:
        p, q = _weights(kind, seed, context)
        return law(p), law(q)

    return lambda context: both(context)[0], lambda context: both(context)[1]
