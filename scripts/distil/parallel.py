"""One process a GPU (torchrun): every rank writes and trains on its own text, gradients are means.

Without torchrun's environment there is one rank and every function here leaves things as they are.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that train one student."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """True on the one rank that logs, saves and exports."""
        return self.rank == 0

    def same_start(self, model: nn.Module) -> None:
        """Give every rank the first rank's parameters."""
        if self.count > 1:
            for p in model.parameters():
                dist.broadcast(p.detach(), 0)

    @torch.no_grad()
    def average_gradients(self, params: Iterable[Tensor]) -> None:
        """Replace each gradient by its mean over the ranks, in one message."""
        if self.count == 1:
            return
        gradients = [p.grad for p in params]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= self.count
        parts = zip(flat.split([g.numel() for g in gradients]), gradients, strict=True)
        torch._foreach_copy_(gradients, [part.view_as(g) for part, g in parts])

    def clock(self, seconds: float) -> float:
        """The first rank's reading, so that every schedule turns at the same step everywhere."""
        if self.count == 1:
            return seconds
        reading = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        dist.broadcast(reading, 0)
        return reading.item()

    def leave(self) -> None:
        """Wait for every rank, then end the group."""
        if self.count > 1:
            self.clock(0.0)
            dist.destroy_process_group()


def join() -> Ranks:
    """Join the group that torchrun describes in the environment, or stand alone."""
    rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if count > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Ranks(rank, count, device)
