"""What a run tells as it goes; each event becomes progress on a terminal, a plain line, or a JSON line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from anima_batch.plan import Plan
from anima_batch.sampling import StepReport


@dataclass(frozen=True)
class BatchStarted:
    """The plan that is about to be walked."""

    plan: Plan


@dataclass(frozen=True)
class ImageStarted:
    """`number` of `total` pending images; `from_step` steps are done already. `board`: which machine of a fleet."""

    stem: str
    number: int
    total: int
    steps: int
    from_step: int
    board: str | None = None


@dataclass(frozen=True)
class StepDone:
    """A step that is done; after a cut the image goes on behind `durable_step`: this one, unless the disk is full.

    Seconds to go are for this image and for the batch, None while nothing is known.
    """

    stem: str
    report: StepReport
    steps: int
    durable_step: int
    image_seconds_left: float | None
    batch_seconds_left: float | None
    board: str | None = None


@dataclass(frozen=True)
class ImageDone:
    """The picture and its manifest are durable."""

    stem: str
    image: Path
    manifest: Path
    seconds: float


@dataclass(frozen=True)
class ImageFailed:
    """The image was given up; its manifest says why."""

    stem: str
    manifest: Path
    message: str


@dataclass(frozen=True)
class Notice:
    """Something the user should know; nothing stops for it."""

    message: str


@dataclass(frozen=True)
class BatchEnded:
    """What came of it; `signal` is the one that ended the run early, `waiting` the images not begun or not finished."""

    done: int
    skipped: int
    failed: int
    waiting: int
    seconds: float
    signal: int | None
    manifests: Path

    @property
    def exit_code(self) -> int:
        """0 all done, 1 some failed, 128 + the signal that stopped the run."""
        return 128 + self.signal if self.signal else int(self.failed > 0)


Event: TypeAlias = BatchStarted | ImageStarted | StepDone | ImageDone | ImageFailed | Notice | BatchEnded
