"""What becomes of an image that is finished or given up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from anima_batch.plan import PlannedImage
from anima_batch.runner.events import Event, ImageDone, ImageFailed, Notice
from anima_batch.runner.record import (
    ImagePaths,
    Outcome,
    Provenance,
    record_done,
    record_failed,
    write_image,
    write_log,
)
from anima_batch.runner.space import Reserve
from anima_batch.store import CheckpointFolder, ErrorRecord, Pixels, list_folders


class Recorder(Protocol):
    """Where results go: into files, or to the machine that has them."""

    def prepare(self) -> None:
        """Before an image begins."""

    def finish(self, planned: PlannedImage, paths: ImagePaths, outcome: Outcome, pixels: Pixels) -> Iterator[Event]:
        """Keep a picture, uint8 (H, W, 3)."""

    def give_up(
        self, planned: PlannedImage, paths: ImagePaths, outcome: Outcome, error: ErrorRecord, details: str
    ) -> Iterator[Event]:
        """Keep why there is none; `details` is what a failed process left to read."""


class FileRecorder:
    """Into the workspace's files, in an order (PNG, then manifest, then the checkpoint goes) that survives any cut."""

    def __init__(self, provenance: Provenance, reserve: Reserve) -> None:
        self._provenance = provenance
        self._reserve = reserve

    def prepare(self) -> None:
        """Take the blocks for the last writes, if they are not held already."""
        self._reserve.make()

    def finish(self, planned: PlannedImage, paths: ImagePaths, outcome: Outcome, pixels: Pixels) -> Iterator[Event]:
        """Make picture and manifest durable. Raises StorageError."""
        provenance, retry = self._provenance, self._reserve.retry
        image = retry(lambda: write_image(pixels, planned, paths, provenance))
        flat = int(pixels.max()) == int(pixels.min())
        retry(lambda: record_done(planned, paths, provenance, outcome, image, flat=flat))
        for folder in list_folders(paths.checkpoint):
            CheckpointFolder(folder).drop()
        if flat:
            yield Notice(f"{planned.stem}: the picture has one colour only")
        yield ImageDone(planned.stem, paths.png, paths.manifest, outcome.total_seconds)

    def give_up(
        self, planned: PlannedImage, paths: ImagePaths, outcome: Outcome, error: ErrorRecord, details: str
    ) -> Iterator[Event]:
        """Make the manifest durable, and the log beside it; the checkpoint stays. Raises StorageError."""
        if details:
            self._reserve.retry(lambda: write_log(paths, details))
        self._reserve.retry(lambda: record_failed(planned, paths, self._provenance, outcome, error))
        yield ImageFailed(planned.stem, paths.manifest, error.message)
