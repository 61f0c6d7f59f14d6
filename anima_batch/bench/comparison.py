"""Measured steps beside what the simulation predicts from this machine's own timing table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from anima_batch.bench.step import StepMeasure, StepSetup, in_fresh_process, list_step_choices, measure_step
from anima_batch.bench.table import STREAMS, measure_table
from anima_batch.board import Table, simulate

_KEEPING = ("pinned", "resident")


@dataclass(frozen=True)
class StepComparison:
    """A step as it was measured and as it is predicted; the table is made of the first one, which fits it therefore."""

    table: Table
    measure: StepMeasure
    predicted_seconds: float

    @property
    def difference(self) -> float:
        """Of the prediction, as a part of the measured time."""
        return self.predicted_seconds / self.measure.seconds - 1


def bench_step(setup: StepSetup, digest: str) -> Iterator[StepComparison]:
    """Every choice, each in a fresh process; raises BackendError or ModelSetError. `digest`: of the whole model set."""
    choices = list_step_choices(setup)
    table, plain = in_fresh_process(measure_table, setup, choices[0], digest)
    for choice in choices:
        measure = plain if choice is choices[0] else in_fresh_process(measure_step, setup, choice)
        passes = [STREAMS] * (2 if choice.staging in _KEEPING else 1)
        yield StepComparison(table, measure, simulate(table, passes, choice).computed_step_seconds)
