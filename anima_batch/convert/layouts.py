"""Which tensors the official files hold, with the shapes that follow from a few dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]
Shapes = dict[str, Shape]

PATCH_AREA = 4  # latent pixels of a token
CONV_LEVELS = (4, 4, 4, 2, 1)  # the decoder's width in units of its base: middle, then its four levels
RESIDUALS = 3  # residual blocks of a level in the decoder; one fewer in the encoder


@dataclass(frozen=True)
class TransformerDims:
    """Diffusion transformer; `rank` is that of the two factors of every modulation matrix."""

    blocks: int
    hidden: int
    head_dim: int
    context_dim: int
    rank: int
    mlp: int
    latent_channels: int = 16


@dataclass(frozen=True)
class AdapterDims:
    """Text adapter; `states` is the width of Qwen's states, `rows` the vocabulary, `inner` heads times head_dim."""

    blocks: int
    hidden: int
    head_dim: int
    inner: int
    mlp: int
    rows: int
    states: int


@dataclass(frozen=True)
class QwenDims:
    """Qwen3 without its output head; `rows` is the size of the vocabulary."""

    layers: int
    hidden: int
    head_dim: int
    heads: int
    kv_heads: int
    mlp: int
    rows: int


@dataclass(frozen=True)
class VaeDims:
    """Video autoencoder, of which only the decoder is described; `base` is its width at full size."""

    base: int
    latent_channels: int = 16


def transformer_shapes(dims: TransformerDims) -> Shapes:
    """The transformer's tensors without the file's prefix."""
    hidden = dims.hidden
    shapes: Shapes = {}
    shapes["x_embedder.proj.1.weight"] = (hidden, (dims.latent_channels + 1) * PATCH_AREA)  # and the padding mask
    shapes["t_embedder.1.linear_1.weight"] = (hidden, hidden)
    shapes["t_embedder.1.linear_2.weight"] = (3 * hidden, hidden)
    shapes["t_embedding_norm.weight"] = (hidden,)
    for block in range(dims.blocks):
        name = f"blocks.{block}"
        for branch, source in (("self_attn", hidden), ("cross_attn", dims.context_dim)):
            shapes[f"{name}.{branch}.q_proj.weight"] = (hidden, hidden)
            shapes[f"{name}.{branch}.k_proj.weight"] = (hidden, source)
            shapes[f"{name}.{branch}.v_proj.weight"] = (hidden, source)
            shapes[f"{name}.{branch}.output_proj.weight"] = (hidden, hidden)
            shapes |= {f"{name}.{branch}.{part}_norm.weight": (dims.head_dim,) for part in "qk"}
        shapes[f"{name}.mlp.layer1.weight"] = (dims.mlp, hidden)
        shapes[f"{name}.mlp.layer2.weight"] = (hidden, dims.mlp)
        for branch in ("self_attn", "cross_attn", "mlp"):
            shapes |= _modulation(f"{name}.adaln_modulation_{branch}", dims, 3)
    shapes |= _modulation("final_layer.adaln_modulation", dims, 2)
    shapes["final_layer.linear.weight"] = (dims.latent_channels * PATCH_AREA, hidden)
    return shapes


def _modulation(name: str, dims: TransformerDims, parts: int) -> Shapes:
    return {f"{name}.1.weight": (dims.rank, dims.hidden), f"{name}.2.weight": (parts * dims.hidden, dims.rank)}


def adapter_shapes(dims: AdapterDims) -> Shapes:
    """The adapter's tensors without `llm_adapter.`."""
    hidden = dims.hidden
    shapes: Shapes = {"embed.weight": (dims.rows, hidden), "norm.weight": (hidden,)}
    shapes |= {"out_proj.weight": (hidden, hidden), "out_proj.bias": (hidden,)}
    for block in range(dims.blocks):
        name = f"blocks.{block}"
        shapes |= {f"{name}.norm_{branch}.weight": (hidden,) for branch in ("self_attn", "cross_attn", "mlp")}
        for branch, source in (("self_attn", hidden), ("cross_attn", dims.states)):
            shapes[f"{name}.{branch}.q_proj.weight"] = (dims.inner, hidden)
            shapes[f"{name}.{branch}.k_proj.weight"] = (dims.inner, source)
            shapes[f"{name}.{branch}.v_proj.weight"] = (dims.inner, source)
            shapes[f"{name}.{branch}.o_proj.weight"] = (hidden, dims.inner)
            shapes |= {f"{name}.{branch}.{part}_norm.weight": (dims.head_dim,) for part in "qk"}
        shapes |= {f"{name}.mlp.0.weight": (dims.mlp, hidden), f"{name}.mlp.0.bias": (dims.mlp,)}
        shapes |= {f"{name}.mlp.2.weight": (hidden, dims.mlp), f"{name}.mlp.2.bias": (hidden,)}
    return shapes


