"""A timing table for the simulation, from a plain step on this machine: all work taken alone."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterable

import numpy as np

from anima_batch import __version__
from anima_batch.anima import ops
from anima_batch.anima.config import BRANCHES, PATCH, VAE_FACTOR, Branch, SubgraphKey, subgraph_keys
from anima_batch.anima.pipeline import Pipeline
from anima_batch.anima.transformer import Transformer
from anima_batch.backends.base import Span
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.bench.checkpoint import FreeModel, make_request
from anima_batch.bench.lifecycle import graph_path, mean_seconds
from anima_batch.bench.step import StepMeasure, StepSetup, fill_page_cache, make_model, open_for, take_steps
from anima_batch.board import Branches, BranchTimes, Choice, Table
from anima_batch.job import SpectrumPolicy
from anima_batch.sampling import initial_state, sample

STREAMS = 2
ROUNDS = 15  # of the host's maths
_FORECAST_STEPS = 20


def measure_table(setup: StepSetup, choice: Choice, digest: str) -> tuple[Table, StepMeasure]:
    """The table, and the step that it is made of: `choice` is on demand, in the plain order.

    Raises BackendError or ModelSetError.
    """
    with contextlib.closing(open_for(setup, choice)) as pipeline:
        fill_page_cache(pipeline)
        plain = next(take_steps(pipeline, setup, choice))
        transformer, _ = make_model(pipeline, setup)
        slowdown = measure_slowdown(pipeline, transformer, plain)
        return make_table(pipeline, setup, digest, plain, slowdown), plain


def make_table(pipeline: Pipeline, setup: StepSetup, digest: str, plain: StepMeasure, slowdown: float) -> Table:
    """The table of a plain step's spans."""
    keys = subgraph_keys(setup.blocks)
    on_cpu = pipeline.backend.name == OnnxBackend.name
    cpus = len(os.sched_getaffinity(0))
    begin = sum(span.ended - span.started for span in plain.spans if span.name == "begin")
    between = [span.ended - span.started for span in plain.spans if span.phase == "host" and span.name not in _ENDS]
    timings = plain.timings
    known = timings.load + timings.init + timings.run + timings.release + begin + sum(between)
    host = split_host(sum(between) / (STREAMS * len(keys)), setup, transformer_width(pipeline))
    versions = ", ".join(f"{name} {value}" for name, value in pipeline.backend.versions().items())
    return Table(
        schema_version=1,
        name="measured",
        machine=f"{platform.machine()}, {cpus} processors, {setup.run.threads or cpus} of them for a run",
        backend="onnx" if on_cpu else "rknn",
        sources=(f"bench step of anima-batch {__version__}, {versions}: a step on demand in the plain order",),
        model_set=digest,
        blocks=setup.blocks,
        width=setup.width,
        height=setup.height,
        cores=pipeline.backend.cores,
        cpus=cpus,
        run_cpus=float(setup.run.threads or cpus) if on_cpu else 0.0,
        overlap_slowdown=slowdown,
        begin_seconds=begin,
        end_seconds=max(0.0, plain.seconds - known),
        forecast_seconds=measure_forecast(setup),
        branches=Branches(**{branch: _describe(pipeline, keys, branch, plain.spans, host) for branch in BRANCHES}),
    )


_ENDS = ("begin", "end")


def transformer_width(pipeline: Pipeline) -> int:
    """Of the residual stream."""
    return pipeline.model_set.description.transformer.hidden


def _describe(
    pipeline: Pipeline,
    keys: Iterable[SubgraphKey],
    branch: Branch,
    spans: Iterable[Span],
    host: tuple[float, float],
) -> BranchTimes:
    paths = [graph_path(pipeline, key) for key in keys if key.branch == branch]
    means = mean_seconds(span for span in spans if span.name in set(map(str, paths)))
    return BranchTimes(
        bytes=sum(path.stat().st_size for path in paths) // len(paths),
        load_seconds=means["load"],
        init_seconds=means["init"],
        run_seconds=means["run"],
        release_seconds=means["release"],
        prepare_seconds=host[0],
        finish_seconds=host[1],
    )


def split_host(both_seconds: float, setup: StepSetup, width: int) -> tuple[float, float]:
    """The host's work for a stream between two graphs, which is done at once, as that before and that after one."""
    rows = (setup.width // (VAE_FACTOR * PATCH)) * (setup.height // (VAE_FACTOR * PATCH))
    x, y, z = np.ones((3, rows, width), np.float32)
    gate, one_plus_scale, shift = np.ones((3, width), np.float32)
    prepare = _median_seconds(lambda: ops.advance(x, None, ops.Norm(one_plus_scale, shift, z)))
    finish = _median_seconds(lambda: ops.advance(x, ops.Gated(gate, y), None))
    share = prepare / (prepare + finish)
    return both_seconds * share, both_seconds * (1 - share)


def _median_seconds(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def measure_forecast(setup: StepSetup) -> float:
    """A step that Spectrum forecasts, which runs no graph: the median of those of a picture."""
    request = make_request(setup.width, setup.height, _FORECAST_STEPS, SpectrumPolicy())
    first = initial_state(request)
    model = FreeModel(request.width * request.height // 256, first.latents.shape)
    reports = [report for _, report in sample(request, model, first)]
    return statistics.median(report.seconds for report in reports if not report.computed)


def measure_slowdown(pipeline: Pipeline, transformer: Transformer, plain: StepMeasure) -> float:
    """How many times as long the first block's runs take while another thread opens and releases graphs."""
    keys = subgraph_keys(1)
    paths = [graph_path(pipeline, key) for key in keys]
    alone = sum(
        span.ended - span.started for span in plain.spans if span.phase == "run" and span.name in set(map(str, paths))
    )
    ended = threading.Event()

    def disturb() -> None:
        while not ended.is_set():
            for path in paths:
                pipeline.backend.open(path).close()

    stager = threading.Thread(target=disturb)
    residuals = [np.ones((transformer.grid[0] * transformer.grid[1], transformer.config.hidden), np.float32)] * STREAMS
    watch = pipeline.backend.watch
    before = watch.timings.run
    stager.start()
    try:
        transformer.add_blocks([0], residuals, 0, ("cond", "uncond"))
    finally:
        ended.set()
        stager.join()
    return max(1.0, (watch.timings.run - before) / alone)
