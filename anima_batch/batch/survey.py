"""What lies on disk for a job's images, by manifests and checkpoints; reads only."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anima_batch.batch.opening import Batch
from anima_batch.files import sha256_bytes, storage_errors
from anima_batch.plan import Measurement, Progress, work_left
from anima_batch.store import (
    CheckpointFolder,
    CorruptError,
    Manifest,
    decode_pixels,
    image_of,
    pixel_sha256,
    read_manifest,
    read_regular,
)

PNG_BYTES = 1 << 30  # more is none of ours, and would only fill the memory


@dataclass(frozen=True, slots=True)
class Found:
    """What lies on disk for one image.

    `path` is its manifest; `damaged` must be set aside before it is made again; `measurement` is of a done image;
    `checkpoint_problems` has a line for each checkpoint file that cannot be used, None where there is no checkpoint.
    """

    progress: Progress
    path: Path | None = None
    damaged: tuple[Path, ...] = ()
    measurement: Measurement | None = None
    checkpoint_problems: tuple[str, ...] | None = None


def survey(batch: Batch) -> dict[str, Found]:
    """What lies on disk for the job's images, by request id; finished ones are checked by digest. Reads only.

    Raises StorageError where a file cannot be read: what is not known to be damaged is never made again.
    """
    manifests: dict[str, list[Path]] = {}
    for path in sorted(batch.manifests.glob("*.json")):
        manifests.setdefault(path.stem[-12:], []).append(path)
    checkpoints = {image_of(path) for path in batch.outputs.glob(".checkpoints/*") if path.is_dir()} - {None}
    found: dict[str, Found] = {}
    if not manifests and not checkpoints:
        return found
    for request_id in filter(None, batch.request_ids):
        short = request_id[:12]
        begun = _look_at_checkpoint(batch, request_id) if short in checkpoints else Found(Progress())
        if short in manifests:
            found[request_id] = _look_at_manifests(batch, request_id, manifests[short], begun)
        elif short in checkpoints:
            found[request_id] = begun
    return found


def _look_at_checkpoint(batch: Batch, request_id: str) -> Found:
    loaded = CheckpointFolder(batch.checkpoint(request_id)).load()
    if loaded.checkpoint is None:
        return Found(Progress(reason="; ".join(loaded.problems)), checkpoint_problems=loaded.problems or None)
    return Found(Progress("begun", loaded.checkpoint.step), checkpoint_problems=loaded.problems)


def _look_at_manifests(batch: Batch, request_id: str, paths: Sequence[Path], begun: Found) -> Found:
    """The first manifest that holds; else what is wrong with the first."""
    entries = [_look_at_manifest(batch, request_id, path, begun) for path in paths]
    return next((entry for entry in entries if not entry.damaged), entries[0])


def _look_at_manifest(batch: Batch, request_id: str, path: Path, begun: Found) -> Found:
    def damaged(reason: str, *files: Path) -> Found:
        return replace(begun, progress=replace(begun.progress, reason=reason), damaged=files)

    try:
        manifest = read_manifest(path)
    except CorruptError as error:
        return damaged(str(error), path)
    if manifest.request_id != request_id:
        return damaged(f"{path}: is of another request", path)
    if manifest.error is not None:
        return replace(begun, progress=Progress("failed", begun.progress.step, manifest.error.message), path=path)
    image = check_image(batch.workspace, manifest)
    if image.wrong:
        return damaged(image.fault, path, *([image.path] if _is_own(batch, image.path, request_id) else []))
    return replace(begun, progress=Progress("done", reason=image.fault), path=path, measurement=measure(manifest))


def _is_own(batch: Batch, path: Path, request_id: str) -> bool:
    """Whether it is there, in the job's folder and named after the image; a manifest may name another, which stays."""
    here = os.path.realpath(path.parent) == os.path.realpath(batch.outputs)
    return here and path.name.endswith(f"-{request_id[:12]}.png") and os.path.lexists(path)


@dataclass(frozen=True)
class CheckedImage:
    """A PNG beside its manifest: `fault` says in one line what differs, `wrong` whether that is the picture itself."""

    path: Path
    fault: str = ""
    wrong: bool = False


def check_image(workspace: Path, manifest: Manifest) -> CheckedImage:
    """Whether the PNG of a done image is the recorded file, or at least the recorded picture with other metadata.

    Raises StorageError where it lies but cannot be read.
    """
    assert manifest.image is not None  # of a done image
    path = workspace / manifest.image.path
    if not path.exists():
        return CheckedImage(path, f"{path}: missing", wrong=True)
    try:
        with storage_errors(path):
            data = read_regular(path, PNG_BYTES)
    except CorruptError as error:
        return CheckedImage(path, str(error), wrong=True)
    if (digest := sha256_bytes(data)) == manifest.image.sha256:
        return CheckedImage(path)
    fault = f"{path}: sha256 must be {manifest.image.sha256}, got {digest}"
    try:
        same = pixel_sha256(decode_pixels(data, str(path))) == manifest.image.pixel_sha256
    except CorruptError:
        same = False
    return CheckedImage(path, f"{fault}: only metadata changed" if same else fault, wrong=not same)


def find_dropped(batch: Batch) -> list[str]:
    """Stems of the manifests in the job's folder whose images the job does not ask for (any more)."""
    wanted = {request_id[:12] for request_id in batch.request_ids}
    stems = (path.stem for path in sorted(batch.manifests.glob("*.json")))
    return [stem for stem in stems if stem[-12:] not in wanted]


def measure(manifest: Manifest) -> Measurement:
    """What a finished image took."""
    timings, request = manifest.timings, manifest.request
    passes = [step.passes for step in manifest.steps]
    work = work_left(request.width * request.height, passes, 0, encodes=timings.encode > 0)
    opening = timings.load + timings.init + timings.release
    exposed = max(0.0, timings.denoise - timings.run - timings.host)  # sessions opened while others ran took no time
    return Measurement(
        work,
        computed_seconds=math.fsum(step.seconds for step in manifest.steps if step.passes),
        forecast_seconds=math.fsum(step.seconds for step in manifest.steps if not step.passes),
        fixed_seconds=min(opening, exposed),
        other_seconds=max(0.0, timings.total - timings.encode - timings.denoise - timings.decode),
        encode_seconds=timings.encode,
        decode_seconds=timings.decode,
    )
