"""From noise to latents: a generator of complete states, one a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from anima_batch.files import xxh3_128_bytes
from anima_batch.job.request import ImageRequest, SpectrumPolicy
from anima_batch.sampling.flow_match import make_sigmas
from anima_batch.sampling.noise import make_noise
from anima_batch.sampling.policies import StepVelocity, VelocityModel, step_velocity
from anima_batch.sampling.solvers import solve_step
from anima_batch.sampling.spectrum import start_forecast
from anima_batch.sampling.state import Array, SamplerState, SolverState, StepReport, freeze

_CHANNELS = 16
_PIXELS_PER_LATENT = 8


def initial_state(request: ImageRequest) -> SamplerState:
    """The state before the first step: the seeded noise, which is x at sigma = 1, (16, height / 8, width / 8)."""
    shape = (_CHANNELS, request.height // _PIXELS_PER_LATENT, request.width // _PIXELS_PER_LATENT)
    policy = request.policy
    return SamplerState(
        step=0,
        latents=freeze(make_noise(request.noise, request.seed, shape)),
        forecast=start_forecast(policy) if isinstance(policy, SpectrumPolicy) else None,
        solver=SolverState(),
        guidance=None,
    )


def sample(
    request: ImageRequest, model: VelocityModel, state: SamplerState
) -> Iterator[tuple[SamplerState, StepReport]]:
    """Each state after `state` up to the last step, with what its step did.

    A state is complete: sampling from any of them gives the later ones bit by bit. NaN and infinity are counted in the
    report and raise nothing. The request must be free of errors by `check_request`.
    """
    sigmas = make_sigmas(request.schedule, request.steps, request.shift)
    while state.step < request.steps:
        started = time.perf_counter()
        # Overflow shows in the report's counts; left alone NumPy would warn of it at every later step.
        with np.errstate(over="ignore", invalid="ignore"):
            velocity = step_velocity(request, sigmas, model, state)
            state = _take_step(request, sigmas, state, velocity)
        seconds = time.perf_counter() - started
        yield state, _report_step(state, sigmas, passes=velocity.passes, seconds=seconds)


def _take_step(request: ImageRequest, sigmas: Array, state: SamplerState, step: StepVelocity) -> SamplerState:
    """The state one step further along the velocity."""
    interval = (float(sigmas[state.step]), float(sigmas[state.step + 1]))
    latents, solver = solve_step(request.sampler, state.latents, step.velocity, interval, state.solver)
    if solver.previous is not None:
        solver = replace(solver, previous=freeze(solver.previous))
    return SamplerState(state.step + 1, freeze(latents), step.forecast, solver, step.guidance)


def _report_step(state: SamplerState, sigmas: Array, *, passes: int, seconds: float) -> StepReport:
    """The report of the step that led to `state`."""
    latents = np.ascontiguousarray(state.latents)
    finite = latents[np.isfinite(latents)]
    nan = int(np.isnan(latents).sum())
    return StepReport(
        index=state.step,
        sigma=float(sigmas[state.step - 1]),
        computed=passes > 0,
        passes=passes,
        seconds=seconds,
        nan=nan,
        inf=latents.size - finite.size - nan,
        abs_max=float(np.abs(finite).max()) if finite.size else None,
        latents_xxh3=xxh3_128_bytes(latents.data),
    )
