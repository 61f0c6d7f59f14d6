from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_model import golden_arrays, golden_json, make_request

from anima_batch.job.request import SpectrumPolicy
from anima_batch.sampling import HistoryEntry, computed_steps, make_sigmas
from anima_batch.sampling.spectrum import (
    evaluate_chebyshev,
    forecast_tensors,
    forecast_weights,
    is_forecast,
    make_coordinates,
    record_computed,
    record_forecast,
    solve_positive_definite,
    start_forecast,
)

GOLDEN = golden_json("d_spectrum.json")


def golden_policy(params):
    return SpectrumPolicy(
        blend=params["w"],
        degree=params["m"],
        ridge_lambda=params["lam"],
        window_size=params["window_size"],
        flex_window=params["flex_window"],
        warmup_steps=params["warmup_steps"],
        stop_fraction=params["stop_percent"],
    )


def replay(run, trajectory):
    """(recorded step, state before it, whether we forecast it, our forecast or None) for each step of a golden run."""
    policy, steps = golden_policy(run["params"]), run["total_steps"]
    sigmas, state = make_sigmas("discrete", steps, 3.0), start_forecast(policy)
    for recorded in run["steps"]:
        step = recorded["i"]
        forecast = is_forecast(policy, sigmas, step, state)
        yield recorded, state, forecast, forecast_tensors(policy, sigmas, step, state)[0] if forecast else None
        if forecast:
            state = record_forecast(state)
        else:
            state = record_computed(policy, state, HistoryEntry(step, (trajectory[step],)))


