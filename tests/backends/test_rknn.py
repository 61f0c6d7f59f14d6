"""The RKNN adapter against a stand-in for the package `rknnlite`, a real module on the path of a process of its own.

The stand-in has the traps that were seen in rknn-toolkit-lite2 2.3 and 2.5: garbage is loaded without complaint, a
failed rknn_run goes unnoticed and the arrays of an earlier run come back, the file's bytes stay in memory after
release(). What a graph "computes" and which calls fail is the JSON in its file's custom string. The real wheel is
proven in tests/board, against a stub of its C library.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from board.graph_file import make_graph_file

import anima_batch
from anima_batch.backends.printed import PrintedFile

STAND_IN = """
import json
import os

import numpy as np

MADE = []  # every RKNNLite, so that a test can look at it afterwards


class Runtime:
    def __init__(self, data):
        self.says = json.loads(data[data.index(b"<<") + 2 : data.index(b">>")])
        self.runs, self.inputs, self.outputs = 0, None, [np.zeros((1, 2), np.float32)]
        self.buffer = np.zeros((1, 2), np.float32)

    def run(self, frame_extend=None):
        codes = self.says.get("run", [0])
        code = codes[min(self.runs, len(codes) - 1)]
        self.runs += 1
        if code == 0:
            drift = self.runs > self.says.get("drifts_after", 1e9)
            self.outputs = [sum(2 * array.astype(np.float32) for array in self.inputs) + drift]
        return code

    def lend(self):
        self.buffer[:] = self.outputs[0]
        return self.buffer[:]


class RKNNLite:
    def __init__(self, verbose=False, verbose_file=None):
        self.rknn_data = self.rknn_runtime = None
        self.calls, self.dtypes = [], []
        MADE.append(self)

    def load_rknn(self, path):
        self.calls.append("load_rknn")
        with open(path, "rb") as file:
            self.rknn_data = file.read()
        return Runtime(self.rknn_data).says.get("load", 0)

    def init_runtime(self, target=None, device_id=None, async_mode=False, core_mask=0):
        self.calls.append(f"init_runtime {core_mask}")
        self.rknn_runtime = Runtime(self.rknn_data)
        os.write(2, self.rknn_runtime.says.get("prints", "").encode())
        if "raises" in self.rknn_runtime.says:
            raise ValueError(self.rknn_runtime.says["raises"])
        return self.rknn_runtime.says.get("init", 0)

    def inference(self, inputs, data_type=None, data_format=None, inputs_pass_through=None, get_frame_id=False):
        self.calls.append("inference")
        self.dtypes.append([array.dtype.name for array in inputs])
        if self.rknn_runtime.says.get("refuses"):
            return None
        self.rknn_runtime.inputs = inputs
        self.rknn_runtime.run()
        outputs = {"none": None, "empty": [], "two": [*self.rknn_runtime.outputs] * 2, "hollow": [None]}
        outputs["lent"] = [self.rknn_runtime.lend()]
        outputs |= {"other": [np.ones((1, 3), np.float32)], "nan": [np.array([[1, np.nan]], np.float32)]}
        return outputs.get(self.rknn_runtime.says.get("outputs"), self.rknn_runtime.outputs)

    def get_sdk_version(self):
        self.calls.append("get_sdk_version")
        return self.rknn_runtime.says.get(
            "version", "RKNN VERSION:\\n  API: 2.3.2 (429f97ae6b@2025-04-09T09:09:27)\\n  DRV: 0.9.8"
        )

    def release(self):
        self.calls.append("release")
"""
METADATA = "Metadata-Version: 2.1\nName: rknn-toolkit-lite2\nVersion: 2.3.2\n"
PRELUDE = """
import json, sys
from pathlib import Path
import numpy as np
from rknnlite.api import MADE
from anima_batch.backends.rknn import RknnBackend
from anima_batch.errors import BackendError
path = Path(sys.argv[1])
feeds = {"z": np.array([[1, 2.5]], np.float32)}
def fault(call, *arguments):
    try:
        call(*arguments)
    except BackendError as error:
        assert error.exit_code == 4
        return str(error).replace(str(path), "GRAPH", 1)
def tell(**found):
    print(json.dumps(found))
"""
ADVICE = "check that toolkit 2.3.2, lite2 2.3.2, librknnrt 2.3.2 and driver 0.9.8 fit together"
EARLY = "check that toolkit 2.3.2, lite2 2.3.2, librknnrt (unknown) and driver (unknown) fit together"


BOARD_SET = """
import shutil
from anima_batch.model_set import built_in_folder, describe_component, load_model_set, write_description
plain = load_model_set(built_in_folder() / "picture-book")
folder = path.parent / "set"
shutil.copytree(plain.folder, folder)
added = []
for part in plain.description.components:
    if part.role.startswith("transformer.") and part.path.endswith(".onnx"):
        name = part.path.replace(".onnx", ".rknn")
        shutil.copy(path, folder / name)
        added.append(describe_component(folder, part.role, name, {}))
