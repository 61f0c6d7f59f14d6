"""A computed step under each choice of staging and order: its time, who was busy when, and the most memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.config import subgraph_keys
from anima_batch.anima.pipeline import Pipeline, open_pipeline
from anima_batch.anima.transformer import Transformer
from anima_batch.backends.base import Span, Timings
from anima_batch.bench.lifecycle import graph_path
from anima_batch.board import Choice, Staging
from anima_batch.errors import BackendError, UsageError
from anima_batch.job import ImageRequest, RunSpec
from anima_batch.model_set import ModelSet
from anima_batch.sampling import initial_state, make_sigmas, sample

T = TypeVar("T")

STAGINGS: tuple[Staging, ...] = ("on-demand", "pinned", "resident", "ahead")
_STEPS = 4  # of the schedule; a computed step takes as long at any sigma


@dataclass(frozen=True)
class StepSetup:
    """What takes the step: `blocks` of the model set's, on pictures of a size."""

    model_set: ModelSet
    backend: str
    run: RunSpec
    width: int
    height: int
    blocks: int


@dataclass(frozen=True)
class StepMeasure:
    """A step's wall time and its work, which may overlap; `spans` begin and end in seconds of the step.

    `latents_xxh3` is of the latents after it.
    """

    choice: Choice
    seconds: float
    timings: Timings
    peak_bytes: int
    latents_xxh3: str
    spans: tuple[Span, ...]

    @property
    def busy_share(self) -> float:
        """The part of the step in which the accelerator ran a graph."""
        return self.timings.run / self.seconds


def make_setup(model_set: ModelSet, backend: str, run: RunSpec, size: str | None, blocks: int | None) -> StepSetup:
    """The setup of the set's first `blocks` at one of its sizes, the first unless `size` names one.

    Raises UsageError.
    """
    sizes = {f"{width}x{height}": (width, height) for width, height in model_set.description.sizes}
    size = size or next(iter(sizes))
    if size not in sizes:
        raise UsageError(f"--size: must be one of {', '.join(sizes)} for {model_set.name}, got {size}")
    width, height = sizes[size]
    config = model_set.description.transformer
    config = config.model_copy(update={"blocks": min(blocks or config.blocks, config.blocks)})
    shallow = model_set.description.model_copy(update={"transformer": config})
    return StepSetup(replace(model_set, description=shallow), backend, run, width, height, config.blocks)


def list_step_choices(setup: StepSetup) -> list[Choice]:
    """Every staging in both orders, the published one first."""
    run = setup.run
    return [
        Choice(staging, interleave, pinned=run.pinned, ahead_bytes=run.ahead_mib << 20)
        for staging in STAGINGS
        for interleave in (False, True)
    ]


def in_fresh_process(function: Callable[..., T], *arguments: object) -> T:
    """What the function gives, or raises, in a process that has held nothing else."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def measure_step(setup: StepSetup, choice: Choice) -> StepMeasure:
    """One step, on sessions that are open already where the staging keeps any; raises BackendError, ModelSetError."""
    with contextlib.closing(open_for(setup, choice)) as pipeline:
        fill_page_cache(pipeline)
        steps = take_steps(pipeline, setup, choice)
        if choice.staging in ("pinned", "resident"):
            next(steps)
        measure = next(steps)
        if pipeline.fallback:
            raise BackendError(f"bench step: {choice.name} cannot be measured: {pipeline.fallback}")
        return measure


def open_for(setup: StepSetup, choice: Choice) -> Pipeline:
    """The pipeline of a choice."""
    run = setup.run.model_copy(update={"staging": choice.staging, "interleave": choice.interleave})
    return open_pipeline(setup.model_set, setup.backend, run)


def take_steps(pipeline: Pipeline, setup: StepSetup, choice: Choice) -> Iterator[StepMeasure]:
    """A picture's first step, over and over."""
    transformer, request = make_model(pipeline, setup)
    watch, first = pipeline.backend.watch, initial_state(request)
    transformer.velocity(transformer.embed(first.latents), 0)  # the first product of a process takes longer
    while True:
        watch.spans, before = [], replace(watch.timings)
        started = time.perf_counter()
        _, report = next(sample(request, transformer, first))
        yield StepMeasure(
            choice=choice,
            seconds=report.seconds,
            timings=watch.timings.since(before),
            peak_bytes=read_peak_bytes(),
            latents_xxh3=report.latents_xxh3,
            spans=tuple(span.shift(-started) for span in watch.spans),
        )


def make_model(pipeline: Pipeline, setup: StepSetup) -> tuple[Transformer, ImageRequest]:
    """The transformer of a picture, with contexts that are noise."""
    request = ImageRequest(prompt="bench", seed=1, width=setup.width, height=setup.height, steps=_STEPS)
    description = setup.model_set.description
    shape = (2, description.text.context_rows, description.transformer.context_dim)
    conditioning = Conditioning(*np.random.default_rng(1).standard_normal(shape, np.float32))
    sigmas = make_sigmas(request.schedule, request.steps, request.shift)
    return pipeline.make_transformer(sigmas, conditioning, setup.width, setup.height), request


def fill_page_cache(pipeline: Pipeline) -> None:
    """Read all graphs once, so that no choice pays for being the first; what does not fit into memory falls out."""
    for key in subgraph_keys(pipeline.model_set.description.transformer.blocks):
        with graph_path(pipeline, key).open("rb") as stream:
            while stream.read(1 << 22):
                pass


def read_peak_bytes() -> int:
    """The most memory that this process has had resident."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert match is not None
    return int(match[1]) << 10
