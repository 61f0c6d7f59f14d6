"""The walk over a job's images, under the folder's lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anima_batch.batch import (
    Batch,
    Found,
    Pin,
    find_dropped,
    find_shortage,
    measure,
    open_batch,
    plan_batch,
    survey,
    write_pin,
)
from anima_batch.environment import read_environment
from anima_batch.files import lock_folder, make_folder, set_aside, storage_errors, sync_folder
from anima_batch.job import RunSpec
from anima_batch.plan import MANIFEST_BYTES, Measurement, PlannedImage, Rates, Workload
from anima_batch.runner.canary import check_canary
from anima_batch.runner.events import BatchEnded, BatchStarted, Event, ImageDone, ImageFailed, ImageStarted, Notice
from anima_batch.runner.guard import ModelSetGuard
from anima_batch.runner.image import make_image
from anima_batch.runner.record import ImagePaths, Provenance
from anima_batch.runner.signals import StopRequest
from anima_batch.runner.space import Reserve, check_space, drop_reserve
from anima_batch.runner.task import Setting
from anima_batch.store import CheckpointFolder, JobRecord, read_manifest
from anima_batch.worker import Deadlines, ModelWorker, Opened, Opening

NAMES_SHOWN = 10


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


def run_job(job: Path, workspace: Path, options: RunOptions, stop: StopRequest) -> Iterator[Event]:
    """Walk over the job's images and tell what happens; the last event is BatchEnded.

    Raises JobError, ModelSetError, BackendError, EnvironmentChangedError, StorageError or FolderLockedError.
    """
    outputs = open_batch(job, workspace, draw=False, with_controls=options.with_controls).outputs
    make_folder(outputs)
    with lock_folder(outputs):
        batch = open_batch(job, workspace, draw=True, with_controls=options.with_controls)
        yield from _walk(batch, options, stop)


def _walk(batch: Batch, options: RunOptions, stop: StopRequest) -> Iterator[Event]:
    started = time.monotonic()
    yield from (Notice(warning) for warning in batch.warnings)
    yield from _pin(batch)
    _sync_folders(batch)
    found = survey(batch)
    keep_latents = options.run_flags.get("keep_latents", batch.spec.run.keep_latents)
    plan = plan_batch(batch, found, retry_failed=options.retry_failed, keep_latents=keep_latents)
    yield BatchStarted(plan)
    for planned in plan.images:
        if planned.status == "done":  # a crash between its manifest and this leaves one
            CheckpointFolder(batch.checkpoint(planned.request_id)).drop()
    drop_reserve(batch.outputs)
    tally = _Tally()
    if pending := plan.pending[: options.limit]:
        make_folder(batch.manifests)
        check_space(batch.outputs, plan.disk_bytes_of(pending), batch.checkpoint(pending[0].request_id))
        yield from (Notice(line) for line in find_shortage(batch, (planned.pixels for planned in pending)))
        yield from _run_pending(batch, pending, found, options, tally, stop)
    yield BatchEnded(
        done=tally.done,
        skipped=plan.count("done"),
        failed=tally.failed + (0 if options.retry_failed else plan.count("failed")),
        waiting=len(plan.pending) - tally.done - tally.failed,
        seconds=time.monotonic() - started,
        signal=stop.signal,
        manifests=batch.manifests,
    )


def _pin(batch: Batch) -> Iterator[Event]:
    """Keep what was asked for, and say which pictures of earlier runs are not asked for any more."""
    stems = {request_id: image.stem(request_id) for image, request_id in batch.identified_images()}
    write_pin(batch.outputs, Pin(job_sha256=batch.spec.digest, drawn=batch.drawn, images=stems))
    if dropped := find_dropped(batch):
        more = f" and {len(dropped) - NAMES_SHOWN} more" if len(dropped) > NAMES_SHOWN else ""
        yield Notice(f"no longer asked for, left as they are: {', '.join(dropped[:NAMES_SHOWN])}{more}")


def _sync_folders(batch: Batch) -> None:
    """Make durable what is about to be found: a process killed between a rename and its sync leaves a file that a power
    cut may still take back, and whose checkpoint must not go before.
    """
    for folder in (batch.outputs, batch.manifests):
        if folder.is_dir():
            with storage_errors(folder):
                sync_folder(folder)


@dataclass
class _Tally:
    done: int = 0
    failed: int = 0


def _run_pending(
    batch: Batch,
    pending: Sequence[PlannedImage],
    found: dict[str, Found],
    options: RunOptions,
    tally: _Tally,
    stop: StopRequest,
) -> Iterator[Event]:
    run = batch.spec.run.model_copy(update=dict(options.run_flags))
    opening = Opening(batch.model_set, options.backend or batch.spec.backend, run)
    rates = Rates(tuple(entry.measurement for entry in found.values() if entry.measurement))
    outlook = _Outlook(rates, Workload.of(pending))
    reserve = Reserve(batch.outputs, _last_writes_bytes(pending))
    with ModelWorker(opening, Deadlines(run.deadline_seconds), recycle=run.recycle) as worker, reserve:
        setting = Setting(
            worker=worker,
            guard=ModelSetGuard(batch.model_set),  # reads every file while the worker starts
            provenance=_make_provenance(batch, worker.open(), run, options),
            conditioning_folder=batch.conditioning,
            forecast=outlook.forecast,
            stop=stop,
            reserve=reserve,
            accept_environment=options.accept_environment,
        )
        if not options.accept_environment:
            done = [entry.path for entry in found.values() if entry.measurement and entry.path]
            check_canary(done, setting.provenance.environment)
        for number, planned in enumerate(pending, start=1):
            if stop:
                return
            outlook.begin(planned)
            yield from _set_damaged_aside(planned, found.get(planned.request_id))
            steps = planned.image.request.steps
            yield ImageStarted(planned.stem, number, len(pending), steps, planned.from_step)
            paths = _image_paths(batch, planned, keep_latents=run.keep_latents)
            for event in make_image(setting, planned, paths):
                if isinstance(event, ImageDone):
                    tally.done += 1
                    outlook.rates = outlook.rates.add(measure(read_manifest(paths.manifest)))
                tally.failed += isinstance(event, ImageFailed)
                yield event
            if notice := worker.end_image():
                yield Notice(notice)


def _last_writes_bytes(pending: Sequence[PlannedImage]) -> int:
    """What the picture and the manifest of the largest image may take."""
    return 3 * max(planned.pixels for planned in pending) + MANIFEST_BYTES


@dataclass
class _Outlook:
    """What is left to do and how fast it goes; `forecast` is handed to each image."""

    rates: Rates
    left: Workload
    planned: PlannedImage | None = None

    def begin(self, planned: PlannedImage) -> None:
        """Take the image that begins out of what is left behind it."""
        self.left = self.left.without(planned)
        self.planned = planned

    def forecast(self, measured: Measurement, step: int) -> tuple[float | None, float | None]:
        """Seconds left of the image after so many steps and of the batch, from finished images and the one at hand."""
        assert self.planned is not None
        rates = self.rates if self.rates.measurements else self.rates.add(measured)
        image = rates.estimate(self.planned.work_after(step))
        rest = self.left.estimate(rates)
        return image, None if image is None or rest is None else image + rest


def _make_provenance(batch: Batch, opened: Opened, run: RunSpec, options: RunOptions) -> Provenance:
    core_mask = run.core_mask if opened.backend == "rknn" else None
    environment = read_environment(opened.versions, core_mask)
    job = JobRecord(name=batch.spec.name, digest=batch.spec.digest)
    return Provenance(batch.workspace, job, batch.model_set, environment, options.finish_png)


def _image_paths(batch: Batch, planned: PlannedImage, *, keep_latents: bool) -> ImagePaths:
    return ImagePaths(
        png=batch.outputs / f"{planned.stem}.png",
        manifest=batch.manifests / f"{planned.stem}.json",
        checkpoint=batch.checkpoint(planned.request_id),
        latents=batch.latents(planned.request_id) if keep_latents else None,
    )


def _set_damaged_aside(planned: PlannedImage, found: Found | None) -> Iterator[Event]:
    """Move what was found wrong, or a failure that is tried again, out of the way of the image's new files."""
    paths = list(found.damaged) if found else []
    if found and found.progress.status == "failed" and found.path is not None:
        paths.append(found.path)
        if (log := found.path.with_suffix(".log")).exists():
            paths.append(log)
    for path in paths:
        yield Notice(f"{planned.stem}: {planned.reason}: set aside as {set_aside(path)}")
