"""One block of the transformer as three graphs beside the same block as one: time, memory, and the same numbers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np

from anima_batch.anima.config import BRANCHES, SubgraphKey
from anima_batch.anima.ops import Array
from anima_batch.anima.pipeline import Pipeline
from anima_batch.anima.transformer import Transformer
from anima_batch.backends.base import Timings, check_output
from anima_batch.bench.lifecycle import graph_path
from anima_batch.bench.memory import Sampler
from anima_batch.bench.step import StepSetup, in_fresh_process, make_model, open_for
from anima_batch.board import Choice
from anima_batch.errors import UsageError

STREAMS = ("cond", "uncond")
VECTORS = ("shift", "one_plus_scale", "gate")  # of each branch, as inputs of the fused graph
PLAIN = Choice("on-demand", interleave=False)

Take = Callable[[Sequence[Array]], None]  # the block, added to the residual stream of each CFG stream in place


@dataclass(frozen=True)
class BlockMeasure:
    """Both CFG streams once through a block, everything opened for it and released after it; means over the rounds.

    Peaks are of a round of its own, which a sampler slows; `graphs` and `bytes` are of the files.
    """

    form: str
    graphs: int
    bytes: int
    timings: Timings
    seconds: float
    pss_bytes: int
    device_pss_bytes: int


@dataclass(frozen=True)
class BlockComparison:
    """Both forms; how far the fused one's numbers are from the split one's, of both streams together."""

    split: BlockMeasure
    fused: BlockMeasure
    cosine: float
    largest_difference: float
    largest_value: float


def bench_block(setup: StepSetup, fused: Path, block: int, rounds: int) -> BlockComparison:
    """Each form in a fresh process; `fused` is the whole block as one graph.

    Raises UsageError for a file that cannot be that block's, BackendError or ModelSetError.
    """
    if not fused.is_file():
        raise UsageError(f"{fused}: not found: make it with `anima-batch convert block MODEL_SET {fused}`")
    if not 0 <= block < setup.blocks:
        raise UsageError(f"--block: must be 0 to {setup.blocks - 1} for {setup.model_set.name}, got {block}")
    split, plain = in_fresh_process(_measure_split, setup, block, rounds)
    whole, merged = in_fresh_process(_measure_fused, setup, fused, block, rounds)
    a, b = (np.concatenate(parts).astype(np.float64).ravel() for parts in (plain, merged))
    return BlockComparison(
        split,
        whole,
        cosine=float(a @ b / np.sqrt((a @ a) * (b @ b))),
        largest_difference=float(np.abs(a - b).max()),
        largest_value=float(np.abs(a).max()),
    )


def _measure_split(setup: StepSetup, block: int, rounds: int) -> tuple[BlockMeasure, list[Array]]:
    with contextlib.closing(open_for(setup, PLAIN)) as pipeline:
        transformer, _ = make_model(pipeline, setup)
        paths = [graph_path(pipeline, SubgraphKey("transformer", block, branch)) for branch in BRANCHES]
        return _measure(
            "split",
            paths,
            pipeline,
            transformer,
            lambda found: transformer.add_blocks([block], found, 0, STREAMS),
            rounds,
        )


def _measure_fused(setup: StepSetup, path: Path, block: int, rounds: int) -> tuple[BlockMeasure, list[Array]]:
    with contextlib.closing(open_for(setup, PLAIN)) as pipeline:
        if path.suffix != pipeline.backend.suffix:
            raise UsageError(f"{path}: must end in {pipeline.backend.suffix} for backend {pipeline.backend.name}")
        transformer, _ = make_model(pipeline, setup)
        return _measure(
            "fused",
            [path],
            pipeline,
            transformer,
            lambda found: run_fused(pipeline, transformer, path, block, found),
            rounds,
        )


def _measure(
    form: str, paths: Sequence[Path], pipeline: Pipeline, transformer: Transformer, take: Take, rounds: int
) -> tuple[BlockMeasure, list[Array]]:
    """The rounds, after one that warms up, and what they make of the residual streams."""
    first = make_residuals(transformer)
    take([residual.copy() for residual in first])
    watch, before, seconds = pipeline.backend.watch, replace(pipeline.backend.watch.timings), 0.0
    for _ in range(rounds):
        residuals = [residual.copy() for residual in first]
        started = time.perf_counter()
        take(residuals)
        seconds += time.perf_counter() - started
    timings = Timings(*(phase / rounds for phase in astuple(watch.timings.since(before))))
    with Sampler() as peak:
        take([residual.copy() for residual in first])
    size = sum(path.stat().st_size for path in paths)
    measure = BlockMeasure(form, len(paths), size, timings, seconds / rounds, peak.pss_bytes, peak.device_pss_bytes)
    return measure, residuals


def make_residuals(transformer: Transformer) -> list[Array]:
    """A residual stream (L, D) for each CFG stream, noise that is the same each time."""
    shape = (len(STREAMS), transformer.grid[0] * transformer.grid[1], transformer.config.hidden)
    return list(np.random.default_rng(2).standard_normal(shape, np.float32))


def run_fused(pipeline: Pipeline, transformer: Transformer, path: Path, block: int, residuals: Sequence[Array]) -> None:
    """Opens the fused graph, puts each residual stream (L, D) through it in place, and closes it."""
    watch = pipeline.backend.watch
    with contextlib.closing(pipeline.backend.open(path)) as session:
        names = {spec.name for spec in session.inputs}
        for stream, residual in zip(STREAMS, residuals, strict=True):
            started = time.perf_counter()
            feeds = dict(_list_feeds(transformer, block, stream, residual))
            if names != set(feeds):
                raise UsageError(
                    f"{path}: inputs must be {', '.join(feeds)}, got {', '.join(sorted(names))}: "
                    "make it with `anima-batch convert block`"
                )
            watch.add("host", str(path), started)
            output = session.run(feeds)
            started = time.perf_counter()
            residual[:] = check_output(str(path), output, (1, *residual.shape))[0]
            watch.add("host", str(path), started)


def _list_feeds(transformer: Transformer, block: int, stream: str, residual: Array) -> Iterator[tuple[str, Array]]:
    yield "x", residual[None]
    yield "context", transformer.fixed.contexts[stream][None]
    for name, table in zip(("cos", "sin"), transformer.fixed.rotary, strict=True):
        yield name, table[None]
    for branch, vectors in zip(BRANCHES, transformer.modulation.branches[0, block], strict=True):
        for name, vector in zip(VECTORS, vectors, strict=True):
            yield f"{branch}_{name}", vector[None, None]
