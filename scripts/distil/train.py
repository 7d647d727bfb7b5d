"""Train the draft on labelled rows until a deadline; every schedule runs on the clock."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from .generate import TEMPERATURES
from .kinds import SUPER_BLOCK
from .labels import Rows, unpack_ids
from .losses import HeadLoss, Kernels, Targets
from .model import Llama
from .muon import Muon
from .parallel import Ranks
from .shape import Shape

SHARPNESS = (2.5, 1.25, 1.0)
"""1 / temperature of the TV term for text written at each of generate.TEMPERATURES: greedy text
is drafted for greedily, text at 0.7 for samplers that cut the tail off."""
BLOCK = 32
LOOK_EVERY = 20
"""Steps between looks at the clock: schedules move, and ranks agree on the time, only then."""
Grid = Callable[[Tensor], tuple[Tensor, Tensor]]
NUMBERS = ("step", "spent", "visits", "seconds")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rates, and the shares of the training time at which things change."""

    body_rate: float = 0.02
    table_rate: float = 4.5e-3
    warmup_steps: int = 100
    decay_from: float = 0.35
    tv_from: float = 0.65
    tv_share: float = 0.8
    quantise_from: float = 0.6
    long_every: int = 16

    def rate(self, step: int, progress: float) -> float:
        """Warm up by steps, hold, then fall linearly to nothing at the deadline."""
        fall = (1 - progress) / (1 - self.decay_from)
        return min(1.0, (step + 1) / self.warmup_steps) * max(0.0, min(1.0, fall))


GOING_ON = Schedule(body_rate=0.01, decay_from=0.15, tv_from=0.45, quantise_from=0.45)
"""For a student that begins as an earlier draft: smaller steps, and the last phases sooner."""
TABLE_STEP = 5.5e-3
"""The table's learning rate by its weights' standard deviation, where it begins nearly right."""


def fake_quantise(weights: Tensor, grid: Grid) -> Tensor:
    """Round weights [32 n] to 16 levels in each block of 32."""
    blocks = weights.view(-1, BLOCK)
    scale, low = grid(blocks)
    rounded = ((blocks - low) / scale.clamp_min(1e-12)).round().clamp(0, 15) * scale + low
    return rounded.view_as(weights)


def q4_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Level distance and lowest level of blocks [8 n, 32]: 6-bit numbers in super-blocks of 256."""
    within = blocks.view(-1, SUPER_BLOCK // BLOCK, BLOCK)
    low = within.amin(-1, keepdim=True).clamp_max(0)
    scale = _six_bits((within.amax(-1, keepdim=True) - low) / 15)
    return scale.view(-1, 1), -_six_bits(-low).view(-1, 1)


def q4_1(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The same for any blocks [n, 32]: from the least weight to the largest."""
    low, high = blocks.aminmax(dim=-1, keepdim=True)
    return (high - low) / 15, low


GRIDS: dict[str, Grid] = {"Q4_K": q4_k, "Q4_1": q4_1}
"""By type of the finished file; 8 bits round so little that nothing is trained for them."""


def _six_bits(values: Tensor) -> Tensor:
    """Whole steps of 1/63 of the largest of a super-block's values [n, 8, 1]."""
    unit = values.amax(-2, keepdim=True) / 63
    return (values / unit.clamp_min(1e-20)).round() * unit


@contextmanager
def rounded(matrices: list[nn.Parameter], grid: Grid) -> Iterator[None]:
    """Within the block the matrices are as the finished file will hold them.

    Gradients are taken there and applied to the exact weights (the straight-through estimator,
    Bengio et al. 2013; quantisation-aware training, Jacob et al. 2018).
    """
    exact = torch.cat([p.detach().flatten() for p in matrices])
    _fill(matrices, fake_quantise(exact, grid))
    yield
    _fill(matrices, exact)


@torch.no_grad()
def _fill(matrices: list[nn.Parameter], values: Tensor) -> None:
    """Copy a flat vector into the matrices, one after another."""
    parts = values.split([p.numel() for p in matrices])
    torch._foreach_copy_(matrices, [v.view_as(p) for v, p in zip(parts, matrices, strict=True)])


@torch.no_grad()
def new_student(teacher: Llama, shape: Shape, length: int, sample: Tensor) -> Llama:
    """Random body, and the best table of its width: a PCA of the teacher's logits.

    With final states h of second moment C, the logits are E h = (E C^1/2)(C^-1/2 h).  The table is
    the projection of the centred E C^1/2 (softmax ignores a common shift) on its leading
    directions, turned at random so that all columns are of one size.
    """
    student = Llama(shape, length)
    for name, p in student.named_parameters():
        if p.ndim == 2:
            zero = "output" in name or "down" in name
            p.copy_(torch.randn_like(p) * (0 if zero else 0.6 / math.sqrt(p.shape[1])))
    hidden = teacher(sample).flatten(0, -2).float()
    values, vectors = torch.linalg.eigh(hidden.T @ hidden / len(hidden))
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    table = teacher.head.float() @ root
    table -= table.mean(0)
    leading = torch.linalg.eigh(table.T @ table)[1][:, -shape.width :]
    turn = torch.linalg.qr(torch.randn(shape.width, shape.width, device=table.device))[0]
    student.to(table.device).token_embd.weight.copy_(table @ leading @ turn)
    return student


