"""What opening and releasing the transformer's graphs takes, branch by branch."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from anima_batch.anima.config import BRANCHES, Branch, SubgraphKey, subgraph_keys
from anima_batch.anima.pipeline import Pipeline, open_pipeline
from anima_batch.backends.base import Phase, Span
from anima_batch.job import RunSpec
from anima_batch.model_set import ModelSet


@dataclass(frozen=True)
class Lifecycle:
    """Mean seconds of one graph of a branch; `pass_seconds` are of all of the branch's graphs, all phases."""

    branch: Branch
    graphs: int
    bytes: int  # of a file
    load_seconds: float
    init_seconds: float
    release_seconds: float

    @property
    def pass_seconds(self) -> float:
        """Of all graphs of the branch once."""
        return self.graphs * (self.load_seconds + self.init_seconds + self.release_seconds)


def bench_lifecycle(model_set: ModelSet, backend: str, run: RunSpec, rounds: int) -> list[Lifecycle]:
    """Opens and releases every graph of a pass, one after the other, and means over the rounds.

    In the first round files may come from the disk, in the later ones from the page cache, as far as they fit in there.
    Raises BackendError or ModelSetError.
    """
    with contextlib.closing(open_pipeline(model_set, backend, run)) as pipeline:
        spans = pipeline.backend.watch.spans = []
        keys = subgraph_keys(model_set.description.transformer.blocks)
        for _ in range(rounds):
            for key in keys:
                pipeline.backend.open(graph_path(pipeline, key)).close()
        return [_describe_branch(pipeline, keys, branch, spans) for branch in BRANCHES]


def _describe_branch(
    pipeline: Pipeline, keys: Iterable[SubgraphKey], branch: Branch, spans: Iterable[Span]
) -> Lifecycle:
    paths = [graph_path(pipeline, key) for key in keys if key.branch == branch]
    means = mean_seconds(span for span in spans if span.name in set(map(str, paths)))
    return Lifecycle(
        branch=branch,
        graphs=len(paths),
        bytes=sum(path.stat().st_size for path in paths) // len(paths),
        load_seconds=means["load"],
        init_seconds=means["init"],
        release_seconds=means["release"],
    )


def graph_path(pipeline: Pipeline, key: SubgraphKey) -> Path:
    """The file of a subgraph."""
    return pipeline.model_set.path(key.role, pipeline.backend.suffix)


def mean_seconds(spans: Iterable[Span]) -> Mapping[Phase, float]:
    """Of each phase that is there."""
    found: dict[Phase, list[float]] = {}
    for span in spans:
        found.setdefault(span.phase, []).append(span.ended - span.started)
    return {phase: statistics.fmean(seconds) for phase, seconds in found.items()}
