"""The manifest and the PNG of one image, from what the run knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anima_batch import __version__
from anima_batch.anima.ops import Array
from anima_batch.files import make_folder, sha256_bytes, write_atomic
from anima_batch.job import ImageRequest
from anima_batch.model_set import ModelSet
from anima_batch.plan import PlannedImage
from anima_batch.runner.image_log import ImageLog
from anima_batch.store import (
    ChecksRecord,
    ComponentRecord,
    EnvironmentRecord,
    ErrorRecord,
    ImageFile,
    JobRecord,
    Manifest,
    ModelSetRecord,
    Pixels,
    PngInfo,
    RunRecord,
    SamplingRecord,
    SourceRecord,
    StepRecord,
    TimingsRecord,
    describe_latents,
    encode_png,
    pixel_sha256,
    record_policy,
    write_manifest,
)


@dataclass(frozen=True)
class Provenance:
    """What every image of a run has in common; `finish_png` is the last to change a file's bytes, not its pixels."""

    workspace: Path
    job: JobRecord
    model_set: ModelSet
    environment: dict[str, str | None]
    finish_png: Callable[[bytes], bytes] | None = None


@dataclass(frozen=True)
class ImagePaths:
    """Where an image's files go."""

    png: Path
    manifest: Path
    checkpoint: Path
    latents: Path | None = None  # of each step, where they are kept

    @property
    def log(self) -> Path:
        """What a failed process left to read."""
        return self.manifest.with_suffix(".log")


@dataclass(frozen=True)
class Outcome:
    """How sampling ended: its log and schedule, the digest of its noise, and the latents if there are any."""

    log: ImageLog
    sigmas: Array
    noise_sha256: str
    latents: Array | None
    decode_seconds: float = 0.0
    total_seconds: float = 0.0


def write_image(pixels: Pixels, planned: PlannedImage, paths: ImagePaths, provenance: Provenance) -> ImageFile:
    """Make the PNG durable; uint8 pixels (H, W, 3)."""
    model_set = provenance.model_set
    info = PngInfo(
        request_id=planned.request_id,
        request=planned.image.request,
        policy_name=planned.image.policy_name,
        model_set_name=model_set.name,
        model_set_digest=model_set.digest,
        source_sha256=model_set.source_sha256("transformer"),
        manifest=paths.manifest.relative_to(provenance.workspace).as_posix(),
        version=__version__,
    )
    data = encode_png(pixels, info)
    if provenance.finish_png is not None:
        data = provenance.finish_png(data)
    make_folder(paths.png.parent)
    write_atomic(paths.png, data)
    return ImageFile(
        path=paths.png.relative_to(provenance.workspace).as_posix(),
        sha256=sha256_bytes(data),
        pixel_sha256=pixel_sha256(pixels),
        bytes=len(data),
        width=pixels.shape[1],
        height=pixels.shape[0],
    )


def record_done(
    planned: PlannedImage, paths: ImagePaths, provenance: Provenance, outcome: Outcome, image: ImageFile, *, flat: bool
) -> None:
    """Make the manifest of a finished image durable: from here on it is done."""
    checks = ChecksRecord(finite=True, not_flat=not flat)
    write_manifest(paths.manifest, _make_manifest(planned, provenance, outcome, checks, image=image))


def write_log(paths: ImagePaths, details: str) -> None:
    """Make the traceback and the last output of a process that failed durable, beside the image's manifest."""
    make_folder(paths.log.parent)
    write_atomic(paths.log, f"{details}\n".encode(errors="backslashreplace"))


def record_failed(
    planned: PlannedImage, paths: ImagePaths, provenance: Provenance, outcome: Outcome, error: ErrorRecord
) -> None:
    """Make the manifest of an image that was given up durable."""
    finite = outcome.latents is None or bool(np.isfinite(outcome.latents).all())
    checks = ChecksRecord(finite=finite, not_flat=None)
    write_manifest(paths.manifest, _make_manifest(planned, provenance, outcome, checks, error=error))


def _make_manifest(
    planned: PlannedImage,
    provenance: Provenance,
    outcome: Outcome,
    checks: ChecksRecord,
    *,
    image: ImageFile | None = None,
    error: ErrorRecord | None = None,
) -> Manifest:
    request = planned.image.request
    log = outcome.log
    return Manifest(
        request_id=planned.request_id,
        status="failed" if error else "done",
        error=error,
        request=request,
        job=provenance.job,
        image=image,
        model_set=_record_model_set(provenance.model_set),
        environment=EnvironmentRecord.model_validate(provenance.environment),
        sampling=_record_sampling(request, planned.image.policy_name, outcome),
        steps=tuple(StepRecord(**dataclasses.asdict(report)) for report in log.reports),
        timings=_record_timings(outcome),
        latents=None if outcome.latents is None else describe_latents(outcome.latents),
        runs=tuple(RunRecord(**dataclasses.asdict(span)) for span in log.runs),
        checks=checks,
        warnings=log.warnings,
    )


def _record_model_set(model_set: ModelSet) -> ModelSetRecord:
    description = model_set.description
    return ModelSetRecord(
        name=model_set.name,
        digest=model_set.digest,
        license=description.license,
        source=tuple(SourceRecord(**source.model_dump()) for source in description.sources),
        components=tuple(
            ComponentRecord(**part.model_dump(exclude={"inputs", "outputs"})) for part in description.components
        ),
    )


def _record_sampling(request: ImageRequest, policy_name: str, outcome: Outcome) -> SamplingRecord:
    reports = outcome.log.reports
    return SamplingRecord(
        sigmas=tuple(float(sigma) for sigma in outcome.sigmas),
        computed_steps=tuple(report.index for report in reports if report.computed),
        forecast_steps=tuple(report.index for report in reports if not report.computed),
        policy=record_policy(request, policy_name),
        noise=request.noise,
        noise_sha256=outcome.noise_sha256,
    )


def _record_timings(outcome: Outcome) -> TimingsRecord:
    """The phases of denoising may overlap; `host` is the host's maths between the graphs."""
    log, phases = outcome.log, outcome.log.phases
    return TimingsRecord(
        encode=log.encode_seconds,
        denoise=log.denoise_seconds,
        decode=outcome.decode_seconds,
        load=phases.load,
        init=phases.init,
        run=phases.run,
        release=phases.release,
        host=phases.host,
        total=outcome.total_seconds,
    )
