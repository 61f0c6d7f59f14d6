"""Which setting was worth it: each image beside the plain one that it stands in for, its control and the solution."""

from anima_batch.compare.comparison import (
    Against,
    Comparison,
    Control,
    compare_records,
    compare_runs,
    making_seconds,
)
from anima_batch.compare.figures import comparison_figures, setting_figures, total_figures
from anima_batch.compare.latents import StepCosine
from anima_batch.compare.likeness import Likeness, measure_likeness
from anima_batch.compare.records import JobFolder, Record, Records, find_job, find_record, read_records
from anima_batch.compare.runs import Compared, compare_paths
from anima_batch.compare.summary import SettingSummary, Total, sum_up, summarise_settings

__all__ = [
    "Against",
    "Compared",
    "Comparison",
    "Control",
    "JobFolder",
    "Likeness",
    "Record",
    "Records",
    "SettingSummary",
    "StepCosine",
    "Total",
    "compare_paths",
    "compare_records",
    "compare_runs",
    "comparison_figures",
    "find_job",
    "find_record",
    "making_seconds",
    "measure_likeness",
    "read_records",
    "setting_figures",
    "sum_up",
    "summarise_settings",
    "total_figures",
]
