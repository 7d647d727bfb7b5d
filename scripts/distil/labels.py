"""Teacher labels: the k most likely next tokens of a position and their log-probabilities.

Keeping 64 of 49,152 costs 256 bytes a position instead of 98,304, so that every position is scored
once and visited many times; the mass outside is one further class (see losses.py).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .model import Llama

GROUP = 64
"""Vocabulary entries a group in the two-stage search of `top_k_log_probs`."""


@dataclass(slots=True)
class Rows:
    """Text of equal length with its labels; `chosen` marks positions that are trained on."""

    tokens: Tensor  # [rows, length], int32
    chosen: Tensor  # [rows, length], bool: train on this position's prediction
    heat: Tensor  # [rows, length], uint8: index into generate.TEMPERATURES of the next token
    ids: Tensor  # [rows, length, k], int16 (offset by 32768) or int32
    log_probs: Tensor  # [rows, length, k], float16

    def __len__(self) -> int:
        return len(self.tokens)


def pack_ids(ids: Tensor, vocab: int) -> Tensor:
    """Two bytes an id where the vocabulary allows it."""
    return (ids - 32768).to(torch.int16) if vocab <= 65536 else ids.to(torch.int32)


def unpack_ids(ids: Tensor) -> Tensor:
    return ids.long() + 32768 if ids.dtype == torch.int16 else ids.long()


def top_k_log_probs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Exact top k of each row: the k best groups by maximum must hold the k best entries."""
    vocab = logits.shape[1]
    log_z = logits.float().logsumexp(-1, keepdim=True)
    if vocab % GROUP or vocab // GROUP <= k:
        values, ids = logits.topk(k, sorted=False)
        return ids, values.float() - log_z
    groups = logits.unflatten(-1, (-1, GROUP))
    best = groups.amax(-1).topk(k, sorted=False).indices
    candidates = groups.gather(1, best[..., None].expand(-1, -1, GROUP)).flatten(1)
    values, place = candidates.topk(k, sorted=False)
    ids = best.gather(1, place // GROUP) * GROUP + place % GROUP
    return ids, values.float() - log_z


@torch.no_grad()
def label(
    teacher: Llama, tokens: Tensor, k: int, rows_a_step: int, chunk: int = 8192
) -> tuple[Tensor, Tensor]:
    """Score finished text in one pass: packed ids and log-probabilities, [rows, length, k]."""
    ids, log_probs = [], []
    for batch in tokens.split(rows_a_step):
        hidden = teacher(batch).flatten(0, 1)
        for part in hidden.split(chunk):
            part_ids, part_probs = top_k_log_probs(part @ teacher.head.T, k)
            ids.append(pack_ids(part_ids, teacher.shape.vocab))
            log_probs.append(part_probs.half())
    size = (*tokens.shape, k)
    return torch.cat(ids).view(size), torch.cat(log_probs).view(size)