changed = plain.description.model_copy(update={"components": (*plain.description.components, *added)})
board = write_description(folder, changed)
"""  # picture-book as it is, and with a .rknn file beside each of the transformer's graphs


@pytest.fixture
def run_script(tmp_path):
    """Runs a script on a graph that behaves as `says`, with the stand-in installed, and gives what it told."""
    packages = tmp_path / "packages"
    for name, text in {
        "rknnlite/__init__.py": "",
        "rknnlite/api.py": STAND_IN,
        "rknn_toolkit_lite2-2.3.2.dist-info/METADATA": METADATA,
    }.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)

    def run(script, says=None, **graph_options):
        graph = tmp_path / "mlp.rknn"
        custom = f"<<{json.dumps(says or {})}>>"
        tensors = {"inputs": {"z": (1, 2)}, "outputs": {"out": (1, 2)}, "custom": custom} | graph_options
        graph.write_bytes(make_graph_file(**tensors))
        return json.loads(run_python(PRELUDE + script, packages, str(graph)))

    return run


def run_python(script, packages, *arguments):
    """What a script prints in a process that finds packages in that folder first, and keeps stderr as a worker does."""
    search = os.pathsep.join([str(packages), str(Path(anima_batch.__file__).parents[1])])
    with contextlib.closing(PrintedFile()) as printed:
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", script, *arguments],
            env={**os.environ, "PYTHONPATH": search}, stdout=subprocess.PIPE, stderr=printed.descriptor,
            text=True, timeout=300, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, printed.read_end()
    return ended.stdout


OPEN = """
tell(fault=fault(RknnBackend().open, path), calls=MADE[0].calls, kept=MADE[0].rknn_data is not None)
"""
RUN = """
session = RknnBackend().open(path)
tell(fault=fault(session.run, feeds))
"""


def test_without_the_package_the_backend_says_so_in_one_line(tmp_path):
    """An empty package hides a real one, which a board may have."""
    (tmp_path / "rknnlite").mkdir()
    (tmp_path / "rknnlite" / "__init__.py").write_text("")
    script = """
from anima_batch.anima.pipeline import open_pipeline
from anima_batch.errors import BackendError
from anima_batch.job import RunSpec
from anima_batch.model_set import built_in_folder, load_model_set
try:
    open_pipeline(load_model_set(built_in_folder() / "picture-book"), "rknn", RunSpec())
except BackendError as error:
    print(error.exit_code, error)
"""
    assert run_python(script, tmp_path) == (
        "4 backend rknn: rknn-toolkit-lite2 is not installed here (aarch64 only): take backend onnx, or the board\n"
    )


def test_a_run_gives_the_output_of_inputs_passed_as_float16_in_the_graphs_order(run_script):
    found = run_script(
        """
session = RknnBackend().open(path)
out = session.run({"cos": np.ones((1, 2), np.float64), "z": np.array([[1, 2049]], np.float32)})
tell(
    out=out.tolist(), dtype=out.dtype.name, dtypes=MADE[0].dtypes,
    inputs=[[spec.name, spec.dtype, spec.shape] for spec in session.inputs],
    passed=[array.tolist() for array in MADE[0].rknn_runtime.inputs],
)
""",
        inputs={"z": (1, 2), "cos": (1, 2)},
    )
    assert found == {
        "out": [[4, 4098]],
        "dtype": "float32",
        "dtypes": [["float16", "float16"]],
        "inputs": [["z", "float16", [1, 2]], ["cos", "float16", [1, 2]]],
        "passed": [[[1, 2048]], [[1, 1]]],
    }


def test_inputs_of_a_quantised_graph_are_passed_as_float32_for_the_runtime_to_quantise(run_script):
    found = run_script(
        "RknnBackend().open(path).run(feeds)\ntell(dtypes=MADE[0].dtypes)",
        dtype="int8",
    )
    assert found == {"dtypes": [["float32"]]}


def test_a_failed_first_run_is_an_error_though_inference_gives_an_array(run_script):
    assert run_script(RUN, {"run": [-3]})["fault"] == f"GRAPH: rknn_run failed with code -3: {ADVICE}"


def test_a_failed_later_run_is_an_error_though_inference_gives_the_arrays_of_the_run_before(run_script):
    found = run_script(
        """
