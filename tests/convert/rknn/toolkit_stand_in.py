"""A program in the place of a toolkit's Python: it answers a build by a file that holds an interface and no graph.

What is around the toolkit can be tested with it where the toolkit is not; the toolkit itself has its own tests.
"""

import sys
from pathlib import Path

import onnx

from anima_batch.convert.rknn.toolkit import Toolkit

TESTS = Path(__file__).parents[2]

_BUILD = """
import importlib.util, json, os, sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
from board.graph_file import make_graph_file
spec = importlib.util.spec_from_file_location("onnx_ml_pb2", {messages!r})  # without the rest of onnx, which is slow
messages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(messages)
task = json.loads(Path(sys.argv[3]).read_text())
with open({log!r}, "a") as log:
    log.write(task["name"] + "\\n")
if len(Path({log!r}).read_text().splitlines()) > {limit}:
    os.kill(os.getppid(), 9)
    time.sleep(60)
model = messages.ModelProto.FromString(Path(task["onnx"]).read_bytes())
sides = [
    {{value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in values}}
    for values in (model.graph.input, model.graph.output)
]
sides[0]["z"] = {shape} or sides[0]["z"]
custom = task["options"]["custom_string"]
Path(task["rknn"]).write_bytes(make_graph_file(*sides, {custom}, toolkit={toolkit!r}))
Path(sys.argv[4]).write_text(json.dumps({{"build_seconds": 0.1, "peak_rss_bytes": 1}}))
"""


def make_builder(folder, version="2.3.2", *, limit=10**6, writes="custom", toolkit=None, shape=None):
    """A toolkit whose builds are written, one line each, to `<folder>/log`.

    After `limit` of them it kills whoever asked, as a power cut does. `writes` is the expression that becomes the
    custom string, `toolkit` the version that its files name, `shape` that of their first input.
    """
    folder.mkdir(exist_ok=True)
    paths = [str(TESTS), *filter(None, sys.path)]
    messages = str(Path(onnx.__file__).with_name("onnx_ml_pb2.py"))
    code = _BUILD.format(
        messages=messages,
        paths=paths,
        log=str(folder / "log"),
        limit=limit,
        custom=writes,
        toolkit=toolkit or version,
        shape=shape,
    )
    (folder / "build.py").write_text(code)
    return make_program(folder, version, f'exec {sys.executable} "{folder}/build.py" "$@"')


def make_program(folder, version, line):
    """A toolkit whose Python is a shell's line; it is given -I, the program, the task's file and the result's."""
    folder.mkdir(exist_ok=True)
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    return Toolkit(version, program)


def built(folder):
    """The names of all builds that were begun."""
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []
