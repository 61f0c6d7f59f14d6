"""What a runtime must offer: open a graph file, run it, release it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from anima_batch.errors import BackendError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph; a dimension is a number, or the name of a symbolic one."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass
class Timings:
    """Seconds spent in a runtime's four phases and in the host's maths, added up until reset; they may overlap."""

    load: float = 0.0
    init: float = 0.0
    run: float = 0.0
    release: float = 0.0
    host: float = 0.0

    def since(self, before: Timings) -> Timings:
        """What was added after a copy was taken."""
        return Timings(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


Phase = Literal["load", "init", "run", "release", "host"]


@dataclass(frozen=True)
class Span:
    """One piece of work: from and to are seconds of time.perf_counter."""

    phase: Phase
    name: str  # a graph's path, or what the host did
    started: float
    ended: float

    def shift(self, seconds: float) -> Span:
        """The same by another clock."""
        return replace(self, started=self.started + seconds, ended=self.ended + seconds)


class Stopwatch:
    """Adds up what threads spent in each phase; with `spans` set to a list, each piece of work is put there, too."""

    def __init__(self) -> None:
        self.timings = Timings()
        self.spans: list[Span] | None = None
        self._lock = Lock()

    def add(self, phase: Phase, name: str, started: float, ended: float | None = None) -> None:
        """Work of a phase that ended now, or at `ended`."""
        ended = time.perf_counter() if ended is None else ended
        with self._lock:
            setattr(self.timings, phase, getattr(self.timings, phase) + ended - started)
            if self.spans is not None:
                self.spans.append(Span(phase, name, started, ended))


class Session(Protocol):
    """An open graph with one output."""

    inputs: tuple[TensorSpec, ...]

    def run(self, feeds: Mapping[str, Array]) -> Array:
        """The graph's output for named inputs; raises BackendError for wrong names or shapes, or a failed run."""
        ...

    def close(self) -> None:
        """Release the graph; a second call does nothing."""
        ...


class Backend(Protocol):
    """A runtime with so many cores; `watch` collects what its sessions spent. Sessions are used from any thread."""

    name: str
    suffix: str
    cores: int
    watch: Stopwatch

    def check(self, path: Path) -> tuple[TensorSpec, ...]:
        """A graph file's inputs as a run takes them, () where only loading would tell.

        Raises ModelSetError for a file that would be refused, as far as that can be told before it is loaded.
        """
        ...

    def open(self, path: Path, core: int = 0) -> Session:
        """Load and initialise a graph file for a core; raises BackendError, or ModelSetError as `check` does."""
        ...

    def versions(self) -> dict[str, str | None]:
        """Versions of the runtime for the manifest's `environment`."""
        ...


def check_feeds(where: str, specs: tuple[TensorSpec, ...], feeds: Mapping[str, Array]) -> str | None:
    """What is wrong with the inputs of a run, in one line; None when all names, shapes and kinds fit."""
    expected = {spec.name for spec in specs}
    if expected != set(feeds):
        return f"{where}: inputs must be {sorted(expected)}, got {sorted(feeds)}"
    symbols: dict[str, int] = {}
    for spec in specs:
        array = feeds[spec.name]
        if not np.issubdtype(array.dtype, np.floating):
            return f"{where}: input {spec.name} must be floating point, got {array.dtype}"
        if len(array.shape) != len(spec.shape):
            return f"{where}: input {spec.name} must have shape {spec.shape}, got {array.shape}"
        for wanted, got in zip(spec.shape, array.shape, strict=True):
            if got != (wanted if isinstance(wanted, int) else symbols.setdefault(wanted, got)):
                return f"{where}: input {spec.name} must have shape {spec.shape}, got {array.shape}"
    return None


def check_output(where: str, output: object, shape: tuple[int, ...]) -> Array:
    """The output of a run if it is an array of that shape; raises BackendError, since a sick runtime gives anything."""
    if isinstance(output, np.ndarray) and output.shape == shape:
        return output
    got = f"shape {output.shape}" if isinstance(output, np.ndarray) else type(output).__name__
    raise BackendError(f"{where}: its output must have shape {shape}, got {got}")
