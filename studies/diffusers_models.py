"""Official weight files in the modules of Diffusers and Transformers, the second implementation to compare with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from diffusers import AnimaTextConditioner, AutoencoderKLQwenImage, CosmosTransformer3DModel
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model

from anima_batch.convert import layouts, sources
from anima_batch.convert.build import ADAPTER_ROPE_THETA, QWEN_ROPE_THETA
from anima_batch.convert.inputs import ADAPTER
from anima_batch.convert.rknn.diffusers_lane import ROPE_SCALE, TRANSFORMER_RULES, Rules, rename
from anima_batch.convert.sources import Source
from anima_batch.errors import UsageError

M = TypeVar("M", bound=nn.Module)

_EPS = 1e-6


def _name_upsample(match: re.Match[str]) -> str:
    """Diffusers counts by level what the file counts through: three residuals a level, then what enlarges."""
    level, index = divmod(int(match[1]), layouts.RESIDUALS + 1)
    return f"up_blocks.{level}." + (f"resnets.{index}" if index < layouts.RESIDUALS else "upsamplers.0")


_VAE_RULES: Rules = (
    (r"^conv2", "post_quant_conv"),
    (r"^decoder\.conv1", "decoder.conv_in"),
    (r"^decoder\.head\.0", "decoder.norm_out"),
    (r"^decoder\.head\.2", "decoder.conv_out"),
    (r"middle\.1", "mid_block.attentions.0"),
    (r"middle\.([02])", lambda match: f"mid_block.resnets.{int(match[1]) // 2}"),
    (r"upsamples\.(\d+)", _name_upsample),
    (r"residual\.([03])", lambda match: f"norm{int(match[1]) // 3 + 1}"),
    (r"residual\.([26])", lambda match: f"conv{int(match[1]) // 4 + 1}"),
    (r"shortcut", "conv_shortcut"),
)


def load_transformer(path: Path, dtype: torch.dtype = torch.float32) -> CosmosTransformer3DModel:
    """The transformer of the file that also holds the adapter; raises UsageError for tensors too many or too few."""
    source = sources.leave_out(sources.open_source(path, sources.TRANSFORMER), re.escape(ADAPTER))
    dims = layouts.read_transformer_dims(source.shapes)
    _refuse_faults(source, layouts.transformer_shapes(dims))

    def make() -> CosmosTransformer3DModel:
        return CosmosTransformer3DModel(
            in_channels=dims.latent_channels,
            out_channels=dims.latent_channels,
            num_attention_heads=dims.hidden // dims.head_dim,
            attention_head_dim=dims.head_dim,
            num_layers=dims.blocks,
            mlp_ratio=dims.mlp / dims.hidden,
            text_embed_dim=dims.context_dim,
            adaln_lora_dim=dims.rank,
            rope_scale=ROPE_SCALE,
            concat_padding_mask=False,
            extra_pos_embed_type=None,
        )

    weights = _read(source, TRANSFORMER_RULES, dtype)
    # The padding mask is zero everywhere, so that the columns which read it add nothing; without it Diffusers runs
    # where torchvision is not installed.
    columns = dims.latent_channels * layouts.PATCH_AREA
    weights["patch_embed.proj.weight"] = weights["patch_embed.proj.weight"][:, :columns].contiguous()
    return _fill(make, weights)


def load_text_conditioner(
    path: Path, context_rows: int = 512, dtype: torch.dtype = torch.float32
) -> AnimaTextConditioner:
    """The adapter of the transformer's file; its names are Diffusers' too. Raises UsageError."""
    source = sources.select(sources.open_source(path, sources.TRANSFORMER), ADAPTER)
    dims = layouts.read_adapter_dims(source.shapes)
    _refuse_faults(source, layouts.adapter_shapes(dims))

    def make() -> AnimaTextConditioner:
        return AnimaTextConditioner(
            source_dim=dims.states,
            target_dim=dims.hidden,
            model_dim=dims.hidden,
            num_layers=dims.blocks,
            num_attention_heads=dims.hidden // dims.head_dim,
            mlp_ratio=dims.mlp / dims.hidden,
            target_vocab_size=dims.rows,
            min_sequence_length=context_rows,
        )

    conditioner = _fill(make, _read(source, (), dtype))
    conditioner.rotary_emb = type(conditioner.rotary_emb)(dims.head_dim, ADAPTER_ROPE_THETA)
    return conditioner


def load_text_encoder(path: Path, dtype: torch.dtype = torch.float32) -> Qwen3Model:
    """Qwen3 without its head, under Transformers' own names. Raises UsageError."""
    source = sources.open_source(path, sources.QWEN)
    dims = layouts.read_qwen_dims(source.shapes)
    _refuse_faults(source, layouts.qwen_shapes(dims))
    config = Qwen3Config(
        vocab_size=dims.rows,
        hidden_size=dims.hidden,
        intermediate_size=dims.mlp,
        num_hidden_layers=dims.layers,
        num_attention_heads=dims.heads,
        num_key_value_heads=dims.kv_heads,
        head_dim=dims.head_dim,
        rms_norm_eps=_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": QWEN_ROPE_THETA},
    )
    encoder = _fill(lambda: Qwen3Model(config), _read(source, (), dtype))
    encoder.rotary_emb = type(encoder.rotary_emb)(config)
    return encoder


def load_vae(
    path: Path, latent_mean: Sequence[float], latent_std: Sequence[float], dtype: torch.dtype = torch.float32
) -> AutoencoderKLQwenImage:
    """The autoencoder without its encoder, which files need not have; raises UsageError.

    Of a file's tensors `encoder.*`, `conv1.*` and `_extra_state` alone are left unread.
    """
    source = sources.open_source(path, sources.VAE)
    dims = layouts.read_vae_dims(source.shapes)
    _refuse_faults(source, layouts.vae_shapes(dims))

    def make() -> AutoencoderKLQwenImage:
        statistics = {"latents_mean": list(latent_mean), "latents_std": list(latent_std)}
        vae = AutoencoderKLQwenImage(base_dim=dims.base, z_dim=dims.latent_channels, **statistics)
        vae.add_module("encoder", nn.Identity())
        vae.add_module("quant_conv", nn.Identity())
        return vae

    return _fill(make, _read(source, _VAE_RULES, dtype))


def _refuse_faults(source: Source, expected: Mapping[str, layouts.Shape]) -> None:
    if faults := sources.find_faults(source, expected):
        raise UsageError("\n".join(faults))


def _read(source: Source, rules: Rules, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors of the source under the module's names, read one by one."""
    tensors = sources.Tensors(source, "fp32")
    return {rename(name, rules): torch.from_numpy(tensors[name]).to(dtype) for name in tensors}


def _fill(make: Callable[[], M], weights: Mapping[str, Tensor]) -> M:
    """The module with these tensors, every one of them and no other; buffers that no file holds are still to be made.

    It is made without memory and takes the tensors over, so that no weight is held twice.
    """
    with torch.device("meta"):
        module = make()
    module.load_state_dict(weights, strict=True, assign=True)
    return module.eval().requires_grad_(requires_grad=False)
