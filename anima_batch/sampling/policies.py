"""The velocity of one step under each policy, and how many transformer passes each step takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from anima_batch.job.request import GuidanceReusePolicy, ImageRequest, SpectrumPolicy
from anima_batch.sampling.flow_match import guide, make_sigmas
from anima_batch.sampling.spectrum import (
    forecast_tensors,
    is_forecast,
    plan_forecasts,
    record_computed,
    record_forecast,
)
from anima_batch.sampling.state import Array, ForecastState, HistoryEntry, SamplerState, freeze

Stream: TypeAlias = Literal["cond", "uncond"]


class VelocityModel(Protocol):
    """The transformer, made for one image's prompt, size and sigmas: a step's number (from 0) names its sigma.

    Both must return new arrays that are never written again: a forecast keeps them. Neither may lean on a call before,
    since a resumed image may begin with a forecast step, which calls `velocity` alone.
    """

    def features(self, latents: Array, step: int, streams: tuple[Stream, ...]) -> list[Array]:
        """The final layer's input of each stream, in the order given: float32 (L, D).

        latents: (16, h, w), read-only. All streams share each load of a subgraph.
        """

    def velocity(self, features: Array, step: int) -> Array:
        """The final layer on one stream's features: noise - x0, float32 (16, h, w)."""


@dataclass(frozen=True, slots=True, eq=False)
class StepVelocity:
    """A step's velocity after guidance, the transformer passes it took, and what the policy keeps for later steps."""

    velocity: Array
    passes: int
    forecast: ForecastState | None = None
    guidance: Array | None = None


def step_velocity(request: ImageRequest, sigmas: Array, model: VelocityModel, state: SamplerState) -> StepVelocity:
    """The velocity of step `state.step` (from 0) under the request's policy."""
    if isinstance(request.policy, GuidanceReusePolicy):
        return _reuse_guidance(request, request.policy, model, state)
    if not isinstance(request.policy, SpectrumPolicy):
        features = _compute_features(request, model, state)
        return StepVelocity(_guided_velocity(request, model, features, state.step), passes=len(features))
    assert state.forecast is not None  # initial_state makes one for this policy
    if is_forecast(request.policy, sigmas, state.step, state.forecast):
        return _forecast_velocity(request, request.policy, sigmas, model, state)
    return _computed_velocity(request, request.policy, sigmas, model, state)


def _compute_features(request: ImageRequest, model: VelocityModel, state: SamplerState) -> tuple[Array, ...]:
    """The features of the streams that the guidance needs, cond first; float32 (L, D) each."""
    return tuple(model.features(state.latents, state.step, guidance_streams(request)))


def guidance_streams(request: ImageRequest) -> tuple[Stream, ...]:
    """The streams of a computed step: guidance_scale 1 cancels the unconditional one, which is not run then."""
    return ("cond",) if request.guidance_scale == 1.0 else ("cond", "uncond")


def _guided_velocity(request: ImageRequest, model: VelocityModel, features: tuple[Array, ...], step: int) -> Array:
    """The final layer on each stream, then guidance; float32 (16, h, w)."""
    velocities = [model.velocity(stream, step) for stream in features]
    if len(velocities) == 1:
        return velocities[0]
    cond, uncond = velocities
    return guide(uncond, cond, request.guidance_scale)


def _computed_velocity(
    request: ImageRequest, policy: SpectrumPolicy, sigmas: Array, model: VelocityModel, state: SamplerState
) -> StepVelocity:
    """A step that Spectrum computes: it enters the history, as denoised latents or as features."""
    assert state.forecast is not None
    features = _compute_features(request, model, state)
    velocity = _guided_velocity(request, model, features, state.step)
    tensors = features
    if policy.forecast == "denoised":
        tensors = (state.latents - velocity * sigmas[state.step],)
    entry = HistoryEntry(state.step, tuple(freeze(tensor) for tensor in tensors))
    return StepVelocity(velocity, len(features), forecast=record_computed(policy, state.forecast, entry))


def _forecast_velocity(
    request: ImageRequest, policy: SpectrumPolicy, sigmas: Array, model: VelocityModel, state: SamplerState
) -> StepVelocity:
    """A step that Spectrum forecasts: no transformer pass, and nothing enters the history."""
    assert state.forecast is not None
    forecast = record_forecast(state.forecast)
    tensors = forecast_tensors(policy, sigmas, state.step, state.forecast)
    if policy.forecast == "features":
        return StepVelocity(_guided_velocity(request, model, tensors, state.step), passes=0, forecast=forecast)
    (denoised,) = tensors
    return StepVelocity((state.latents - denoised) / sigmas[state.step], passes=0, forecast=forecast)


def _reuse_guidance(
    request: ImageRequest, policy: GuidanceReusePolicy, model: VelocityModel, state: SamplerState
) -> StepVelocity:
    """The conditional pass, with the unconditional one or with the difference of the last step that ran both.

    v_cond + (guidance_scale - 1) (v_cond - v_uncond), which is uncond + guidance_scale (cond - uncond).
    """
    step = state.step
    if guidance_streams(request) == ("cond",) or runs_both(policy, step, request.steps):
        features = _compute_features(request, model, state)
        velocities = [model.velocity(stream, step) for stream in features]
        if len(velocities) == 1:
            return StepVelocity(velocities[0], passes=1)
        cond, uncond = velocities
        velocity = guide(uncond, cond, request.guidance_scale)
        return StepVelocity(velocity, passes=2, guidance=freeze(cond - uncond))
    assert state.guidance is not None  # step 0 ran both
    (cond_features,) = model.features(state.latents, step, ("cond",))
    velocity = model.velocity(cond_features, step) + (request.guidance_scale - 1) * state.guidance
    return StepVelocity(velocity, passes=1, guidance=state.guidance)


def runs_both(policy: GuidanceReusePolicy, step: int, steps: int) -> bool:
    """Whether both passes run at `step` (from 0): in the warm-up, at every n-th step and at the last."""
    return step < policy.warmup_steps or step % policy.uncond_every == 0 or step == steps - 1


def planned_passes(request: ImageRequest) -> tuple[int, ...]:
    """The transformer passes of each step, 0 where it is forecast, as `sample` will take them; nothing is computed."""
    passes = len(guidance_streams(request))
    policy = request.policy
    if isinstance(policy, GuidanceReusePolicy):
        return tuple(passes if runs_both(policy, step, request.steps) else 1 for step in range(request.steps))
    if not isinstance(policy, SpectrumPolicy):
        return (passes,) * request.steps
    sigmas = make_sigmas(request.schedule, request.steps, request.shift)
    return tuple(0 if forecast else passes for forecast in plan_forecasts(policy, sigmas, request.steps)[0])


def computed_steps(request: ImageRequest) -> tuple[int, ...]:
    """The steps, counted from 1, that run the transformer."""
    return tuple(index for index, passes in enumerate(planned_passes(request), start=1) if passes)
