from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_model import POLICIES, TinyModel, make_request

from anima_batch.job.request import GuidanceReusePolicy, SpectrumPolicy
from anima_batch.sampling import computed_steps, initial_state, make_sigmas, planned_passes, sample

SPECTRUM = st.builds(
    SpectrumPolicy,
    forecast=st.sampled_from(["denoised", "features"]),
    coordinate=st.sampled_from(["step", "sigma"]),
    warmup_steps=st.integers(0, 6),
    window_size=st.integers(1, 4),
    flex_window=st.sampled_from([0.0, 0.3, 0.5, 2.0]),
    tail_steps=st.integers(0, 4),
    start_sigma=st.floats(0, 1),
    degree=st.integers(0, 5),
    history=st.integers(2, 8),
)
REUSE = st.builds(GuidanceReusePolicy, uncond_every=st.integers(1, 5), warmup_steps=st.integers(0, 6))


@given(
    policy=st.one_of(SPECTRUM, REUSE, st.just(POLICIES["full"])),
    steps=st.integers(1, 16),
    guidance_scale=st.sampled_from([1.0, 4.0]),
)
@settings(max_examples=80, deadline=None)
def test_the_planned_passes_are_the_ones_that_sampling_takes(policy, steps, guidance_scale):
    request = make_request(policy=policy, steps=steps, guidance_scale=guidance_scale)
    model = TinyModel()
    reports = [report for _, report in sample(request, model, initial_state(request))]
    planned = planned_passes(request)
    assert tuple(report.passes for report in reports) == planned
    assert tuple(report.index for report in reports if report.computed) == computed_steps(request)
    assert tuple(model.passes.count(step) for step in range(steps)) == planned


def test_guidance_reuse_runs_both_in_the_warm_up_every_nth_step_and_at_the_end():
    request = make_request(steps=10, policy=GuidanceReusePolicy(uncond_every=3, warmup_steps=2))
    assert planned_passes(request) == (2, 2, 1, 2, 1, 1, 2, 1, 1, 2)


def test_guidance_scale_1_runs_one_pass():
    assert planned_passes(make_request(steps=3, guidance_scale=1.0)) == (1, 1, 1)


def test_guidance_reuse_keeps_the_last_difference():
    """Second implementation of Euler's steps from the model's velocities; 1e-5: float32 over 8 steps."""
    policy = GuidanceReusePolicy(uncond_every=4, warmup_steps=1)
    request, model = make_request(steps=8, policy=policy, guidance_scale=3.0), TinyModel()
    sigmas, x = make_sigmas("simple", 8, 3.0).astype(float), initial_state(request).latents
    for step in range(8):
        cond, uncond = (model.velocity(f, step) for f in model.features(x, step, ("cond", "uncond")))
        if step in (0, 4, 7):
            difference = cond - uncond
        x = (x + (cond + 2 * difference) * (sigmas[step + 1] - sigmas[step])).astype(np.float32)
    *_, (state, _) = sample(request, TinyModel(), initial_state(request))
    np.testing.assert_allclose(state.latents, x, rtol=0, atol=1e-5)


def test_features_and_denoised_forecasts_agree_where_both_are_one_linear_map():
    """With a linear final layer and one pass, forecasting features is forecasting velocities: checked by hand; 1e-5."""
    policy = SpectrumPolicy(forecast="features", blend=0.0, warmup_steps=2, tail_steps=1, window_size=100)
    request, model = make_request(steps=4, policy=policy, guidance_scale=1.0), TinyModel()
    sigmas, x = make_sigmas("simple", 4, 3.0).astype(float), initial_state(request).latents
    velocities = []
    for step in range(4):
        if step == 2:
            velocity = velocities[1] + 0.5 * (velocities[1] - velocities[0])
        else:
            velocity = model.velocity(model.features(x, step, ("cond",))[0], step)
        velocities.append(velocity)
        x = (x + velocity * (sigmas[step + 1] - sigmas[step])).astype(np.float32)
    *_, (state, _) = sample(request, TinyModel(), initial_state(request))
    np.testing.assert_allclose(state.latents, x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("forecast", ["denoised", "features"])
def test_forecast_steps_leave_the_history_alone(forecast):
    request = make_request(policy=SpectrumPolicy(forecast=forecast))
    before = initial_state(request)
    for state, report in sample(request, TinyModel(), before):
        if report.computed:
            assert state.forecast.history[-1].step == report.index - 1
        else:
            assert state.forecast.history is before.forecast.history
        before = state


@pytest.mark.parametrize(
    ("forecast", "scale", "tensors"), [("denoised", 4.0, 1), ("features", 4.0, 2), ("features", 1.0, 1)]
)
def test_history_entries_are_read_only_and_shared_between_states(forecast, scale, tensors):
    request = make_request(policy=SpectrumPolicy(forecast=forecast), guidance_scale=scale)
    seen = {}
    for state, _ in sample(request, TinyModel(), initial_state(request)):
        for entry in state.forecast.history:
            assert len(entry.tensors) == tensors
            assert not any(tensor.flags.writeable for tensor in entry.tensors)
            assert seen.setdefault(entry.step, entry) is entry
