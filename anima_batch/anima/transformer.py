"""The diffusion transformer: its cores run in sessions, everything between them here, on a float32 residual stream."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from anima_batch.anima import ops
from anima_batch.anima.config import BRANCHES, PATCH, SubgraphKey
from anima_batch.anima.engine import Engine, FixedInputs, choose_core
from anima_batch.anima.ops import Array
from anima_batch.backends.accelerator import CoreQueues
from anima_batch.backends.base import check_output
from anima_batch.backends.staging import Walk
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
    engine: Engine
    modulation: Modulation
    patch_embedding: Array  # (D, 68)
    output_projection: Array  # (64, D)
    fixed: FixedInputs
    grid: tuple[int, int]  # tokens down, tokens across

    def features(self, latents: Array, step: int, streams: Sequence[str]) -> list[Array]:
        """The residual stream after the last block for each CFG stream, (L, D); `step` counts from 0.

        Each subgraph is opened once and serves all streams. Raises BackendError.
        """
        tokens = self.embed(latents)
        residuals = [tokens.copy() for _ in streams]
        self.add_blocks(range(self.config.blocks), residuals, step, streams)
        return residuals

    def embed(self, latents: Array) -> Array:
        """The residual stream before the first block, (L, D), of latents (16, h, w)."""
        started = time.perf_counter()
        tokens: Array = ops.patchify(latents) @ self.patch_embedding.T
        self.engine.watch.add("host", "begin", started)
        return tokens

    def add_blocks(self, blocks: Sequence[int], residuals: Sequence[Array], step: int, streams: Sequence[str]) -> None:
        """Add the blocks' branches to the residual stream (L, D) of each CFG stream, in place.

        Each stream goes its own way through the subgraphs: how the accelerator takes turns is no matter to the bits.
        """
        engine = self.engine
        keys = [SubgraphKey("transformer", block, branch) for block in blocks for branch in BRANCHES]
        paths = [
            StreamPath(self, keys, residual, step, stream) for residual, stream in zip(residuals, streams, strict=True)
        ]
        queues: CoreQueues[StreamPath] = CoreQueues(engine.cores, beside=engine.interleave and len(paths) > 1)
        with engine.staging.walk([key.role for key in keys], len(paths)) as walk, queues:
            for path in paths:
                path.submit(queues, walk)
            for _ in range(len(keys) * len(paths)):
                path, output = queues.take()
                path.advance(output)
                path.submit(queues, walk)

    def velocity(self, features: Array, step: int) -> Array:
        """The final layer: (L, D) -> velocity noise - x0 (16, h, w)."""
        started = time.perf_counter()
        shift, one_plus_scale = self.modulation.final[step]
        tokens = ops.modulate(features, one_plus_scale, shift) @ self.output_projection.T
        velocity = ops.unpatchify(tokens, self.grid[0] * PATCH, self.grid[1] * PATCH)
        self.engine.watch.add("host", "end", started)
        return velocity


class StreamPath:
    """One CFG stream's way through the subgraphs of a pass: what each gave is added, what the next takes made."""

    def __init__(
        self, transformer: Transformer, keys: Sequence[SubgraphKey], residual: Array, step: int, stream: str
    ) -> None:
        self._transformer = transformer
        self._keys = keys
        self._residual = residual
        self._step = step
        self._stream = stream
        self._index = 0
        self._buffers: dict[np.dtype[Any], npt.NDArray[Any]] = {}  # of z, used again for each subgraph
        self._advance(None)

    def submit(self, queues: CoreQueues[StreamPath], walk: Walk) -> None:
        """Hand the next subgraph's inputs to the accelerator, unless that was the last."""
        if self._index == len(self._keys):
            return
        key, engine = self._keys[self._index], self._transformer.engine
        feeds = {"z": self._z(key.role)[None], **self._transformer.fixed.of(key, self._stream)}
        queues.submit(choose_core(key.branch, engine.cores), self, lambda: walk.run(key.role, feeds))

    def advance(self, output: npt.NDArray[Any]) -> None:
        """Add the subgraph's output (1, L, D), and prepare the inputs of the one after it; raises BackendError."""
        self._index += 1
        self._advance(check_output(self._keys[self._index - 1].role, output, (1, *self._residual.shape))[0])

    def _advance(self, output: npt.NDArray[Any] | None) -> None:
        started = time.perf_counter()
        added = None if output is None else ops.Gated(self._modulation(self._index - 1)[2], output)
        norm, name = None, "last"
        if self._index < len(self._keys):
            name = self._keys[self._index].role
            shift, one_plus_scale, _ = self._modulation(self._index)
            norm = ops.Norm(one_plus_scale, shift, self._z(name))
        ops.advance(self._residual, added, norm)
        self._transformer.engine.watch.add("host", name, started)

    def _modulation(self, index: int) -> Array:
        key = self._keys[index]
        vectors: Array = self._transformer.modulation.branches[self._step, key.block, BRANCHES.index(key.branch)]
        return vectors

    def _z(self, role: str) -> npt.NDArray[Any]:
        dtype = self._transformer.engine.dtype(role, "z")
        if dtype not in self._buffers:
            self._buffers[dtype] = np.empty(self._residual.shape, dtype)
        return self._buffers[dtype]


def make_transformer(
    weights: HostWeights,
    config: TransformerConfig,
    engine: Engine,
    modulation: Modulation,
    contexts: Mapping[str, Array],
    grid: tuple[int, int],
) -> Transformer:
    """The transformer for one image: a grid of tokens (down, across) and one context (rows, C) a stream."""
    return Transformer(
        config=config,
        engine=engine,
        modulation=modulation,
        patch_embedding=weights.read("x_embedder.proj.1.weight"),
        output_projection=weights.read("final_layer.linear.weight"),
        fixed=FixedInputs(engine, config.blocks, contexts, ops.rotary_table(*grid, config.head_dim)),
        grid=grid,
    )
