"""What happened to one image so far, over all the processes that worked on it; kept in its checkpoints."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pydantic import TypeAdapter

from anima_batch.backends.base import Timings
from anima_batch.environment import read_boot_id
from anima_batch.sampling import StepReport


@dataclass(frozen=True)
class RunSpan:
    """A process that worked on the image; steps count from 1, `last_step` is before `first_step` until one is done.

    `started_at` is for people: nothing is decided by the clock, which boards without a battery lose.
    """

    boot_id: str
    started_at: str
    first_step: int
    last_step: int
    resumed: bool
    board: str | None = None  # its name in a fleet


@dataclass(frozen=True)
class ImageLog:
    """Reports of the steps done, the runs, seconds by phase, and warnings."""

    reports: tuple[StepReport, ...] = ()
    runs: tuple[RunSpan, ...] = ()
    encode_seconds: float = 0.0
    busy_seconds: float = 0.0  # from the image's start to its last step, over all runs
    phases: Timings = dataclasses.field(default_factory=Timings)
    warnings: tuple[str, ...] = ()

    def begin_run(self, warnings: Sequence[str], encode_seconds: float, board: str | None = None) -> ImageLog:
        """The log with a run that starts now; `board` is the machine's name in a fleet."""
        first = len(self.reports) + 1
        started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        span = RunSpan(read_boot_id(), started_at, first, first - 1, resumed=bool(self.runs), board=board)
        return dataclasses.replace(
            self,
            runs=(*self.runs, span),
            encode_seconds=self.encode_seconds + encode_seconds,
            warnings=tuple(dict.fromkeys((*self.warnings, *warnings))),
        )

    def warn(self, warning: str) -> ImageLog:
        """The log with one more warning."""
        return dataclasses.replace(self, warnings=tuple(dict.fromkeys((*self.warnings, warning))))

    def add_step(self, report: StepReport, phases: Timings, busy_seconds: float) -> ImageLog:
        """The log with one more step; `phases` are the seconds since the step before."""
        span = dataclasses.replace(self.runs[-1], last_step=report.index)
        return dataclasses.replace(
            self,
            reports=(*self.reports, report),
            runs=(*self.runs[:-1], span),
            phases=add_timings(self.phases, phases),
            busy_seconds=busy_seconds,
        )

    @property
    def denoise_seconds(self) -> float:
        """Of all steps."""
        return sum(report.seconds for report in self.reports)

    @property
    def passes(self) -> int:
        """Transformer passes run."""
        return sum(report.passes for report in self.reports)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ImageLog:
        """The log that `to_json` wrote; raises ValueError for anything else."""
        return TypeAdapter(cls).validate_python(value)


def add_timings(a: Timings, b: Timings) -> Timings:
    """Phase by phase."""
    sums = (x + y for x, y in zip(dataclasses.astuple(a), dataclasses.astuple(b), strict=True))
    return Timings(*sums)


class BusyClock:
    """Seconds from the image's start, over all the runs that worked on it."""

    def __init__(self, busy_before: float) -> None:
        self._started = time.perf_counter()
        self._busy_before = busy_before

    @property
    def seconds(self) -> float:
        """Up to now."""
        return self._busy_before + time.perf_counter() - self._started
