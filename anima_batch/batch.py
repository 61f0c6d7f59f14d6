"""A job in its workspace: the images it asks for, what of them lies on disk, and the plan that follows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anima_batch.errors import AnimaBatchError, JobError, ModelSetNotFoundError, UsageError
from anima_batch.files import canonical_json, file_digests, read_json, sha256_bytes, write_atomic
from anima_batch.job import (
    ImageRequest,
    JobImage,
    JobSpec,
    draw_seed,
    exclude_for,
    expand_job,
    image_ids,
    load_job,
    request_json,
)
from anima_batch.model_set import ModelSet, find_model_set
from anima_batch.plan import Measurement, Plan, Progress, Rates, make_plan
from anima_batch.sampling import check_request, planned_passes
from anima_batch.store import CorruptError, Manifest, load_checkpoint, read_manifest

PIN_SCHEMA_VERSION = 1
LEARN_FROM = 20  # manifests of other jobs that are read for their speed while this job has none


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

    def checkpoint(self, request_id: str) -> Path:
        """The folder of an image's checkpoints."""
        return self.outputs / ".checkpoints" / request_id[:12]


@dataclass(frozen=True)
class Found:
    """What lies on disk for one image; `damaged` must be set aside before it is made again."""

    progress: Progress
    damaged: tuple[Path, ...] = ()
    path: Path | None = None
    manifest: Manifest | None = None


def open_batch(job: Path, workspace: Path, *, draw: bool) -> Batch:
    """The batch of a job file; raises JobError with every problem of the file.

    With `draw`, random seeds that no earlier run pinned are drawn; without, their images have no seed yet.
    """
    if not job.is_file() and (workspace / job).is_file():
        job = workspace / job
    spec, model_set = _load(job, workspace)
    pinned = read_pin(workspace / "outputs" / spec.name)
    sizes = model_set.description.sizes
    expansion = expand_job(spec, sizes, drawn=pinned.get("drawn", ()), draw=draw_seed if draw else None)
    problems, warnings = _check_requests(expansion.images, spec.path)
    if problems:
        raise JobError(problems)
    ids = tuple(request_id or "" for request_id in image_ids(expansion.images, model_set.digest))
    return Batch(workspace, spec, model_set, expansion.images, ids, expansion.drawn, (*expansion.warnings, *warnings))


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
        key = (*_sampling_key(image.request), image.request.noise, image.request.seed >= 2**32, image.policy_name)
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


def _sampling_key(request: ImageRequest) -> tuple[Any, ...]:
    """What the passes and the problems of a request depend on."""
    return (
        request.steps,
        request.sampler,
        request.schedule,
        request.shift,
        request.guidance_scale == 1.0,
        request.policy,
    )


def survey(batch: Batch) -> dict[str, Found]:
    """What lies on disk for the job's images, by request id; finished ones are checked by digest. Reads only."""
    manifests = {path.stem[-12:]: path for path in sorted(batch.manifests.glob("*.json"))}
    checkpoints = {path.name for path in batch.outputs.glob(".checkpoints/*") if path.is_dir()}
    found = {}
    for request_id in filter(None, batch.request_ids):
        short = request_id[:12]
        if short in manifests:
            found[request_id] = _look_at_manifest(batch, request_id, manifests[short])
        elif short in checkpoints:
            found[request_id] = _look_at_checkpoint(batch, request_id)
    return found


def _look_at_manifest(batch: Batch, request_id: str, path: Path) -> Found:
    try:
        manifest = read_manifest(path)
    except CorruptError as error:
        return _begun_again(batch, request_id, str(error), (path,))
    if manifest.request_id != request_id:
        return _begun_again(batch, request_id, f"{path}: is of another request", (path,))
    if manifest.status == "failed" and manifest.error is not None:
        return Found(Progress("failed", len(manifest.steps), manifest.error.message), path=path, manifest=manifest)
    if fault := check_image(batch.workspace, manifest):
        png = batch.workspace / manifest.image.path if manifest.image else path
        return _begun_again(batch, request_id, fault, (path, png) if png.exists() else (path,))
    return Found(Progress("done", len(manifest.steps)), path=path, manifest=manifest)


def _begun_again(batch: Batch, request_id: str, fault: str, damaged: tuple[Path, ...]) -> Found:
    begun = _look_at_checkpoint(batch, request_id).progress
    return Found(Progress(begun.status, begun.step, fault), damaged)


def _look_at_checkpoint(batch: Batch, request_id: str) -> Found:
    checkpoint = load_checkpoint(batch.checkpoint(request_id)).checkpoint
    return Found(Progress("begun", checkpoint.step) if checkpoint else Progress())


