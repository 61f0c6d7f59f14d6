"""A backend that compiles ONNX graphs for the NPU and runs them in Rockchip's simulator, as the toolkit has it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from anima_batch.backends.base import Array, Stopwatch, TensorSpec, check_feeds
from anima_batch.backends.rknn_file import PLATFORM
from anima_batch.convert.rknn.core import check_quantised
from anima_batch.convert.rknn.graph import prepare, read_graph
from anima_batch.convert.rknn.toolkit import PRINTED, Toolkit
from anima_batch.errors import ToolkitError
from anima_batch.files import make_folder, storage_errors


class SimulatorBackend:
    """Opens `.onnx` graphs whose symbolic dimensions have the given sizes.

    All sessions share one process, which is started for the first and ended with the last: what a compiler took of
    memory is given back only then. A graph that `calibration` names gets its products in int8, by those inputs.
    """

    name = "rknn-simulator"
    suffix = ".onnx"
    cores = 1

    def __init__(
        self,
        toolkit: Toolkit,
        sizes: Mapping[str, int],
        scratch: Path,
        calibration: Mapping[Path, Sequence[Path]] | None = None,
    ) -> None:
        self.watch = Stopwatch()
        self._toolkit = toolkit
        self._sizes = sizes
        self._scratch = scratch
        self._calibration = calibration or {}
        self._process: _Process | None = None
        self._open: set[str] = set()
        self._numbers = itertools.count()

    def check(self, path: Path) -> tuple[TensorSpec, ...]:
        """Nothing is known of the file before it is compiled."""
        return ()

    def open(self, path: Path, core: int = 0) -> SimulatorSession:
        """Compile a graph; raises ModelSetError for one that cannot be read, ToolkitError when the toolkit fails."""
        number = next(self._numbers)
        folder = self._scratch.resolve() / f"{number}"  # the toolkit names its files after the graph's
        make_folder(folder)
        ready = folder / f"{path.stem}.{number}.onnx"
        model = prepare(read_graph(path), self._sizes, self._toolkit.version).model
        with storage_errors(ready):
            onnx.save(model, ready)
        request: dict[str, Any] = {
            "task": "open",
            "name": str(path),
            "onnx": str(ready),
            "options": {"target_platform": PLATFORM},
        }
        if samples := self._calibration.get(path):
            request |= {"calibration": [str(sample.resolve()) for sample in samples], "rknn": f"{ready}.rknn"}
        if self._process is None:
            self._process = _Process(self._toolkit, self._scratch.resolve())
        self._open.add(str(ready))
        try:
            started = time.perf_counter()
            self._process.ask(request)
            self.watch.add("init", str(path), started)
            if samples:
                check_quantised(Path(request["rknn"]), model)
        except ToolkitError:
            self.drop({**request, "task": "close"})
            raise
        for file in (ready, Path(f"{ready}.rknn")):  # a hundred megabytes each
            file.unlink(missing_ok=True)
        return SimulatorSession(self, request, _input_specs(model), folder)

    def ask(self, request: Mapping[str, Any]) -> None:
        """Have the process do something with an open graph; raises ToolkitError."""
        assert self._process is not None  # it lives as long as a session
        started = time.perf_counter()
        self._process.ask(request)
        self.watch.add("run", request["name"], started)

    def drop(self, request: Mapping[str, Any]) -> None:
        """Close a graph, and with the last one the process; one that failed to open is closed too."""
        shutil.rmtree(Path(request["onnx"]).parent, ignore_errors=True)  # what cannot be removed goes with the scratch
        self._open.discard(request["onnx"])
        if self._process is not None and not self._open:
            self._process.stop()
            self._process = None
        elif self._process is not None:
            with contextlib.suppress(ToolkitError):  # it is dead, or has not got the graph
                self._process.ask(request)

    def versions(self) -> dict[str, str | None]:
        """The toolkit's version."""
        return {"rknn_toolkit2": self._toolkit.version}


class SimulatorSession:
    """A graph that the simulator's process holds."""

    def __init__(
        self, backend: SimulatorBackend, request: Mapping[str, Any], inputs: tuple[TensorSpec, ...], folder: Path
    ) -> None:
        self.inputs = inputs
        self._backend = backend
        self._request = request
        self._folder = folder
        self._closed = False

    def run(self, feeds: Mapping[str, Array]) -> Array:
        """The graph's output, float32; raises ToolkitError."""
        if self._closed or (fault := check_feeds(self._request["name"], self.inputs, feeds)):
            raise ToolkitError(f"{self._request['name']}: run after close" if self._closed else str(fault))
        inputs, output = self._folder / "inputs.npz", self._folder / "output.npy"
        with storage_errors(inputs):
            np.savez(inputs, *(np.ascontiguousarray(feeds[spec.name], np.float32) for spec in self.inputs))
        self._backend.ask({**self._request, "task": "run", "inputs": str(inputs), "output": str(output)})
        result: Array = np.load(output)
        return result

    def close(self) -> None:
        """Drop the graph; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._backend.drop({**self._request, "task": "close"})


class _Process:
    """The toolkit's program as it answers one request after the other."""

    def __init__(self, toolkit: Toolkit, scratch: Path) -> None:
        self._toolkit = toolkit
        self._printed = scratch / PRINTED
        reading, writing = os.pipe()
        command = toolkit.command({"task": "serve", "name": "simulator", "replies": writing}, scratch)
        with self._printed.open("wb") as stream:
            self._process = subprocess.Popen(  # noqa: S603 - the toolkit's own program
                command, cwd=scratch, stdin=subprocess.PIPE, stdout=stream, stderr=stream, pass_fds=[writing], text=True
            )
        os.close(writing)
        self._replies = os.fdopen(reading, encoding="utf-8")

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer; raises ToolkitError when it is an error, or when the process died instead."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead, as the missing answer tells
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._replies.readline()
        if not line:
            code = self._process.wait()
            raise ToolkitError(self._toolkit.fault(request, code, {}, self._printed))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ToolkitError(self._toolkit.fault(request, 0, answer, self._printed))
        return answer

    def stop(self) -> None:
        """End the process."""
        self._replies.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


def _input_specs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """In the graph's order, all with sizes of their own."""
    return tuple(
        TensorSpec(value.name, "float32", tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim))
        for value in model.graph.input
    )
