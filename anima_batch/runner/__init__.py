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
from anima_batch.runner.here import make_here
from anima_batch.runner.pending import RunOptions
from anima_batch.runner.signals import StopRequest, catch_stop_signals
from anima_batch.runner.walk import run_job

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
    "make_here",
    "run_job",
]
