"""Measured steps beside what the simulation predicts from this machine's own timing table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anima_batch.bench.step import StepMeasure, StepSetup, in_fresh_process, list_step_choices, measure_step
from anima_batch.bench.table import STREAMS, measure_table
from anima_batch.board import Choice, Table, simulate

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


def bench_step(setup: StepSetup, digest: str, rounds: int, tell: Callable[[StepMeasure], None]) -> list[StepComparison]:
    """Every choice by turns, each time in a fresh process; of each the round that took the median time.

    `digest` is of the whole model set, `tell` hears of every measure. Raises BackendError or ModelSetError.
    """
    choices = list_step_choices(setup)
    measures: dict[str, list[StepMeasure]] = {choice.name: [] for choice in choices}
    tables = []
    for _ in range(rounds):
        for choice in choices:
            if choice is choices[0]:
                table, measure = in_fresh_process(measure_table, setup, choice, digest)
                tables.append(table)
            else:
                measure = in_fresh_process(measure_step, setup, choice)
            measures[choice.name].append(measure)
            tell(measure)
    table = tables[_middle([measure.seconds for measure in measures[choices[0].name]])]
    return [_compare(table, choice, measures[choice.name]) for choice in choices]


def _compare(table: Table, choice: Choice, measures: Sequence[StepMeasure]) -> StepComparison:
    middle = measures[_middle([measure.seconds for measure in measures])]
    passes = [STREAMS] * (2 if choice.staging in _KEEPING else 1)
    return StepComparison(table, middle, simulate(table, passes, choice).computed_step_seconds)


def _middle(seconds: Sequence[float]) -> int:
    """Where the median is; the faster one of two."""
    return sorted(range(len(seconds)), key=seconds.__getitem__)[(len(seconds) - 1) // 2]
