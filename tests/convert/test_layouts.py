"""Tensor lists against the official release, and dimensions read back from them."""

import math

import pytest

from anima_batch.convert.layouts import (
    AdapterDims,
    QwenDims,
    TransformerDims,
    VaeDims,
    adapter_shapes,
    count_parts,
    qwen_shapes,
    read_adapter_dims,
    read_qwen_dims,
    read_transformer_dims,
    read_vae_dims,
    transformer_shapes,
    vae_encoder_shapes,
    vae_shapes,
)

TRANSFORMER = TransformerDims(blocks=28, hidden=2048, head_dim=128, context_dim=1024, rank=256, mlp=8192)
ADAPTER = AdapterDims(blocks=6, hidden=1024, head_dim=64, inner=1024, mlp=4096, rows=32128, states=1024)
QWEN = QwenDims(layers=28, hidden=1024, head_dim=128, heads=16, kv_heads=8, mlp=3072, rows=151936)
VAE = VaeDims(base=96)


def parameters(shapes):
    return sum(math.prod(shape) for shape in shapes.values())


def test_the_transformer_file_has_the_official_number_of_tensors_and_parameters():
    """Anima base v1.0: 685 tensors, 2,091,068,928 parameters, the adapter among them."""
    transformer, adapter = transformer_shapes(TRANSFORMER), adapter_shapes(ADAPTER)
    assert len(transformer) + len(adapter) == 685
    assert parameters(transformer) + parameters(adapter) == 2_091_068_928


def test_qwen_has_the_official_number_of_tensors_and_parameters():
    """Qwen3-0.6B-Base without its output head."""
    assert (len(qwen_shapes(QWEN)), parameters(qwen_shapes(QWEN))) == (310, 596_049_920)


def test_the_decoder_has_the_official_number_of_tensors_and_of_channels():
    """Qwen-Image's autoencoder: 108 of 194 tensors are the decoder's; widths as published."""
    shapes = vae_shapes(VAE)
    assert len(shapes) == 108
    assert shapes["decoder.conv1.weight"] == (384, 16, 3, 3, 3)
    assert shapes["decoder.upsamples.4.shortcut.weight"] == (384, 192, 1, 1, 1)
    assert shapes["decoder.upsamples.7.time_conv.weight"] == (768, 384, 3, 1, 1)
    assert shapes["decoder.upsamples.11.resample.1.weight"] == (96, 192, 3, 3)


def test_the_autoencoder_has_the_official_number_of_tensors_and_parameters():
    """Qwen-Image's autoencoder in Wan naming: 194 tensors, 126,892,531 parameters."""
    decoder, encoder = vae_shapes(VAE), vae_encoder_shapes(VAE)
    assert not decoder.keys() & encoder.keys()
    assert (len(decoder | encoder), parameters(decoder | encoder)) == (194, 126_892_531)
    assert encoder["encoder.downsamples.6.shortcut.weight"] == (384, 192, 1, 1, 1)
    assert encoder["encoder.downsamples.8.time_conv.weight"] == (384, 384, 3, 1, 1)


@pytest.mark.parametrize(
    ("list_shapes", "read_dims", "dims"),
    [
        (transformer_shapes, read_transformer_dims, TRANSFORMER),
        (adapter_shapes, read_adapter_dims, ADAPTER),
        (qwen_shapes, read_qwen_dims, QWEN),
        (vae_shapes, read_vae_dims, VAE),
    ],
)
def test_dimensions_are_read_back_from_the_tensors(list_shapes, read_dims, dims):
    assert read_dims(list_shapes(dims)) == dims


def test_the_number_of_blocks_is_the_highest_index_plus_one():
    assert count_parts({"blocks.0.x": (), "blocks.39.x": (), "blocks.7.x": ()}, "blocks") == 40
    assert count_parts({"head": ()}, "blocks") == 1
