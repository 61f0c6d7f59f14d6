"""rknn-toolkit-lite2 on the board's NPU: a thin adapter that believes no call without its return code."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import pickle
import re
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from anima_batch.backends.base import Array, Stopwatch, TensorSpec, check_feeds, check_output
from anima_batch.backends.printed import PrintedText, Printing
from anima_batch.backends.rknn_file import RknnDescription, read_rknn
from anima_batch.errors import BackendError, ModelSetError, NonFiniteError

CORE_MASKS = {"0": (1,), "1": (2,), "2": (4,), "0+1": (1, 2)}  # of each core that runs graphs beside the others

_LINE_LENGTH = 300  # of what the runtime said, in an error's line
_LIBRARY_ERROR = "E RKNN"
_ERROR = re.compile(r"E |\w*(Error|Exception)\b")

T = TypeVar("T")


class RknnBackend:
    """Opens `.rknn` graphs on the NPU's cores "0", "1", "2", or "0+1" for two that work side by side.

    Raises BackendError where lite2 is not installed.
    """

    name = "rknn"
    suffix = ".rknn"

    def __init__(self, core_mask: str = "0") -> None:
        try:
            from rknnlite.api import RKNNLite  # noqa: PLC0415 - exists on aarch64 only, and is slow to import
        except ImportError as error:
            raise BackendError(
                "backend rknn: rknn-toolkit-lite2 is not installed here (aarch64 only): take backend onnx, or the board"
            ) from error
        self.watch = Stopwatch()
        self.cores = len(CORE_MASKS[core_mask])
        self._printing = Printing()
        self._runtime_class = RKNNLite
        self._core_mask = core_mask
        _parse_settings_once()
        self._versions: dict[str, str | None] = {
            "rknn_toolkit_lite2": version("rknn-toolkit-lite2"),
            "librknnrt": None,
            "rknpu_driver": None,
        }
        gc.freeze()  # what was imported stays anyway; a collection after each release walks over 100 000 objects less

    def check(self, path: Path) -> tuple[TensorSpec, ...]:
        """The graph's inputs, from the file alone; raises ModelSetError for one that is no graph for this NPU."""
        return _describe(path).inputs

    def open(self, path: Path, core: int = 0) -> RknnSession:
        """Load and initialise a graph; raises ModelSetError for its file, BackendError for a call that failed."""
        description = _describe(path)
        caller = _Caller(path, f"toolkit {description.toolkit}", self._versions, self._printing)
        runtime = caller.call("RKNNLite", lambda: self._runtime_class(verbose=False))
        started = time.perf_counter()
        try:
            caller.check_code("load_rknn", lambda: runtime.load_rknn(str(path)))
            loaded = time.perf_counter()
            # Minus one may also mean that only the core mask was refused: such a context would run, on any core.
            mask = CORE_MASKS[self._core_mask][core]
            caller.check_code(
                "init_runtime", lambda: runtime.init_runtime(core_mask=mask), f" on core mask {self._core_mask}"
            )
            self._versions |= _parse_versions(caller.call("get_sdk_version", runtime.get_sdk_version))
            self.watch.add("load", str(path), started, loaded)
            self.watch.add("init", str(path), loaded)
            return RknnSession(caller, description, runtime, self.watch)
        except BackendError:
            with contextlib.suppress(BackendError):  # the first fault is the one to tell
                _release(caller, runtime)  # after a failed init the object is half alive
            raise

    def versions(self) -> dict[str, str | None]:
        """Package, runtime and driver; the last two are known once a graph has been opened."""
        return dict(self._versions)


