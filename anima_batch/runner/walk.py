"""The walk over a job's images, under the folder's lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from anima_batch.batch import (
    Batch,
    Pin,
    find_dropped,
    open_batch,
    plan_batch,
    survey,
    write_pin,
)
from anima_batch.files import lock_folder, make_folder, storage_errors, sync_folder
from anima_batch.runner.events import BatchEnded, BatchStarted, Event, Notice
from anima_batch.runner.here import make_here
from anima_batch.runner.pending import RunOptions, Walk
from anima_batch.runner.signals import StopRequest
from anima_batch.runner.space import check_space, drop_reserve
from anima_batch.store import CheckpointFolder, list_folders

NAMES_SHOWN = 10


Maker = Callable[[Walk], Iterator[Event]]


def run_job(
    job: Path, workspace: Path, options: RunOptions, stop: StopRequest, make: Maker = make_here
) -> Iterator[Event]:
    """Walk over the job's images and tell what happens; the last event is BatchEnded. `make` makes them.

    Raises JobError, ModelSetError, BackendError, EnvironmentChangedError, StorageError or FolderLockedError.
    """
    outputs = open_batch(job, workspace, draw=False, with_controls=options.with_controls).outputs
    make_folder(outputs)
    with lock_folder(outputs):
        batch = open_batch(job, workspace, draw=True, with_controls=options.with_controls)
        yield from _walk(batch, options, stop, make)


def _walk(batch: Batch, options: RunOptions, stop: StopRequest, make: Maker) -> Iterator[Event]:
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
            for folder in list_folders(batch.checkpoint(planned.request_id)):
                CheckpointFolder(folder).drop()
    drop_reserve(batch.outputs)
    walk = Walk(batch, plan.pending[: options.limit], found, options, stop)
    tally = walk.tally
    if pending := walk.pending:
        make_folder(batch.manifests)
        check_space(batch.outputs, plan.disk_bytes_of(pending), batch.checkpoint(pending[0].request_id))
        yield from make(walk)
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
