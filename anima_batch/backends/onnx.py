"""ONNX Runtime on the CPU."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from anima_batch.backends.base import Array, Stopwatch, TensorSpec, check_feeds
from anima_batch.errors import BackendError

_DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16"}
_READ_BYTES = 1 << 22
_FOLDED_BYTES = 6 << 20  # as float32; the decoder's largest convolution has 5.3 MB, a block's smallest matrix 8.4


class OnnxBackend:
    """Opens `.onnx` graphs with a number of threads (0: one a core).

    What a run needs beside the weights lies in an arena that the session keeps until it is closed; with `share_arena`
    in one that such sessions share and the process keeps, since many that stay open would keep more than their weights.
    """

    name = "onnx"
    suffix = ".onnx"
    cores = 1  # however many threads a run has

    def __init__(self, threads: int = 0, *, share_arena: bool = False) -> None:
        self.watch = Stopwatch()
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._options.log_severity_level = 4  # errors come as exceptions, and would be printed besides
        self._options.use_deterministic_compute = True
        # Threads that spin while they wait gain little, and make a step ten times slower beside another busy process.
        self._options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._options.enable_mem_pattern = False  # plans a second arena beside the first, from the second run on
        # Large float16 weights stay so, and are cast in each run: half the memory, a third of the time to open. A level
        # higher would widen them all. Small ones are widened at once: convolutions are faster if theirs are constant.
        self._options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_LAYOUT
        self._options.add_session_config_entry(
            "optimization.constant_folding_max_output_size_in_bytes", str(_FOLDED_BYTES)
        )
        if share_arena:
            self._options.add_session_config_entry("session.use_env_allocators", "1")
            _register_arena()

    def check(self, path: Path) -> tuple[TensorSpec, ...]:
        """Nothing is known of the file before the runtime reads it whole."""
        return ()

    def open(self, path: Path, core: int = 0) -> OnnxSession:
        """Load and initialise a graph; raises BackendError.

        The runtime reads the file itself: given its bytes, it would hold them beside the weights that it makes of them.
        """
        started = time.perf_counter()
        _fill_page_cache(path)
        loaded = time.perf_counter()
        try:
            session = onnxruntime.InferenceSession(str(path), self._options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions share no base class below Exception
            raise BackendError(
                f"{path}: onnxruntime cannot open it: {_first_line(error)}: run `anima-batch models verify`"
            ) from error
        _check_interface(path, session)
        _return_freed_memory()
        self.watch.add("load", str(path), started, loaded)
        self.watch.add("init", str(path), loaded)
        return OnnxSession(path, session, self.watch)

    def versions(self) -> dict[str, str | None]:
        """The runtime's version."""
        return {"onnxruntime": onnxruntime.__version__}


class OnnxSession:
    """An open graph; floating-point inputs are converted to the dtype that the graph declares."""

    def __init__(self, path: Path, session: onnxruntime.InferenceSession, watch: Stopwatch) -> None:
        self._path = path
        self._session: onnxruntime.InferenceSession | None = session
        self._watch = watch
        self.inputs = tuple(
            TensorSpec(value.name, _DTYPES[value.type], _name_dimensions(value.name, value.shape))
            for value in session.get_inputs()
        )

    def run(self, feeds: Mapping[str, Array]) -> Array:
        """The graph's only output; raises BackendError."""
        if self._session is None:
            raise BackendError(f"{self._path}: run after close")
        if fault := check_feeds(str(self._path), self.inputs, feeds):
            raise BackendError(fault)
        started = time.perf_counter()
        ready = {spec.name: np.ascontiguousarray(feeds[spec.name], dtype=spec.dtype) for spec in self.inputs}
        try:
            outputs: list[Array] = self._session.run(None, ready)
        except Exception as error:  # as above
            raise BackendError(f"{self._path}: onnxruntime failed: {_first_line(error)}") from error
        self._watch.add("run", str(self._path), started)
        return outputs[0]

    def close(self) -> None:
        """Release the graph and its memory."""
        started = time.perf_counter()
        self._session = None
        _return_freed_memory()
        self._watch.add("release", str(self._path), started)


def _register_arena() -> None:
    """Give the process an arena for the sessions that ask for it; one that is there already serves its own on."""
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    as_requested = onnxruntime.OrtArenaCfg(0, 1, -1, -1)  # grows by what is asked for, not to twice its size
    onnxruntime.create_and_register_allocator(memory, as_requested)


def _return_freed_memory() -> None:
    """Give the system what glibc keeps of freed memory: 1 GB after Qwen is closed, a fifteenth of all open blocks."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _fill_page_cache(path: Path) -> None:
    """Read the file, which is what takes the time of `load`; raises BackendError."""
    buffer = bytearray(_READ_BYTES)
    try:
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
    except OSError as error:
        raise BackendError(f"{path}: {error.strerror}: run `anima-batch models verify`") from error


def _check_interface(path: Path, session: onnxruntime.InferenceSession) -> None:
    for value in session.get_inputs():
        if value.type not in _DTYPES:
            raise BackendError(f"{path}: input {value.name} must be {' or '.join(_DTYPES)}, got {value.type}")
    if (count := len(session.get_outputs())) != 1:
        raise BackendError(f"{path}: must have one output, got {count}: convert the model set again")


def _name_dimensions(name: str, shape: Sequence[int | str | None]) -> tuple[int | str, ...]:
    """The shape with a name of its own for each dimension that has none: nothing says that two of them are equal."""
    return tuple(f"{name}.{axis}" if size is None else size for axis, size in enumerate(shape))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
