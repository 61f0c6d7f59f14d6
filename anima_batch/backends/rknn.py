"""rknn-toolkit-lite2 on the board's NPU: a thin adapter that believes no call without its return code."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from anima_batch.backends.base import Array, TensorSpec, Timings
from anima_batch.errors import BackendError

CORE_MASKS = {"0": 1, "1": 2, "2": 4, "0+1": 3}


class RknnBackend:
    """Opens `.rknn` graphs on a core mask ("0", "1", "2", "0+1"); raises BackendError where lite2 is not installed."""

    name = "rknn"
    suffix = ".rknn"

    def __init__(self, core_mask: str = "0") -> None:
        try:
            from rknnlite.api import RKNNLite  # noqa: PLC0415 - exists on aarch64 only, and is slow to import
        except ImportError as error:
            raise BackendError(
                "backend rknn: rknn-toolkit-lite2 is not installed here (aarch64 only): take backend onnx, or the board"
            ) from error
        self.timings = Timings()
        self._runtime_class = RKNNLite
        self._core_mask = CORE_MASKS[core_mask]
        self._versions: dict[str, str | None] = {"librknnrt": None, "rknpu_driver": None}

    def open(self, path: Path) -> RknnSession:
        """Load and initialise a graph; raises BackendError with the call that failed and its code."""
        if not path.is_file():  # load_rknn answers -1 for it, without a word
            raise BackendError(f"{path}: no such file: run `anima-batch models verify`")
        runtime = self._runtime_class(verbose=False)
        started = time.perf_counter()
        _check(path, "load_rknn", runtime.load_rknn(str(path)))
        loaded = time.perf_counter()
        code = runtime.init_runtime(core_mask=self._core_mask)
        if code != 0:
            _release(runtime)  # after a failed init the object is half alive
            _check(path, "init_runtime", code)
        self.timings.load += loaded - started
        self.timings.init += time.perf_counter() - loaded
        self._versions |= _parse_versions(runtime.get_sdk_version())
        return RknnSession(path, runtime, self.timings)

    def versions(self) -> dict[str, str | None]:
        """Package, runtime and driver; the last two are known once a graph has been opened."""
        return {"rknn_toolkit_lite2": version("rknn-toolkit-lite2"), **self._versions}


class RknnSession:
    """An open context. Inputs are passed in the order of `feeds`, which must be the graph's."""

    inputs: tuple[TensorSpec, ...] = ()  # lite2 does not tell; the file's own description is read by the conversion

    def __init__(self, path: Path, runtime: Any, timings: Timings) -> None:  # noqa: ANN401 - lite2 has no types
        self._path = path
        self._runtime: Any | None = runtime
        self._timings = timings
        self._run_code: int | None = None
        self._watch_run(runtime.rknn_runtime)

    def _watch_run(self, low_level: Any) -> None:  # noqa: ANN401
        """Keep the code of `rknn_run`: RKNNLite.inference() drops it and returns stale buffers after a failed run."""
        run = low_level.run

        def watched(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            self._run_code = run(*arguments, **options)
            return self._run_code

        low_level.run = watched

    def run(self, feeds: Mapping[str, Array]) -> Array:
        """The graph's only output; raises BackendError."""
        if self._runtime is None:
            raise BackendError(f"{self._path}: run after close")
        started = time.perf_counter()
        self._run_code = None
        outputs = self._runtime.inference([np.ascontiguousarray(array, np.float16) for array in feeds.values()])
        if self._run_code is None:
            raise BackendError(f"{self._path}: inference refused its inputs: see the runtime's message above")
        _check(self._path, "rknn_run", self._run_code)
        if outputs is None or len(outputs) != 1 or not isinstance(outputs[0], np.ndarray):
            raise BackendError(f"{self._path}: inference gave no output: see the runtime's message above")
        self._timings.run += time.perf_counter() - started
        return outputs[0]

    def close(self) -> None:
        """Release the context and the file's bytes, which lite2 keeps."""
        if self._runtime is None:
            return
        started = time.perf_counter()
        _release(self._runtime)
        self._runtime = None
        self._timings.release += time.perf_counter() - started


def _release(runtime: Any) -> None:  # noqa: ANN401
    runtime.release()
    runtime.rknn_data = None  # the whole file, which lite2 keeps even now


def _check(path: Path, call: str, code: int | None) -> None:
    if code != 0:
        raise BackendError(
            f"{path}: {call} failed with code {code}: check that toolkit, librknnrt and driver fit together"
        )


def _parse_versions(text: str | None) -> dict[str, str | None]:
    """Runtime and driver from get_sdk_version()'s lines `API: 2.3.0 (...)` and `DRV: 0.9.8`."""
    found: dict[str, str | None] = {}
    for line in (text or "").splitlines():
        key, _, value = line.strip().partition(":")
        if key in ("API", "DRV"):
            found[{"API": "librknnrt", "DRV": "rknpu_driver"}[key]] = value.split()[0] if value.split() else None
    return found
