"""The diffusion transformer in torch, under the official names."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from anima_batch.anima.config import BRANCHES, PATCH
from anima_batch.anima.ops import EPS
from anima_batch.convert.layouts import AdapterDims, TransformerDims
from training.layers import Attention, RmsNorm, Rotary, grid_rotary, linear
from training.text_models import Adapter


def _modulation(dims: TransformerDims, parts: int) -> nn.Sequential:
    """SiLU and two factors; the second begins small, so that a block begins nearly as the shared vectors tell."""
    first, second = linear(dims.hidden, dims.rank), linear(dims.rank, parts * dims.hidden, gain=0.1)
    return nn.Sequential(nn.SiLU(), first, second)


class _Mlp(nn.Module):
    def __init__(self, dims: TransformerDims) -> None:
        super().__init__()
        self.layer1, self.layer2 = linear(dims.hidden, dims.mlp), linear(dims.mlp, dims.hidden, gain=0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer2(functional.gelu(self.layer1(x)))
        return y


class _Block(nn.Module):
    def __init__(self, dims: TransformerDims) -> None:
        super().__init__()
        heads = dims.hidden // dims.head_dim
        for branch in BRANCHES:
            self.add_module(f"adaln_modulation_{branch}", _modulation(dims, 3))
        self.self_attn = Attention(dims.hidden, dims.hidden, heads, heads, dims.head_dim, "output_proj")
        self.cross_attn = Attention(dims.hidden, dims.context_dim, heads, heads, dims.head_dim, "output_proj")
        self.mlp = _Mlp(dims)

    def forward(self, x: Tensor, emb: Tensor, ada: Tensor, context: Tensor, rotary: Rotary) -> Tensor:
        for branch in BRANCHES:
            shift, scale, gate = (getattr(self, f"adaln_modulation_{branch}")(emb) + ada)[:, None].chunk(3, dim=-1)
            z = _modulate(x, scale, shift)
            if branch == "self_attn":
                y = self.self_attn(z, z, (rotary, rotary))
            elif branch == "cross_attn":
                y = self.cross_attn(z, context, None)
            else:
                y = self.mlp(z)
            x = torch.addcmul(x, gate, y)
        return x


def _modulate(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(shift, functional.layer_norm(x, (x.shape[-1],), eps=EPS), 1 + scale)


class _Timestep(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = linear(hidden, hidden), linear(hidden, 3 * hidden, gain=0.5)

    def forward(self, sinusoid: Tensor) -> Tensor:
        y: Tensor = self.linear_2(functional.silu(self.linear_1(sinusoid)))
        return y


class Transformer(nn.Module):
    """Velocity noise - x0 of latents; state_dict keys without `net.`, the adapter's among them."""

    def __init__(self, dims: TransformerDims, adapter: AdapterDims) -> None:
        super().__init__()
        self.dims = dims
        features = dims.latent_channels * PATCH**2
        self.x_embedder = nn.ModuleDict(
            {"proj": nn.Sequential(nn.Identity(), linear(features + PATCH**2, dims.hidden))}
        )
        self.t_embedder = nn.Sequential(nn.Identity(), _Timestep(dims.hidden))
        self.t_embedding_norm = RmsNorm(dims.hidden)
        self.blocks = nn.ModuleList(_Block(dims) for _ in range(dims.blocks))
        self.final_layer = nn.ModuleDict(
            {"adaln_modulation": _modulation(dims, 2), "linear": linear(dims.hidden, features, gain=0.1)}
        )
        self.llm_adapter = Adapter(adapter)

    def forward(self, latents: Tensor, sigmas: Tensor, context: Tensor) -> Tensor:
        """latents (B, C, h, w), sigmas (B,), context (B, rows, C) -> (B, C, h, w)."""
        _, channels, height, width = latents.shape
        grid = (height // PATCH, width // PATCH)
        sinusoid = _embed_sigmas(sigmas, self.dims.hidden)
        emb, ada = self.t_embedding_norm(sinusoid), self.t_embedder(sinusoid)
        # The padding mask is zero everywhere, and with it the columns that read it.
        weight = self.get_parameter("x_embedder.proj.1.weight")[:, : channels * PATCH**2]
        x = functional.linear(functional.pixel_unshuffle(latents, PATCH).flatten(2).transpose(1, 2), weight)
        rotary = grid_rotary(*grid, self.dims.head_dim)
        for block in self.blocks:
            x = block(x, emb, ada, context, rotary)
        shift, scale = (self.final_layer["adaln_modulation"](emb) + ada[:, : 2 * self.dims.hidden])[:, None].chunk(
            2, -1
        )
        y = self.final_layer["linear"](_modulate(x, scale, shift))
        y = y.unflatten(1, grid).unflatten(-1, (PATCH, PATCH, channels))  # (B, gh, gw, p, q, C)
        velocity: Tensor = y.permute(0, 5, 1, 3, 2, 4).reshape(latents.shape)
        return velocity


def _embed_sigmas(sigmas: Tensor, dim: int) -> Tensor:
    """(B,) -> (B, dim): cosines, then sines, of sigma at 10000^(-i/(dim/2))."""
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(dim // 2) / (dim // 2))
    angles = sigmas[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)
