"""The Qwen3-style text encoder and the text adapter in torch, under the official names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from anima_batch.convert.build import ADAPTER_ROPE_THETA, QWEN_ROPE_THETA
from anima_batch.convert.layouts import AdapterDims, QwenDims
from training.layers import Attention, RmsNorm, line_rotary, linear


class _QwenMlp(nn.Module):
    def __init__(self, dims: QwenDims) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(dims.hidden, dims.mlp), linear(dims.hidden, dims.mlp)
        self.down_proj = linear(dims.mlp, dims.hidden, gain=0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class _QwenLayer(nn.Module):
    def __init__(self, dims: QwenDims) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(dims.hidden), RmsNorm(dims.hidden)
        self.self_attn = Attention(dims.hidden, dims.hidden, dims.heads, dims.kv_heads, dims.head_dim, "o_proj")
        self.mlp = _QwenMlp(dims)


class Qwen(nn.Module):
    """The encoder up to its last hidden states after the final norm; state_dict keys without `model.`."""

    def __init__(self, dims: QwenDims) -> None:
        super().__init__()
        self.head_dim = dims.head_dim
        self.embed_tokens = nn.Embedding(dims.rows, dims.hidden)
        self.layers = nn.ModuleList(_QwenLayer(dims) for _ in range(dims.layers))
        self.norm = RmsNorm(dims.hidden)

    def forward(self, ids: Tensor, known: Tensor) -> Tensor:
        """ids (B, S) padded on the right, known (B, S) bool -> states (B, S, D), zero where there is no token."""
        x = self.embed_tokens(ids)
        tables = (line_rotary(ids.shape[1], self.head_dim, QWEN_ROPE_THETA),) * 2
        # Padding lies on the right and looks back only, so that no token sees it.
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        for layer in self.layers:
            assert isinstance(layer, _QwenLayer)
            z = layer.input_layernorm(x)
            x = x + layer.self_attn(z, z, tables, mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        states: Tensor = self.norm(x) * known[..., None]
        return states


class _AdapterBlock(nn.Module):
    def __init__(self, dims: AdapterDims) -> None:
        super().__init__()
        hidden, heads = dims.hidden, dims.inner // dims.head_dim
        self.norm_self_attn, self.norm_cross_attn, self.norm_mlp = RmsNorm(hidden), RmsNorm(hidden), RmsNorm(hidden)
        self.self_attn = Attention(hidden, hidden, heads, heads, dims.head_dim, "o_proj")
        self.cross_attn = Attention(hidden, dims.states, heads, heads, dims.head_dim, "o_proj")
        first, second = linear(hidden, dims.mlp, bias=True), linear(dims.mlp, hidden, bias=True, gain=0.5)
        self.mlp = nn.Sequential(first, nn.GELU(), second)


class Adapter(nn.Module):
    """The adapter from T5 ids and Qwen's states to the context; state_dict keys without `net.llm_adapter.`."""

    def __init__(self, dims: AdapterDims) -> None:
        super().__init__()
        self.head_dim = dims.head_dim
        self.embed = nn.Embedding(dims.rows, dims.hidden)
        self.blocks = nn.ModuleList(_AdapterBlock(dims) for _ in range(dims.blocks))
        self.out_proj = linear(dims.hidden, dims.hidden, bias=True)
        self.norm = RmsNorm(dims.hidden)

    def forward(self, ids: Tensor, known: Tensor, states: Tensor, states_known: Tensor, rows: int) -> Tensor:
        """ids (B, T) and states (B, S, D), padded on the right -> context (B, rows, C), zero after each text's rows.

        A text without any Qwen token attends to one state of zeros, which adds exactly 0.
        """
        x = self.embed(ids)
        own = line_rotary(ids.shape[1], self.head_dim, ADAPTER_ROPE_THETA)
        others = line_rotary(states.shape[1], self.head_dim, ADAPTER_ROPE_THETA)
        first = torch.arange(states.shape[1]) == 0
        self_mask, cross_mask = known[:, None, None], (states_known | first)[:, None, None]  # (B, 1, 1, L)
        for block in self.blocks:
            assert isinstance(block, _AdapterBlock)
            z = block.norm_self_attn(x)
            x = x + block.self_attn(z, z, (own, own), self_mask)
            x = x + block.cross_attn(block.norm_cross_attn(x), states, (own, others), cross_mask)
            x = x + block.mlp(block.norm_mlp(x))
        context = self.norm(self.out_proj(x)) * known[..., None]
        return functional.pad(context, (0, 0, 0, rows - ids.shape[1]))


def pad_ids(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids of several texts as one (B, longest) tensor, at least one wide, and where they are (bool)."""
    longest = max(1, *(len(ids) for ids in texts))
    padded = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in texts])
    known = torch.tensor([[index < len(ids) for index in range(longest)] for ids in texts])
    return padded, known
