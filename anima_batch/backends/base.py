"""What a runtime must offer: open a graph file, run it, release it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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
    """Seconds spent in a runtime's four phases, added up until reset."""

    load: float = 0.0
    init: float = 0.0
    run: float = 0.0
    release: float = 0.0


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
    """A runtime; `timings` collects what its sessions spent."""

    name: str
    suffix: str
    timings: Timings

    def check(self, path: Path) -> None:
        """Raise ModelSetError for a graph file that it would refuse, as far as that can be told before it is loaded."""
        ...

    def open(self, path: Path) -> Session:
        """Load and initialise a graph file; raises BackendError, or ModelSetError for what `check` refuses."""
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
