from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sampling_model import POLICIES, ReplayedModel, TinyModel, golden_arrays, make_request, state_bytes

from anima_batch.files import xxh3_128_bytes
from anima_batch.job.request import SpectrumPolicy
from anima_batch.sampling import initial_state, make_noise, make_sigmas, pack_state, sample, unpack_state

CASES = [
    (policy, sampler)
    for policy in POLICIES
    for sampler in ("euler", "ab2", "dpmpp_2m")
    if sampler == "euler" or policy not in ("denoised", "features")
]


def run(request, state=None, model=None):
    return list(sample(request, model or TinyModel(), state or initial_state(request)))


@pytest.mark.parametrize(("policy", "sampler"), CASES)
def test_resume_after_any_step_gives_the_same_later_states(policy, sampler):
    """Bit by bit, latents and all else, from states that went through pack and unpack."""
    request = make_request(policy=POLICIES[policy], sampler=sampler)
    first = initial_state(request)
    states = [first, *(state for state, _ in run(request))]
    assert len(states) == request.steps + 1
    for state in states:
        resumed = unpack_state(*pack_state(state))
        later = [state_bytes(after) for after, _ in run(request, resumed)]
        assert later == [state_bytes(after) for after in states[state.step + 1 :]]


@pytest.mark.parametrize(("policy", "sampler"), CASES)
def test_the_same_request_gives_the_same_bytes_twice(policy, sampler):
    request = make_request(policy=POLICIES[policy], sampler=sampler)
    digests = [[report.latents_xxh3 for _, report in run(request)] for _ in range(2)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == request.steps


def test_the_first_state_is_the_noise_of_the_requests_size():
    request = make_request(width=64, height=32, noise="philox", seed=3)
    state = initial_state(request)
    np.testing.assert_array_equal(state.latents, make_noise("philox", 3, (16, 4, 8)))
    assert state.step == 0


@pytest.mark.parametrize("name", ["n20_16x16", "n28_12x20"])
def test_a_spectrum_run_follows_stable_diffusion_cpp(name):
    """A DiT by ComfyUI, spectrum.hpp and sd.cpp's Euler; its computed velocities are replayed, its forecasts are ours.

    1e-4 (they agree to 2e-6): x0 is recovered from the recorded x in float32.
    """
    golden = golden_arrays(f"e_traj_{name}_cfg4.5_spectrum.npz")
    sigmas, steps = golden["sigmas"], len(golden["x"])
    before = [golden["noise"], *golden["x"][:-1]]
    denoised = {
        step: before[step] - (golden["x"][step] - before[step]) / (sigmas[step + 1] - sigmas[step]) * sigmas[step]
        for step in range(steps)
        if golden["computed"][step]
    }
    if len(golden["x0"]) == steps:
        denoised = {step: golden["x0"][step] for step in denoised}
    request = make_request(steps=steps, schedule="discrete", guidance_scale=1.0, policy=SpectrumPolicy())
    np.testing.assert_allclose(make_sigmas("discrete", steps, 3.0), sigmas, rtol=0, atol=1e-6)
    state = dataclasses.replace(initial_state(request), latents=golden["noise"])
    results = run(request, state, ReplayedModel(denoised, sigmas))
    assert [int(report.computed) for _, report in results] == golden["computed"].tolist()
    np.testing.assert_allclose([state.latents for state, _ in results], golden["x"], rtol=0, atol=1e-4)


def test_a_full_run_without_guidance_follows_stable_diffusion_cpp():
    """A DiT by ComfyUI and sd.cpp's Euler, velocities replayed from the recorded x0; 1e-5: float32."""
    golden = golden_arrays("e_traj_n4_12x20_cfg1_off.npz")
    request = make_request(steps=4, schedule="discrete", guidance_scale=1.0)
    state = dataclasses.replace(initial_state(request), latents=golden["noise"])
    results = run(request, state, ReplayedModel(dict(enumerate(golden["x0"])), golden["sigmas"]))
    np.testing.assert_allclose([state.latents for state, _ in results], golden["x"], rtol=0, atol=1e-5)


def test_the_report_describes_the_step():
    request = make_request(steps=6, policy=SpectrumPolicy(tail_steps=0))
    sigmas = make_sigmas("simple", 6, 3.0)
    for number, (state, report) in enumerate(run(request), start=1):
        assert report.index == state.step == number
        assert report.sigma == float(sigmas[number - 1])
        assert report.seconds > 0
        assert (report.nan, report.inf) == (0, 0)
        assert report.abs_max == float(np.abs(state.latents).max())
        assert report.latents_xxh3 == xxh3_128_bytes(state.latents.tobytes())
        assert state.latents.dtype == np.float32
        assert not state.latents.flags.writeable


@pytest.mark.parametrize(("policy", "sampler"), CASES)
def test_nan_and_infinity_are_counted_and_nothing_is_raised(policy, sampler):
    request = make_request(policy=POLICIES[policy], sampler=sampler)
    results = run(request, model=TinyModel(broken_step=3))
    assert len(results) == request.steps
    (before, sound), (broken, report) = results[2:4]
    assert (sound.nan, sound.inf) == (0, 0)
    assert np.isfinite(before.latents).all()
    assert report.nan >= 1
    assert report.nan + report.inf == 2
    assert report.abs_max == float(np.abs(broken.latents[np.isfinite(broken.latents)]).max())


def test_latents_without_a_finite_value_have_no_abs_max():
    request = make_request(steps=2)
    state = initial_state(request)
    broken = dataclasses.replace(state, latents=np.full_like(state.latents, np.nan))
    (_, report), *_ = run(request, broken)
    assert (report.nan, report.inf, report.abs_max) == (broken.latents.size, 0, None)


def test_a_finished_state_yields_nothing():
    request = make_request()
    assert run(request, run(request)[-1][0]) == []


def test_sampling_is_lazy_one_step_at_a_time():
    request, model = make_request(), TinyModel()
    steps = sample(request, model, initial_state(request))
    assert model.passes == []
    next(steps)
    assert set(model.passes) == {0}
