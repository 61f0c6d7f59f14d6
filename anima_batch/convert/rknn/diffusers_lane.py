"""The transformer's blocks in torch, by Diffusers, from the official weights; needs the extra `train`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from anima_batch.anima.config import PATCH
from anima_batch.anima.ops import Array
from anima_batch.convert import layouts, sources
from anima_batch.convert.inputs import ADAPTER
from anima_batch.convert.sources import Tensors
from anima_batch.errors import UsageError
from anima_batch.model_set import TransformerConfig

Rules = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]  # pattern and replacement, applied in this order

ROPE_SCALE = (1.0, 4.0, 4.0)  # of the axes time, height and width: Anima's, for which Diffusers has no default

TRANSFORMER_RULES: Rules = (
    (r"^x_embedder\.proj\.1", "patch_embed.proj"),
    (r"^t_embedder\.1", "time_embed.t_embedder"),
    (r"^t_embedding_norm", "time_embed.norm"),
    (r"^final_layer\.adaln_modulation\.", "norm_out.linear_"),
    (r"^final_layer\.linear", "proj_out"),
    (r"^blocks", "transformer_blocks"),
    (r"adaln_modulation_self_attn\.", "norm1.linear_"),
    (r"adaln_modulation_cross_attn\.", "norm2.linear_"),
    (r"adaln_modulation_mlp\.", "norm3.linear_"),
    (r"self_attn", "attn1"),
    (r"cross_attn", "attn2"),
    (r"mlp\.layer1", "ff.net.0.proj"),
    (r"mlp\.layer2", "ff.net.2"),
    (r"([qkv])_proj", r"to_\1"),
    (r"output_proj", "to_out.0"),
    (r"([qk])_norm", r"norm_\1"),
)


class DiffusersLane:
    """Blocks of Diffusers' Cosmos transformer in float32, each with its own AdaLN, read one at a time."""

    name = "torch"

    def __init__(
        self,
        path: Path,
        config: TransformerConfig,
        contexts: Mapping[str, Array],
        sigmas: Array,
        grid: tuple[int, int],
    ) -> None:
        """A context (rows, C) a stream, a grid of tokens (down, across); raises UsageError for other weights."""
        self._torch, self._cosmos = import_diffusers()
        self._source = sources.leave_out(sources.open_source(path, sources.TRANSFORMER), re.escape(ADAPTER))
        self._dims = layouts.read_transformer_dims(self._source.shapes)
        if faults := sources.find_faults(self._source, layouts.transformer_shapes(self._dims)):
            raise UsageError(*faults)
        if (self._dims.blocks, self._dims.hidden) != (config.blocks, config.hidden):
            raise UsageError(
                f"{path}: must have {config.blocks} blocks of width {config.hidden} as the model set, "
                f"got {self._dims.blocks} of {self._dims.hidden}"
            )
        self._contexts = contexts
        with self._torch.no_grad():
            self._timesteps = self._embed_timesteps(sigmas)
            self._rotary = self._make_rotary(grid)
        self._block: tuple[int, Any] | None = None

    def add_block(self, block: int, residuals: Sequence[Array], step: int, streams: Sequence[str]) -> None:
        """Put the block's output, which has its input in it, in place of each residual stream (L, D)."""
        module = self._open_block(block)
        temb, embedded = (part[step : step + 1] for part in self._timesteps)
        for residual, stream in zip(residuals, streams, strict=True):
            x, context = (self._torch.from_numpy(array.copy())[None] for array in (residual, self._contexts[stream]))
            with self._torch.no_grad():
                np.copyto(residual, module(x, context, embedded, temb, self._rotary)[0].numpy())

    def release(self) -> None:
        """Drop the block that is in memory."""
        self._block = None

    def _open_block(self, block: int) -> Any:  # noqa: ANN401 - torch is not there where types are checked
        if self._block is None or self._block[0] != block:
            heads, dims = self._dims.hidden // self._dims.head_dim, self._dims
            with self._torch.device("meta"):
                module = self._cosmos.CosmosTransformerBlock(
                    num_attention_heads=heads,
                    attention_head_dim=dims.head_dim,
                    cross_attention_dim=dims.context_dim,
                    mlp_ratio=dims.mlp / dims.hidden,
                    adaln_lora_dim=dims.rank,
                )
            self._block = (block, self._fill(module, f"blocks.{block}.", f"transformer_blocks.{block}."))
        return self._block[1]

    def _embed_timesteps(self, sigmas: Array) -> Any:  # noqa: ANN401 - as above
        """What AdaLN is told of each sigma, as (shared, normed), each (steps, ...)."""
        with self._torch.device("meta"):
            module = self._cosmos.CosmosEmbedding(self._dims.hidden, self._dims.hidden)
        module = self._fill(module, "t_embed", "time_embed.")
        return module(self._torch.zeros(1), self._torch.from_numpy(sigmas.copy()))

    def _make_rotary(self, grid: tuple[int, int]) -> Any:  # noqa: ANN401 - as above
        height, width = (PATCH * side for side in grid)
        size = (1, height, width)
        rope = self._cosmos.CosmosRotaryPosEmbed(hidden_size=self._dims.head_dim, max_size=size, rope_scale=ROPE_SCALE)
        return rope(self._torch.zeros(1, 1, *size))

    def _fill(self, module: Any, part: str, prefix: str) -> Any:  # noqa: ANN401 - as above
        """The module with the file's tensors that begin with `part`, which Diffusers has after `prefix`."""
        tensors = Tensors(sources.leave_out(self._source, rf"(?!{re.escape(part)})"), "fp32")
        named = {rename(name, TRANSFORMER_RULES)[len(prefix) :]: tensors[name] for name in tensors}
        state = {name: self._torch.from_numpy(array) for name, array in named.items()}
        module.load_state_dict(state, strict=True, assign=True)
        return module.eval().requires_grad_(requires_grad=False)


def rename(name: str, rules: Rules) -> str:
    """The name after all rules."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def import_diffusers() -> tuple[Any, Any]:
    """Torch, and the module of Diffusers with its parts; raises UsageError where they are missing."""
    try:
        return import_module("torch"), import_module("diffusers.models.transformers.transformer_cosmos")
    except ImportError as error:
        raise UsageError(f"--diffusers: {error.name} is missing: pip install 'anima-batch[train]'") from error
