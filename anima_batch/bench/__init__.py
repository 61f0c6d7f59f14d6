"""Measurements of the program's own cost, as commands whose figures can be compared within one run."""

from anima_batch.bench.checkpoint import CheckpointCost, bench_checkpoint
from anima_batch.bench.comparison import StepComparison, bench_step
from anima_batch.bench.lifecycle import Lifecycle, bench_lifecycle
from anima_batch.bench.step import StepMeasure, StepSetup, make_setup
from anima_batch.bench.timeline import save_measures

__all__ = [
    "CheckpointCost",
    "Lifecycle",
    "StepComparison",
    "StepMeasure",
    "StepSetup",
    "bench_checkpoint",
    "bench_lifecycle",
    "bench_step",
    "make_setup",
    "save_measures",
]