def check_image(workspace: Path, manifest: Manifest) -> str | None:
    """What is wrong with the PNG that a manifest speaks of, in one line; None when it is the recorded file."""
    assert manifest.image is not None  # of a done image
    path = workspace / manifest.image.path
    try:
        digest, _ = file_digests(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None if digest == manifest.image.sha256 else f"{path}: sha256 must be {manifest.image.sha256}, got {digest}"


def plan_batch(batch: Batch, found: Mapping[str, Found], *, retry_failed: bool = False) -> Plan:
    """The plan for what was found; its ETA comes from finished images of the job, else of others of the same set."""
    known: dict[tuple[Any, ...], tuple[int, ...]] = {}

    def passes(request: ImageRequest) -> tuple[int, ...]:
        key = _sampling_key(request)
        if key not in known:
            known[key] = planned_passes(request)
        return known[key]

    triples = ((image, request_id, passes(image.request)) for image, request_id in _with_ids(batch))
    progress = {request_id: entry.progress for request_id, entry in found.items()}
    largest = max((_checkpoint_bytes(image.request, batch.model_set) for image in _one_a_kind(batch.images)), default=0)
    return make_plan(triples, progress, _learn_rates(batch, found), checkpoint_bytes=largest, retry_failed=retry_failed)


def _with_ids(batch: Batch) -> Iterator[tuple[JobImage, str]]:
    return zip(batch.images, batch.request_ids, strict=True)


def _one_a_kind(images: Sequence[JobImage]) -> list[JobImage]:
    return list({(image.request.width, image.request.height, image.policy_name): image for image in images}.values())


def _checkpoint_bytes(request: ImageRequest, model_set: ModelSet) -> int:
    """Of one generation: latents three times over at the most, and the history that a forecast keeps."""
    latents = 4 * model_set.description.transformer.latent_channels * (request.width // 8) * (request.height // 8)
    policy = request.policy
    if policy.kind != "spectrum":
        return 3 * latents
    features = 4 * model_set.description.transformer.hidden * (request.width // 16) * (request.height // 16)
    return 3 * latents + policy.history * (latents if policy.forecast == "denoised" else 2 * features)


def _learn_rates(batch: Batch, found: Mapping[str, Found]) -> Rates:
    own = [entry.manifest for entry in found.values() if entry.progress.status == "done" and entry.manifest]
    return Rates(tuple(measure(manifest) for manifest in own or _other_manifests(batch)))


def _other_manifests(batch: Batch) -> list[Manifest]:
    paths = (batch.workspace / "manifests").glob("*/*.json")
    manifests = []
    for path in itertools.islice(paths, LEARN_FROM):
        try:
            manifest = read_manifest(path)
        except AnimaBatchError:
            continue  # only its speed was of interest; `verify` of its own job reports it
        if manifest.status == "done" and manifest.model_set.digest == batch.model_set.digest:
            manifests.append(manifest)
    return manifests


def measure(manifest: Manifest) -> Measurement:
    """What a finished image took."""
    timings, request = manifest.timings, manifest.request
    passes = sum(step.passes for step in manifest.steps)
    return Measurement(request.width * request.height, passes, timings.denoise, timings.encode, timings.decode)


def read_pin(outputs: Path) -> dict[str, Any]:
    """The pinned expansion of a job folder, {} before its first run; raises UsageError where it is not readable."""
    path = outputs / "job.json"
    if not path.is_file():
        return {}
    pin = read_json(path, what="the pinned job", error=UsageError)
    if not isinstance(pin, dict) or pin.get("schema_version") != PIN_SCHEMA_VERSION:
        raise UsageError(f"{path}: schema_version must be {PIN_SCHEMA_VERSION}: use the anima-batch that wrote it")
    return pin


def write_pin(batch: Batch) -> list[str]:
    """Pin the expansion in `job.json`; returns the stems of images of the pin before that are no longer asked for."""
    path = batch.outputs / "job.json"
    before = read_pin(batch.outputs)
    images = [
        {"request_id": request_id, "stem": image.stem(request_id), "request": request_json(image.request)}
        for image, request_id in _with_ids(batch)
    ]
    dropped = _find_dropped(before, set(batch.request_ids))
    content = {
        "schema_version": PIN_SCHEMA_VERSION,
        "job_sha256": batch.spec.digest,
        "images_sha256": sha256_bytes(canonical_json(images).encode()),
        "drawn": list(batch.drawn),
        "dropped": dropped,
        "images": images,
    }
    if content != before:
        write_atomic(path, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())
    return [entry["stem"] for entry in dropped]


def _find_dropped(before: Mapping[str, Any], wanted: set[str]) -> list[dict[str, str]]:
    known = [*before.get("dropped", ()), *before.get("images", ())]
    return [
        {"request_id": entry["request_id"], "stem": entry["stem"]}
        for entry in known
        if entry["request_id"] not in wanted
    ]
