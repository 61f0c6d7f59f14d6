"""An image's denoising on a machine of which only a timing table is known: everything here is simulated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from anima_batch.board.choice import Choice
from anima_batch.board.course import Conditions, Course
from anima_batch.board.engine import Event, run_activities
from anima_batch.board.table import BRANCHES, Table

LIFECYCLE = ("load", "init", "release")


@dataclass(frozen=True)
class Simulation:
    """When everything was under way in the steps of an image, from cold; what stayed open is released at the end."""

    table: Table
    choice: Choice
    passes: tuple[int, ...]
    events: tuple[Event, ...]
    hits: int
    misses: int

    @property
    def denoise_seconds(self) -> float:
        """Of all steps, with the last release."""
        return max(event.end for event in self.events)

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """From the end of the step before to the end of each."""
        ends = [event.end for event in self.events if event.activity.kind in ("end", "forecast")]
        return tuple(end - start for start, end in itertools.pairwise([0.0, *ends]))

    @property
    def computed_step_seconds(self) -> float:
        """Mean over the computed steps, without the first where there are more: it begins cold."""
        computed = [seconds for seconds, passes in zip(self.step_seconds, self.passes, strict=True) if passes]
        later = computed[1:] or computed
        return sum(later) / len(later)

    @property
    def lifecycle_seconds(self) -> float:
        """Spent on opening and releasing sessions, whatever went on beside it."""
        return sum(event.activity.seconds for event in self.events if event.activity.kind in LIFECYCLE)

    def busy_share(self, resource: str) -> float:
        """The part of the denoising in which a resource was held."""
        held = sum(event.end - event.start for event in self.events if resource in event.activity.resources)
        return held / self.denoise_seconds

    @property
    def accelerator_share(self) -> float:
        """The part of the denoising in which a core ran, of the busiest one."""
        return max(self.busy_share(f"core {core}") for core in range(self.choice.cores))

    @property
    def peak_bytes(self) -> int:
        """The most that the files of open sessions came to at once."""
        return self._peak([times.bytes for times in map(self.table.times, BRANCHES)])

    @property
    def peak_sessions(self) -> int:
        """The most that were open at once."""
        return self._peak([1] * len(BRANCHES))

    @property
    def fits(self) -> bool | None:
        """Whether so many sessions can be open at once; None where nobody tried."""
        return None if self.table.sessions_fit is None else self.peak_sessions <= self.table.sessions_fit

    def _peak(self, sizes: Sequence[int]) -> int:
        """The largest sum over what is open of a size for each branch."""
        changes = []
        for event in self.events:
            if event.activity.kind in ("load", "release"):
                assert event.activity.subgraph is not None
                size = sizes[event.activity.subgraph % len(BRANCHES)]
                changes.append((event.start, size) if event.activity.kind == "load" else (event.end, -size))
        return max(itertools.accumulate(size for _, size in sorted(changes)), default=0)

    @property
    def shown_step(self) -> int:
        """A computed step that tells most, from 1: the second, since the first begins cold; else the first there is."""
        computed = [step for step, passes in enumerate(self.passes, start=1) if passes]
        return (computed[1:2] or computed[:1] or [1])[0]

    def events_of_step(self, step: int) -> list[Event]:
        """What was under way in a step (from 1), also of its neighbours."""
        start = sum(self.step_seconds[: step - 1])
        end = start + self.step_seconds[step - 1]
        return [event for event in self.events if event.end > start and event.start < end]


def simulate(table: Table, passes: Sequence[int], choice: Choice, conditions: Conditions | None = None) -> Simulation:
    """An image whose steps take so many passes each (2: with guidance, 1: one stream, 0: a forecast)."""
    course = Course(table, choice, conditions or Conditions())
    for count in passes:
        course.add_step(range(count))
    course.close()
    events = run_activities(course.activities, table.cpus, table.overlap_slowdown)
    return Simulation(table, choice, tuple(passes), tuple(events), course.hits, course.misses)
