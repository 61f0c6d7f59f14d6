"""What runs inside a toolkit's environment: one task of Rockchip's compiler or simulator, from a JSON file to another.

    python -I toolkit_program.py TASK.json RESULT.json

A program by itself: it has only what that environment has, and knows nothing of the package around it. Each task runs
in a process of its own, since the toolkit may crash, keeps its memory, and drops files in the working directory.
"""

from __future__ import annotations

import ctypes
import json
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rknn.api import RKNN  # type: ignore[import-not-found]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

Task = dict[str, Any]


class CallError(Exception):
    """A call that failed without an exception: why, it has printed."""


def build(task: Task) -> Task:
    """`onnx` compiled to the file `rknn`; `options` go to RKNN.config."""
    return compile_graph(task)[1]


def simulate(task: Task) -> Task:
    """`onnx` compiled and run by the simulator for each row of the arrays in `inputs` (.npz), to `outputs` (.npz).

    Of both files each array has one row a run: (runs, *shape of the tensor). The output is `out`, float32.
    """
    toolkit, figures = compile_graph(task)
    _check("init_runtime", toolkit.init_runtime())
    with np.load(task["inputs"]) as archive:
        feeds = {name: archive[name] for name in input_names(task["onnx"])}
    started = time.perf_counter()
    rows = [run_once(toolkit, [feed[row] for feed in feeds.values()]) for row in range(len(next(iter(feeds.values()))))]
    seconds = time.perf_counter() - started
    np.savez(task["outputs"], out=np.stack(rows))
    return {**figures, "run_seconds": seconds, "runs": len(rows)}


def compile_graph(task: Task) -> tuple[Any, Task]:
    """A toolkit object that has compiled `onnx` in float16, to the file `rknn` if one is named; and what it cost."""
    started = time.perf_counter()
    toolkit = RKNN(verbose=False)
    _check("config", toolkit.config(**task["options"]))
    _check("load_onnx", toolkit.load_onnx(model=task["onnx"]))
    _check("build", toolkit.build(do_quantization=False))
    if "rknn" in task:
        _check("export_rknn", toolkit.export_rknn(task["rknn"]))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return toolkit, {"build_seconds": time.perf_counter() - started, "build_peak_rss_bytes": peak_bytes}


def run_once(toolkit: Any, feeds: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:  # noqa: ANN401 - as above
    """The one output of a compiled graph; inputs in the graph's order, float32."""
    outputs = toolkit.inference(inputs=feeds)
    if outputs is None or len(outputs) != 1:  # it says so in no other way
        raise CallError("inference gave no output")
    result: np.ndarray[Any, Any] = outputs[0]
    return result


def input_names(path: str) -> list[str]:
    """Names of a graph's inputs, in order."""
    model = onnx.load(path, load_external_data=False)
    return [value.name for value in model.graph.input]


def _check(call: str, code: int | None) -> None:
    if code not in (0, None):
        raise CallError(f"{call} returned {code}")


TASKS = {"build": build, "simulate": simulate}


def main() -> None:
    """Run the task; an exception is part of the result, with exit code 1."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)  # whoever asked may be killed
    task_file, result_file = map(Path, sys.argv[1:])
    task = json.loads(task_file.read_text(encoding="utf-8"))
    try:
        result = TASKS[task["task"]](task)
    except Exception as error:  # the toolkit raises anything; the other side names it
        lines = str(error).strip().splitlines() or [""]  # the toolkit's begin with a traceback
        result = {"error": f"{type(error).__name__}: {lines[-1]}", "returned": isinstance(error, CallError)}
    result_file.write_text(json.dumps(result), encoding="utf-8")
    sys.exit("error" in result)


if __name__ == "__main__":
    main()
