"""The driver of a job: which board makes which image, and what becomes of it.

Dask carries tasks and results, and gives each board one at a time. What Dask cannot know stays here: which boards can
go on with an image, and when one that is still connected has stopped working. Only the driver records: pictures and
manifests are written in one place, under the lock of the job's folder, for the task that counts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from anima_batch import __version__
from anima_batch.errors import UsageError
from anima_batch.files import write_atomic
from anima_batch.fleet.board import make_assigned
from anima_batch.fleet.connection import Connection, FleetError
from anima_batch.fleet.crew import Crew, SchedulerLostError
from anima_batch.fleet.dispatch import Dispatch
from anima_batch.fleet.messages import Assignment, Need, Result
from anima_batch.runner import Event, Notice
from anima_batch.runner.pending import Walk, last_writes_bytes
from anima_batch.runner.space import Reserve
from anima_batch.store import JobRecord

AGAIN_SECONDS = 2.0  # between two tries to reach a scheduler that was there


def make_on_fleet(
    walk: Walk, connection: Connection, make: Callable[[Assignment], Result] = make_assigned
) -> Iterator[Event]:
    """Make a job's images on the boards that have joined the scheduler, and on those that do so meanwhile.

    Waits for boards while there are none, and for the scheduler once it was there. Raises UsageError, FleetError where
    no scheduler answers or no board can make what is left, and StorageError.
    """
    if walk.run.keep_latents:
        raise UsageError("run.keep_latents: must be false with --dask: latents would stay on the boards")
    need = _make_need(walk)
    with Reserve(walk.batch.outputs, last_writes_bytes(walk.pending)) as reserve:
        dispatch = Dispatch(walk, need, reserve)
        was_there = False
        while not dispatch.is_done and not walk.stop:
            try:
                client = connection.connect()
            except FleetError:
                if not was_there:
                    raise
                time.sleep(AGAIN_SECONDS)
                continue
            if was_there:
                yield Notice(f"{connection.address}: the scheduler is there again")
            was_there = True
            try:
                with client:
                    yield from dispatch.run(Crew(client, need, make))
            except SchedulerLostError:
                dispatch.take_back_all()
                yield Notice(f"{connection.address}: the scheduler is gone: waiting for it; boards end their step")


def _make_need(walk: Walk) -> Need:
    """What the job asks of a board, and the mark by which it knows the driver's storage."""
    batch = walk.batch
    mark = secrets.token_hex(16)
    write_atomic(_mark_path(batch.outputs), mark.encode())
    return Need(
        run_id=secrets.token_hex(8),
        mark=mark,
        version=__version__,
        job=JobRecord(name=batch.spec.name, digest=batch.spec.digest),
        model_set_name=batch.spec.model_set,
        model_set_digest=batch.model_set.digest,
        backend=walk.backend,
        run=walk.run,
    )


def _mark_path(outputs: Path) -> Path:
    return outputs / ".fleet"
