"""Whole trajectories by one way of computing the transformer, to be laid beside another's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anima_batch.anima.ops import Array
from anima_batch.anima.transformer import Transformer
from anima_batch.convert.deviation import Deviation, measure_deviation
from anima_batch.job import ImageRequest
from anima_batch.measures import measure_psnr, measure_ssim
from anima_batch.sampling import initial_state, sample

# What the published work on this model and board took for good enough: its tiled decoder against Diffusers' whole one.
# The picture that its quantised MLPs gave was rejected by eye, without a figure.
LEAST_PSNR_DB = 31.444
LEAST_SSIM = 0.96109

Picture = npt.NDArray[np.uint8]  # (H, W, 3)


@dataclass(frozen=True)
class Judgement:
    """A picture beside ONNX Runtime's of the same request."""

    prompt: str
    latents: tuple[Deviation, ...]  # after each step
    psnr_db: float
    ssim: float

    @property
    def good(self) -> bool:
        """Whether it is as near as the published work asked of a picture that it used."""
        return self.psnr_db >= LEAST_PSNR_DB and self.ssim >= LEAST_SSIM


def run_steps(
    request: ImageRequest, transformer: Transformer, steps: int, show: Callable[[str], None]
) -> tuple[Array, ...]:
    """Latents (16, h, w) of the noise and after each of the first steps; raises BackendError or ToolkitError."""
    start = initial_state(request)
    latents = [start.latents]
    for state, report in itertools.islice(sample(request, transformer, start), steps):
        latents.append(state.latents)
        show(f"step {report.index} of {request.steps}: {report.seconds:.1f} s")
    return tuple(latents)


def judge(
    prompt: str, made: tuple[tuple[Array, ...], Picture], reference: tuple[tuple[Array, ...], Picture]
) -> Judgement:
    """How far the latents of each step and the picture are from the reference's."""
    pairs = zip(made[0][1:], reference[0][1:], strict=True)  # both begin with the same noise
    return Judgement(
        prompt=prompt,
        latents=tuple(measure_deviation(array, expected) for array, expected in pairs),
        psnr_db=measure_psnr(made[1], reference[1]),
        ssim=measure_ssim(made[1], reference[1]),
    )
