"""What the driver of a job and the boards say to each other; pickled by Dask, over TLS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from anima_batch.job import RunSpec
from anima_batch.plan import PlannedImage, Rates
from anima_batch.runner import Event
from anima_batch.runner.record import Outcome
from anima_batch.store import ErrorRecord, JobRecord, Pixels

NPU = "NPU"  # the resource: a board has one, an image takes one

Environment: TypeAlias = Mapping[str, "str | None"]


@dataclass(frozen=True)
class Need:
    """What a job asks of a board.

    `mark`: the content of `outputs/<job>/.fleet`, which a board that shares the driver's storage finds there too;
    `run_id` names the driver at hand.
    """

    run_id: str
    mark: str
    version: str
    job: JobRecord
    model_set_name: str
    model_set_digest: str
    backend: str
    run: RunSpec


@dataclass(frozen=True)
class Examined:
    """A board that can make the job's images.

    `begun`: steps done, by the short ids of images on its own storage; `foreign`: what has changed since, of those that
    were begun in another environment.
    """

    board: str
    environment: Environment
    shares: bool
    begun: Mapping[str, int]
    foreign: Mapping[str, str]


@dataclass(frozen=True)
class Assignment:
    """An image for a board; `rates` are what it was measured at, `needed_bytes` what its checkpoints take."""

    need: Need
    planned: PlannedImage
    rates: Rates
    needed_bytes: int
    accept_environment: bool


@dataclass(frozen=True, eq=False)
class Made:
    """A finished image with its pixels, uint8 (H, W, 3), or one that was given up, with its error."""

    board: str
    environment: Environment
    outcome: Outcome
    pixels: Pixels | None = None
    error: ErrorRecord | None = None
    details: str = ""


@dataclass(frozen=True)
class Refused:
    """The board cannot do it, whatever the image: a line for each fault."""

    board: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Stopped:
    """The board was told to stop; what it did so far is kept."""

    board: str


Result: TypeAlias = Made | Refused | Stopped


@dataclass(frozen=True)
class Began:
    """A board has taken an image, after so many steps."""

    from_step: int


@dataclass(frozen=True)
class Busy:
    """The next word may take so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Idle:
    """The board is done with the task, whoever still waits for it."""


@dataclass(frozen=True)
class Told:
    """What a board says while it works on the task `key`."""

    run_id: str
    key: str
    board: str
    content: Began | Busy | Idle | Event
