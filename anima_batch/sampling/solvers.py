"""Solvers of dx/dsigma = velocity, as pure functions of one step.

All take x, the velocity (noise - x0, so that x0 = x - sigma velocity), sigma > sigma_next >= 0 and what the step before
left. They work in the arrays' own precision; coefficients are Python floats.
"""

from __future__ import annotations

import math

from anima_batch.job.request import Sampler
from anima_batch.sampling.state import Array, SolverState


def solve_step(
    sampler: Sampler, x: Array, velocity: Array, sigmas: tuple[float, float], state: SolverState
) -> tuple[Array, SolverState]:
    """Step from x at sigmas[0] to x at sigmas[1] by the named solver; also returns what its next step needs."""
    solver = {"euler": euler, "ab2": ab2, "dpmpp_2m": dpmpp_2m}[sampler]
    return solver(x, velocity, sigmas[0], sigmas[1], state)


def euler(x: Array, velocity: Array, sigma: float, sigma_next: float, state: SolverState) -> tuple[Array, SolverState]:
    """Euler's method, x + (sigma_next - sigma) velocity; keeps nothing."""
    return x + velocity * (sigma_next - sigma), state


def ab2(x: Array, velocity: Array, sigma: float, sigma_next: float, state: SolverState) -> tuple[Array, SolverState]:
    """Second-order Adams-Bashforth with variable step; the first step is Euler's.

    x + h (v + h / (2 h') (v - v')), h' being the step before (Hairer, Norsett, Wanner 1993, III.5).
    """
    step = sigma_next - sigma
    slope = velocity
    if state.previous is not None and state.previous_sigma is not None:
        slope = velocity + (velocity - state.previous) * (step / (2 * (sigma - state.previous_sigma)))
    return x + slope * step, SolverState(velocity, sigma)


def dpmpp_2m(
    x: Array, velocity: Array, sigma: float, sigma_next: float, state: SolverState
) -> tuple[Array, SolverState]:
    """DPM-Solver++(2M) for alpha = 1 - sigma (Lu et al. 2022, "DPM-Solver++", alg. 2).

    With lambda = ln((1 - sigma) / sigma) and h its step, alpha_next (1 - exp(-h)) is 1 - sigma_next / sigma, so that
    x_next = D + (sigma_next / sigma) (x - D),  D = x0 + h / (2 h') (x0 - x0').
    """
    denoised = x - velocity * sigma
    ratio = sigma_next / sigma
    corrected = denoised
    if state.previous is not None and state.previous_sigma is not None:
        corrected = denoised + (denoised - state.previous) * _extrapolation(state.previous_sigma, sigma, sigma_next)
    return corrected + (x - corrected) * ratio, SolverState(denoised, sigma)


def _extrapolation(sigma_before: float, sigma: float, sigma_next: float) -> float:
    """The factor h / (2 h') in lambda, its limits taken: 0 after sigma = 1, where h' is infinite, and at the last step.

    To sigma_next = 0 h is infinite and 2M falls back to first order, as in the paper's reference code.
    """
    if sigma_before >= 1 or sigma_next == 0:
        return 0.0
    before, now, after = (math.log((1 - s) / s) for s in (sigma_before, sigma, sigma_next))
    return (after - now) / (2 * (now - before))
