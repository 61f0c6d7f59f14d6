"""What a rehearsal starts from: random weights as the release names them, tokenizers, and inputs for all sides."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from anima_batch.convert.layouts import AdapterDims, QwenDims, TransformerDims, VaeDims
from anima_batch.convert.random_weights import ModelDims, WeightFiles, write_random_weights
from anima_batch.convert.sources import read_header
from training.small_tokenizers import train_small_tokenizers

# Anima base v1.0 with Qwen3-0.6B and the Qwen-Image autoencoder: 685, 310 and 194 tensors.
OFFICIAL = ModelDims(
    transformer=TransformerDims(blocks=28, hidden=2048, head_dim=128, context_dim=1024, rank=256, mlp=8192),
    adapter=AdapterDims(blocks=6, hidden=1024, head_dim=64, inner=1024, mlp=4096, rows=32128, states=1024),
    qwen=QwenDims(layers=28, hidden=1024, head_dim=128, heads=16, kv_heads=8, mlp=3072, rows=151936),
    vae=VaeDims(base=96),
)
SMALL = ModelDims(
    transformer=TransformerDims(blocks=3, hidden=64, head_dim=16, context_dim=32, rank=16, mlp=256),
    adapter=AdapterDims(blocks=1, hidden=32, head_dim=16, inner=32, mlp=64, rows=384, states=32),
    qwen=QwenDims(layers=1, hidden=32, head_dim=16, heads=4, kv_heads=2, mlp=64, rows=512),
    vae=VaeDims(base=8),
)
PROMPT = "a red house on the left on grass by day, two white owls above it, thin clouds"
NEGATIVE_PROMPT = "blurry, worst quality"
GUIDANCE_SCALE = 4.0
SEED = 20260812
_OFFICIAL_EMPTY_TOKEN_ID = 151643


@dataclass(frozen=True)
class Place:
    """Where the files of a rehearsal lie; the folder is a workspace of anima-batch."""

    folder: Path

    @property
    def weights(self) -> WeightFiles:
        """The official files."""
        return WeightFiles(
            *(self.folder / "weights" / f"{name}.safetensors" for name in ("transformer", "text_encoder", "vae"))
        )

    @property
    def model_set(self) -> Path:
        """What `convert` makes of them."""
        return self.folder / "models/rehearsal"

    @property
    def inputs(self) -> Path:
        """Latents (16, h, w) and the sigma of one step."""
        return self.folder / "inputs.npz"

    def made(self, name: str) -> Path:
        """What a stage of one side leaves for a comparison."""
        return self.folder / f"{name}.npz"


@dataclass(frozen=True)
class Tokenizers:
    """Both tokenizers and Qwen's id for an empty prompt."""

    qwen: Path
    t5: Path
    empty_token_id: int
    real: bool


def choose_dims(blocks: int | None, *, small: bool) -> ModelDims:
    """The official dimensions or small ones, with another number of transformer blocks if one is given."""
    dims = SMALL if small else OFFICIAL
    return dims if blocks is None else replace(dims, transformer=replace(dims.transformer, blocks=blocks))


def write_weights(place: Place, dims: ModelDims) -> list[int]:
    """Writes the three files in bfloat16, whole or not at all; returns how many tensors each has."""
    partial = place.folder / "weights.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(place.folder / "weights", ignore_errors=True)
    write_random_weights(partial, dims, SEED, with_encoder=True)
    partial.rename(place.folder / "weights")
    files = place.weights
    return [len(read_header(path)) for path in (files.transformer, files.text_encoder, files.vae)]


def find_tokenizers(place: Place, real: Path | None) -> Tokenizers:
    """The published tokenizers where the folder has them, else small ones: the embedding tables stay as large."""
    if real is not None and (real / "qwen").is_dir():
        real = real.resolve()
        return Tokenizers(real / "qwen", real / "t5", _OFFICIAL_EMPTY_TOKEN_ID, real=True)
    folder = place.folder / "tokenizers"
    empty_token_id = train_small_tokenizers(folder, [PROMPT, NEGATIVE_PROMPT])
    return Tokenizers(folder / "qwen", folder / "t5", empty_token_id, real=False)


def write_inputs(place: Place, channels: int, side: int) -> None:
    """What every side computes with: normal latents of a square picture and a sigma that float32 holds exactly."""
    latents = np.random.default_rng(SEED).standard_normal((channels, side // 8, side // 8), np.float32)
    np.savez(place.inputs, latents=latents, sigma=np.float32(0.75))
