"""What a conversion starts from: its options, and the opened files, checked against each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from anima_batch.anima.vae import MIN_TILE
from anima_batch.convert import layouts, sources
from anima_batch.convert.sources import DtypeRule, Source
from anima_batch.convert.tokenizer import read_qwen_tokenizer, read_t5_tokenizer
from anima_batch.errors import UsageError

ADAPTER = "llm_adapter."  # the adapter lies in the transformer's file
SIZE_STEP = 16  # pixels of a token

# Statistics of the latents that the autoencoder was published with (Wan 2.1).
LATENT_MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
LATENT_STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)


@dataclass(frozen=True)
class ConvertOptions:
    """What to convert, and what tensors do not tell; sizes are (width, height) in pixels, the default first."""

    transformer: Path
    text_encoder: Path
    vae: Path
    qwen_tokenizer: Path
    t5_tokenizer: Path
    out: Path
    name: str
    license: str
    sizes: tuple[tuple[int, int], ...]
    context_rows: int = 512
    latent_mean: tuple[float, ...] = LATENT_MEAN
    latent_std: tuple[float, ...] = LATENT_STD
    empty_prompt: Literal["token", "masked"] = "token"
    empty_token_id: int = 151643
    vae_tile: int | None = None
    dtype: DtypeRule = "auto"


@dataclass(frozen=True)
class Inputs:
    """The opened files with their dimensions; no weight is read yet."""

    transformer: Source
    adapter: Source
    qwen: Source
    vae: Source
    transformer_dims: layouts.TransformerDims
    adapter_dims: layouts.AdapterDims
    qwen_dims: layouts.QwenDims
    vae_dims: layouts.VaeDims
    qwen_tokenizer: Tokenizer
    t5_tokenizer: Tokenizer


def open_inputs(options: ConvertOptions) -> Inputs:
    """Everything checked but the weights' values; raises UsageError with one line a fault."""
    whole = sources.open_source(options.transformer, sources.TRANSFORMER)
    transformer, adapter = sources.leave_out(whole, re.escape(ADAPTER)), sources.select(whole, ADAPTER)
    qwen = sources.open_source(options.text_encoder, sources.QWEN)
    vae = sources.open_source(options.vae, sources.VAE)
    inputs = Inputs(
        transformer,
        adapter,
        qwen,
        vae,
        layouts.read_transformer_dims(transformer.shapes),
        layouts.read_adapter_dims(adapter.shapes),
        layouts.read_qwen_dims(qwen.shapes),
        layouts.read_vae_dims(vae.shapes),
        read_qwen_tokenizer(options.qwen_tokenizer),
        read_t5_tokenizer(options.t5_tokenizer),
    )
    faults = [
        *sources.find_faults(transformer, layouts.transformer_shapes(inputs.transformer_dims)),
        *sources.find_faults(adapter, layouts.adapter_shapes(inputs.adapter_dims)),
        *sources.find_faults(qwen, layouts.qwen_shapes(inputs.qwen_dims)),
        *sources.find_faults(vae, layouts.vae_shapes(inputs.vae_dims)),
    ]
    faults = faults or [*_find_mismatches(inputs, options), *_find_wrong_options(inputs, options)]
    if faults:
        raise UsageError(*faults)
    return inputs


def _find_mismatches(inputs: Inputs, options: ConvertOptions) -> list[str]:
    """One line for each dimension that does not fit another."""
    transformer, adapter, qwen, vae = inputs.transformer_dims, inputs.adapter_dims, inputs.qwen_dims, inputs.vae_dims
    file, text, latent = options.transformer, options.text_encoder, transformer.latent_channels
    head_dim = transformer.head_dim
    rules = {
        f"{file}: heads of {head_dim}, which must be even, do not divide the width {transformer.hidden}": (
            transformer.hidden % head_dim == 0 and head_dim % 2 == 0
        ),
        f"{file}: adapter heads of {adapter.head_dim} do not divide {adapter.inner}": adapter.inner % adapter.head_dim
        == 0,
        f"{file}: the adapter gives {adapter.hidden}, but the transformer takes {transformer.context_dim}": (
            adapter.hidden == transformer.context_dim
        ),
        f"{file}: the adapter takes states of {adapter.states}, but {text} gives {qwen.hidden}": (
            adapter.states == qwen.hidden
        ),
        f"{text}: {qwen.heads} heads cannot share {qwen.kv_heads} key-value heads": qwen.heads % qwen.kv_heads == 0,
        f"{options.vae}: takes {vae.latent_channels} latent channels, but {file} gives {latent}": (
            vae.latent_channels == latent
        ),
    }
    return [fault for fault, holds in rules.items() if not holds]


def _find_wrong_options(inputs: Inputs, options: ConvertOptions) -> list[str]:
    """One line for each option, and tokenizer, that does not fit the weights."""
    channels, rows = inputs.transformer_dims.latent_channels, inputs.qwen_dims.rows
    sides = [side for size in options.sizes for side in size]
    rules = {
        f"sizes: must be one or more multiples of {SIZE_STEP} pixels, got {options.sizes}": (
            bool(sides) and all(side > 0 and side % SIZE_STEP == 0 for side in sides)
        ),
        f"context_rows: must be at least 1, got {options.context_rows}": options.context_rows >= 1,
        f"latent_mean and latent_std: must have {channels} values each": (
            len(options.latent_mean) == len(options.latent_std) == channels
        ),
        f"vae_tile: must be at least {MIN_TILE} latent pixels, got {options.vae_tile}": (
            options.vae_tile is None or options.vae_tile >= MIN_TILE
        ),
        f"empty_token_id: must be 0 to {rows - 1}, got {options.empty_token_id}": 0 <= options.empty_token_id < rows,
    }
    tokenizers = (
        (options.qwen_tokenizer, inputs.qwen_tokenizer, rows),
        (options.t5_tokenizer, inputs.t5_tokenizer, inputs.adapter_dims.rows),
    )
    for path, tokenizer, limit in tokenizers:
        largest = max(tokenizer.get_vocab(with_added_tokens=True).values())
        rules[f"{path}: ids must be below {limit}, the embedding's rows, got {largest}: not its tokenizer"] = (
            largest < limit
        )
    return [fault for fault, holds in rules.items() if not holds]
