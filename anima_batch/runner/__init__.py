"""Running a job: the walk over its images, what is saved, and how it stops."""

from anima_batch.runner.events import (
    BatchEnded,
    BatchStarted,
    Event,
    ImageDone,
    ImageFailed,
    ImageStarted,
    Notice,
    StepDone,
)
from anima_batch.runner.signals import StopRequest, catch_stop_signals
from anima_batch.runner.walk import RunOptions, run_job

__all__ = [
    "BatchEnded",
    "BatchStarted",
    "Event",
    "ImageDone",
    "ImageFailed",
    "ImageStarted",
    "Notice",
    "RunOptions",
    "StepDone",
    "StopRequest",
    "catch_stop_signals",
    "run_job",
]
