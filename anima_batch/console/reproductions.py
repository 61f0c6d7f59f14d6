"""How a picture that was made again compares with the first one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anima_batch.console.results import show_json, show_line

if TYPE_CHECKING:
    from anima_batch.reproduce import Reproduction


def show_reproduction(found: Reproduction, out: Path | None, *, json: bool) -> None:
    """The verdict, then all that differs; `out` is where the new picture was kept."""
    if json:
        show_json(reproduction_json(found, out))
        return
    show_line(f"{found.original.path}: {'identical' if found.identical else 'DIFFERENT'}")
    show_line(f"  pixels: {_describe_pixels(found)}")
    if found.noise is False:
        show_line("  initial noise: differs")
    show_line(f"  steps: {_describe_steps(found)}")
    for difference in found.model_set_differences:
        show_line(f"  model set: {difference}")
    for name, (before, now) in found.environment.items():
        show_line(f"  environment: {name}: {before} -> {now}")
    if out is not None and found.made.image is not None:
        show_line(f"  kept: {out / found.made.image.path}")


def _describe_pixels(found: Reproduction) -> str:
    if found.same_pixels:
        return "the same"
    if found.psnr_db is None:
        return "differ; the first picture is not here, so there is no PSNR"
    return f"differ, PSNR {found.psnr_db:.2f} dB"


def _describe_steps(found: Reproduction) -> str:
    if found.noise is None:
        return "not compared: no manifest of the picture is here"
    if found.first_different_step is not None:
        return f"{found.first_different_step} of {found.steps} is the first whose latents differ"
    decoding = "" if found.same_pixels else "; decoding differs"
    return f"latents after all {found.steps} are the same{decoding}"


def reproduction_json(found: Reproduction, out: Path | None) -> dict[str, Any]:
    """The whole comparison; an infinite PSNR is null beside `same_pixels`."""
    image, model_set = found.made.image, found.made.model_set
    finite = found.psnr_db is not None and math.isfinite(found.psnr_db)
    return {
        "path": str(found.original.path),
        "request_id": found.original.request_id,
        "identical": found.identical,
        "same_pixels": found.same_pixels,
        "psnr_db": found.psnr_db if finite else None,
        "same_noise": found.noise,
        "steps": found.steps,
        "first_different_step": found.first_different_step,
        "model_set": {"name": model_set.name, "digest": model_set.digest},
        "model_set_differences": list(found.model_set_differences),
        "environment": {name: {"before": before, "now": now} for name, (before, now) in found.environment.items()},
        "picture": str(out / image.path) if out is not None and image is not None else None,
    }
