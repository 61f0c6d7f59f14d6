"""Flow matching: x_sigma = (1 - sigma) x0 + sigma noise, its schedules of sigmas, and guidance."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from anima_batch.errors import UsageError
from anima_batch.job.request import Schedule
from anima_batch.sampling.state import Array

_TRAIN_STEPS = 1000
_BETA_SHAPE = 0.6
_MAX_NEWTON_STEPS = 60


def make_sigmas(schedule: Schedule, steps: int, shift: float) -> Array:
    """The sigmas of a schedule from 1 down to the last positive one, then 0; one step gives [1, 0].

    float32 (steps + 1,). `discrete` is stable-diffusion.cpp's default; `simple`, `sgm_uniform`, `normal` and `beta` are
    ComfyUI's for a flow model of 1000 timesteps and multiplier 1. Raises UsageError where two sigmas would be equal, as
    `beta` has from 139 steps on: it rounds to a table of 1000 sigmas.
    """
    positive = _positive_sigmas(schedule, steps, shift)
    sigmas = np.append(positive, 0.0).astype(np.float32)
    distinct = len(np.unique(sigmas)) - 1
    if distinct < steps:
        raise UsageError(
            f"schedule {schedule} with shift {shift}: only {distinct} of {steps} sigmas differ: "
            "take fewer steps or another schedule"
        )
    return sigmas


def _positive_sigmas(schedule: Schedule, steps: int, shift: float) -> npt.NDArray[np.float64]:
    """The schedule without its final 0, float64 (steps,)."""
    table = shift_sigmas(np.arange(1, _TRAIN_STEPS + 1) / _TRAIN_STEPS, shift)  # (1000,), rising
    if schedule == "discrete":
        times = np.linspace(_TRAIN_STEPS - 1, 0, steps)
        return shift_sigmas((times + 1) / _TRAIN_STEPS, shift)
    if schedule == "simple":
        # int() of a product in double precision: single precision gives another entry at 30 steps.
        stride = _TRAIN_STEPS / steps
        return table.take([_TRAIN_STEPS - 1 - int(index * stride) for index in range(steps)])
    if schedule == "beta":
        quantiles = [inverse_beta(1 - index / steps, _BETA_SHAPE) for index in range(steps)]
        indices: npt.NDArray[np.int64] = np.rint(np.array(quantiles) * (_TRAIN_STEPS - 1)).astype(np.int64)
        return table.take(indices)
    # ComfyUI spaces the shifted sigmas evenly and then shifts them a second time.
    if schedule == "normal":
        return shift_sigmas(np.linspace(table[-1], table[0], steps), shift)
    return shift_sigmas(np.linspace(table[-1], table[0], steps + 1)[:-1], shift)


def shift_sigmas(sigmas: npt.NDArray[np.float64], shift: float) -> npt.NDArray[np.float64]:
    """Each s becomes shift s / (1 + (shift - 1) s): over 1 more steps at high noise (Esser et al. 2024, eq. 23)."""
    return shift * sigmas / (1 + (shift - 1) * sigmas)


def inverse_beta(probability: float, shape: float) -> float:
    """The x in [0, 1] where the regularised incomplete beta function I_x(shape, shape) has the value `probability`.

    For shape a < 1. With u = x^a, I_x B(a, a) is the power series u sum_n (1-a)_n / n! x^n / (a + n). Its terms are
    positive, so that it is convex in u and Newton's method converges from the right after one step; for x <= 1/2 it
    converges as 2^-n, and the upper half follows by symmetry.
    """
    if probability == 0.5:
        return 0.5  # exactly, by symmetry: 999 * 0.5 is a tie for `beta`, which rounds to even
    if probability > 0.5:
        return 1 - inverse_beta(1 - probability, shape)
    target = probability * math.gamma(shape) ** 2 / math.gamma(2 * shape)
    u = target * shape
    for _ in range(_MAX_NEWTON_STEPS):
        x = min(u ** (1 / shape), 0.5)
        u = x**shape
        slope = (1 - x) ** (shape - 1) / shape  # d(I_x B)/du
        change = (u * _beta_series(x, shape) - target) / slope
        u -= change
        if abs(change) <= 4e-16 * u:
            break
    return float(u ** (1 / shape))


def _beta_series(x: float, shape: float) -> float:
    """sum_n (1-a)_n / n! x^n / (a + n) for 0 <= x <= 1/2, to double precision."""
    total, coefficient = 0.0, 1.0
    for n in range(64):
        total += coefficient / (shape + n)
        coefficient *= (1 - shape + n) / (n + 1) * x
    return total


def guide(uncond: Array, cond: Array, guidance_scale: float) -> Array:
    """Classifier-free guidance: uncond + guidance_scale * (cond - uncond)."""
    return uncond + guidance_scale * (cond - uncond)
