"""Whole trajectories by one way of computing the transformer, to be laid beside another's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anima_batch.anima.ops import Array
from anima_batch.anima.transformer import Transformer
from anima_batch.convert.rknn.deviation import Deviation, measure_deviation
from anima_batch.job import ImageRequest
from anima_batch.measures import measure_psnr, measure_ssim
from anima_batch.sampling import initial_state, sample

# What the published work on this model and board took for good enough: its tiled decoder against Diffusers' whole one.
# The picture that its quantised MLPs gave was rejected by eye, without a figure.
LEAST_PSNR_DB = 31.444
LEAST_SSIM = 0.96109

Picture = npt.NDArray[np.uint8]  # (H, W, 3)


@dataclass(frozen=True)
class Made:
    """Latents (16, h, w) of the noise and after each step, and the picture; None where the last ones are not finite."""

    latents: tuple[Array, ...]
    picture: Picture | None


@dataclass(frozen=True)
class Judgement:
    """A picture beside ONNX Runtime's of the same request; there is none where its latents are not finite."""

    prompt: str
    latents: tuple[Deviation, ...]  # after each step
    psnr_db: float | None  # infinite for equal pictures
    ssim: float | None

    @property
    def good(self) -> bool:
        """Whether it is as near as the published work asked of a picture that it used."""
        if self.psnr_db is None or self.ssim is None:
            return False
        return self.psnr_db >= LEAST_PSNR_DB and self.ssim >= LEAST_SSIM


def make_picture(latents: tuple[Array, ...], decode: Callable[[Array], Picture]) -> Made:
    """The end of a trajectory."""
    return Made(latents, decode(latents[-1]) if np.isfinite(latents[-1]).all() else None)


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


def judge(prompt: str, made: Made, reference: Made) -> Judgement:
    """How far the latents of each step and the picture are from the reference's, which has one."""
    pairs = zip(made.latents[1:], reference.latents[1:], strict=True)  # both begin with the same noise
    both = None if made.picture is None or reference.picture is None else (made.picture, reference.picture)
    return Judgement(
        prompt=prompt,
        latents=tuple(measure_deviation(array, expected) for array, expected in pairs),
        psnr_db=measure_psnr(*both) if both else None,
        ssim=measure_ssim(*both) if both else None,
    )