class RknnSession:
    """An open context."""

    def __init__(
        self,
        caller: _Caller,
        description: RknnDescription,
        runtime: Any,  # noqa: ANN401 - lite2 has no types
        watch: Stopwatch,
    ) -> None:
        self.inputs: tuple[TensorSpec, ...] = description.inputs
        self._output = description.outputs[0]
        self._caller = caller
        self._runtime: Any | None = runtime
        self._watch = watch
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
        """The graph's only output; raises BackendError, as NonFiniteError where the numbers are to blame."""
        where, runtime = str(self._caller.path), self._runtime
        if runtime is None:
            raise BackendError(f"{where}: run after close")
        if fault := check_feeds(where, self.inputs, feeds):
            raise BackendError(fault)
        started = time.perf_counter()
        ready = [_convert(where, spec, feeds[spec.name]) for spec in self.inputs]
        self._run_code = None
        outputs, said = self._caller.listen("inference", lambda: runtime.inference(ready))
        if self._run_code is None:
            raise BackendError(f"{where}: inference refused its inputs{said}: {self._caller.advice}")
        if self._run_code != 0:
            raise BackendError(f"{where}: rknn_run failed with code {self._run_code}{said}: {self._caller.advice}")
        if not isinstance(outputs, list) or len(outputs) != 1:
            raise BackendError(f"{where}: inference gave no output{said}: {self._caller.advice}")
        output = check_output(where, outputs[0], tuple(map(int, self._output.shape)))
        if not output.flags.owndata:  # perhaps the runtime's own buffer, which the next run or the release takes away
            output = output.copy()
        _check_finite(where, self._output.name, output)
        self._watch.add("run", str(self._caller.path), started)
        return output

    def close(self) -> None:
        """Release the context and the file's bytes, which lite2 keeps."""
        if self._runtime is None:
            return
        started = time.perf_counter()
        runtime, self._runtime = self._runtime, None
        _release(self._caller, runtime)
        del runtime
        gc.collect()  # reports of lite2's growing over load and release; its objects refer to each other
        self._watch.add("release", str(self._caller.path), started)


class _Caller:
    """Calls of one graph's runtime, each with what it printed in its error."""

    def __init__(self, path: Path, built: str, versions: Mapping[str, str | None], printing: Printing) -> None:
        self.path = path
        self._built = built
        self._versions = versions
        self._printing = printing

    @property
    def advice(self) -> str:
        """What must fit together, with the versions as far as they are known."""
        lite2, runtime, driver = self._versions.values()
        return (
            f"check that {self._built}, lite2 {lite2}, librknnrt {runtime or '(unknown)'} and "
            f"driver {driver or '(unknown)'} fit together"
        )

    def listen(self, name: str, call: Callable[[], T]) -> tuple[T, str]:
        """What the call gives, and what it printed as words for an error; whatever it raises is a BackendError."""
        try:
            with self._printing.listen() as printed:
                given = call()
        except Exception as error:  # lite2 is compiled Python and may raise anything
            said = _quote(printed)
            raise BackendError(
                f"{self.path}: {name} raised {type(error).__name__}: {_first_line(error)}{said}: {self.advice}"
            ) from error
        return given, _quote(printed)

    def call(self, name: str, call: Callable[[], T]) -> T:
        """As `listen`, without the words."""
        return self.listen(name, call)[0]

    def check_code(self, name: str, call: Callable[[], int | None], how: str = "") -> None:
        """Raise BackendError unless the call gives 0."""
        code, said = self.listen(name, call)
        if code != 0:
            raise BackendError(f"{self.path}: {name} failed with code {code}{how}{said}: {self.advice}")


def _parse_settings_once() -> None:
    """Let lite2 keep its list of SoCs, which init_runtime() parses nine times a graph with a YAML parser in Python.

    Its threads cannot run anything else meanwhile. Whoever asks gets a copy of their own, as before.
    """
    try:
        settings: Any = import_module("rknnlite.utils.yaml_parser")
        load = settings.load
    except (ImportError, AttributeError):  # another version, which reads them in another way
        return
    if hasattr(load, "parse"):  # an earlier backend's, below
        return

    @functools.cache
    def parse(text: str) -> bytes:
        return pickle.dumps(load(io.StringIO(text)))

    def load_once(stream: IO[str], *others: Any, **options: Any) -> Any:  # noqa: ANN401
        if others or options:  # 2.3.2 has none
            return load(stream, *others, **options)
        return pickle.loads(parse(stream.read()))  # noqa: S301 - what was pickled above

    load_once.parse = parse  # type: ignore[attr-defined]
    settings.load = load_once


