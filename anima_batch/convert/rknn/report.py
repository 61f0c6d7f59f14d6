"""What each version of the toolkit makes of one block: does it build, how long, how large, how exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from anima_batch.backends.onnx import OnnxBackend
from anima_batch.convert.rknn.core import TARGET
from anima_batch.convert.rknn.graph import prepare
from anima_batch.convert.rknn.report_cases import FULL_SIZE, TINY, Case, Floats, Scale, list_cases, make_inputs
from anima_batch.convert.rknn.toolkit import Toolkit
from anima_batch.errors import ToolkitError
from anima_batch.files import storage_errors

SEED = 20260812
BLOCKS = 28  # of the official model, for the estimate

# Measured on a ROCK 5C by others, for the eye beside the figures here; the model's are those of all 84 graphs.
PUBLISHED = (
    "published: 84 graphs by 2.3.2, 3.99 GB; AdaLN in the graph: 2.3.2 dies (exit 139), 2.3.0 builds it",
    "published: one block against PyTorch: cosine 0.9999990896, max abs 0.11446, on the board",
)


@dataclass(frozen=True)
class ReportRow:
    """One graph in one version; figures are None where it did not build. `exit_code` is as a shell shows it."""

    case: str
    toolkit: str
    exit_code: int
    seconds: float | None = None
    peak_rss_bytes: int | None = None
    rknn_bytes: int | None = None
    cosine: float | None = None
    max_abs: float | None = None
    error: str | None = None


def report_toolkits(
    toolkits: Sequence[Toolkit], scratch: Path, on_progress: Callable[[str], None], *, full_size: bool
) -> list[ReportRow]:
    """A row for each graph and version, in that order; a graph that does not build is a row too."""
    scale = FULL_SIZE if full_size else TINY
    rows = []
    for case in list_cases(scale, SEED):
        with storage_errors(scratch):
            source = scratch / "source.onnx"
            source.write_bytes(case.build())
        feeds, expected = _run_reference(source, scale)
        for toolkit in toolkits:
            on_progress(f"{case.name}: {toolkit.version}")
            rows.append(_report(case, source, toolkit, scratch, (scale, feeds, expected)))
    return rows


def _run_reference(source: Path, scale: Scale) -> tuple[dict[str, Floats], Floats]:
    """Inputs for a graph, and its output by ONNX Runtime in float32."""
    session = OnnxBackend().open(source)
    shapes = {
        spec.name: tuple(scale.sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape)
        for spec in session.inputs
    }
    feeds = make_inputs(shapes, scale, SEED)
    try:
        return feeds, session.run(feeds)
    finally:
        session.close()


def _report(
    case: Case, source: Path, toolkit: Toolkit, scratch: Path, reference: tuple[Scale, Mapping[str, Floats], Floats]
) -> ReportRow:
    scale, feeds, expected = reference
    graph, compiled, inputs, outputs = (
        scratch.resolve() / name for name in ("graph.onnx", "graph.rknn", "inputs.npz", "outputs.npz")
    )
    with storage_errors(scratch):
        onnx.save(prepare(onnx.load(source), scale.sizes, toolkit.version).model, graph)
        np.savez(inputs, allow_pickle=False, **{name: feed[None] for name, feed in feeds.items()})
    task = {"task": "simulate", "name": case.name, "onnx": str(graph), "rknn": str(compiled)}
    task |= {"inputs": str(inputs), "outputs": str(outputs)}
    try:
        result = toolkit.run({**task, "options": {"target_platform": TARGET}}, scratch)
    except ToolkitError as error:
        return ReportRow(case.name, toolkit.version, error.process_exit, error=str(error))
    with np.load(outputs) as archive:
        output = archive["out"][0]
    return ReportRow(
        case.name,
        toolkit.version,
        0,
        seconds=result["build_seconds"],
        peak_rss_bytes=result["build_peak_rss_bytes"],
        rknn_bytes=compiled.stat().st_size,
        cosine=cosine(expected, output),
        max_abs=float(np.max(np.abs(expected - output))),
    )


def cosine(first: npt.NDArray[np.float32], second: npt.NDArray[np.float32]) -> float:
    """Of the angle between two arrays of one shape, summed in float64."""
    a, b = (array.astype(np.float64).ravel() for array in (first, second))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def summarise(rows: Sequence[ReportRow], *, full_size: bool) -> Iterator[str]:
    """Lines under the table: what 84 graphs of such cores would take, beside what others measured."""
    for version in dict.fromkeys(row.toolkit for row in rows) if full_size else ():
        cores = [row for row in rows if row.toolkit == version and row.case in ("self_attn", "cross_attn", "mlp")]
        if all(row.exit_code == 0 for row in cores):
            size = BLOCKS * sum(row.rknn_bytes or 0 for row in cores)
            seconds = BLOCKS * sum(row.seconds or 0 for row in cores)
            yield f"{version}: {BLOCKS * len(cores)} graphs: {size / 1e9:.2f} GB, {seconds / 60:.0f} min (estimate)"
    yield from PUBLISHED
