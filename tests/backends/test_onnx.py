"""ONNX Runtime behind the adapter, on the built-in set's graphs and on small ones made here."""

from dataclasses import astuple
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper

from anima_batch.anima.config import subgraph_keys
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.errors import BackendError
from anima_batch.model_set import built_in_folder, load_model_set

ROLES = [key.role for key in subgraph_keys(6)]
SIZES = {"tokens": 96, "rows": 32}  # a picture of 192 x 128, a full context


@pytest.fixture(scope="module")
def picture_book():
    return load_model_set(built_in_folder() / "picture-book")


@pytest.fixture
def mlp(picture_book):
    return picture_book.path("transformer.00.mlp")


@pytest.fixture
def write_graph(tmp_path):
    """Writes a graph of one node; inputs and outputs are name -> (type, shape)."""

    def write(kind, inputs, outputs, **attributes):
        values = [
            [helper.make_tensor_value_info(name, *value) for name, value in side.items()] for side in (inputs, outputs)
        ]
        node = helper.make_node(kind, list(inputs), list(outputs), **attributes)
        graph = helper.make_graph([node], "small", *values)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        path = tmp_path / "small.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return write


def one_line(caught, path):
    message = str(caught.value)
    assert caught.value.exit_code == 4
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def normal_feeds(session, seed=1):
    rng = np.random.default_rng(seed)
    return {
        spec.name: rng.standard_normal([SIZES.get(size, size) for size in spec.shape], np.float32)
        for spec in session.inputs
    }


def test_a_graph_tells_its_inputs_with_their_symbolic_dimensions(picture_book):
    session = OnnxBackend(1).open(picture_book.path("transformer.00.cross_attn"))
    assert [(spec.name, spec.dtype, spec.shape) for spec in session.inputs] == [
        ("z", "float32", (1, "tokens", 192)),
        ("context", "float32", (1, "rows", 64)),
    ]


def test_float32_is_converted_for_a_graph_that_declares_float16(write_graph):
    path = write_graph("Add", {name: (TensorProto.FLOAT16, [2]) for name in "xy"}, {"out": (TensorProto.FLOAT16, [2])})
    session = OnnxBackend(1).open(path)
    assert session.inputs[0].dtype == "float16"
    out = session.run({"x": np.array([1, 2049], np.float32), "y": np.array([0.5, 0], np.float32)})
    assert out.dtype == np.float16
    assert out.tolist() == [1.5, 2048]  # float16 has no 2049


def test_float64_and_strided_inputs_give_what_plain_float32_gives(mlp):
    session = OnnxBackend(1).open(mlp)
    z = normal_feeds(session)["z"]
    strided = np.repeat(z, 2, axis=2)[:, :, ::2]
    expected = session.run({"z": z})
    assert np.array_equal(session.run({"z": z.astype(np.float64)}), expected)
    assert np.array_equal(session.run({"z": strided}), expected)


@pytest.mark.parametrize(
    ("feeds", "fault"),
    [
        ({}, "inputs must be ['context', 'z'], got []"),
        ({"z": (1, 4, 192), "contexts": (1, 9, 64)}, "inputs must be ['context', 'z'], got ['contexts', 'z']"),
        (
            {"z": (1, 4, 192), "context": (1, 9, 64), "mask": (1,)},
            "inputs must be ['context', 'z'], got ['context', 'mask', 'z']",
        ),
        (
            {"z": (4, 192), "context": (1, 9, 64)},
            "input z must have shape (1, 'tokens', 192), got (4, 192)",
        ),
        (
            {"z": (1, 4, 192), "context": (1, 9, 65)},
            "input context must have shape (1, 'rows', 64), got (1, 9, 65)",
        ),
        (
            {"z": (2, 4, 192), "context": (1, 9, 64)},
            "input z must have shape (1, 'tokens', 192), got (2, 4, 192)",
        ),
    ],
)
def test_wrong_names_and_shapes_are_refused_in_one_line(feeds, fault, picture_book):
    path = picture_book.path("transformer.00.cross_attn")
    with pytest.raises(BackendError) as caught:
        OnnxBackend(1).open(path).run({name: np.zeros(shape, np.float32) for name, shape in feeds.items()})
    assert one_line(caught, path) == fault


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64"])
def test_an_input_that_is_not_floating_point_is_refused(dtype, mlp):
    with pytest.raises(BackendError) as caught:
        OnnxBackend(1).open(mlp).run({"z": np.zeros((1, 4, 192), dtype)})
    assert one_line(caught, mlp) == f"input z must be floating point, got {dtype}"


