"""Random weights: official names, the same bytes again, and values that keep a run in range."""

import numpy as np
import pytest
from golden_set import golden_options
from safetensors.numpy import load_file

from anima_batch.anima.vae import decode
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.convert.build import convert_model_set
from anima_batch.convert.layouts import AdapterDims, QwenDims, TransformerDims, VaeDims
from anima_batch.convert.random_weights import ModelDims, choose_scale, make_tensor, write_random_weights

DIMS = ModelDims(
    transformer=TransformerDims(blocks=2, hidden=128, head_dim=32, context_dim=64, rank=16, mlp=512),
    adapter=AdapterDims(blocks=2, hidden=64, head_dim=16, inner=64, mlp=128, rows=128, states=32),
    qwen=QwenDims(layers=2, hidden=32, head_dim=16, heads=4, kv_heads=2, mlp=64, rows=256),
    vae=VaeDims(base=12),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_random_weights(tmp_path_factory.mktemp("random"), DIMS, seed=7)


@pytest.fixture(scope="module")
def model_set(files, tmp_path_factory):
    options = golden_options(
        tmp_path_factory.mktemp("set"), transformer=files.transformer, text_encoder=files.text_encoder, vae=files.vae
    )
    return convert_model_set(options, lambda role: None)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(files, tmp_path):
    again = write_random_weights(tmp_path / "again", DIMS, seed=7)
    other = write_random_weights(tmp_path / "other", DIMS, seed=8)
    assert again.vae.read_bytes() == files.vae.read_bytes()
    assert again.transformer.read_bytes() == files.transformer.read_bytes()
    assert other.vae.read_bytes() != files.vae.read_bytes()


def test_names_carry_the_official_prefixes(files):
    names = load_file(files.transformer).keys()
    assert {"net.x_embedder.proj.1.weight", "net.llm_adapter.embed.weight"} <= names
    assert "model.embed_tokens.weight" in load_file(files.text_encoder)
    assert "decoder.upsamples.3.time_conv.weight" in load_file(files.vae)


@pytest.mark.parametrize(("dtype", "stored"), [("BF16", "bfloat16"), ("F16", "float16"), ("F32", "float32")])
def test_files_are_written_in_the_asked_dtype(tmp_path, dtype, stored):
    files = write_random_weights(tmp_path, DIMS, 1, dtype)
    assert {str(array.dtype) for array in load_file(files.vae).values()} == {stored}


def test_values_have_the_chosen_mean_and_deviation(files):
    """65 536 values: 2 % is seven times the standard error of their deviation, 1/sqrt(131 072)."""
    name = "blocks.0.mlp.layer1.weight"
    values = load_file(files.transformer)[f"net.{name}"].astype(np.float32)
    mean, deviation = choose_scale(name, values.shape)
    assert (mean, deviation) == (0.0, pytest.approx(128**-0.5))
    assert abs(values.std() / deviation - 1) < 0.02


@pytest.mark.parametrize("branch", ["self_attn", "cross_attn", "mlp"])
def test_a_branch_answers_normal_input_with_values_about_one(model_set, branch):
    random = np.random.default_rng(0)
    feeds = {"z": random.standard_normal((1, 64, 128)).astype(np.float32)}
    if branch == "self_attn":
        angles = random.uniform(0, 6, (1, 64, 16)).astype(np.float32)
        feeds |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    if branch == "cross_attn":
        context = np.zeros((1, 512, 64), np.float32)
        context[:, :20] = random.standard_normal((1, 20, 64))
        feeds["context"] = context
    out = OnnxBackend(threads=1).open(model_set.path(f"transformer.01.{branch}")).run(feeds)
    assert 0.02 < out.std() < 2


@pytest.mark.parametrize("seed", range(3))
def test_a_random_latent_gives_a_picture_with_contrast_that_is_not_clipped(model_set, seed):
    latents = np.random.default_rng(seed).standard_normal((16, 16, 16)).astype(np.float32)
    session = OnnxBackend(threads=1).open(model_set.path("vae.decoder"))
    picture = decode(session, latents, model_set.description.vae)
    assert picture.std() > 20
    assert np.isin(picture, (0, 255)).mean() < 0.3


def test_a_tensor_by_itself_is_as_it_is_in_the_file(tmp_path):
    """No tolerance: both are drawn from the seed and the name alone."""
    files = write_random_weights(tmp_path, DIMS, seed=1, dtype="F32")
    name = "blocks.1.mlp.layer1.weight"
    tensor = load_file(files.transformer)[f"net.{name}"]
    np.testing.assert_array_equal(make_tensor(f"net.{name}", tensor.shape, 1), tensor)
