"""What of a request cannot be sampled, or not as its author would expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anima_batch.errors import UsageError
from anima_batch.job.request import GuidanceReusePolicy, ImageRequest, SpectrumPolicy
from anima_batch.sampling.flow_match import make_sigmas
from anima_batch.sampling.policies import guidance_streams, planned_passes
from anima_batch.sampling.spectrum import COORDINATE_STEPS

_AB2_MIN_STEPS = 10  # below, its stability region is left and images fall apart


@dataclass(frozen=True, slots=True)
class Problem:
    """One clash: `keys` are the request's fields of which one must change. An error must not be sampled."""

    severity: Literal["error", "warning"]
    message: str
    keys: tuple[str, ...]


def check_request(request: ImageRequest) -> list[Problem]:
    """All clashes between the fields of a request that are valid one by one; prompts and sizes play no part."""
    try:
        make_sigmas(request.schedule, request.steps, request.shift)
    except UsageError as error:
        return [Problem("error", str(error), ("steps", "schedule"))]
    problems = [*_check_policy(request), *_check_warnings(request)]
    if isinstance(request.policy, SpectrumPolicy) and request.sampler != "euler":
        message = f"policy of kind spectrum goes with sampler euler only, got {request.sampler}"
        problems.insert(0, Problem("error", message, ("sampler", "policy")))
    return problems


def _check_policy(request: ImageRequest) -> list[Problem]:
    """Errors of a policy that saves nothing: it would be `full` under another name."""
    policy, steps = request.policy, request.steps
    if isinstance(policy, GuidanceReusePolicy) and request.guidance_scale == 1.0:
        message = "guidance_scale 1.0 runs no unconditional pass: policy of kind guidance_reuse has nothing to reuse"
        return [Problem("error", message, ("guidance_scale", "policy"))]
    if not isinstance(policy, SpectrumPolicy | GuidanceReusePolicy):
        return []
    full = len(guidance_streams(request)) * steps
    if sum(planned_passes(request)) < full:
        return []
    cause = f"at {steps} steps it computes everything"
    for name in ("warmup_steps", "tail_steps"):
        if (count := getattr(policy, name, None)) is not None and count >= steps:
            cause = f"{name} {count} must be below steps {steps}"
    return [Problem("error", f"policy of kind {policy.kind} equals `full`: {cause}", ("steps", "policy"))]


def _check_warnings(request: ImageRequest) -> list[Problem]:
    """What is legal and still not what it seems."""
    policy, problems = request.policy, []
    if isinstance(policy, SpectrumPolicy) and policy.coordinate == "step" and request.steps > COORDINATE_STEPS:
        message = (
            f'steps {request.steps}: with coordinate "step" the Chebyshev domain [-1, 1] is {COORDINATE_STEPS} steps '
            'long and forecasts past it extrapolate: take coordinate "sigma"'
        )
        problems.append(Problem("warning", message, ("steps", "policy")))
    if request.sampler == "ab2" and request.steps < _AB2_MIN_STEPS:
        message = f"sampler ab2 breaks down under {_AB2_MIN_STEPS} steps, got {request.steps}: take euler or more steps"
        problems.append(Problem("warning", message, ("steps", "sampler")))
    if request.noise == "torch" and request.seed >= 2**32:
        message = (
            f"noise torch uses the low 32 bits of a seed only: {request.seed} gives the noise of {request.seed % 2**32}"
        )
        problems.append(Problem("warning", message, ("seed", "noise")))
    return problems
