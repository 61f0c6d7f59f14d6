"""The decoder and its tiles against other implementations, and what pixels are made of."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from anima_batch.anima.vae import decode, decode_image, decode_raw, plan_tiles, tile_weights
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.convert.graph import Graph
from anima_batch.convert.vae import build_decoder, decode_stages
from anima_batch.errors import BackendError
from anima_batch.model_set import VaeConfig

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = 5e-5  # ten times the spread of two published decoders and a float64 derivation on these weights

STAGES = {
    "post_quant_conv": "conv2",
    "decoder.conv_in": "decoder.conv1",
    "mid.resnet0": "decoder.middle.0",
    "mid.attn": "decoder.middle.1",
    "mid": "decoder.middle.2",
    "up0.resnet0": "decoder.upsamples.0",
    "up0.resnet1": "decoder.upsamples.1",
    "up0.resnet2": "decoder.upsamples.2",
    "up0": "decoder.upsamples.3",
    "up1.resnet0": "decoder.upsamples.4",
    "up1.resnet1": "decoder.upsamples.5",
    "up1.resnet2": "decoder.upsamples.6",
    "up1": "decoder.upsamples.7",
    "up2.resnet2": "decoder.upsamples.10",
    "up2": "decoder.upsamples.11",
    "up3": "decoder.upsamples.14",
    "norm_out": "decoder.head.0",
}


class Constant:
    """A session whose picture is one value everywhere."""

    inputs = ()

    def __init__(self, value):
        self.value = value

    def run(self, feeds):
        _, _, height, width = feeds["z"].shape
        return np.full((1, 3, 8 * height, 8 * width), self.value, np.float32)

    def close(self):
        pass


@pytest.fixture(scope="module")
def weights():
    return load_file(GOLDEN / "c_vae_decoder_wan_names.safetensors")


@pytest.fixture(scope="module")
def session(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("vae") / "decoder.onnx"
    path.write_bytes(build_decoder(weights)[0])
    return OnnxBackend(threads=1).open(path)


def golden(name):
    return np.load(GOLDEN / f"{name}.npz")


def config(tile=None, mean=0.0, std=1.0):
    return VaeConfig(latent_mean=(mean,) * 16, latent_std=(std,) * 16, tile=tile)


def official(tile=None):
    mean = (-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508)
    mean += (0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921)
    std = (2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743)
    std += (3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160)
    return VaeConfig(latent_mean=mean, latent_std=std, tile=tile)


@pytest.mark.parametrize("size", ["8x8", "6x10"])
def test_the_decoder_equals_the_video_autoencoder_on_its_first_frame(session, size):
    """Producer: diffusers AutoencoderKLQwenImage (3-D convolutions)."""
    data = golden("c_vae_decode")
    raw = decode_raw(session, data[f"{size}/z"][0], None)
    np.testing.assert_allclose(raw, data[f"{size}/decoder_raw"][0], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("size", ["8x8", "6x10"])
def test_latents_are_scaled_and_pixels_clamped_as_published(session, size):
    """Producer: diffusers AutoencoderKLQwenImage and its image processor."""
    data = golden("c_vae_decode")
    image = decode_image(session, data[f"{size}/latent_normalised"][0], official())
    np.testing.assert_allclose(image.transpose(2, 0, 1), data[f"{size}/image_0_1"][0], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_of_the_decoder_equals_the_published_one(weights, tmp_path, stage):
    """Producer: diffusers AutoencoderKLQwenImage, feature maps of the 6 x 10 latent."""
    data = golden("c_vae_decode")
    expected = data[f"6x10/stage/{stage}"]
    graph = Graph("stage")
    z = graph.input("z", (1, 16, "h", "w"))
    value = next(value for name, value in decode_stages(graph, z, weights) if name == STAGES[stage])
    path = tmp_path / "stage.onnx"
    path.write_bytes(graph.finish(value, (1, expected.shape[1], "H", "W"))[0])
    result = OnnxBackend(threads=1).open(path).run({"z": data["6x10/z"]})
    np.testing.assert_allclose(result, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["c_vae_tiled", "c_vae_tiled_skip"])
def test_tiles_merge_as_in_stable_diffusion_cpp(session, name):
    """Producer: diffusers' decoder on each tile, stable-diffusion.cpp's process_tiles_2d (tile 8, overlap 0.5)."""
    data = golden(name)
    raw = decode_raw(session, data["z"][0], 8)
    np.testing.assert_allclose(raw, data["sdcpp_tiled_raw_tile8_overlap0p5"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["c_vae_tiled", "c_vae_tiled_skip"])
def test_without_a_tile_the_picture_is_decoded_whole(session, name):
    """Producer: diffusers AutoencoderKLQwenImage."""
    data = golden(name)
    np.testing.assert_allclose(decode_raw(session, data["z"][0], None), data["whole_raw"], atol=TOLERANCE, rtol=0)


def test_a_tile_as_large_as_the_picture_decodes_it_whole(session):
    z = golden("c_vae_tiled")["z"][0]
    np.testing.assert_array_equal(decode_raw(session, z, 16), decode_raw(session, z, None))


def test_a_tile_longer_than_one_side_is_cut_to_that_side(session):
    z = golden("c_vae_tiled")["z"][0]  # 12 x 16
    assert decode_raw(session, z, 13).shape == (3, 96, 128)


def test_tile_plans_equal_stable_diffusion_cpp():
    """Producer: stable-diffusion.cpp process_tiles_2d."""
    plans = json.loads((GOLDEN / "c_sdcpp_tile_plans.json").read_text())
    for name, expected in plans.items():
        wish = float(name.rsplit("_o", 1)[1])
        tile = int(name.split("_t")[1].split("_")[0])
        columns, rows = plan_tiles(expected["W"], tile, wish), plan_tiles(expected["H"], tile, wish)
        assert (columns.tile, rows.tile) == (expected["tile_x"], expected["tile_y"]), name
        assert (columns.overlap, rows.overlap) == (expected["overlap_x"], expected["overlap_y"]), name
        order = [[column.start, row.start] for row in rows.tiles for column in columns.tiles]
        assert order == expected["tiles_xy"], name


@given(st.integers(4, 300), st.integers(4, 80))
def test_tiles_stay_inside_and_their_weights_add_up_to_one(length, tile):
    plan = plan_tiles(length, tile)
    total = np.zeros(8 * length, np.float64)
    for part in plan.tiles:
        assert 0 <= part.start <= length - plan.tile
        total[8 * part.start : 8 * (part.start + plan.tile)] += tile_weights(plan, part)
    np.testing.assert_allclose(total, 1, atol=2e-6, rtol=0)  # float32 rounding of the smootherstep polynomial


def test_a_tile_below_four_latent_pixels_is_refused():
    with pytest.raises(ValueError, match="at least 4 latent pixels, got 3"):
        plan_tiles(64, 3)


@pytest.mark.parametrize(("value", "level"), [(0.0, 128), (-1e-6, 127), (1.0, 255), (-1.0, 0), (1e9, 255), (-1e9, 0)])
def test_half_a_level_is_rounded_up_and_what_lies_outside_is_clamped(value, level):
    """0 is 127.5 of 255."""
    assert decode(Constant(value), np.zeros((16, 2, 1), np.float32), config()).tolist() == [[[level] * 3] * 8] * 16


def test_the_picture_is_height_by_width_by_rgb(session):
    picture = decode(session, np.zeros((16, 4, 6), np.float32), config())
    assert picture.shape == (32, 48, 3)
    assert picture.dtype == np.uint8


def test_a_decoder_that_returns_nan_is_an_error_not_a_black_picture():
    with pytest.raises(BackendError, match="192 of 192 values are NaN or infinite"):
        decode(Constant(np.nan), np.zeros((16, 1, 1), np.float32), config())


def test_float16_weights_change_the_picture_by_less_than_a_level(weights, session, tmp_path):
    """A float16 weight is off by 2^-11; through 30 layers that stays below 1 of 255 for these latents."""
    path = tmp_path / "decoder.onnx"
    path.write_bytes(build_decoder({name: array.astype(np.float16) for name, array in weights.items()})[0])
    half = OnnxBackend(threads=1).open(path)
    z = golden("c_vae_decode")["8x8/latent_normalised"][0]
    whole, rounded = decode_image(session, z, official()), decode_image(half, z, official())
    assert np.abs(whole - rounded).max() < 1 / 255
