"""What training computes is what the exported model set computes; needs the extra `train`."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.pipeline import open_pipeline
from anima_batch.anima.vae import decode_raw
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.job import RunSpec

torch = pytest.importorskip("torch", reason="needs torch, which the extra `train` brings")

from training.autoencoder import Autoencoder  # noqa: E402 - after the skip
from training.export import export_model_set  # noqa: E402
from training.run_folder import RunFolder  # noqa: E402
from training.stages import VAE  # noqa: E402
from training.train_transformer import Model, make_encoder, make_tokenizers  # noqa: E402

PROMPTS = ("a red house on the left on grass by day", "three blue owls by night in snowfall", "")
WIDTH, HEIGHT = 192, 128
SIGMA = 0.7


def halved(model):
    """The model with the weights that the files hold."""
    model.load_state_dict({name: tensor.half().float() for name, tensor in model.state_dict().items()})
    return model.eval()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    torch.manual_seed(1)
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    model, autoencoder = halved(Model()), halved(Autoencoder(VAE))
    folder.save_state("transformer", {"average": model.state_dict()})
    folder.save_state("vae", {"average": autoencoder.state_dict()})
    folder.save_array("latent-statistics", np.stack([np.full(16, 0.25), np.full(16, 2.0)]))
    make_tokenizers(folder.path)
    model_set = export_model_set(folder, folder.path / "picture-book")
    return folder, model, autoencoder, model_set


def test_the_velocity_is_that_of_the_exported_set(trained):
    folder, model, _, model_set = trained
    latents = np.random.default_rng(0).standard_normal((16, HEIGHT // 8, WIDTH // 8), dtype=np.float32)
    captions = [make_encoder(folder.path)(prompt) for prompt in PROMPTS]
    with torch.no_grad():
        many = torch.from_numpy(latents).repeat(len(PROMPTS), 1, 1, 1)
        wanted = model(many, torch.full((len(PROMPTS),), SIGMA), captions).numpy()
    with contextlib.closing(open_pipeline(model_set, "onnx", RunSpec())) as pipeline:
        for context, velocity in zip(pipeline.encode(PROMPTS), wanted, strict=True):
            sigmas = np.array([SIGMA, 0], np.float32)
            transformer = pipeline.make_transformer(sigmas, Conditioning(context, None), WIDTH, HEIGHT)
            got = transformer.velocity(transformer.features(latents, 0, ("cond",))[0], 0)
            # Two runtimes add float32 numbers in another order; the values are about 0.4.
            np.testing.assert_allclose(got, velocity, rtol=0, atol=2e-6)


def test_the_picture_is_that_of_the_exported_set(trained):
    _, _, autoencoder, model_set = trained
    z = np.random.default_rng(0).standard_normal((16, 8, 12), dtype=np.float32)
    with torch.no_grad():
        wanted = autoencoder.decode(torch.from_numpy(z)[None]).numpy()[0]
    with contextlib.closing(OnnxBackend(1).open(model_set.path("vae.decoder"))) as session:
        got = decode_raw(session, z, None)
    # As above, over some thirty layers; the values are about 0.6.
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


def test_the_set_knows_how_it_was_trained(trained):
    description = trained[3].description
    assert description.text.empty_prompt == "masked"
    assert description.text.context_rows == 32
    assert set(description.vae.latent_mean) == {0.25}
    assert set(description.vae.latent_std) == {2.0}
    assert sum(part.bytes for part in description.components) < 12_000_000