session = RknnBackend().open(path)
first = session.run(feeds).tolist()
second = fault(session.run, feeds)
tell(first=first, second=second, third=session.run({"z": feeds["z"] * 3}).tolist())
""",
        {"run": [0, -6, 0]},
    )
    assert found == {
        "first": [[2, 5]],
        "second": f"GRAPH: rknn_run failed with code -6: {ADVICE}",
        "third": [[6, 15]],
    }


def test_inputs_that_do_not_fit_the_graph_never_reach_the_runtime(run_script):
    found = run_script("""
session = RknnBackend().open(path)
z = feeds["z"]
wrong = {"none": {}, "name": {"y": z}, "shape": {"z": z[:, :1]}, "kind": {"z": z.astype(int)}}
tell(**{name: fault(session.run, given) for name, given in wrong.items()}, calls=MADE[0].calls.count("inference"))
""")
    assert found == {
        "none": "GRAPH: inputs must be ['z'], got []",
        "name": "GRAPH: inputs must be ['z'], got ['y']",
        "shape": "GRAPH: input z must have shape (1, 2), got (1, 1)",
        "kind": "GRAPH: input z must be floating point, got int64",
        "calls": 0,
    }


def test_numbers_that_float16_cannot_hold_never_reach_the_runtime(run_script):
    found = run_script("""
session = RknnBackend().open(path)
values = {"large": [65504, -70000], "nan": [np.nan, 1], "fits": [65504, -65504]}
faults = {name: fault(session.run, {"z": np.array([two], np.float32)}) for name, two in values.items()}
tell(**faults, calls=MADE[0].calls.count("inference"))
""")
    assert found == {
        "large": "GRAPH: input z must fit into float16 (up to 65504), got values up to 70000",
        "nan": "GRAPH: 1 of the 2 values of z are NaN or infinite",
        "fits": None,
        "calls": 1,
    }


def test_an_output_that_is_not_finite_is_an_error_of_its_own_class(run_script):
    found = run_script(
        """
from anima_batch.errors import NonFiniteError
session = RknnBackend().open(path)
try:
    session.run(feeds)
except NonFiniteError as error:
    tell(fault=str(error).replace(str(path), "GRAPH"))
""",
        {"outputs": "nan"},
    )
    assert found == {"fault": "GRAPH: 1 of the 2 values of out are NaN or infinite"}


def test_inputs_that_inference_refuses_are_an_error_of_their_own(run_script):
    found = run_script(RUN, {"refuses": True})
    assert found["fault"] == f"GRAPH: inference refused its inputs: {ADVICE}"


@pytest.mark.parametrize("outputs", ["none", "empty", "two", "hollow", "other"])
def test_anything_but_one_array_is_an_error(outputs, run_script):
    fault = run_script(RUN, {"outputs": outputs})["fault"]
    assert fault == {
        "hollow": "GRAPH: its output must have shape (1, 2), got NoneType",
        "other": "GRAPH: its output must have shape (1, 2), got shape (1, 3)",
    }.get(outputs, f"GRAPH: inference gave no output: {ADVICE}")


@pytest.mark.parametrize("code", [-1, None])
def test_a_failed_load_names_file_call_and_code_and_is_released(code, run_script):
    found = run_script(OPEN, {"load": code})
    assert found["fault"] == f"GRAPH: load_rknn failed with code {code}: {EARLY}"
    assert found["calls"] == ["load_rknn", "release"]
    assert found["kept"] is False


@pytest.mark.parametrize("code", [-1, -7, 1, None])
def test_any_code_of_init_but_0_is_an_error_and_the_half_alive_context_is_released(code, run_script):
    found = run_script(OPEN, {"init": code})
    assert found == {
        "fault": f"GRAPH: init_runtime failed with code {code} on core mask 0: {EARLY}",
        "calls": ["load_rknn", "init_runtime 1", "release"],
        "kept": False,
    }


def test_what_a_call_prints_stands_in_its_error(run_script):
    lines = "E RKNN: failed to open rknpu module\nE Traceback\nException: init failed\n\n"
    found = run_script(OPEN, {"init": -1, "prints": lines})
    assert found["fault"] == (
        "GRAPH: init_runtime failed with code -1 on core mask 0; it printed "
        f'"E RKNN: failed to open rknpu module" and "Exception: init failed": {EARLY}'
    )


def test_what_a_call_raises_is_an_error_and_the_context_is_released(run_script):
    found = run_script(OPEN, {"raises": "no more\nof this"})
    assert found["fault"] == f"GRAPH: init_runtime raised ValueError: no more: {EARLY}"
    assert found["calls"][-1] == "release"


def test_a_file_that_is_no_graph_is_refused_before_the_runtime_is_made(run_script):
    found = run_script("""