def test_two_inputs_that_share_a_symbolic_dimension_must_agree_in_it(picture_book):
    path = picture_book.path("transformer.00.self_attn")
    feeds = {"z": (1, 6, 192), "cos": (1, 6, 16), "sin": (1, 7, 16)}
    with pytest.raises(BackendError) as caught:
        OnnxBackend(1).open(path).run({name: np.zeros(shape, np.float32) for name, shape in feeds.items()})
    assert one_line(caught, path) == "input sin must have shape (1, 'tokens', 16), got (1, 7, 16)"


def test_dimensions_without_a_name_need_not_be_equal(write_graph):
    inputs = {name: (TensorProto.FLOAT, [None, 2]) for name in "xy"}
    path = write_graph("Concat", inputs, {"out": (TensorProto.FLOAT, [None, 2])}, axis=0)
    out = OnnxBackend(1).open(path).run({"x": np.zeros((1, 2)), "y": np.ones((3, 2))})
    assert out.shape == (4, 2)


def test_a_graph_with_an_integer_input_is_refused_when_opened(write_graph):
    path = write_graph("Identity", {"ids": (TensorProto.INT64, [2])}, {"out": (TensorProto.INT64, [2])})
    with pytest.raises(BackendError) as caught:
        OnnxBackend(1).open(path)
    assert one_line(caught, path) == "input ids must be tensor(float) or tensor(float16), got tensor(int64)"


def test_a_graph_with_two_outputs_is_refused_when_opened(write_graph):
    outputs = {name: (TensorProto.FLOAT, [2]) for name in "ab"}
    path = write_graph("Split", {"x": (TensorProto.FLOAT, [4])}, outputs, axis=0, num_outputs=2)
    with pytest.raises(BackendError) as caught:
        OnnxBackend(1).open(path)
    assert one_line(caught, path) == "must have one output, got 2: convert the model set again"


def test_a_run_that_fails_inside_onnxruntime_is_told_once_and_in_one_line(write_graph, capfd):
    path = write_graph("Add", {"x": (TensorProto.FLOAT, ["n"]), "y": (TensorProto.FLOAT, ["m"])},
                       {"out": (TensorProto.FLOAT, ["k"])})  # fmt: skip
    session = OnnxBackend(1).open(path)
    with pytest.raises(BackendError) as caught:
        session.run({"x": np.zeros(2, np.float32), "y": np.zeros(3, np.float32)})
    assert one_line(caught, path).startswith("onnxruntime failed: ")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("keep", [0, 100, 0.5, -1], ids=["empty", "a beginning", "a half", "all but a byte"])
def test_a_truncated_graph_is_refused(keep, mlp, tmp_path):
    data = mlp.read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(BackendError) as caught:
        OnnxBackend(1).open(path)
    assert one_line(caught, path).endswith("run `anima-batch models verify`")


def test_garbage_is_refused(tmp_path):
    path = tmp_path / "noise.onnx"
    path.write_bytes(np.random.default_rng(0).bytes(10_000))
    with pytest.raises(BackendError) as caught:
        OnnxBackend(1).open(path)
    assert one_line(caught, path).startswith("onnxruntime cannot open it: ")


@pytest.mark.parametrize(("name", "reason"), [("gone.onnx", "No such file or directory"), ("", "Is a directory")])
def test_a_missing_file_and_a_folder_are_refused_by_name(name, reason, tmp_path):
    with pytest.raises(BackendError) as caught:
        OnnxBackend(1).open(tmp_path / name)
    assert one_line(caught, tmp_path / name) == f"{reason}: run `anima-batch models verify`"


def test_timings_add_up_over_sessions_and_runs(mlp):
    backend = OnnxBackend(1)
    assert (
        backend.watch.timings.load
        == backend.watch.timings.init
        == backend.watch.timings.run
        == backend.watch.timings.release
        == 0
    )
    seen = []
    for _ in range(8):  # single times vary: eight in rising order are a sum
        session = backend.open(mlp)
        session.run(normal_feeds(session))
        session.close()
        session.close()
        seen.append(astuple(backend.watch.timings)[:4])  # the fifth is the host's, of which a backend knows nothing
    for phase in zip(*seen, strict=True):
        assert phase[0] > 0
        assert all(earlier < later for earlier, later in pairwise(phase))


