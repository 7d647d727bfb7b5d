"""Muon (Jordan et al. 2024): momentum whose matrix is made nearly orthogonal before each step."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration towards U V^T of each matrix [n, rows, columns]."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """For the matrices of the body only; parameters of one shape are updated together."""

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.02,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes = defaultdict(list)
            for p in group["params"]:
                shapes[p.shape].append(p)
            for shape, params in shapes.items():
                self._update(params, group, max(1.0, shape[0] / shape[1]) ** 0.5)

    def _update(self, params: list[torch.nn.Parameter], group: dict, scale: float) -> None:
        gradients = torch.stack([p.grad for p in params])
        state = self.state[params[0]]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(gradients)
        momentum = state["momentum"]
        momentum.lerp_(gradients, 1 - group["momentum"])
        direction = orthogonalise(gradients.lerp(momentum, group["momentum"]))
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, list(direction.unbind()), alpha=-group["lr"] * scale)
