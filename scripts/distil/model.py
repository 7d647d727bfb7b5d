"""The llama architecture in PyTorch, with parameters named and laid out as in a GGUF file.

llama.cpp rotates neighbouring pairs (2i, 2i+1) and its converter permutes the q and k rows of a
Hugging Face checkpoint to fit.  This module rotates the same pairs, so that GGUF tensors load and
save as they are, with no permutation anywhere.
"""

from pathlib import Path

import torch
from gguf.quants import dequantize
from torch import Tensor, nn
from torch.nn import functional as F

from .shape import Shape, open_gguf, read_shape


def rope_tables(shape: Shape, length: int, factors: Tensor | None = None) -> Tensor:
    """Cosines and sines, [2, length, head_dim / 2] (factors: llama 3's frequency divisors)."""
    power = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
    frequency = shape.rope_base**-power
    if factors is not None:
        frequency = frequency / factors.double().cpu()
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    return torch.stack((angle.cos(), angle.sin())).float()


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate neighbouring pairs of x [batch, length, heads, head_dim] by rope [2, length, half]."""
    cos, sin = rope[0][:, None, :], rope[1][:, None, :]
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return turned.flatten(-2).to(x.dtype)


class Norm(nn.Module):
    """RMS norm, computed in float32 (Zhang & Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight.float()).to(x.dtype)


class Block(nn.Module):
    """One transformer layer; attribute names are GGUF's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.kv_heads * shape.head_dim
        q_width = shape.heads * shape.head_dim
        self.attn_norm = Norm(shape.width, shape.eps)
        self.attn_q = nn.Linear(shape.width, q_width, bias=False)
        self.attn_k = nn.Linear(shape.width, kv_width, bias=False)
        self.attn_v = nn.Linear(shape.width, kv_width, bias=False)
        self.attn_output = nn.Linear(q_width, shape.width, bias=False)
        self.ffn_norm = Norm(shape.width, shape.eps)
        self.ffn_gate = nn.Linear(shape.width, shape.ffn, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.ffn, bias=False)
        self.ffn_down = nn.Linear(shape.ffn, shape.width, bias=False)

    def project(self, x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries, rotated keys and values, each [batch, heads, length, head_dim]."""
        h = self.attn_norm(x)
        split = (-1, self.shape.head_dim)
        q = rotate(self.attn_q(h).unflatten(-1, split), rope)
        k = rotate(self.attn_k(h).unflatten(-1, split), rope)
        v = self.attn_v(h).unflatten(-1, split)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the attention's output and the feed-forward part to the residual stream."""
        x = x + self.attn_output(attended)
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        q, k, v = self.project(x, rope)
        grouped = self.shape.heads != self.shape.kv_heads
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.finish(x, out.transpose(1, 2).flatten(-2))


class Llama(nn.Module):
    """Token ids to final hidden states; `head` is the embedding itself when the model ties them."""

    rope: Tensor

    def __init__(self, shape: Shape, length: int, tied: bool = True) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, shape.eps)
        self.output = None if tied else nn.Linear(shape.width, shape.vocab, bias=False)
        self.residual = torch.float32
        self.register_buffer("rope", rope_tables(shape, length), persistent=False)

    @property
    def head(self) -> Tensor:
        return self.token_embd.weight if self.output is None else self.output.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states after the last norm."""
        x = self.token_embd(tokens).to(self.residual)
        for block in self.blk:
            x = block(x, self.rope[:, : tokens.shape[1]])
        return self.output_norm(x)


def load_teacher(path: Path, length: int, device: torch.device, dtype: torch.dtype) -> Llama:
    """The dequantised target: the draft has to match the file that is deployed, errors and all."""
    reader = open_gguf(path)
    shape = read_shape(path, reader)
    tensors = {t.name: torch.tensor(dequantize(t.data, t.tensor_type)) for t in reader.tensors}
    factors = tensors.pop("rope_freqs.weight", None)
    with torch.device("meta"):
        model = Llama(shape, 1, tied="output.weight" not in tensors)
    model.load_state_dict({name: t.to(device, dtype) for name, t in tensors.items()}, assign=True)
    model.rope = rope_tables(shape, length, factors).to(device)
    model.residual = dtype
    return model.requires_grad_(False).eval()