def test_a_phase_adds_to_its_own_time_alone(mlp):
    backend = OnnxBackend(1)
    session = backend.open(mlp)
    assert [seconds > 0 for seconds in astuple(backend.watch.timings)] == [True, True, False, False, False]
    opened = astuple(backend.watch.timings)
    session.run(normal_feeds(session))
    assert astuple(backend.watch.timings)[:2] == opened[:2]
    assert [seconds > 0 for seconds in astuple(backend.watch.timings)] == [True, True, True, False, False]


def test_a_closed_session_refuses_to_run_and_closes_again_in_peace(mlp):
    session = OnnxBackend(1).open(mlp)
    feeds = normal_feeds(session)
    session.close()
    session.close()
    with pytest.raises(BackendError) as caught:
        session.run(feeds)
    assert one_line(caught, mlp) == "run after close"


@pytest.mark.parametrize("role", ROLES)
def test_one_thread_two_and_all_give_the_same_bits(role, picture_book):
    one, *others = (OnnxBackend(threads).open(picture_book.path(role)) for threads in (1, 2, 0))
    feeds = normal_feeds(one)
    expected = one.run(feeds)
    assert expected.std() > 0
    for session in others:
        assert np.array_equal(session.run(feeds).view(np.uint32), expected.view(np.uint32))


def test_two_hundred_sessions_leave_no_memory_behind(mlp):
    """Two hundred that are kept open take 340 MB: a leak of a sixtieth of each session would show."""
    backend, process = OnnxBackend(1), psutil.Process()

    def cycle(times):
        for _ in range(times):
            session = backend.open(mlp)
            session.run(feeds)
            session.close()
        return process.memory_info().rss

    feeds = {"z": np.zeros((1, 64, 192), np.float32)}
    before = cycle(20)  # the allocator settles
    assert cycle(200) - before < 5_000_000


def test_sessions_that_share_an_arena_keep_their_weights_but_not_what_a_run_needed(mlp):
    """A run over 7,000 tokens needs more than 60 MB: the hidden layer is 21 MB, its GELU as much again twice."""
    backend, process = OnnxBackend(1, share_arena=True), psutil.Process()
    feeds = {"z": np.zeros((1, 7_000, 192), np.float32)}
    sessions = [backend.open(mlp)]
    sessions[0].run(feeds)
    before = process.memory_info().rss
    for _ in range(10):
        sessions.append(backend.open(mlp))
        sessions[-1].run(feeds)
    assert process.memory_info().rss - before < 60_000_000


@pytest.mark.parametrize("role", ROLES[:3])
def test_a_shared_arena_gives_the_same_bits(role, picture_book):
    own, shared = (OnnxBackend(1, share_arena=share).open(picture_book.path(role)) for share in (False, True))
    feeds = normal_feeds(own)
    assert np.array_equal(own.run(feeds), shared.run(feeds))


def test_a_second_arena_takes_nothing_from_sessions_of_the_first(mlp):
    first = OnnxBackend(1, share_arena=True).open(mlp)
    feeds = normal_feeds(first)
    expected = first.run(feeds)
    second = OnnxBackend(1, share_arena=True).open(mlp)
    assert np.array_equal(first.run(feeds), expected)
    first.close()
    assert np.array_equal(second.run(feeds), expected)


def test_the_runtime_tells_its_version():
    (found,) = OnnxBackend(1).versions().items()
    assert found[0] == "onnxruntime"
    assert found[1][0].isdigit()


def test_the_built_in_graphs_inputs_are_those_that_the_description_names(picture_book):
    described = [part for part in picture_book.description.components if part.path.endswith(".onnx")]
    assert len(described) == 21
    for part in described:
        session = OnnxBackend(1).open(Path(picture_book.folder) / part.path)
        found = {spec.name: (spec.dtype, spec.shape) for spec in session.inputs}
        assert found == {tensor.name: (tensor.dtype, tensor.shape) for tensor in part.inputs}
