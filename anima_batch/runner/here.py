"""The images of a job made on this machine, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from anima_batch.batch import find_shortage, measure
from anima_batch.environment import read_environment
from anima_batch.plan import Measurement, PlannedImage, Rates, Workload
from anima_batch.runner.canary import check_canary
from anima_batch.runner.events import Event, ImageDone, ImageFailed, ImageStarted, Notice
from anima_batch.runner.guard import ModelSetGuard
from anima_batch.runner.image import make_image
from anima_batch.runner.pending import (
    Walk,
    done_manifests,
    image_paths,
    last_writes_bytes,
    make_provenance,
    set_damaged_aside,
)
from anima_batch.runner.record import ImagePaths
from anima_batch.runner.recorder import FileRecorder
from anima_batch.runner.space import Reserve
from anima_batch.runner.task import Setting
from anima_batch.store import is_numbered, read_manifest, take_folder
from anima_batch.worker import Deadlines, ModelWorker, Opening


def make_here(walk: Walk) -> Iterator[Event]:
    """Make the images on this machine, one after the other."""
    run, found = walk.run, walk.found
    yield from (Notice(line) for line in find_shortage(walk.batch, (planned.pixels for planned in walk.pending)))
    opening = Opening(walk.batch.model_set, walk.backend, run)
    rates = Rates(tuple(entry.measurement for entry in found.values() if entry.measurement))
    outlook = _Outlook(rates, Workload.of(walk.pending))
    reserve = Reserve(walk.batch.outputs, last_writes_bytes(walk.pending))
    with ModelWorker(opening, Deadlines(run.deadline_seconds), recycle=run.recycle) as worker, reserve:
        guard = ModelSetGuard(walk.batch.model_set)  # reads every file while the worker starts
        opened = worker.open()
        environment = read_environment(opened.versions, run.core_mask if opened.backend == "rknn" else None)
        provenance = make_provenance(walk, environment)
        setting = Setting(
            worker=worker,
            guard=guard,
            provenance=provenance,
            conditioning_folder=walk.batch.conditioning,
            forecast=outlook.forecast,
            stop=walk.stop,
            recorder=FileRecorder(provenance, reserve),
            accept_environment=walk.options.accept_environment,
        )
        if not walk.options.accept_environment:
            check_canary(done_manifests(found), environment)
        for number, planned in enumerate(walk.pending, start=1):
            if walk.stop:
                return
            outlook.begin(planned)
            yield from set_damaged_aside(planned, found.get(planned.request_id))
            steps = planned.image.request.steps
            yield ImageStarted(planned.stem, number, len(walk.pending), steps, planned.from_step)
            paths = _take_over(image_paths(walk, planned))
            for event in make_image(setting, planned, paths):
                if isinstance(event, ImageDone):
                    walk.tally.done += 1
                    outlook.rates = outlook.rates.add(measure(read_manifest(paths.manifest)))
                walk.tally.failed += isinstance(event, ImageFailed)
                yield event
            if notice := worker.end_image():
                yield Notice(notice)


def _take_over(paths: ImagePaths) -> ImagePaths:
    """The paths with checkpoints of our own: a machine of a fleet that had them may still be alive."""
    if not is_numbered(paths.checkpoint):
        return paths
    return replace(paths, checkpoint=take_folder(paths.checkpoint))


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