from anima_batch.errors import ModelSetError
path.write_bytes(b"no graph at all")
for call in (RknnBackend().check, RknnBackend().open):
    try:
        call(path)
    except ModelSetError as error:
        last = str(error).replace(str(path), "GRAPH")
tell(fault=last, made=len(MADE))
""")
    assert found == {"fault": "GRAPH: not a .rknn file: must begin with RKNN, got b'no g': convert it again", "made": 0}


@pytest.mark.parametrize(
    ("tensors", "fault"),
    [
        ({"outputs": {"out": (1, 2), "more": (1, 2)}}, "must have one output, got 2: convert the model set again"),
        ({"inputs": {"z": (1, 2, 2, 2)}}, "z must not have 4 dimensions, got (1, 2, 2, 2): convert it with 3"),
    ],
)
def test_a_graph_that_this_adapter_cannot_run_is_refused(tensors, fault, run_script):
    found = run_script(
        """
from anima_batch.errors import ModelSetError
try:
    RknnBackend().check(path)
except ModelSetError as error:
    tell(fault=str(error).replace(str(path), "GRAPH"))
""",
        **tensors,
    )
    assert found == {"fault": f"GRAPH: {fault}"}


def test_a_missing_file_is_named_before_the_runtime_sees_it(run_script):
    found = run_script("""
from anima_batch.errors import ModelSetError
try:
    RknnBackend().open(path.with_name("gone.rknn"))
except ModelSetError as error:
    tell(fault=str(error), made=len(MADE))
""")
    assert found["fault"].endswith("gone.rknn: No such file or directory: run `anima-batch models verify`")
    assert found["made"] == 0


def test_closing_releases_once_and_drops_the_files_bytes(run_script):
    found = run_script("""
session = RknnBackend().open(path)
before = MADE[0].rknn_data is not None
session.close()
session.close()
tell(before=before, after=MADE[0].rknn_data is not None, releases=MADE[0].calls.count("release"))
""")
    assert found == {"before": True, "after": False, "releases": 1}


def test_a_closed_session_refuses_to_run(run_script):
    found = run_script("""
session = RknnBackend().open(path)
session.close()
tell(fault=fault(session.run, feeds), calls=MADE[0].calls.count("inference"))
""")
    assert found == {"fault": "GRAPH: run after close", "calls": 0}


def test_a_closed_session_can_be_collected_with_its_runtime(run_script):
    found = run_script("""
import gc, weakref
session = RknnBackend().open(path)
alive = weakref.ref(MADE.pop())
session.close()
del session
gc.collect()
tell(alive=alive() is not None)
""")
    assert found == {"alive": False}


@pytest.mark.parametrize(("name", "mask"), [("0", 1), ("1", 2), ("2", 4)])
def test_a_core_mask_is_passed_as_the_runtimes_number(name, mask, run_script):
    found = run_script(f"RknnBackend({name!r}).open(path)\ntell(calls=MADE[0].calls)")
    assert f"init_runtime {mask}" in found["calls"]


def test_of_two_cores_each_context_is_opened_for_one(run_script):
    found = run_script(
        'backend = RknnBackend("0+1")\nsessions = [backend.open(path, core) for core in range(backend.cores)]\n'
        "tell(calls=[made.calls[1] for made in MADE])"
    )
    assert found["calls"] == ["init_runtime 1", "init_runtime 2"]


def test_versions_of_runtime_and_driver_are_known_once_a_graph_was_opened(run_script):
    found = run_script("""
backend = RknnBackend()
before = backend.versions()
backend.open(path)
tell(before=before, after=backend.versions())
""")
    assert found == {
        "before": {"rknn_toolkit_lite2": "2.3.2", "librknnrt": None, "rknpu_driver": None},
        "after": {"rknn_toolkit_lite2": "2.3.2", "librknnrt": "2.3.2", "rknpu_driver": "0.9.8"},
    }


def test_inputs_that_the_host_made_float16_are_taken_as_they_are_and_looked_through_for_what_did_not_fit(run_script):
    found = run_script("""
