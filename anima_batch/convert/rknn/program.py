"""What runs inside a toolkit's environment: one task of Rockchip's compiler or simulator, from a JSON file to another.

    python -I program.py TASK.json RESULT.json PARENT

A program by itself: it has only what that environment has, and knows nothing of the package around it. Each task runs
in a process of its own, since the toolkit may crash, keeps its memory, and drops files in the working directory.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rknn.api import RKNN  # type: ignore[import-not-found]
from ruamel.yaml import YAML  # type: ignore[import-not-found]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

Task = dict[str, Any]


class CallError(Exception):
    """A call that failed without an exception: why, it has printed."""


def build(task: Task) -> Task:
    """`onnx` compiled to the file `rknn`; `options` go to RKNN.config."""
    return _compile_to_file(task)[1]


def simulate(task: Task) -> Task:
    """`onnx` compiled and run by the simulator for each row of the arrays in `inputs` (.npz), to `outputs` (.npz).

    Of both files each array has one row a run: (runs, *shape of the tensor). The output is `out`, float32.
    """
    toolkit, figures = _compile_to_file(task)
    _check("init_runtime", toolkit.init_runtime())
    with np.load(task["inputs"]) as archive:
        feeds = {name: archive[name] for name in input_names(task["onnx"])}
    started = time.perf_counter()
    rows = [run_once(toolkit, [feed[row] for feed in feeds.values()]) for row in range(len(next(iter(feeds.values()))))]
    seconds = time.perf_counter() - started
    np.savez(task["outputs"], out=np.stack(rows))
    return {**figures, "run_seconds": seconds, "runs": len(rows)}


def serve(task: Task) -> Task:
    """Graphs kept compiled and run as lines of JSON on stdin ask for, each answered by one on the pipe `replies`."""
    graphs: dict[str, Any] = {}
    with os.fdopen(task["replies"], "w", encoding="utf-8") as replies:
        for line in sys.stdin:
            try:
                answer = _answer(graphs, json.loads(line))
            except Exception as error:  # as in main
                answer = _describe(error)
            replies.write(json.dumps(answer) + "\n")
            replies.flush()
    return {"ended": True}


def _answer(graphs: dict[str, Any], request: Task) -> Task:
    """`open` compiles the graph `onnx`, `run` feeds it the arrays of a file in order, `close` drops it."""
    graph, started = request["onnx"], time.perf_counter()
    if request["task"] == "open":
        graphs[graph], _ = _compile_to_file(request)
        _check("init_runtime", graphs[graph].init_runtime())
    elif request["task"] == "run":
        with np.load(request["inputs"]) as archive:
            feeds = [archive[key] for key in archive.files]
        np.save(request["output"], run_once(graphs[graph], feeds))
    else:
        graphs.pop(graph).release()
        gc.collect()
    return {"seconds": time.perf_counter() - started}


def _compile_to_file(task: Task) -> tuple[Any, Task]:
    """As compile_graph, exported to the file `rknn` where one is named; and what that cost."""
    started = time.perf_counter()
    toolkit = compile_graph(task)
    if "rknn" in task:
        _check("export_rknn", toolkit.export_rknn(task["rknn"]))
    return toolkit, {"build_seconds": time.perf_counter() - started, "build_peak_rss_bytes": read_peak_rss()}


def read_peak_rss() -> int:
    """Bytes; not ru_maxrss, in which a process inherits what its parent held when it was started."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def compile_graph(task: Task) -> Any:  # noqa: ANN401 - RKNN has no types
    """A toolkit object that has compiled `onnx`: in float16, or with `calibration` its products in int8."""
    toolkit = RKNN(verbose=False)
    _check("config", toolkit.config(**task["options"]))
    _check("load_onnx", toolkit.load_onnx(model=task["onnx"]))
    if "calibration" in task:
        return quantise(toolkit, task)
    _check("build", toolkit.build(do_quantization=False))
    return toolkit


def quantise(toolkit: Any, task: Task) -> Any:  # noqa: ANN401 - as above
    """A toolkit object with the graph of one input in W8A8, its GELU and its output float16.

    `calibration` lists files (.npy) of inputs. Products take and give int8: what leaves the graph is converted then.
    """
    samples = Path("calibration.txt")
    samples.write_text("".join(f"{path}\n" for path in task["calibration"]), encoding="utf-8")
    _check("hybrid_quantization_step1", toolkit.hybrid_quantization_step1(dataset=str(samples), proposal=False))
    toolkit.release()
    stem = Path(task["onnx"]).stem
    settings = Path(f"{stem}.quantization.cfg")
    wide = [find_gelu(settings), "out_int8"]
    text = settings.read_text(encoding="utf-8")
    none, layers = "custom_quantize_layers: {}\n", "".join(f"    {name}: float16\n" for name in wide)
    if none not in text or f"\n    {wide[1]}:\n" not in text:
        raise RuntimeError(f"{settings}: must name the layer {wide[1]} and no custom ones yet")
    settings.write_text(text.replace(none, f"custom_quantize_layers:\n{layers}"), encoding="utf-8")
    quantised = RKNN(verbose=False)
    code = quantised.hybrid_quantization_step2(
        model_input=f"{stem}.model", data_input=f"{stem}.data", model_quantization_cfg=str(settings)
    )
    _check("hybrid_quantization_step2", code)
    for path in (samples, settings, Path(f"{stem}.model"), Path(f"{stem}.data")):
        path.unlink()
    return quantised


def find_gelu(settings: Path) -> str:
    """The tensor that comes out of the GELU, by its least value: the toolkit gives tensors names of its own.

    x Φ(x) is never below -0.16998, and calibration comes close to that; what else is in such a graph goes far below.
    """
    ranges = YAML(typ="safe").load(settings)["quantize_parameters"]
    found = [name for name, range_ in ranges.items() if -0.17 < min(range_["ori_min"]) < -0.1]
    if len(found) != 1:
        raise RuntimeError(f"one tensor must have its least value between -0.17 and -0.1, as GELU has, got {found}")
    return str(found[0])


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


def _describe(error: Exception) -> Task:
    """What the other side is told of it; the toolkit's messages begin with a traceback."""
    lines = str(error).strip().splitlines() or [""]
    return {"error": f"{type(error).__name__}: {lines[-1]}", "returned": isinstance(error, CallError)}


def _check(call: str, code: int | None) -> None:
    if code not in (0, None):
        raise CallError(f"{call} returned {code}")


TASKS = {"build": build, "simulate": simulate, "serve": serve}


def main() -> None:
    """Run the task; an exception is part of the result, with exit code 1."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)  # whoever asked may be killed
    if os.getppid() != int(sys.argv[3]):  # it was, while the imports ran
        sys.exit(1)
    task_file, result_file = map(Path, sys.argv[1:3])
    task = json.loads(task_file.read_text(encoding="utf-8"))
    try:
        result = TASKS[task["task"]](task)
    except Exception as error:  # the toolkit raises anything; the other side names it
        result = _describe(error)
    result["peak_rss_bytes"] = read_peak_rss()
    result_file.write_text(json.dumps(result), encoding="utf-8")
    sys.exit("error" in result)


if __name__ == "__main__":
    main()