@torch.no_grad()
def take_over(student: Llama, draft: Llama) -> None:
    """Begin as an earlier draft, which may have less ffn, and less layers or more.

    What is new in the student adds nothing yet: its outputs (new layers, new columns of
    `ffn_down`) begin at zero. Of more layers, the first, the last and some between are taken.
    """
    taken = layers_taken(draft.shape.layers, student.shape.layers)
    pairs = [(student.token_embd, draft.token_embd), (student.output_norm, draft.output_norm)]
    pairs += [(student.blk[place], draft.blk[old]) for place, old in enumerate(taken)]
    for mine, theirs in pairs:
        for new, known in zip(mine.parameters(), theirs.parameters(), strict=True):
            new[tuple(slice(size) for size in known.shape)] = known.to(new.device)


def layers_taken(have: int, wanted: int) -> list[int]:
    """Which of the layers there are to take for so many: all, or evenly from first to last."""
    if wanted >= have:
        return list(range(have))
    return [round(place * (have - 1) / max(1, wanted - 1)) for place in range(wanted)]


class Batches:
    """Endless random batches of row numbers, each row once an epoch."""

    def __init__(self, rows: Rows, size: int) -> None:
        self.rows, self.size = rows, min(size, len(rows))
        self._chosen = rows.chosen.cpu()
        self._numbers = self._endless()

    def _endless(self) -> Iterator[Tensor]:
        while True:
            order = torch.randperm(len(self.rows))
            yield from order[: len(order) // self.size * self.size].split(self.size)

    def next(self, chunk: int) -> tuple[Tensor, Tensor, Targets]:
        """Tokens, flat places of trained positions (a multiple of chunk) and their labels.

        The places are found on the CPU: a GPU would have to finish its work to tell their count.
        """
        picked = next(self._numbers)
        places = self._chosen[picked].flatten().nonzero()[:, 0]
        if len(places) > chunk:
            places = places[: len(places) // chunk * chunk]
        picked, places = self._sent(picked), self._sent(places)
        return self.rows.tokens[picked].long(), places, targets_at(self.rows, picked, places)

    def _sent(self, numbers: Tensor) -> Tensor:
        """On the rows' device, without waiting for it."""
        device = self.rows.tokens.device
        if device.type == "cuda":
            return numbers.pin_memory().to(device, non_blocking=True)
        return numbers


@cache
def sharpness_on(device: torch.device) -> Tensor:
    return torch.tensor(SHARPNESS, device=device)


def targets_at(rows: Rows, picked: Tensor, places: Tensor) -> Targets:
    """Labels of flat places in the picked rows."""
    length = rows.tokens.shape[1]
    row, column = picked[places // length], places % length
    return Targets(
        unpack_ids(rows.ids[row, column]),
        rows.log_probs[row, column].float(),
        sharpness_on(places.device)[rows.heat[row, column].long()][:, None],
    )


class Trainer:
    """Student, optimisers and clock; `save` and `resume` keep them in one file.

    Args:
        grid: of the finished file, None where it hardly rounds.
    """

    def __init__(
        self,
        student: Llama,
        schedule: Schedule,
        grid: Grid | None,
        seconds: float,
        chunk: int,
        compiled: bool,
        ranks: Ranks,
        log: Callable[[str], None],
    ) -> None:
        self.student, self.schedule, self.seconds, self.log = student, schedule, seconds, log
        self.grid = grid
        self.ranks = ranks
        self.chunk, self.kernels = chunk, Kernels(compiled)
        self.cuda = student.head.is_cuda
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        student.residual = self.dtype
        body = [p for b in student.blk for p in b.parameters() if p.ndim == 2]
        self.matrices = [p for p in student.parameters() if p.ndim == 2]
        inside = {id(p) for p in body}
        rest = [p for p in student.parameters() if id(p) not in inside]
        self.body = Muon(body, lr=schedule.body_rate)
        self.rest = torch.optim.AdamW(
            rest, lr=schedule.table_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=self.cuda
        )
        if compiled:
            for block in student.blk:
                block.compile(dynamic=False)
        self.step, self.spent, self.visits = 0, 0.0, 0

    @property
    def progress(self) -> float:
        return self.spent / self.seconds

    def as_shipped(self) -> AbstractContextManager[None]:
        """The matrices as they will be used: rounded in the last part of the training."""
        if self.grid is None or self.progress < self.schedule.quantise_from:
            return nullcontext()
        return rounded(self.matrices, self.grid)

    def loss(self, tokens: Tensor, places: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """The scheduled loss, and (KL, acceptance) for the log."""
        late = self.progress >= self.schedule.tv_from
        with torch.autocast(tokens.device.type, self.dtype, enabled=self.cuda):
            hidden = self.student(tokens).flatten(0, 1)[places]
        share = self.schedule.tv_share if late else 0.0
        return HeadLoss.apply(hidden, self.student.head, targets, share, self.chunk, self.kernels)

    def update(self, batch: tuple[Tensor, Tensor, Targets]) -> Tensor:
        """One optimiser step."""
        with self.as_shipped():
            loss, means = self.loss(*batch)
            loss.backward()
        self.ranks.average_gradients(self.student.parameters())
        factor = self.schedule.rate(self.step, self.progress)
        rates = (self.schedule.body_rate, self.schedule.table_rate)
        for optimiser, rate in zip((self.body, self.rest), rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.visits += batch[0].numel() * self.ranks.count
        return means

    def run(self, short: Batches, long: Batches, held: Rows, file: Path) -> None:
        """Train until the time is spent, with a checkpoint and a measurement every 45 seconds."""
        started, noted = time.monotonic() - self.spent, self.spent
        while self.spent < self.seconds:
            kind = long if self.step % self.schedule.long_every == 1 else short
            means = self.update(kind.next(self.chunk))
            if self.step % LOOK_EVERY:
                continue
            kl, accepted = means.tolist()
            self.spent = self.ranks.clock(time.monotonic() - started)
            if self.spent - noted > 45 and self.ranks.first:
                noted = self.spent
                self.save(file)
                self.log(
                    f"step {self.step} {self.spent:.0f} s {self.visits / 1e6:.0f}M visits: "
                    f"kl {kl:.3f} accepted {accepted:.3f}; held out {self.measure(held)}"
                )
        if self.ranks.first:
            self.save(file)
            self.log(f"end: {self.visits / 1e6:.0f}M visits; held out {self.measure(held)}")

    @torch.no_grad()
    def measure(self, held: Rows) -> str:
        """Acceptance / argmax agreement on held-out rows, by the temperature of the text."""
        totals = torch.zeros(len(TEMPERATURES), 3, device=held.tokens.device)
        with self.as_shipped():
            for rows in torch.arange(len(held), device=totals.device).split(16):
                totals += self._totals(held, rows)
        means = (totals[:, :2] / totals[:, 2:]).tolist()
        return " ".join(
            f"T={t}: {a:.3f}/{b:.3f}" for t, (a, b) in zip(TEMPERATURES, means, strict=True)
        )

    def _totals(self, held: Rows, rows: Tensor) -> Tensor:
        """Sums of acceptance, agreement and 1 over the positions of some rows, by temperature."""
        places = held.chosen[rows].flatten().nonzero()[:, 0]
        labels = targets_at(held, rows, places)
        with torch.autocast(places.device.type, self.dtype, enabled=self.cuda):
            hidden = self.student(held.tokens[rows].long()).flatten(0, 1)[places]
            logits = (hidden @ self.student.head.T).float()
        p, q = labels.log_probs.exp(), logits.log_softmax(-1).gather(1, labels.ids).exp()
        accepted = torch.minimum(p, q).sum(1) + torch.minimum(1 - p.sum(1), 1 - q.sum(1))
        best = labels.ids.gather(1, p.argmax(1, keepdim=True))[:, 0] == logits.argmax(1)
        heat = held.heat[rows].flatten()[places].long()
        sums = torch.zeros(len(TEMPERATURES), 3, device=heat.device)
        values = torch.stack((accepted, best.float(), torch.ones_like(accepted)), 1)
        return sums.index_add_(0, heat, values)

    def save(self, file: Path) -> None:
        """Write the checkpoint, whole or not at all."""
        part = file.with_suffix(".part")
        state = {name: getattr(self, name).state_dict() for name in ("student", "body", "rest")}
        numbers = {name: getattr(self, name) for name in NUMBERS}
        torch.save({**state, **numbers}, part)
        part.replace(file)

    def resume(self, file: Path) -> None:
        """Go on from a checkpoint, with the time that the interrupted run had planned."""
        state = torch.load(file, map_location=self.student.head.device, weights_only=True)
        for name in ("student", "body", "rest"):
            getattr(self, name).load_state_dict(state[name])
        for name in NUMBERS:
            setattr(self, name, state[name])
