"""What becomes of a board's results: pictures, manifests, second opinions."""

from __future__ import annotations

from collections.abc import Iterator

from anima_batch.batch import measure
from anima_batch.files import sha256_bytes
from anima_batch.fleet.messages import Environment, Made
from anima_batch.plan import Measurement, PlannedImage
from anima_batch.runner import Event, ImageDone, ImageFailed
from anima_batch.runner.image_log import ImageLog
from anima_batch.runner.pending import Walk, image_paths, make_provenance
from anima_batch.runner.record import Outcome
from anima_batch.runner.recorder import FileRecorder
from anima_batch.runner.space import Reserve
from anima_batch.sampling import initial_state, make_sigmas
from anima_batch.store import ErrorRecord, read_manifest


def record(walk: Walk, reserve: Reserve, planned: PlannedImage, made: Made) -> Iterator[Event]:
    """Make the result durable, as a run on one machine does; counts it. Raises StorageError."""
    recorder = FileRecorder(make_provenance(walk, dict(made.environment)), reserve)
    recorder.prepare()
    paths = image_paths(walk, planned)
    if made.error is not None:
        events = recorder.give_up(planned, paths, made.outcome, made.error, made.details)
    else:
        assert made.pixels is not None
        events = recorder.finish(planned, paths, made.outcome, made.pixels)
    for event in events:
        walk.tally.done += isinstance(event, ImageDone)
        walk.tally.failed += isinstance(event, ImageFailed)
        yield event


def measure_recorded(walk: Walk, planned: PlannedImage) -> Measurement:
    """What a picture that was just recorded took."""
    return measure(read_manifest(image_paths(walk, planned).manifest))


def give_up(planned: PlannedImage, board: str, environment: Environment, problem: str) -> Made:
    """The result of an image that no board lived to tell of."""
    request = planned.image.request
    outcome = Outcome(
        log=ImageLog(),
        sigmas=make_sigmas(request.schedule, request.steps, request.shift),
        noise_sha256=sha256_bytes(initial_state(request).latents.tobytes()),
        latents=None,
    )
    error = ErrorRecord(kind="quarantined", step=None, message=f"{problem}: run again with --retry-failed")
    return Made(board, environment, outcome, error=error)
