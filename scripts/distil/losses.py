"""The distillation loss over teacher top-k labels, fused with the output head.

Forward KL first (DistillSpec, Zhou et al., arXiv 2310.08461), then mostly total variation, whose
complement sum(min(p, q)) *is* the expected acceptance (Leviathan et al., arXiv 2211.17192; TVD++,
Goel et al., arXiv 2403.00858; LK losses, arXiv 2602.23881).  The tokens outside the teacher's top k
form one class.  The gradient with respect to the logits has a closed form, so that forward and
backward take one pass over the vocabulary each and no logits outlive their chunk.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TINY = 1e-9


@dataclass(slots=True)
class Targets:
    """Labels of n positions; `sharpness` is 1 / temperature of the total-variation term."""

    ids: Tensor  # [n, k], int64
    log_probs: Tensor  # [n, k], float32
    sharpness: Tensor  # [n, 1], float32


def log_normalisers(logits: Tensor, sharpness: Tensor) -> tuple[Tensor, Tensor]:
    """log sum exp of each row, as it is and sharpened, [n, 1] each."""
    wide = logits.float()
    return wide.logsumexp(-1, keepdim=True), (wide * sharpness).logsumexp(-1, keepdim=True)


def dense_gradient(
    logits: Tensor, log_z: Tensor, log_z_sharp: Tensor, sharpness: Tensor, c1: Tensor, c2: Tensor
) -> Tensor:
    """Gradient at tokens outside the top k: c1 * q + c2 * q_sharp."""
    wide = logits.float()
    plain, sharp = (wide - log_z).exp(), (wide * sharpness - log_z_sharp).exp()
    return (c1 * plain + c2 * sharp).to(logits.dtype)


def plain_gradient(logits: Tensor, log_z: Tensor, c1: Tensor) -> Tensor:
    return (c1 * (logits.float() - log_z).exp()).to(logits.dtype)


def plain_normaliser(logits: Tensor) -> Tensor:
    return logits.float().logsumexp(-1, keepdim=True)


class Kernels:
    """The vocabulary-wide passes, compiled where that pays."""

    def __init__(self, compiled: bool) -> None:
        functions = (log_normalisers, dense_gradient, plain_normaliser, plain_gradient)
        if compiled:
            functions = tuple(torch.compile(f, dynamic=False) for f in functions)
        self.log_normalisers, self.dense_gradient, self.plain_normaliser, self.plain_gradient = (
            functions
        )


def sharpened(targets: Targets, rest: Tensor) -> tuple[Tensor, Tensor]:
    """Teacher probabilities and rest mass at the sharpened temperature (rest: an upper bound)."""
    power = (targets.log_probs * targets.sharpness).exp()
    smallest = targets.log_probs.amin(-1, keepdim=True).exp()
    rest_power = rest * smallest.pow(targets.sharpness - 1)
    total = power.sum(-1, keepdim=True) + rest_power
    return power / total, rest_power / total


def logit_gradient(
    logits: Tensor, targets: Targets, tv_share: float, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """Summed (KL, acceptance) and the gradient of (1 - tv_share) KL + tv_share TV by the logits."""
    p = targets.log_probs.exp()
    rest_p = (1 - p.sum(-1, keepdim=True)).clamp_min(0)
    if tv_share:
        log_z, log_z_sharp = kernels.log_normalisers(logits, targets.sharpness)
    else:
        log_z = kernels.plain_normaliser(logits)
    top = logits.gather(-1, targets.ids).float()
    q = (top - log_z).exp()
    rest_q = (1 - q.sum(-1, keepdim=True)).clamp_min(TINY)
    kl = (p * (targets.log_probs - top + log_z)).sum()
    kl = kl + (rest_p * ((rest_p + TINY).log() - rest_q.log())).sum()
    accepted = torch.minimum(p, q).sum() + torch.minimum(rest_p, rest_q).sum()
    c1 = (1 - tv_share) * (1 - rest_p / rest_q)
    at_top = (1 - tv_share) * (q - p)
    if tv_share:
        c2, sharp_top = _variation(targets, rest_p, top, log_z_sharp)
        gradient = kernels.dense_gradient(
            logits, log_z, log_z_sharp, targets.sharpness, c1, tv_share * c2
        )
        at_top = at_top + tv_share * sharp_top
    else:
        gradient = kernels.plain_gradient(logits, log_z, c1)
    gradient.scatter_(-1, targets.ids, at_top.to(gradient.dtype))
    return torch.stack((kl, accepted)), gradient


def _variation(
    targets: Targets, rest_p: Tensor, top: Tensor, log_z_sharp: Tensor
) -> tuple[Tensor, Tensor]:
    """TV's gradient: the factor of q_sharp outside the top k, and the values inside."""
    p, rest = sharpened(targets, rest_p)
    q = (top * targets.sharpness - log_z_sharp).exp()
    rest_q = (1 - q.sum(-1, keepdim=True)).clamp_min(0)
    under, rest_under = (q < p).float(), (rest_q < rest).float()
    mass = (q * under).sum(-1, keepdim=True) + rest_q * rest_under
    return targets.sharpness * (mass - rest_under), targets.sharpness * q * (mass - under)


class HeadLoss(torch.autograd.Function):
    """Mean loss of hidden states against labels, with gradients made chunk by chunk on the way."""

    @staticmethod
    def forward(ctx, hidden, head, targets, tv_share, chunk, kernels):
        weight = head.to(hidden.dtype)
        d_hidden = torch.empty_like(hidden)
        d_head = torch.zeros_like(head, dtype=torch.float32)
        sums = torch.zeros(2, device=hidden.device)
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            labels = Targets(targets.ids[part], targets.log_probs[part], targets.sharpness[part])
            part_sums, grad = logit_gradient(hidden[part] @ weight.T, labels, tv_share, kernels)
            sums += part_sums
            d_hidden[part] = grad @ weight
            d_head += grad.T @ hidden[part]
        ctx.save_for_backward(d_hidden, d_head)
        ctx.scale = 1 / len(hidden)
        means = sums / len(hidden)
        ctx.mark_non_differentiable(means)
        return (1 - tv_share) * means[0] - tv_share * means[1], means

    @staticmethod
    def backward(ctx, upstream, _):
        d_hidden, d_head = ctx.saved_tensors
        scale = upstream * ctx.scale
        return d_hidden * scale, d_head * scale, None, None, None, None
