"""What open graphs hold in memory: pools of them, each in a fresh process, and what all of them would take."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anima_batch.anima.config import subgraph_keys
from anima_batch.anima.pipeline import Pipeline, open_pipeline
from anima_batch.backends.base import Session
from anima_batch.backends.memory_gate import MemoryGate
from anima_batch.bench.lifecycle import graph_path
from anima_batch.bench.memory import Held, read_held
from anima_batch.bench.step import in_fresh_process
from anima_batch.errors import UsageError
from anima_batch.job import RunSpec
from anima_batch.model_set import ModelSet

LOOK_SECONDS = 1.0  # between two looks at a plateau


@dataclass(frozen=True)
class Sample:
    """What was held, so many seconds after the first graph was begun, with so many open, of so many bytes of files."""

    seconds: float
    graphs: int
    file_bytes: int
    held: Held


@dataclass(frozen=True)
class Plateau:
    """A pool of graphs that pile up and then stay open for a while; with a `shortage` it broke off.

    `lru_hits` are of a pass over all `pass_graphs` graphs, of `pass_bytes`, by a cache of the last used ones that is as
    large as the pool.
    """

    pool: int
    before: Held
    piling: tuple[Sample, ...]
    dwelling: tuple[Sample, ...]
    lru_hits: int
    pass_graphs: int
    pass_bytes: int
    shortage: str | None

    @property
    def file_bytes(self) -> int:
        """Of all graphs that are open."""
        return self.dwelling[-1].file_bytes

    @property
    def pss_growth(self) -> float:
        """Bytes that the process holds more than before; the median of the plateau."""
        return statistics.median(sample.held.pss_bytes for sample in self.dwelling) - self.before.pss_bytes

    @property
    def available_drop(self) -> float:
        """Bytes that the machine can give less than before; the median of the plateau, beside whatever else runs."""
        available = statistics.median(sample.held.available_bytes for sample in self.dwelling)
        return self.before.available_bytes - available


@dataclass(frozen=True)
class Line:
    """What all graphs would hold, by a line through the plateaus; `error` is the standard error of that prediction."""

    bytes: float
    error: float
    slope: float  # bytes held for each byte of a file


@dataclass(frozen=True)
class Extrapolation:
    """To all graphs of the model set. The lines are over the files' bytes: branches differ threefold in size."""

    graphs: int
    file_bytes: int
    pss: Line
    available: Line


def bench_residency(
    model_set: ModelSet, backend: str, run: RunSpec, pools: Sequence[int], dwell_seconds: float
) -> Iterator[Plateau]:
    """A plateau for each pool, up to the one that broke off; raises BackendError, ModelSetError or UsageError.

    `run` says when memory is short. Graphs are opened and initialised, not run.
    """
    graphs = 3 * model_set.description.transformer.blocks
    if wrong := [pool for pool in pools if not 1 <= pool <= graphs]:
        raise UsageError(f"--pool: must be 1 to {graphs}, the graphs of {model_set.name}, got {wrong[0]}")
    for pool in pools:
        plateau = in_fresh_process(measure_plateau, model_set, backend, run, pool, dwell_seconds)
        yield plateau
        if plateau.shortage:
            return


def measure_plateau(model_set: ModelSet, backend: str, run: RunSpec, pool: int, dwell_seconds: float) -> Plateau:
    """A pool in this process: opened one after the other, then left open for so many seconds."""
    with contextlib.closing(open_pipeline(model_set, backend, run)) as pipeline, contextlib.ExitStack() as opened:
        gate = MemoryGate(run.min_available_mib << 20, run.max_swap_growth_mib << 20)
        before, started = read_held(), time.perf_counter()
        piling: list[Sample] = []
        shortage = gate.find_shortage()
        for session, file_bytes in _pile_up(pipeline, 0 if shortage else pool):
            opened.callback(session.close)
            done = piling[-1].file_bytes if piling else 0
            piling.append(Sample(time.perf_counter() - started, len(piling) + 1, done + file_bytes, read_held()))
            if shortage := gate.find_shortage():
                break
        reached = piling[-1] if piling else Sample(0.0, 0, 0, before)
        paths = [graph_path(pipeline, key) for key in subgraph_keys(model_set.description.transformer.blocks)]
        return Plateau(
            pool=pool,
            before=before,
            piling=tuple(piling),
            dwelling=tuple(_dwell(reached, started, 0.0 if shortage else dwell_seconds)),
            lru_hits=count_lru_hits(len(paths), pool),
            pass_graphs=len(paths),
            pass_bytes=sum(path.stat().st_size for path in paths),
            shortage=shortage,
        )


def _pile_up(pipeline: Pipeline, pool: int) -> Iterator[tuple[Session, int]]:
    """The first graphs of a pass, each open, with its file's bytes."""
    for key in subgraph_keys(pipeline.model_set.description.transformer.blocks)[:pool]:
        path = graph_path(pipeline, key)
        yield pipeline.backend.open(path), path.stat().st_size


def _dwell(reached: Sample, started: float, seconds: float) -> Iterator[Sample]:
    """A look a second for so many seconds, one at the least."""
    until = time.perf_counter() + seconds
    while True:
        now = time.perf_counter()
        yield Sample(now - started, reached.graphs, reached.file_bytes, read_held())
        if (left := until - time.perf_counter()) <= 0:
            return
        time.sleep(min(LOOK_SECONDS, left))


def count_lru_hits(graphs: int, capacity: int) -> int:
    """How many graphs of a pass, which takes all in their order, are still open from the pass before it."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for call in range(2 * graphs):
        graph = call % graphs
        if graph in cache:
            hits += 1
            cache.move_to_end(graph)
            continue
        cache[graph] = None
        if len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def extrapolate(plateaus: Sequence[Plateau]) -> Extrapolation | None:
    """What all graphs would hold; None with less than three plateaus, which leave nothing to tell the error by."""
    points = [plateau for plateau in plateaus if plateau.shortage is None]
    sizes = [plateau.file_bytes for plateau in points]
    if len(set(sizes)) < 3:
        return None
    graphs, file_bytes = points[0].pass_graphs, points[0].pass_bytes
    pss, available = (
        fit_line(sizes, held, file_bytes)
        for held in ([point.pss_growth for point in points], [point.available_drop for point in points])
    )
    return Extrapolation(graphs, file_bytes, pss, available)


def fit_line(x: Sequence[float], y: Sequence[float], at: float) -> Line:
    """The least-squares line's value at a place, with the standard error of a prediction there (n - 2 freedoms)."""
    slope, intercept = statistics.linear_regression(x, y)
    residual = sum((v - intercept - slope * u) ** 2 for u, v in zip(x, y, strict=True)) / (len(x) - 2)
    mean = statistics.fmean(x)
    spread = sum((u - mean) ** 2 for u in x)
    error = math.sqrt(residual * (1 + 1 / len(x) + (at - mean) ** 2 / spread))
    return Line(intercept + slope * at, error, slope)
