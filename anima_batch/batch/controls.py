"""Equal-cost controls: plain sampling with as many passes as an image under a policy takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from anima_batch.job import FullPolicy, ImageRequest, JobImage
from anima_batch.sampling import check_request, planned_passes


def plan_controls(images: Sequence[JobImage]) -> tuple[list[JobImage], list[str]]:
    """The controls that are not among the images yet, in their order, and a warning for each that cannot be sampled.

    A control has its image's sampler, and one pass more where the image's are no whole number of steps.
    """
    plain = FullPolicy()
    asked = {(image.open_draw, image.request) for image in images if image.request.policy == plain}
    controls, warnings = [], dict[str, None]()
    steps: dict[Any, int] = {}
    for image in images:
        request = image.request
        if request.policy == plain:
            continue
        kind = dataclasses.replace(request, prompt="", negative_prompt="", seed=0)
        if kind not in steps:
            steps[kind] = _count_steps(request)
        control = dataclasses.replace(request, steps=steps[kind], policy=plain)
        if (image.open_draw, control) in asked:
            continue
        asked.add((image.open_draw, control))
        if errors := [problem.message for problem in check_request(control) if problem.severity == "error"]:
            warnings[f"policy {image.policy_name}: no control of equal passes: {'; '.join(errors)}"] = None
        else:
            controls.append(dataclasses.replace(image, request=control, policy_name="full"))
    return controls, list(warnings)


def _count_steps(request: ImageRequest) -> int:
    """Steps of plain sampling that take the passes of the request, rounded up."""
    passes = planned_passes(request)
    return -(-sum(passes) // max(passes))
