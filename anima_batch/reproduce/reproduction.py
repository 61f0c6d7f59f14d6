"""How far a picture that was made again is from the first one, and what may be the cause."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from anima_batch.audit import open_picture
from anima_batch.errors import DifferenceFoundError
from anima_batch.job import request_id
from anima_batch.measures import measure_psnr
from anima_batch.reproduce.original import Original
from anima_batch.reproduce.undertaking import Undertaking
from anima_batch.store import Manifest, Pixels, pixel_sha256, read_manifest


@dataclass(frozen=True)
class Reproduction:
    """The comparison; what cannot be told from the records that are left is None.

    `noise` is whether the initial noise is the same, `first_different_step` counts from 1 and is None where all steps
    are the same; `steps` is how many were compared. `psnr_db` is infinite for equal pixels. `environment` has what
    differs, by name: before and now.
    """

    original: Original
    made: Manifest
    model_set_differences: tuple[str, ...]
    same_pixels: bool
    psnr_db: float | None
    noise: bool | None
    steps: int
    first_different_step: int | None
    environment: dict[str, tuple[str | None, str | None]]

    @property
    def identical(self) -> bool:
        """Whether pixels, noise and the latents after each step are the same, as far as they are recorded."""
        return self.same_pixels and self.noise is not False and self.first_different_step is None


def compare_made(original: Original, undertaking: Undertaking) -> Reproduction:
    """The comparison of the original with what the run of the undertaking left; raises DifferenceFoundError without."""
    paths = list(undertaking.manifests.glob("*.json"))
    wanted = request_id(original.request, undertaking.model_set.digest)
    made = [manifest for manifest in map(read_manifest, paths) if manifest.request_id == wanted]
    if not made or made[0].image is None:
        raise DifferenceFoundError(f"{undertaking.manifests}: no finished image of the request: run it again")
    again, before = made[0], original.manifest
    assert again.image is not None
    pixels = open_picture(undertaking.workspace / again.image.path).pixels
    return Reproduction(
        original=original,
        made=again,
        model_set_differences=undertaking.model_set_differences,
        same_pixels=_pixel_digest(original) == again.image.pixel_sha256,
        psnr_db=_measure(original, again, pixels),
        noise=None if before is None else before.sampling.noise_sha256 == again.sampling.noise_sha256,
        steps=0 if before is None else len(before.steps),
        first_different_step=None if before is None else _first_different_step(before, again),
        environment={} if before is None else _compare_environments(before, again),
    )


def _pixel_digest(original: Original) -> str:
    if original.manifest is not None and original.manifest.image is not None:
        return original.manifest.image.pixel_sha256
    assert original.pixels is not None  # without a manifest it was read from a picture that decodes
    return pixel_sha256(original.pixels)


def _measure(original: Original, again: Manifest, pixels: Pixels | None) -> float | None:
    """None where the first picture is not here and its digest is another."""
    assert again.image is not None
    if _pixel_digest(original) == again.image.pixel_sha256:
        return math.inf
    if original.pixels is None or pixels is None or original.pixels.shape != pixels.shape:
        return None
    return measure_psnr(np.asarray(pixels), np.asarray(original.pixels))


def _first_different_step(before: Manifest, again: Manifest) -> int | None:
    pairs = zip(before.steps, again.steps, strict=False)
    different = (old.index for old, new in pairs if old.latents_xxh3 != new.latents_xxh3)
    return next(different, None)


def _compare_environments(before: Manifest, again: Manifest) -> dict[str, tuple[str | None, str | None]]:
    old, new = before.environment.model_dump(), again.environment.model_dump()
    return {name: (old[name], new[name]) for name in old if old[name] != new[name]}