def qwen_shapes(dims: QwenDims) -> Shapes:
    """Qwen's tensors without `model.`."""
    hidden, queries, keys = dims.hidden, dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    shapes: Shapes = {"embed_tokens.weight": (dims.rows, hidden), "norm.weight": (hidden,)}
    for layer in range(dims.layers):
        name = f"layers.{layer}"
        shapes |= {f"{name}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes[f"{name}.self_attn.q_proj.weight"] = (queries, hidden)
        shapes[f"{name}.self_attn.k_proj.weight"] = (keys, hidden)
        shapes[f"{name}.self_attn.v_proj.weight"] = (keys, hidden)
        shapes[f"{name}.self_attn.o_proj.weight"] = (hidden, queries)
        shapes |= {f"{name}.self_attn.{part}_norm.weight": (dims.head_dim,) for part in "qk"}
        shapes |= {f"{name}.mlp.{part}_proj.weight": (dims.mlp, hidden) for part in ("gate", "up")}
        shapes[f"{name}.mlp.down_proj.weight"] = (hidden, dims.mlp)
    return shapes


def vae_shapes(dims: VaeDims) -> Shapes:
    """The decoder's tensors, `time_conv` too, which only further frames of a video need."""
    base, latent = dims.base, dims.latent_channels
    widths = [base * units for units in CONV_LEVELS]
    shapes = _conv("conv2", latent, latent, (1, 1, 1)) | _conv("decoder.conv1", widths[0], latent, (3, 3, 3))
    shapes |= _middle("decoder.middle", widths[0])
    index, channels = 0, widths[0]
    for level, width in enumerate(widths[1:]):
        for _ in range(RESIDUALS):
            shapes |= _residual(f"decoder.upsamples.{index}", width, channels)
            index, channels = index + 1, width
        if level < 3:
            shapes |= _conv(f"decoder.upsamples.{index}.resample.1", width // 2, width, (3, 3))
            if level < 2:
                shapes |= _conv(f"decoder.upsamples.{index}.time_conv", 2 * width, width, (3, 1, 1))
            index, channels = index + 1, width // 2
    shapes["decoder.head.0.gamma"] = (base, 1, 1, 1)
    return shapes | _conv("decoder.head.2", 3, base, (3, 3, 3))


def vae_encoder_shapes(dims: VaeDims) -> Shapes:
    """The tensors of the autoencoder's file that the decoder does not need: the encoder's."""
    base, latent = dims.base, 2 * dims.latent_channels  # mean and log variance
    widths = [base * units for units in reversed(CONV_LEVELS[1:])]
    shapes = _conv("conv1", latent, latent, (1, 1, 1)) | _conv("encoder.conv1", base, 3, (3, 3, 3))
    index, channels = 0, base
    for level, width in enumerate(widths):
        for _ in range(RESIDUALS - 1):
            shapes |= _residual(f"encoder.downsamples.{index}", width, channels)
            index, channels = index + 1, width
        if level < len(widths) - 1:
            shapes |= _conv(f"encoder.downsamples.{index}.resample.1", width, width, (3, 3))
            if level > 0:
                shapes |= _conv(f"encoder.downsamples.{index}.time_conv", width, width, (3, 1, 1))
            index += 1
    shapes |= _middle("encoder.middle", channels)
    shapes["encoder.head.0.gamma"] = (channels, 1, 1, 1)
    return shapes | _conv("encoder.head.2", latent, channels, (3, 3, 3))


def _middle(name: str, channels: int) -> Shapes:
    shapes = _residual(f"{name}.0", channels, channels) | _residual(f"{name}.2", channels, channels)
    shapes[f"{name}.1.norm.gamma"] = (channels, 1, 1)
    shapes |= _conv(f"{name}.1.to_qkv", 3 * channels, channels, (1, 1))
    return shapes | _conv(f"{name}.1.proj", channels, channels, (1, 1))


def _residual(name: str, out: int, channels: int) -> Shapes:
    shapes: Shapes = {f"{name}.residual.0.gamma": (channels, 1, 1, 1), f"{name}.residual.3.gamma": (out, 1, 1, 1)}
    shapes |= _conv(f"{name}.residual.2", out, channels, (3, 3, 3)) | _conv(f"{name}.residual.6", out, out, (3, 3, 3))
    return shapes if out == channels else shapes | _conv(f"{name}.shortcut", out, channels, (1, 1, 1))


def _conv(name: str, out: int, channels: int, kernel: Shape) -> Shapes:
    return {f"{name}.weight": (out, channels, *kernel), f"{name}.bias": (out,)}


def read_transformer_dims(shapes: Mapping[str, Shape]) -> TransformerDims:
    """Dimensions from the tensors that name them; 0 where such a tensor is missing or has too few axes."""
    return TransformerDims(
        blocks=count_parts(shapes, "blocks"),
        hidden=_axis(shapes, "x_embedder.proj.1.weight", 0),
        head_dim=_axis(shapes, "blocks.0.self_attn.q_norm.weight", 0),
        context_dim=_axis(shapes, "blocks.0.cross_attn.k_proj.weight", 1),
        rank=_axis(shapes, "blocks.0.adaln_modulation_self_attn.1.weight", 0),
        mlp=_axis(shapes, "blocks.0.mlp.layer1.weight", 0),
        latent_channels=_axis(shapes, "final_layer.linear.weight", 0) // PATCH_AREA,
    )


def read_adapter_dims(shapes: Mapping[str, Shape]) -> AdapterDims:
    """As read_transformer_dims, for the adapter."""
    return AdapterDims(
        blocks=count_parts(shapes, "blocks"),
        hidden=_axis(shapes, "embed.weight", 1),
        head_dim=_axis(shapes, "blocks.0.self_attn.q_norm.weight", 0),
        inner=_axis(shapes, "blocks.0.self_attn.q_proj.weight", 0),
        mlp=_axis(shapes, "blocks.0.mlp.0.weight", 0),
        rows=_axis(shapes, "embed.weight", 0),
        states=_axis(shapes, "blocks.0.cross_attn.k_proj.weight", 1),
    )


def read_qwen_dims(shapes: Mapping[str, Shape]) -> QwenDims:
    """As read_transformer_dims, for Qwen."""
    head_dim = _axis(shapes, "layers.0.self_attn.q_norm.weight", 0)
    return QwenDims(
        layers=count_parts(shapes, "layers"),
        hidden=_axis(shapes, "embed_tokens.weight", 1),
        head_dim=head_dim,
        heads=_axis(shapes, "layers.0.self_attn.q_proj.weight", 0) // max(head_dim, 1),
        kv_heads=_axis(shapes, "layers.0.self_attn.k_proj.weight", 0) // max(head_dim, 1),
        mlp=_axis(shapes, "layers.0.mlp.gate_proj.weight", 0),
        rows=_axis(shapes, "embed_tokens.weight", 0),
    )


def read_vae_dims(shapes: Mapping[str, Shape]) -> VaeDims:
    """As read_transformer_dims, for the decoder."""
    return VaeDims(base=_axis(shapes, "decoder.head.0.gamma", 0), latent_channels=_axis(shapes, "conv2.weight", 0))


def count_parts(shapes: Mapping[str, Shape], part: str) -> int:
    """The highest number in names like `blocks.7.…`, plus one; at least 1, so that their tensors are asked for."""
    numbers = [int(found[1]) for name in shapes if (found := re.match(rf"{part}\.(\d+)\.", name))]
    return max(numbers, default=0) + 1


def _axis(shapes: Mapping[str, Shape], name: str, axis: int) -> int:
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) else 0
