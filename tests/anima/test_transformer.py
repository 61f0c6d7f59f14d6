"""The transformer over ONNX sessions against ComfyUI's MiniTrainDIT, by stages, passes and whole trajectories."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from anima_batch.anima.config import BRANCHES, SubgraphKey
from anima_batch.anima.engine import Engine
from anima_batch.anima.transformer import HostWeights, compute_modulation, make_transformer
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.backends.staging import Staging
from anima_batch.convert.transformer import BUILDERS
from anima_batch.job import FullPolicy, ImageRequest, SpectrumPolicy
from anima_batch.model_set import TransformerConfig
from anima_batch.sampling import SamplerState, SolverState, make_sigmas, sample
from anima_batch.sampling.spectrum import start_forecast

GOLDEN = Path(__file__).parents[1] / "golden"
CONFIGS = {
    "A": TransformerConfig(blocks=3, hidden=64, head_dim=16, context_dim=32, latent_channels=16),
    "B": TransformerConfig(blocks=1, hidden=128, head_dim=128, context_dim=32, latent_channels=16),
}
PASSES = sorted(path.stem for path in GOLDEN.glob("a_dit_?_h*.npz"))
TOLERANCE = 1e-4  # ten times what four public implementations differ by


class Model:
    """One of the two golden models with its graphs built on disk."""

    def __init__(self, name, folder):
        self.config = CONFIGS[name]
        weights = load_file(GOLDEN / f"a_dit_{name}_weights.safetensors")
        weights = {key.removeprefix("net."): array for key, array in weights.items()}
        save_file(weights, folder / "host.safetensors")
        for block in range(self.config.blocks):
            for branch in BRANCHES:
                prefix = f"blocks.{block}.{branch}."
                part = {key.removeprefix(prefix): array for key, array in weights.items() if key.startswith(prefix)}
                (folder / SubgraphKey("transformer", block, branch).role).write_bytes(BUILDERS[branch](part)[0])
        self.host = HostWeights(folder / "host.safetensors")
        self.backend = OnnxBackend(threads=1)
        self.folder = folder

    def engine(self, staging=None, **options):
        staging = staging or Staging(lambda role: self.backend.open(self.folder / role))
        return Engine(staging, self.backend.watch, **options)

    def transformer(self, sigmas, contexts, shape, engine=None):
        modulation = compute_modulation(self.host, self.config, sigmas)
        grid = (shape[0] // 2, shape[1] // 2)
        return make_transformer(self.host, self.config, engine or self.engine(), modulation, contexts, grid)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {name: Model(name, tmp_path_factory.mktemp(name)) for name in CONFIGS}


def captured(name):
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return dict(arrays)


def padded(context, rows):
    full = np.zeros((rows, context.shape[-1]), np.float32)
    full[: context.shape[-2]] = context.reshape(-1, context.shape[-1])
    return full


def test_every_golden_pass_is_here():
    assert len(PASSES) == 12


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_gives_comfyuis_hidden_states_and_velocity(name, models):
    golden, model = captured(name), models[name[6]]
    latents = golden["x"][0, :, 0]
    contexts = {"cond": padded(golden["context"][0], int(golden["context_len"][0]))}
    transformer = model.transformer(golden["sigma"], contexts, latents.shape[1:])
    (features,) = transformer.features(latents, 0, ["cond"])
    last = golden[f"blocks.{model.config.blocks - 1}.out"]
    np.testing.assert_allclose(features, last.reshape(features.shape), atol=TOLERANCE)
    np.testing.assert_allclose(transformer.velocity(features, 0), golden["pred"][0, :, 0], atol=TOLERANCE)


@pytest.mark.parametrize("name", ["a_dit_A_h12w20_s0.75_n9", "a_dit_A_h16w16_s0.75_n9", "a_dit_B_h12w20_s0.75_n9"])
def test_each_branch_gets_and_gives_what_it_does_in_comfyui(name, models):
    golden, model = captured(name), models[name[6]]
    latents = golden["x"][0, :, 0]
    transformer = model.transformer(golden["sigma"], {"cond": padded(golden["context"][0], 512)}, latents.shape[1:])
    x = golden["x_embedder.out"].reshape(-1, model.config.hidden)
    seen = 0
    for block in range(model.config.blocks):
        for index, branch in enumerate(BRANCHES):
            shift, one_plus_scale, gate = transformer.modulation.branches[0, block, index]
            ada = golden["t_embedder.1.out1"].reshape(3, -1)
            own = golden[f"blocks.{block}.adaln_modulation_{branch}.out"].reshape(3, -1)
            np.testing.assert_allclose(np.stack([shift, one_plus_scale - 1, gate]), own + ada, atol=TOLERANCE)
            z = golden[f"blocks.{block}.{branch}.in"].reshape(x.shape)
            key = SubgraphKey("transformer", block, branch)
            with transformer.engine.staging.session(key.role) as session:
                y = session.run({"z": z[None], **transformer.fixed.of(key, "cond")})[0]
            np.testing.assert_allclose(y, golden[f"blocks.{block}.{branch}.out"].reshape(x.shape), atol=TOLERANCE)
            seen += 1
    assert seen == 3 * model.config.blocks


def test_padding_rows_of_the_context_act_on_the_picture(models):
    """512 rows and 9 rows of the same context differ in ComfyUI too: zero rows are not masked."""
    full, short = captured("a_dit_A_h16w16_s0.75_n9"), captured("a_dit_A_h16w16_s0.75_unpadded9")
    assert np.abs(full["pred"] - short["pred"]).max() > 0.1


def test_both_streams_of_a_step_share_each_opened_subgraph(models):
    golden, model = captured("a_dit_A_h16w16_s1.0_n9"), models["A"]
    opened = []

    def open_session(role):
        opened.append(role)
        return model.backend.open(model.folder / role)

    contexts = {"cond": padded(golden["context"][0], 512), "uncond": np.zeros((512, 32), np.float32)}
    modulation = compute_modulation(model.host, model.config, golden["sigma"])
    transformer = make_transformer(
        model.host, model.config, model.engine(Staging(open_session)), modulation, contexts, (8, 8)
    )
    latents = golden["x"][0, :, 0]
    both = transformer.features(latents, 0, ["cond", "uncond"])
    assert len(opened) == 9
    for stream, features in zip(("cond", "uncond"), both, strict=True):
        assert np.array_equal(transformer.features(latents, 0, [stream])[0], features)


TRAJECTORIES = {
    "e_traj_n20_16x16_cfg4.5_spectrum": SpectrumPolicy(),
    "e_traj_n28_12x20_cfg4.5_spectrum": SpectrumPolicy(),
    "e_traj_n20_16x16_cfg4.5_off": FullPolicy(),
    "e_traj_n28_12x20_cfg4.5_off": FullPolicy(),
    "e_traj_n4_12x20_cfg1_off": FullPolicy(),
}


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_a_trajectory_is_the_one_of_comfyuis_model_under_stable_diffusion_cpps_sampler(name, models):
    """ComfyUI's transformer; guidance, Euler and spectrum.hpp of stable-diffusion.cpp."""
    golden, model = captured(name), models["A"]
    steps, (_, height, width) = len(golden["computed"]), golden["noise"].shape
    request = ImageRequest(
        prompt="", seed=0, width=8 * width, height=8 * height, steps=steps, schedule="discrete",
        guidance_scale=float(golden["cfg"]), policy=TRAJECTORIES[name],
    )  # fmt: skip
    sigmas = make_sigmas(request.schedule, request.steps, request.shift)
    np.testing.assert_allclose(sigmas, golden["sigmas"], atol=1e-6)
    contexts = {"cond": padded(golden["context_cond"], 512), "uncond": padded(golden["context_uncond"], 512)}
    transformer = model.transformer(sigmas[:-1], contexts, (height, width))
    forecast = start_forecast(request.policy) if isinstance(request.policy, SpectrumPolicy) else None
    first = SamplerState(0, golden["noise"], forecast, SolverState(), None)
    latents, computed = [], []
    for state, report in sample(request, transformer, first):
        latents.append(state.latents)
        computed.append(report.computed)
    assert computed == [bool(value) for value in golden["computed"]]
    recorded = golden.get("x_steps0", np.arange(steps))
    np.testing.assert_allclose(np.stack([latents[step] for step in recorded]), golden["x"], atol=TOLERANCE)