@pytest.mark.parametrize("name", GOLDEN["runs"])
def test_decisions_and_weights_equal_stable_diffusion_cpp(name):
    """spectrum.hpp compiled unchanged. tau 2e-7: printed with nine digits; weights 1e-4 (they agree to 5e-9)."""
    run = GOLDEN["runs"][name]
    policy, sigmas = golden_policy(run["params"]), make_sigmas("discrete", run["total_steps"], 3.0)
    assert policy.history == run["K"]
    for recorded, state, forecast, _ in replay(
        run, golden_arrays(f"d_spectrum_n{run['total_steps']}.npz")["trajectory"]
    ):
        assert forecast is recorded["predict"]
        assert state.cached == recorded["num_cached_before"]
        assert state.window == pytest.approx(recorded["curr_ws_before"], abs=1e-6)
        assert len(state.history) == recorded["hist_len_before"]
        if forecast:
            nodes = make_coordinates(policy, sigmas, [entry.step for entry in state.history])
            tau = make_coordinates(policy, sigmas, [recorded["i"]])[0]
            np.testing.assert_allclose([*nodes, tau], [*recorded["hist_tau"], recorded["tau"]], rtol=0, atol=2e-7)
            weights = forecast_weights(policy, nodes, tau)
            assert weights.dtype == np.float32
            np.testing.assert_allclose(weights, recorded["weights"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", GOLDEN["runs"])
def test_forecasts_equal_stable_diffusion_cpp(name):
    """spectrum.hpp compiled unchanged; 1e-4 (they agree to 1e-6)."""
    arrays = golden_arrays(f"d_spectrum_n{GOLDEN['runs'][name]['total_steps']}.npz")
    label = name.split("/")[0]
    forecasts = {
        recorded["i"]: tensor
        for recorded, _, forecast, tensor in replay(GOLDEN["runs"][name], arrays["trajectory"])
        if forecast
    }
    assert list(forecasts) == arrays[f"{label}/predicted_steps0"].tolist()
    if f"{label}/predictions" in arrays:
        np.testing.assert_allclose(list(forecasts.values()), arrays[f"{label}/predictions"], rtol=0, atol=1e-4)


def test_the_default_schedule_equals_stable_diffusion_cpp_at_every_step_count():
    recorded = GOLDEN["default_schedule_computed_steps_1based"]
    assert {*recorded} == {*map(str, range(1, 61)), "75", "100"}
    for steps, expected in recorded.items():
        assert list(computed_steps(make_request(steps=int(steps), policy=SpectrumPolicy()))) == expected


def test_the_default_schedule_of_20_steps_computes_11():
    request = make_request(steps=20, policy=SpectrumPolicy())
    assert computed_steps(request) == (1, 2, 3, 4, 6, 8, 11, 14, 18, 19, 20)


def test_stop_fraction_0_has_no_tail():
    policy = SpectrumPolicy(stop_fraction=0.0, window_size=100)
    assert computed_steps(make_request(steps=20, policy=policy)) == (1, 2, 3, 4)


def test_tail_steps_are_always_computed():
    for tail_steps in range(8):
        policy = SpectrumPolicy(tail_steps=tail_steps, window_size=100)
        expected = (1, 2, 3, 4, *range(21 - tail_steps, 21))
        assert computed_steps(make_request(steps=20, policy=policy)) == expected


def test_steps_over_start_sigma_are_computed():
    request = make_request(steps=20, policy=SpectrumPolicy(start_sigma=0.7, window_size=100, tail_steps=0))
    sigmas = make_sigmas("simple", 20, 3.0)
    expected = tuple(int(step) + 1 for step in range(20) if sigmas[step] > 0.7)
    assert len(expected) > 4
    assert computed_steps(request) == expected


def test_the_sigma_coordinate_runs_from_minus_1_to_1_over_the_positive_sigmas():
    """2e-7: float32."""
    sigmas = make_sigmas("simple", 20, 3.0)
    coordinates = make_coordinates(SpectrumPolicy(coordinate="sigma"), sigmas, list(range(20)))
    expected = 2 * (sigmas[:-1].astype(float) - sigmas[0]) / (float(sigmas[-2]) - sigmas[0]) - 1
    assert coordinates.dtype == np.float32
    np.testing.assert_allclose(coordinates, expected, rtol=0, atol=2e-7)


NODES = np.array([-1, -0.8, -0.5, -0.1, 0.1], dtype=np.float32)


def ridge_weights(policy, nodes, tau):
    """Second implementation in float64: NumPy's Chebyshev basis and a least-squares fit with rows for the penalty."""
    basis = np.polynomial.chebyshev.chebvander(nodes.astype(float), policy.degree)
    penalty = np.sqrt(policy.ridge_lambda) * np.eye(policy.degree + 1)
    if not policy.penalize_constant:
        penalty = penalty[1:]
    rows = np.vstack([basis, penalty])
    fit = np.linalg.lstsq(rows, np.eye(len(rows))[:, : len(nodes)], rcond=None)[0]  # (degree + 1, K)
    chebyshev = np.polynomial.chebyshev.chebvander(float(tau), policy.degree)[0] @ fit
    taylor = np.zeros(len(nodes))
    taylor[-2:] = -0.5, 1.5
    return policy.blend * chebyshev + (1 - policy.blend) * taylor


@pytest.mark.parametrize("penalize_constant", [True, False])
@pytest.mark.parametrize("degree", [0, 1, 3, 6])
@pytest.mark.parametrize("blend", [0.0, 0.4, 1.0])
def test_weights_equal_a_least_squares_fit(penalize_constant, degree, blend):
    """1e-5: float32 normal equations with a condition number of about 10."""
    policy = SpectrumPolicy(degree=degree, blend=blend, penalize_constant=penalize_constant)
    weights = forecast_weights(policy, NODES, np.float32(0.3))
    np.testing.assert_allclose(weights, ridge_weights(policy, NODES, 0.3), rtol=0, atol=1e-5)


def test_a_free_constant_keeps_the_sum_of_the_weights_at_1():
    """A constant image is forecast as it is, where the penalised fit fades it; 1e-5: float32."""
    free = forecast_weights(SpectrumPolicy(penalize_constant=False), NODES, np.float32(0.3))
    penalised = forecast_weights(SpectrumPolicy(), NODES, np.float32(0.3))
    assert free.sum() == pytest.approx(1, abs=1e-5)
    assert penalised.sum() < 0.97


def test_blend_0_is_half_a_step_past_the_last_whatever_the_distance():
    for coordinate in ("step", "sigma"):
        policy = SpectrumPolicy(blend=0.0, coordinate=coordinate)
        weights = forecast_weights(policy, NODES, np.float32(0.9))
        np.testing.assert_array_equal(weights, np.array([0, 0, 0, -0.5, 1.5], dtype=np.float32))


@given(
    degree=st.integers(0, 16),
    ridge_lambda=st.floats(0.001, 10),
    entries=st.integers(2, 20),
    penalize_constant=st.booleans(),
)
@settings(deadline=None)
def test_fewer_entries_than_coefficients_still_give_finite_weights(degree, ridge_lambda, entries, penalize_constant):
    policy = SpectrumPolicy(degree=degree, ridge_lambda=ridge_lambda, penalize_constant=penalize_constant)
    nodes = make_coordinates(policy, make_sigmas("simple", 50, 3.0), list(range(0, 2 * entries, 2)))
    weights = forecast_weights(policy, nodes, np.float32(0.5))
    assert np.isfinite(weights).all()


def test_chebyshev_values_are_cosines():
    """T_j(cos a) = cos(j a); 2e-6: the recurrence in float32 up to degree 8."""
    angles = np.linspace(0, np.pi, 9)
    values = evaluate_chebyshev(np.cos(angles).astype(np.float32), 8)
    np.testing.assert_allclose(values, np.cos(np.outer(angles, np.arange(9))), rtol=0, atol=2e-6)


def test_a_singular_system_is_solved_with_a_little_added_to_its_diagonal():
    """1e-3: the solution of the mended system [[1 + 1e-4, 1], [1, 1 + 1e-4]], whose condition number is 2e4."""
    solution = solve_positive_definite(np.ones((2, 2), dtype=np.float32), np.array([1, 1], dtype=np.float32))
    np.testing.assert_allclose(solution, [0.5, 0.5], rtol=0, atol=1e-3)


def test_a_system_beyond_mending_is_an_error():
    with pytest.raises(ArithmeticError, match="not positive definite"):
        solve_positive_definite(-np.eye(2, dtype=np.float32), np.ones(2, dtype=np.float32))


def test_history_drops_the_oldest_and_shares_what_it_keeps():
    policy, state = SpectrumPolicy(history=3), start_forecast(SpectrumPolicy(history=3))
    entries = [HistoryEntry(step, (np.zeros((16, 2, 2), dtype=np.float32),)) for step in range(5)]
    for entry in entries:
        state = record_computed(policy, state, entry)
    assert [entry.step for entry in state.history] == [2, 3, 4]
    assert all(kept is given_entry for kept, given_entry in zip(state.history, entries[2:], strict=True))
