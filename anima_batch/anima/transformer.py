"""The diffusion transformer: its cores run in sessions, everything between them here, on a float32 residual stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from anima_batch.anima import ops
from anima_batch.anima.config import BRANCHES, PATCH, Branch, SubgraphKey
from anima_batch.anima.ops import Array
from anima_batch.backends.base import check_output
from anima_batch.backends.staging import Staging
from anima_batch.errors import ModelSetError
from anima_batch.model_set import TransformerConfig


class HostWeights:
    """The transformer's tensors outside the three cores, read from the file when asked for and not kept."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> Array:
        """One tensor as float32; raises ModelSetError for a file that cannot be read or lacks it."""
        try:
            with safe_open(self._path, framework="numpy") as tensors:
                return np.asarray(tensors.get_tensor(name), np.float32)
        except (OSError, SafetensorError) as error:
            raise ModelSetError(f"{self._path}: {name}: {error}: run `anima-batch models verify`") from error


@dataclass(frozen=True)
class Modulation:
    """All AdaLN vectors of a schedule; they depend on sigma alone and serve both CFG streams of every image with it."""

    branches: Array  # (steps, blocks, 3, 3, D): shift, 1 + scale, gate of each branch
    final: Array  # (steps, 2, D): shift, 1 + scale


def compute_modulation(weights: HostWeights, config: TransformerConfig, sigmas: Array) -> Modulation:
    """The AdaLN vectors for each sigma of a schedule (N,), one product a layer for all of them."""
    steps, hidden = len(sigmas), config.hidden
    sinusoid = ops.embed_timesteps(sigmas, hidden)
    emb = ops.silu(ops.rms_norm(sinusoid, weights.read("t_embedding_norm.weight")))  # (N, D)
    ada = ops.silu(sinusoid @ weights.read("t_embedder.1.linear_1.weight").T)
    ada = ada @ weights.read("t_embedder.1.linear_2.weight").T  # (N, 3D), shared by all blocks

    def vectors(name: str, count: int) -> Array:
        low_rank = emb @ weights.read(f"{name}.1.weight").T
        flat = low_rank @ weights.read(f"{name}.2.weight").T + ada[:, : count * hidden]
        chunks: Array = flat.reshape(steps, count, hidden)  # shift, scale, gate
        chunks[:, 1] += 1
        return chunks

    branches = np.empty((steps, config.blocks, len(BRANCHES), 3, hidden), np.float32)
    for block in range(config.blocks):
        for index, branch in enumerate(BRANCHES):
            branches[:, block, index] = vectors(f"blocks.{block}.adaln_modulation_{branch}", 3)
    return Modulation(branches, vectors("final_layer.adaln_modulation", 2))


@dataclass(frozen=True)
class Transformer:
    """The velocity of one image's latents at the steps of its schedule, for one context a CFG stream.

    `features` ends before the final layer and `velocity` is the rest, since Spectrum may forecast what lies between.
    """

    config: TransformerConfig
    staging: Staging
    modulation: Modulation
    patch_embedding: Array  # (D, 68)
    output_projection: Array  # (64, D)
    rotary: tuple[Array, Array]  # (L, d/2) each
    contexts: Mapping[str, Array]  # stream -> (rows, C)
    grid: tuple[int, int]  # tokens down, tokens across

    def features(self, latents: Array, step: int, streams: Sequence[str]) -> list[Array]:
        """The residual stream after the last block for each CFG stream, (L, D); `step` counts from 0.

        Each subgraph is opened once and serves all streams. Raises BackendError.
        """
        tokens = self.embed(latents)
        residuals = [tokens.copy() for _ in streams]
        for block in range(self.config.blocks):
            self.add_block(block, residuals, step, streams)
        return residuals

    def embed(self, latents: Array) -> Array:
        """The residual stream before the first block, (L, D), of latents (16, h, w)."""
        tokens: Array = ops.patchify(latents) @ self.patch_embedding.T
        return tokens

    def add_block(self, block: int, residuals: Sequence[Array], step: int, streams: Sequence[str]) -> None:
        """Add the block's three branches to the residual stream (L, D) of each CFG stream, in place."""
        for index, branch in enumerate(BRANCHES):
            shift, one_plus_scale, gate = self.modulation.branches[step, block, index]
            role = SubgraphKey("transformer", block, branch).role
            with self.staging.session(role) as session:
                for residual, stream in zip(residuals, streams, strict=True):
                    z = ops.modulate(residual, one_plus_scale, shift)
                    y = check_output(role, session.run(self._feeds(branch, z, stream)), (1, *z.shape))
                    np.add(residual, gate * y[0].astype(np.float32, copy=False), out=residual)

    def velocity(self, features: Array, step: int) -> Array:
        """The final layer: (L, D) -> velocity noise - x0 (16, h, w)."""
        shift, one_plus_scale = self.modulation.final[step]
        tokens = ops.modulate(features, one_plus_scale, shift) @ self.output_projection.T
        return ops.unpatchify(tokens, self.grid[0] * PATCH, self.grid[1] * PATCH)

    def _feeds(self, branch: Branch, z: Array, stream: str) -> dict[str, Array]:
        feeds = {"z": z[None]}
        if branch == "self_attn":
            feeds |= {"cos": self.rotary[0][None], "sin": self.rotary[1][None]}
        elif branch == "cross_attn":
            feeds["context"] = self.contexts[stream][None]
        return feeds


def make_transformer(
    weights: HostWeights,
    config: TransformerConfig,
    staging: Staging,
    modulation: Modulation,
    contexts: Mapping[str, Array],
    grid: tuple[int, int],
) -> Transformer:
    """The transformer for one image: a grid of tokens (down, across) and one context (rows, C) a stream."""
    return Transformer(
        config=config,
        staging=staging,
        modulation=modulation,
        patch_embedding=weights.read("x_embedder.proj.1.weight"),
        output_projection=weights.read("final_layer.linear.weight"),
        rotary=ops.rotary_table(*grid, config.head_dim),
        contexts=contexts,
        grid=grid,
    )
