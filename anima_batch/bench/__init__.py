"""Measurements of the program's own cost, as commands whose figures can be compared within one run."""

from anima_batch.bench.block import BlockComparison, BlockMeasure, bench_block
from anima_batch.bench.checkpoint import CheckpointCost, bench_checkpoint
from anima_batch.bench.comparison import StepComparison, bench_step
from anima_batch.bench.decode import (
    DecodeComparison,
    bench_decode,
    choose_decoding,
    list_needs,
    list_tiles,
    make_decode_setup,
)
from anima_batch.bench.figures import save_block, save_decode, save_residency
from anima_batch.bench.lifecycle import Lifecycle, bench_lifecycle
from anima_batch.bench.residency import Extrapolation, Plateau, bench_residency, extrapolate
from anima_batch.bench.step import StepMeasure, StepSetup, make_setup
from anima_batch.bench.timeline import save_measures

__all__ = [
    "BlockComparison",
    "BlockMeasure",
    "CheckpointCost",
    "DecodeComparison",
    "Extrapolation",
    "Lifecycle",
    "Plateau",
    "StepComparison",
    "StepMeasure",
    "StepSetup",
    "bench_block",
    "bench_checkpoint",
    "bench_decode",
    "bench_lifecycle",
    "bench_residency",
    "bench_step",
    "choose_decoding",
    "extrapolate",
    "list_needs",
    "list_tiles",
    "make_decode_setup",
    "make_setup",
    "save_block",
    "save_decode",
    "save_measures",
    "save_residency",
]
