"""What a run has before it, and what of that does not depend on who makes the images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anima_batch.batch import Batch, Found
from anima_batch.files import set_aside
from anima_batch.job import RunSpec
from anima_batch.plan import MANIFEST_BYTES, PlannedImage
from anima_batch.runner.events import Event, Notice
from anima_batch.runner.record import ImagePaths, Provenance
from anima_batch.runner.signals import StopRequest
from anima_batch.store import JobRecord


@dataclass(frozen=True)
class RunOptions:
    """How to run; `run_flags` are the command line's values over the job's [run], `finish_png` as in Provenance."""

    run_flags: Mapping[str, Any] = field(default_factory=dict)
    backend: str | None = None
    limit: int | None = None
    retry_failed: bool = False
    accept_environment: bool = False
    finish_png: Callable[[bytes], bytes] | None = None
    with_controls: bool = False


@dataclass
class Tally:
    """What came of the images so far."""

    done: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Walk:
    """What a run has before it: the images to make in order, and what lies on disk for the job's, by request id."""

    batch: Batch
    pending: Sequence[PlannedImage]
    found: Mapping[str, Found]
    options: RunOptions
    stop: StopRequest
    tally: Tally = field(default_factory=Tally)

    @property
    def run(self) -> RunSpec:
        """How to run: the job's [run] under the command line's."""
        return self.batch.spec.run.model_copy(update=dict(self.options.run_flags))

    @property
    def backend(self) -> str:
        """The one that is asked for."""
        return self.options.backend or self.batch.spec.backend


def make_provenance(walk: Walk, environment: dict[str, str | None]) -> Provenance:
    """What the images of a walk have in common that are made in an environment."""
    batch = walk.batch
    job = JobRecord(name=batch.spec.name, digest=batch.spec.digest)
    return Provenance(batch.workspace, job, batch.model_set, environment, walk.options.finish_png)


def image_paths(walk: Walk, planned: PlannedImage) -> ImagePaths:
    """Where the image's files go."""
    batch, request_id = walk.batch, planned.request_id
    return ImagePaths(
        png=batch.outputs / f"{planned.stem}.png",
        manifest=batch.manifests / f"{planned.stem}.json",
        checkpoint=batch.checkpoint(request_id),
        latents=batch.latents(request_id) if walk.run.keep_latents else None,
    )


def last_writes_bytes(pending: Sequence[PlannedImage]) -> int:
    """What the picture and the manifest of the largest image may take."""
    return 3 * max(planned.pixels for planned in pending) + MANIFEST_BYTES


def done_manifests(found: Mapping[str, Found]) -> list[Path]:
    """Of the job's finished images."""
    return [entry.path for entry in found.values() if entry.measurement and entry.path]


def set_damaged_aside(planned: PlannedImage, found: Found | None) -> Iterator[Event]:
    """Move what was found wrong, or a failure that is tried again, out of the way of the image's new files."""
    paths = list(found.damaged) if found else []
    if found and found.progress.status == "failed" and found.path is not None:
        paths.append(found.path)
        if (log := found.path.with_suffix(".log")).exists():
            paths.append(log)
    for path in paths:
        yield Notice(f"{planned.stem}: {planned.reason}: set aside as {set_aside(path)}")