session = RknnBackend().open(path)
half = np.array([[1, 2.5]], np.float16)
given = session.run({"z": half}).tolist()
errors = [fault(session.run, {"z": np.array([[1, value]], np.float16)}) for value in (np.inf, -np.inf, np.nan)]
tell(given=given, passed_on=MADE[0].rknn_runtime.inputs[0] is half, errors=errors, dtypes=MADE[0].dtypes)
""")
    assert found["given"] == [[2, 5]]
    assert found["passed_on"] is True
    assert found["dtypes"] == [["float16"]]
    assert found["errors"] == ["GRAPH: 1 of the 2 values of z are NaN or infinite, or more than 65504"] * 3


def test_an_output_that_is_the_runtimes_own_buffer_outlives_the_next_run(run_script):
    """The host reads it while the graph runs for the other CFG stream."""
    found = run_script(
        """
session = RknnBackend().open(path)
first = session.run({"z": np.array([[1, 2]], np.float32)})
session.run({"z": np.array([[3, 4]], np.float32)})
tell(first=first.tolist())
""",
        {"outputs": "lent"},
    )
    assert found["first"] == [[2, 4]]


@pytest.mark.parametrize("text", [None, "", "RKNN VERSION:\n  API:\n  DRV: \n", "cannot say"])
def test_versions_that_the_runtime_does_not_tell_stay_unknown(text, run_script):
    found = run_script("backend = RknnBackend()\nbackend.open(path)\ntell(**backend.versions())", {"version": text})
    assert found == {"rknn_toolkit_lite2": "2.3.2", "librknnrt": None, "rknpu_driver": None}


def test_timings_add_up_over_sessions_and_runs(run_script):
    found = run_script("""
from dataclasses import asdict
backend = RknnBackend()
seen = [asdict(backend.watch.timings)]
for _ in range(2):
    session = backend.open(path)
    session.run(feeds)
    session.close()
    seen.append(asdict(backend.watch.timings))
tell(seen=seen)
""")
    none, one, two = found["seen"]
    assert none.pop("host") == 0
    assert set(none) == {"load", "init", "run", "release"}
    for phase in none:
        assert none[phase] == 0 < one[phase] < two[phase]


def test_auto_takes_the_npu_only_where_package_and_rknn_graphs_are_and_then_knows_the_versions(run_script):
    found = run_script(
        BOARD_SET
        + """
from anima_batch.anima.pipeline import open_pipeline
from anima_batch.job import RunSpec
pipelines = {
    "plain": open_pipeline(plain, "auto", RunSpec()),
    "board": open_pipeline(board, "auto", RunSpec(core_mask="0+1")),
    "forced": open_pipeline(board, "onnx", RunSpec()),
}
unopened = len(MADE)
canaries = {name: pipeline.run_canary() for name, pipeline in pipelines.items()}
again = pipelines["board"].run_canary()
tell(
    names={name: pipeline.backend.name for name, pipeline in pipelines.items()},
    versions=pipelines["board"].backend.versions(),
    opened=[made.calls for made in MADE],
    unopened=unopened,
    canaries=canaries,
    again=again,
)
"""
    )
    assert found["names"] == {"plain": "onnx", "board": "rknn", "forced": "onnx"}
    assert found["versions"]["librknnrt"] == "2.3.2"
    assert found["unopened"] == 0
    # The three subgraphs of the first block answered the canary's two calls: attention on one core, mlp on the other.
    assert found["opened"] == [
        ["load_rknn", f"init_runtime {mask}", "get_sdk_version", "inference", "inference"] for mask in (1, 1, 2)
    ]
    canary = found["canaries"].pop("board")
    assert len(canary) == 32
    assert canary == found["again"]
    assert found["canaries"] == {"plain": None, "forced": None}


def test_a_process_that_computes_otherwise_at_its_eighth_picture_than_at_its_start_says_so(run_script):
    found = run_script(
        BOARD_SET
        + """
from anima_batch.anima.conditioning import Conditioning
from anima_batch.job import ImageRequest, RunSpec
from anima_batch.worker.messages import Opening
from anima_batch.worker.workbench import CANARY_IMAGES, Workbench
bench = Workbench(Opening(board, "rknn", RunSpec()))
request = ImageRequest(prompt="a", seed=1, width=128, height=128, steps=1)
conditioning = Conditioning(np.zeros((32, 64), np.float32), np.zeros((32, 64), np.float32))
faults = [fault(bench.prepare, request, conditioning) for _ in range(CANARY_IMAGES)]
runs = sum(made.calls.count("inference") for made in MADE)
tell(faults=faults, canary=bench.opened.versions["npu_canary"], runs=runs)
""",
        {"drifts_after": 1},
    )
    assert found["faults"][:-1] == [None] * 7
    assert found["faults"][-1].startswith(f"npu_canary: the answer to fixed inputs must stay {found['canary']}, got ")
    assert found["faults"][-1].endswith("the last 8 pictures may be wrong: check power, cooling and driver")
    assert found["runs"] == 6
