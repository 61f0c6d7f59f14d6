from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_model import golden_json
from scipy.special import betaincinv
from scipy.stats import beta as beta_distribution

from anima_batch.errors import UsageError
from anima_batch.sampling import guide, make_sigmas
from anima_batch.sampling.flow_match import inverse_beta

SCHEDULES = ["simple", "discrete", "sgm_uniform", "normal", "beta"]
DIFFUSERS_LINEAR = "anima_pipeline_linspace(1,1/N,N)"

# (peer, its schedule, ours, step counts where the peer is known to choose otherwise)
PEERS = [
    ("sdcpp", "discrete", "discrete", ()),
    ("comfyui", "simple", "simple", ()),
    ("comfyui", "normal", "normal", ()),
    ("comfyui", "sgm_uniform", "sgm_uniform", ()),
    ("comfyui", "beta", "beta", ()),
    ("sdcpp", "simple", "simple", ("30",)),
    ("sdcpp", "beta", "beta", ()),
    ("diffusers", "set_timesteps(N)", "normal", ()),
    ("diffusers", DIFFUSERS_LINEAR, "simple", ("28", "30")),
]


@pytest.mark.parametrize(("peer", "theirs", "ours", "others"), PEERS)
def test_sigmas_equal_the_peers(peer, theirs, ours, others):
    """stable-diffusion.cpp, ComfyUI 0.3.64 and Diffusers 0.42 at shift 3; 1e-6: float32 steps of theirs."""
    recorded = golden_json("e_sigmas.json")[peer][theirs]
    for steps, sigmas in recorded.items():
        if steps not in others:
            made = make_sigmas(ours, int(steps), 3.0)
            assert made.dtype == np.float32
            np.testing.assert_allclose(made, sigmas, rtol=0, atol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_step_goes_from_1_to_0(schedule):
    np.testing.assert_array_equal(make_sigmas(schedule, 1, 3.0), np.array([1, 0], dtype=np.float32))


@given(schedule=st.sampled_from(SCHEDULES), steps=st.integers(1, 138), shift=st.floats(0.1, 100))
@settings(max_examples=60, deadline=None)
def test_sigmas_fall_from_1_to_0_at_any_shift(schedule, steps, shift):
    sigmas = make_sigmas(schedule, steps, shift)
    assert sigmas.shape == (steps + 1,)
    assert sigmas[0] == 1
    assert sigmas[-1] == 0
    assert (np.diff(sigmas) < 0).all()


def test_shift_1_leaves_the_simple_schedule_even():
    np.testing.assert_allclose(make_sigmas("simple", 4, 1.0), [1, 0.75, 0.5, 0.25, 0], rtol=0, atol=1e-7)


def test_beta_is_refused_where_its_table_repeats_a_sigma():
    assert len(make_sigmas("beta", 138, 3.0)) == 139
    with pytest.raises(UsageError, match="only 138 of 139 sigmas differ"):
        make_sigmas("beta", 139, 3.0)


def test_beta_picks_the_entries_that_scipy_picks_at_every_step_count():
    """1e-6: a table of 1000 sigmas has its entries 1e-3 apart, so a wrong pick cannot hide."""
    table = 3 * np.arange(1, 1001) / (1000 + 2 * np.arange(1, 1001))
    for steps in range(1, 139):
        quantiles = beta_distribution.ppf(1 - np.linspace(0, 1, steps, endpoint=False), 0.6, 0.6)
        expected = table[np.rint(quantiles * 999).astype(int)]
        np.testing.assert_allclose(make_sigmas("beta", steps, 3.0)[:-1], expected, rtol=0, atol=1e-6)


@given(probability=st.floats(0, 1), shape=st.floats(0.05, 0.95))
@settings(deadline=None)
def test_inverse_beta_equals_scipy(probability, shape):
    """1e-12 absolute: both are good to a few units of double precision."""
    assert inverse_beta(probability, shape) == pytest.approx(betaincinv(shape, shape, probability), rel=0, abs=1e-12)


def test_inverse_beta_is_relatively_exact_near_0():
    for exponent in range(1, 15):
        assert inverse_beta(10.0**-exponent, 0.6) == pytest.approx(betaincinv(0.6, 0.6, 10.0**-exponent), rel=1e-12)


def test_guidance_is_uncond_plus_scale_times_the_difference():
    uncond, cond = np.array([1, -2], dtype=np.float32), np.array([2, 0], dtype=np.float32)
    guided = guide(uncond, cond, 4.5)
    assert guided.dtype == np.float32
    np.testing.assert_array_equal(guided, np.array([5.5, 7], dtype=np.float32))
