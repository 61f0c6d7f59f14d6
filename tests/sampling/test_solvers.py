"""The solvers on Gaussian data N(mean, deviation^2), whose velocity and trajectories are known exactly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from anima_batch.sampling import SolverState, make_sigmas
from anima_batch.sampling.solvers import ab2, dpmpp_2m, euler, solve_step

MEAN = np.array([0.7, -1.2, 0.1])
DEVIATION = np.array([0.6, 1.5, 0.25])
START = np.array([0.9, -0.4, 1.7])  # x at sigma = 1
SAMPLERS = ["euler", "ab2", "dpmpp_2m"]


def exact_velocity(x, sigma):
    """E[noise - x0 | x_sigma = x]."""
    variance = (1 - sigma) ** 2 * DEVIATION**2 + sigma**2
    return -MEAN + (sigma - (1 - sigma) * DEVIATION**2) / variance * (x - (1 - sigma) * MEAN)


def exact_x(sigma):
    return (1 - sigma) * MEAN + np.sqrt((1 - sigma) ** 2 * DEVIATION**2 + sigma**2) * START


def integrate(sampler, x, sigmas):
    state = SolverState()
    for sigma, sigma_next in itertools.pairwise(sigmas):
        x, state = solve_step(sampler, x, exact_velocity(x, sigma), (float(sigma), float(sigma_next)), state)
    return x


def shifted_grid(first, last, steps):
    """Steps that differ in length, so that the variable-step formulas matter."""
    times = np.linspace(first, last, steps + 1)
    return 3 * times / (1 + 2 * times)


def convergence_order(sampler, first, last, counts):
    """Minus the slope of ln(error) over ln(steps)."""
    errors = []
    for steps in counts:
        sigmas = shifted_grid(first, last, steps)
        errors.append(np.abs(integrate(sampler, exact_x(sigmas[0]), sigmas) - exact_x(sigmas[-1])).max())
    return -np.polyfit(np.log(counts), np.log(errors), 1)[0]


def test_the_closed_form_solves_the_equation():
    """1e-8: the reference integrates to 1e-10."""
    solution = solve_ivp(lambda s, x: exact_velocity(x, s), (1, 0), START, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(solution.y[:, -1], exact_x(0.0), rtol=0, atol=1e-8)


@pytest.mark.parametrize(("sampler", "order"), [("euler", 1), ("ab2", 2), ("dpmpp_2m", 2)])
def test_the_error_falls_with_the_solvers_order(sampler, order):
    """Between the ends; +-0.1 at 40 to 640 steps, where the next order still shows."""
    assert convergence_order(sampler, 0.9, 0.1, [40, 80, 160, 320, 640]) == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize(("sampler", "least"), [("euler", 0.9), ("ab2", 1.9), ("dpmpp_2m", 1.5)])
def test_the_error_falls_from_noise_to_image_too(sampler, least):
    """From sigma 1 to 0. dpmpp_2m extrapolates in lambda, infinite at both ends: h^2 ln(1/h) shows as less than 2."""
    assert convergence_order(sampler, 1.0, 0.0, [160, 320, 640, 1280, 2560]) > least


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("schedule", ["simple", "discrete", "sgm_uniform", "normal", "beta"])
def test_a_constant_image_is_reached_in_any_number_of_steps(sampler, schedule):
    """Data of one point: velocity (x - point) / sigma, straight lines, which all three follow; 1e-5: float32."""
    point = np.array([0.3, -2.0, 1.0], dtype=np.float32)
    sigmas, x, state = make_sigmas(schedule, 20, 3.0), START.astype(np.float32), SolverState()
    for sigma, sigma_next in itertools.pairwise(sigmas.tolist()):
        x, state = solve_step(sampler, x, (x - point) / np.float32(sigma), (sigma, sigma_next), state)
        assert x.dtype == np.float32
    np.testing.assert_allclose(x, point, rtol=0, atol=1e-5)


GRID = st.lists(st.floats(0.02, 0.98), min_size=3, max_size=3, unique=True).map(lambda s: sorted(s, reverse=True))


@given(sigmas=GRID.filter(lambda s: s[0] - s[1] > 1e-3 and s[1] - s[2] > 1e-3))
def test_one_ab2_step_integrates_the_line_through_two_velocities(sigmas):
    """Second implementation: polyfit and polyint; 1e-9 relative to values up to 1e3."""
    before, now, after = sigmas
    earlier, velocity, x = np.array([1.5]), np.array([-0.5]), np.array([2.0])
    line = np.polyint(np.polyfit([before, now], [earlier[0], velocity[0]], 1))
    expected = x + np.polyval(line, after) - np.polyval(line, now)
    x_next, state = ab2(x, velocity, now, after, SolverState(earlier, before))
    np.testing.assert_allclose(x_next, expected, rtol=1e-9, atol=1e-9)
    assert state.previous is velocity
    assert state.previous_sigma == now


@given(sigmas=GRID.filter(lambda s: s[0] - s[1] > 1e-3 and s[1] - s[2] > 1e-3))
def test_one_dpmpp_2m_step_equals_the_textbook(sigmas):
    """Second implementation: alpha, sigma, lambda and exp(-h) as printed in Lu et al. 2022, alg. 2; 1e-9 relative."""
    before, now, after = sigmas
    earlier, velocity, x = np.array([0.4]), np.array([-0.5]), np.array([2.0])
    half_logsnr = [np.log((1 - s) / s) for s in sigmas]
    h_before, h = half_logsnr[1] - half_logsnr[0], half_logsnr[2] - half_logsnr[1]
    r = h_before / h
    denoised = x - now * velocity
    data = (1 + 1 / (2 * r)) * denoised - 1 / (2 * r) * earlier
    expected = after / now * x - (1 - after) * np.expm1(-h) * data
    x_next, state = dpmpp_2m(x, velocity, now, after, SolverState(earlier, before))
    np.testing.assert_allclose(x_next, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(state.previous, denoised)


@pytest.mark.parametrize("step", [ab2, dpmpp_2m])
def test_the_first_step_is_eulers(step):
    """1e-6: dpmpp_2m writes the same line in another form, in float32."""
    x, velocity = START.astype(np.float32), MEAN.astype(np.float32)
    expected, _ = euler(x, velocity, 1.0, 0.9, SolverState())
    np.testing.assert_allclose(step(x, velocity, 1.0, 0.9, SolverState())[0], expected, rtol=0, atol=1e-6)


def test_dpmpp_2m_takes_its_limits_at_both_ends_exactly():
    x, velocity, earlier = (np.array([v], dtype=np.float32) for v in (2.0, -0.5, 9.0))
    denoised = x - velocity * np.float32(0.5)
    to_zero, _ = dpmpp_2m(x, velocity, 0.5, 0.0, SolverState(earlier, 0.75))
    np.testing.assert_array_equal(to_zero, denoised)
    with_history, _ = dpmpp_2m(x, velocity, 0.5, 0.25, SolverState(earlier, 1.0))
    without, _ = dpmpp_2m(x, velocity, 0.5, 0.25, SolverState())
    np.testing.assert_array_equal(with_history, without)