def _describe(path: Path) -> RknnDescription:
    """The file's description; raises ModelSetError for what this adapter cannot run."""
    description = read_rknn(path)
    if (count := len(description.outputs)) != 1:
        raise ModelSetError(f"{path}: must have one output, got {count}: convert the model set again")
    for spec in (*description.inputs, *description.outputs):
        if len(spec.shape) == 4:  # the runtime would turn it from NCHW to NHWC or not, as it sees fit
            raise ModelSetError(f"{path}: {spec.name} must not have 4 dimensions, got {spec.shape}: convert it with 3")
    return description


def _convert(where: str, spec: TensorSpec, array: Array) -> Array:
    """The input as the runtime takes it: float16, or float32 for it to quantise; raises NonFiniteError."""
    kind = np.dtype(np.float16 if spec.dtype == "float16" else np.float32)
    with np.errstate(over="ignore"):  # it is looked for below
        ready = np.ascontiguousarray(array, kind)
    if not _is_finite(ready):
        if _is_finite(array):
            raise NonFiniteError(
                f"{where}: input {spec.name} must fit into {kind} (up to {np.finfo(kind).max:.0f}), "
                f"got values up to {np.abs(array).max():.6g}"
            )
        _check_finite(where, spec.name, array)
    return ready


def _is_finite(array: Array) -> bool:
    """Whether all values are; of float16 by their bits, which is several times as fast as asking for each number."""
    if array.dtype == np.float16:
        exponents = array.view(np.uint16) & np.uint16(0x7C00)
        return bool(exponents.max(initial=0) < 0x7C00)
    return bool(np.isfinite(array).all())


def _check_finite(where: str, name: str, array: Array) -> None:
    if _is_finite(array):
        return
    wrong = array.size - int(np.count_nonzero(np.isfinite(array)))
    of = f"{wrong} of the {array.size} values of {name}"
    # What the host made float16 itself was too large for it, if it was a number.
    reason = f", or more than {np.finfo(array.dtype).max:.0f}" if array.dtype == np.float16 else ""
    raise NonFiniteError(f"{where}: {of} are NaN or infinite{reason}")


def _release(caller: _Caller, runtime: Any) -> None:  # noqa: ANN401
    """Release the context; a code of rknn_destroy is told nowhere."""
    try:
        caller.call("release", runtime.release)
    finally:
        runtime.rknn_data = None  # the whole file, which lite2 keeps even now


def _quote(printed: PrintedText) -> str:
    """The last line of the C library's own log, which is the cause, and lite2's last error, or the very last line.

    The very last line need not be an error: text in the C library's buffer is printed when the call has ended.
    """
    lines = [line.strip() for line in printed.text.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith(_LIBRARY_ERROR)][-1:]
    others = [line for line in lines if _ERROR.match(line) and not line.startswith(_LIBRARY_ERROR)]
    chosen = dict.fromkeys(line[:_LINE_LENGTH] for line in (*own, *(others or lines)[-1:]))
    who = "it" if printed.alone else "it, or another call at the time,"
    return f"; {who} printed " + " and ".join(f'"{line}"' for line in chosen) if chosen else ""


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _parse_versions(text: str | None) -> dict[str, str | None]:
    """Runtime and driver from get_sdk_version()'s lines `API: 2.3.0 (...)` and `DRV: 0.9.8`."""
    found: dict[str, str | None] = {}
    for line in (text or "").splitlines():
        key, _, value = line.strip().partition(":")
        if key in ("API", "DRV"):
            found[{"API": "librknnrt", "DRV": "rknpu_driver"}[key]] = value.split()[0] if value.split() else None
    return found
