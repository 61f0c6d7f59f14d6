"""A job file opened with its model set: the images it asks for, checked and identified."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from anima_batch.batch.controls import plan_controls
from anima_batch.batch.pin import read_pin
from anima_batch.errors import JobError, ModelSetNotFoundError
from anima_batch.job import ImageRequest, JobImage, JobSpec, draw_seed, exclude_for, expand_job, image_ids, load_job
from anima_batch.model_set import ModelSet, find_model_set
from anima_batch.sampling import check_request
from anima_batch.store import find_folder

_SAMPLING_FIELDS = attrgetter("steps", "sampler", "schedule", "shift", "guidance_scale")


@dataclass(frozen=True)
class Batch:
    """A job file that was read, its model set, and its images with their request ids ("" while a seed is not drawn)."""

    workspace: Path
    spec: JobSpec
    model_set: ModelSet
    images: tuple[JobImage, ...]
    request_ids: tuple[str, ...]
    drawn: tuple[int, ...]
    warnings: tuple[str, ...]

    @property
    def outputs(self) -> Path:
        """The folder of the job's pictures."""
        return self.workspace / "outputs" / self.spec.name

    @property
    def manifests(self) -> Path:
        """The folder of the job's manifests."""
        return self.workspace / "manifests" / self.spec.name

    @property
    def conditioning(self) -> Path:
        """The folder of prompt embeddings, which all jobs share."""
        return self.workspace / "outputs" / ".conditioning"

    def identified_images(self) -> Iterator[tuple[JobImage, str]]:
        """Each image with its request id."""
        return zip(self.images, self.request_ids, strict=True)

    def latents(self, request_id: str) -> Path:
        """The folder of an image's latents, where the job keeps them."""
        return self.outputs / ".latents" / request_id[:12]

    def checkpoint(self, request_id: str) -> Path:
        """The folder of an image's checkpoints: the newest, where several machines had a hand in it."""
        return find_folder(self.outputs / ".checkpoints" / request_id[:12])


def open_batch(job: Path, workspace: Path, *, draw: bool, with_controls: bool = False) -> Batch:
    """The batch of a job file; raises JobError with every problem of the file.

    With `draw`, random seeds that no earlier run pinned are drawn; without, their images have no seed yet. The controls
    (see plan_controls) come after all that the file asks for.
    """
    if not job.is_file() and (workspace / job).is_file():
        job = workspace / job
    spec, model_set = _load(job, workspace)
    pin = read_pin(workspace / "outputs" / spec.name)
    sizes = model_set.description.sizes
    with without_collector():
        expansion = expand_job(spec, sizes, drawn=pin.drawn, draw=draw_seed if draw else None)
        problems, warnings = _check_requests(expansion.images, spec.path)
        if problems:
            raise JobError(problems)
        images = expansion.images
        if with_controls:
            controls, missing = plan_controls(images)
            warnings += [f"{spec.path}: {line}" for line in missing]
            images = _add_controls(images, controls, spec)
        ids = tuple(request_id or "" for request_id in image_ids(images, model_set.digest))
    return Batch(workspace, spec, model_set, images, ids, expansion.drawn, (*expansion.warnings, *warnings))


def _add_controls(images: Sequence[JobImage], controls: Sequence[JobImage], spec: JobSpec) -> tuple[JobImage, ...]:
    count = len(images) + len(controls)
    if count > spec.max_images:
        with_them = f"must be at least the {count} images asked for, {len(controls)} controls among them"
        raise JobError([f"{spec.path}: max_images: {with_them}, got {spec.max_images}: ask for fewer"])
    return (*images, *controls)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """For making a hundred thousand objects, none of them garbage: the collector would walk them over and over."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _load(job: Path, workspace: Path) -> tuple[JobSpec, ModelSet]:
    found: list[ModelSet] = []
    missing: list[str] = []

    def sizes_of(name: str) -> Sequence[tuple[int, int]]:
        try:
            found.append(find_model_set(name, workspace))
        except ModelSetNotFoundError as error:
            missing.append(f"{job}: {error}")
            return ()
        return found[0].description.sizes

    try:
        spec = load_job(job, workspace, sizes_of=sizes_of)
    except JobError as error:
        raise JobError([*error.problems, *missing]) from None
    if missing:
        raise JobError(missing)
    return spec, found[0]


def _check_requests(images: Sequence[JobImage], path: Path) -> tuple[list[str], list[str]]:
    """Errors and warnings of combinations that sampling refuses, or does otherwise than one may think, each once."""
    errors: dict[str, None] = {}
    warnings: dict[str, None] = {}
    checked: set[tuple[Any, ...]] = set()
    for image in images:
        key = (*sampling_key(image.request), image.request.noise, image.request.seed >= 2**32, image.policy_name)
        if key in checked:
            continue
        checked.add(key)
        for problem in check_request(image.request):
            if problem.severity == "warning":
                warnings[f"{path}: {problem.message}"] = None
            else:
                remedy = exclude_for(image, problem.keys).replace("\n", " ")
                errors[f"{path}: {problem.message}: change it, or add: {remedy}"] = None
    return list(errors), list(warnings)


def sampling_key(request: ImageRequest) -> tuple[Any, ...]:
    """What the passes and the problems of a request depend on, made in C: a job may have 100,000 requests.

    A policy stands for itself, since a job's images share their policy objects.
    """
    return _SAMPLING_FIELDS(request), id(request.policy)
