"""Whole trajectories beside Diffusers' Anima pipeline, from the same official files; needs the extra `train`.

Producer of all expected values: Diffusers, whose `AnimaAutoBlocks` run with its own text conditioning, guidance, Euler
scheduler and decoder in float32.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.pipeline import open_pipeline
from anima_batch.errors import UsageError
from anima_batch.job import ImageRequest, RunSpec
from anima_batch.sampling import initial_state, make_sigmas, sample
from training.picture_book import WEIGHTS, make_picture_book

pytest.importorskip("torch", reason="needs torch, which the extra `train` brings")
pytest.importorskip("diffusers", reason="needs diffusers, which the extra `train` brings")

from studies.diffusers_anima import DiffusersAnima, OfficialFiles, Trace
from studies.diffusers_models import load_text_encoder, load_transformer, load_vae

HOUSE = ImageRequest(
    prompt="a red house on the left on grass by day", seed=3, width=128, height=128, steps=20, guidance_scale=4.0
)
OWLS = replace(HOUSE, prompt="three blue owls by night in snowfall", seed=4)
REQUESTS = {"house": HOUSE, "owls": OWLS, "wide": replace(HOUSE, seed=5, width=192)}


@pytest.fixture(scope="module")
def model_set(tmp_path_factory):
    return make_picture_book(WEIGHTS, tmp_path_factory.mktemp("made") / "picture-book")


@pytest.fixture(scope="module")
def ours(model_set):
    with contextlib.closing(open_pipeline(model_set, "onnx", RunSpec())) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def theirs(model_set):
    """Of the files that the set was converted from."""
    settings = model_set.description
    return DiffusersAnima(
        OfficialFiles(
            transformer=WEIGHTS / "transformer.safetensors",
            text_encoder=WEIGHTS / "text_encoder.safetensors",
            vae=WEIGHTS / "vae.safetensors",
            qwen_tokenizer=WEIGHTS / "qwen",
            t5_tokenizer=WEIGHTS / "t5",
            context_rows=settings.text.context_rows,
            latent_mean=settings.vae.latent_mean,
            latent_std=settings.vae.latent_std,
        )
    )


def make_transformer(ours, request):
    sigmas = make_sigmas(request.schedule, request.steps, request.shift)
    conditioning = Conditioning(*ours.encode([request.prompt, request.negative_prompt]))
    return ours.make_transformer(sigmas, conditioning, request.width, request.height)


@pytest.fixture(scope="module", params=REQUESTS)
def traces(request, ours, theirs):
    """One request run by both, ours first."""
    wanted = REQUESTS[request.param]
    start = initial_state(wanted)
    states = [start, *(state for state, _ in sample(wanted, make_transformer(ours, wanted), start))]
    latents = tuple(state.latents for state in states)
    return Trace(latents, ours.decode(latents[-1])), theirs.trace(wanted)


def test_every_step_lies_within_a_thousandth_of_the_range(traces, record_property):
    mine, other = traces
    assert len(mine.latents) == len(other.latents) == 21
    shares = [np.abs(a - b).max() / np.ptp(b) for a, b in zip(mine.latents, other.latents, strict=True)]
    record_property("largest difference at each step, of the range", [float(share) for share in shares])
    print(f"largest of 20 steps {max(shares):.1e}, at the last {shares[-1]:.1e} of the range")
    assert shares[0] == 0
    # Rounding alone: in float32 sums of another order, carried on through 20 steps of guidance 4.
    assert max(shares) <= 1e-3


def test_the_pictures_agree_to_50_db(traces, record_property):
    mine, other = (trace.picture for trace in traces)
    assert mine.shape == other.shape
    error = np.square(mine.astype(np.float64) - other).mean()
    psnr = 10 * np.log10(255**2 / error) if error else np.inf
    record_property("PSNR in dB", psnr)
    print(f"{psnr:.1f} dB, {np.count_nonzero(mine != other)} of {mine.size} values differ")
    assert psnr >= 50  # two values in three may differ by one level of 255


@pytest.mark.parametrize("prompt", [HOUSE.prompt, OWLS.prompt, "an owl", ""])
def test_a_prompt_has_the_same_context(prompt, ours, theirs):
    # Two runtimes add float32 numbers in another order; the values are about 3.
    np.testing.assert_allclose(ours.encode([prompt])[0], theirs.encode(prompt), rtol=0, atol=1e-5)


def test_the_velocity_is_the_same_at_every_sigma_from_the_same_latents(ours, theirs):
    transformer = make_transformer(ours, HOUSE)
    (context,) = ours.encode([HOUSE.prompt])
    latents = initial_state(HOUSE).latents.copy()
    for step, sigma in enumerate(make_sigmas(HOUSE.schedule, HOUSE.steps, HOUSE.shift)[:-1]):
        mine = transformer.velocity(transformer.features(latents, step, ("cond",))[0], step)
        other = theirs.velocity(latents, float(sigma), context)
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-4 * np.ptp(other))  # as above, over all blocks


def test_latents_decode_to_the_same_picture(ours, theirs):
    latents = initial_state(HOUSE).latents.copy()
    mine, other = ours.decode(latents).astype(int), theirs.decode(latents).astype(int)
    assert np.abs(mine - other).max() <= 1  # where rounding falls to the other side


def load_autoencoder(path):
    return load_vae(path, [0.0] * 16, [1.0] * 16)


LOADERS = {
    load_transformer: ("transformer", "net.final_layer.linear.weight"),
    load_text_encoder: ("text_encoder", "model.norm.weight"),
    load_autoencoder: ("vae", "decoder.head.2.bias"),
}


@pytest.mark.parametrize("load", LOADERS)
def test_a_file_with_a_tensor_too_many_or_too_few_is_refused(load, tmp_path):
    name, last = LOADERS[load]
    tensors = load_file(WEIGHTS / f"{name}.safetensors")
    for changed in ({**tensors, f"{last}.more": tensors[last]}, {k: v for k, v in tensors.items() if k != last}):
        save_file(changed, tmp_path / "changed.safetensors")
        with pytest.raises(UsageError, match=last.replace(".", r"\.")):
            load(tmp_path / "changed.safetensors")
