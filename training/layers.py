"""What the text encoder, the adapter and the transformer share; parameters carry the official names."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from anima_batch.anima.ops import EPS, rotary_table
from anima_batch.anima.text import rotary_1d

Rotary = tuple[Tensor, Tensor]  # cosines and sines, (L, d/2) each


class RmsNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight over the last axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same shape."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight, EPS)


def linear(inputs: int, outputs: int, *, bias: bool = False, gain: float = 1.0) -> nn.Linear:
    """A linear layer that keeps the variance times gain²; the bias begins at 0."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=gain / inputs**0.5)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def grid_rotary(height: int, width: int, head_dim: int) -> Rotary:
    """The transformer's table for a grid of tokens, by the function that runs at inference."""
    cos, sin = rotary_table(height, width, head_dim)
    return torch.from_numpy(cos), torch.from_numpy(sin)


def line_rotary(length: int, head_dim: int, theta: float) -> Rotary:
    """The text models' table for positions 0 ... length - 1."""
    cos, sin = rotary_1d(length, head_dim, theta)
    return torch.from_numpy(np.ascontiguousarray(cos[0])), torch.from_numpy(np.ascontiguousarray(sin[0]))


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Half-split rotation of x (B, H, L, d): pair i is (i, i + d/2)."""
    cos, sin = rotary
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    """Attention with RMS-normed q and k; the output projection goes by `output`, q, k and v by `*_proj`.

    The transformer calls its output projection `output_proj`, the text models theirs `o_proj`.
    """

    def __init__(self, width: int, source: int, heads: int, kv_heads: int, head_dim: int, output: str) -> None:
        super().__init__()
        self.head_dim, self.output = head_dim, output
        self.q_proj = linear(width, heads * head_dim)
        self.k_proj = linear(source, kv_heads * head_dim)
        self.v_proj = linear(source, kv_heads * head_dim)
        self.q_norm, self.k_norm = RmsNorm(head_dim), RmsNorm(head_dim)
        self.add_module(output, linear(heads * head_dim, width, gain=0.5))

    def forward(
        self, x: Tensor, source: Tensor, tables: tuple[Rotary, Rotary] | None, mask: Tensor | None = None
    ) -> Tensor:
        """x (B, Lq, width), source (B, Lk, ...); tables are those of x and of source; mask True where q may look."""
        q, k, v = (
            projection(y).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, H, L, d)
            for projection, y in ((self.q_proj, x), (self.k_proj, source), (self.v_proj, source))
        )
        q, k = self.q_norm(q), self.k_norm(k)
        if tables is not None:
            q, k = rotate(q, tables[0]), rotate(k, tables[1])
        grouped = q.shape[1] != k.shape[1]
        y = functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=grouped)
        result: Tensor = getattr(self, self.output)(y.transpose(1, 2).flatten(2))
        return result
