"""Whether a state that was read from a file can be one of its request's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anima_batch.job.request import GuidanceReusePolicy, ImageRequest, SpectrumPolicy
from anima_batch.sampling.flow_match import make_sigmas
from anima_batch.sampling.policies import guidance_streams
from anima_batch.sampling.spectrum import plan_forecasts
from anima_batch.sampling.state import Array, ForecastState, SamplerState


def find_state_fault(state: SamplerState, request: ImageRequest, fresh: SamplerState) -> str | None:
    """What of the state cannot be after so many steps of the request, whose first state is `fresh`; None if all fits.

    Which steps are computed and what a solver keeps follow from the request alone; the values of the arrays must be
    finite.
    """
    return next(_find_faults(state, request, fresh), None)


def _find_faults(state: SamplerState, request: ImageRequest, fresh: SamplerState) -> Iterator[str]:
    if type(state.step) is not int or not 1 <= state.step <= request.steps:
        yield f"step must be 1-{request.steps}, got {state.step}"
        return
    shape, sigmas = fresh.latents.shape, make_sigmas(request.schedule, request.steps, request.shift)
    keeps = request.sampler != "euler"
    previous_sigma = float(sigmas[state.step - 1]) if keeps else None
    if state.solver.previous_sigma != previous_sigma:
        yield f"previous_sigma must be {previous_sigma}, got {state.solver.previous_sigma}"
    reuses = isinstance(request.policy, GuidanceReusePolicy) and len(guidance_streams(request)) == 2
    for name, array, expected in (
        ("latents", state.latents, True),
        ("solver.previous", state.solver.previous, keeps),
        ("guidance", state.guidance, reuses),
    ):
        yield from _find_array_fault(name, array, shape if expected else None)
    if isinstance(request.policy, SpectrumPolicy):
        yield from _find_forecast_faults(
            state, request, request.policy, plan_forecasts(request.policy, sigmas, state.step)[1]
        )
    elif state.forecast is not None:
        yield "forecast must be none"


def _find_forecast_faults(
    state: SamplerState, request: ImageRequest, policy: SpectrumPolicy, planned: ForecastState
) -> Iterator[str]:
    found = state.forecast
    if found is None or [entry.step for entry in found.history] != [entry.step for entry in planned.history]:
        yield f"history must be of the steps {[entry.step for entry in planned.history]} (from 0)"
        return
    if (found.window, found.cached) != (planned.window, planned.cached):
        yield f"window and cached must be {planned.window} and {planned.cached}, got {found.window} and {found.cached}"
    count = 1 if policy.forecast == "denoised" else len(guidance_streams(request))
    shape = state.latents.shape
    if policy.forecast == "features" and found.history and found.history[0].tensors:
        hidden = found.history[0].tensors[0].shape[-1:]
        shape = (request.width * request.height // 256, *hidden)  # a token is 16 pixels wide and high
    for entry in found.history:
        if len(entry.tensors) != count:
            yield f"history.{entry.step} must have {count} tensors, got {len(entry.tensors)}"
        for number, tensor in enumerate(entry.tensors):
            yield from _find_array_fault(f"history.{entry.step}.{number}", tensor, shape)


def _find_array_fault(name: str, array: Array | None, shape: tuple[int, ...] | None) -> Iterator[str]:
    """`shape` is None where there must be no array."""
    found = None if array is None else array.shape
    if found != shape:
        yield f"{name} must have shape {shape}, got {found}"
    elif array is not None and not np.isfinite(array).all():
        yield f"{name} must be finite"
