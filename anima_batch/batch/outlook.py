"""How long a job's images take on a machine of which only a timing table is known."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

from anima_batch.batch.opening import Batch
from anima_batch.board import Choice, Table, load_table, simulate
from anima_batch.board.choice import Staging
from anima_batch.job import RunSpec
from anima_batch.plan import Estimate, Work

PUBLISHED = "rock-5c"  # stands in for any board until one is measured
SMALL_BYTES = 64 << 20  # graphs of so many bytes in all stay open under "auto", whatever the machine
STEADY = 3  # steps that are simulated: the first begins cold, the last one ends cold


def find_table(batch: Batch) -> Table | None:
    """The table measured here, for a board the published one; None where nothing is known of the machine."""
    suffix = ".rknn"
    on_board = find_spec("rknnlite") is not None and batch.model_set.has(suffix)
    backend = batch.spec.backend if batch.spec.backend != "auto" else "rknn" if on_board else "onnx"
    measured = measured_table_path(batch.workspace, batch.model_set.digest, backend)
    if measured.is_file():
        return load_table(str(measured))
    return load_table(PUBLISHED) if backend == "rknn" else None


def measured_table_path(workspace: Path, digest: str, backend: str) -> Path:
    """Where the table measured with a model set lies."""
    return workspace / "outputs" / ".timing" / f"{digest[:12]}-{backend}.json"


def simulated_estimate(batch: Batch, table: Table) -> Estimate:
    """Seconds of any work on that machine, scaled to the model set's blocks and to each size."""
    description = batch.model_set.description
    blocks = description.transformer.blocks
    sizes = [part.bytes for part in description.components if part.role.startswith("transformer.")]
    choice = choose_staging(batch.spec.run, table, sum(sizes))

    @functools.cache
    def scaled(pixels: int) -> tuple[Table, float, float]:
        at_size = table.scale(blocks, pixels // 256)
        one, two = (simulate(at_size, [passes] * STEADY, choice).computed_step_seconds for passes in (1, 2))
        return at_size, one, two

    def estimate(work: Work) -> float:
        at_size, one, two = scaled(work.pixels)
        both = work.passes - work.computed  # steps that run two passes
        return (
            both * two
            + (work.computed - both) * one
            + work.forecasts * at_size.forecast_seconds
            + work.images * (at_size.decode_seconds or 0.0)
            + work.encodings * (at_size.encode_seconds or 0.0)
        )

    return estimate


def choose_staging(run: RunSpec, table: Table, graph_bytes: int) -> Choice:
    """What the job asks for, on cores that the machine has; "auto" keeps open what is small, and else works ahead."""
    automatic: Staging = "resident" if graph_bytes <= SMALL_BYTES else "ahead"
    staging = automatic if run.staging == "auto" else run.staging
    cores = 2 if run.core_mask == "0+1" and table.cores > 1 else 1
    return Choice(staging, run.interleave, cores, run.pinned)
