"""Rockchip's own compiler and simulator on this project's graphs: rknn-toolkit2 2.3.2, the version of the board.

The environment is that of conftest's fixture `toolkit`.
"""

import json
import signal

import numpy as np
import onnx
import onnxruntime
import pytest
from command import Workspace, wait_for
from convert.rknn.random_core import SIZES, feeds_of, random_core

from anima_batch.anima.config import subgraph_keys
from anima_batch.backends.rknn_file import read_rknn
from anima_batch.convert.rknn.adaln import build_reproducer
from anima_batch.convert.rknn.graph import prepare
from anima_batch.convert.rknn.report import cosine
from anima_batch.errors import ToolkitError
from anima_batch.model_set import load_model_set, verify_model_set

VERSION = "2.3.2"


def folder_of(toolkit):
    """What --toolkits is to name: the folder of environments in which this one lies."""
    return str(toolkit.python.parents[2])


def answer(workspace, *words):
    """What a command prints with --json, however long it takes: a slow machine builds slowly."""
    process = workspace.start(*words, "--json")
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out)


def simulate(toolkit, folder, model, *runs):
    """The simulator's output for each of the runs' inputs."""
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "graph.onnx")
    np.savez(folder / "in.npz", **{name: np.stack([feeds[name] for feeds in runs]) for name in runs[0]})
    task = {"task": "simulate", "name": "core", "onnx": str(folder / "graph.onnx")}
    task |= {"inputs": str(folder / "in.npz"), "outputs": str(folder / "out.npz")}
    toolkit.run({**task, "options": {"target_platform": "rk3588"}}, folder / "scratch")
    return np.load(folder / "out.npz")["out"]


def test_2_3_2_dies_of_adaln_and_says_so_in_one_line(toolkit, tmp_path):
    (tmp_path / "graph.onnx").write_bytes(build_reproducer(np.ones((64, 64), np.float32), "scale", bias=True))
    model = prepare(onnx.load(tmp_path / "graph.onnx"), {"tokens": 16}, VERSION).model
    with pytest.raises(ToolkitError) as caught:
        simulate(toolkit, tmp_path / "work", model, {"x": np.ones((1, 16, 64)), "scale": np.ones((1, 1, 64))})
    assert str(caught.value) == (
        "core: rknn-toolkit2 2.3.2: simulate: exit 139 (SIGSEGV): "
        "this version dies of LayerNorm with a bias x (1 + scale) before a MatMul: "
        "feed 1 + scale as an input, leave the bias out, or take toolkit 2.3.0 or 2.5.0"
    )
    assert caught.value.process_exit == 139


def scaled(feeds, factor):
    return feeds | {"z": feeds["z"] * np.float32(factor)}


def test_scaled_q_and_k_stay_finite_where_plain_ones_overflow_and_padding_is_no_division_by_zero(toolkit, tmp_path):
    """Tolerance: float16 products of 32 terms; the context has zero rows, as where a prompt is short."""
    model = random_core("cross_attn", np.float32)
    prepared = prepare(model, SIZES, VERSION)
    plain = prepare(model, SIZES, "2.5.0")
    feeds = feeds_of(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (q,) = (node.output[0] for node in model.graph.node if node.input[1:] == ["q_proj.weight"])
    largest = float(np.abs(_value_of(model, q, feeds)).max())
    runs = [feeds, scaled(feeds, 3 * 255 / largest)]  # |q| up to 765
    outputs = simulate(toolkit, tmp_path / "scaled", prepared.model, *runs)
    for run, output in zip(runs, outputs, strict=True):
        assert cosine(session.run(None, run)[0], output) > 0.99999
    assert not np.isfinite(simulate(toolkit, tmp_path / "plain", plain.model, *runs)[1]).all()


def _value_of(model, name, feeds):
    """A value within a graph."""
    probed = onnx.ModelProto.FromString(model.SerializeToString())
    probed.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return onnxruntime.InferenceSession(probed.SerializeToString()).run([name], feeds)[0]


def test_the_peak_is_that_of_the_process_and_not_of_whoever_started_it(toolkit, tmp_path):
    held = np.ones(150_000_000)  # 1.2 GB
    onnx.save(prepare(random_core("mlp", np.float32), SIZES, VERSION).model, tmp_path / "graph.onnx")
    task = {"task": "build", "name": "mlp", "onnx": str(tmp_path / "graph.onnx"), "rknn": str(tmp_path / "mlp.rknn")}
    result = toolkit.run({**task, "options": {"target_platform": "rk3588"}}, tmp_path / "scratch")
    assert 1e8 < result["build_peak_rss_bytes"] <= result["peak_rss_bytes"] < 1e9 < held.nbytes


def test_picture_book_is_converted_and_a_killed_conversion_goes_on(toolkit, tmp_path):
    """All 18 subgraphs through the real compiler; killed by SIGKILL in the midst of it."""
    workspace = Workspace(tmp_path)
    words = ["convert", "models/npu", "--from", "picture-book", "--target", "rk3588", "--toolkit", VERSION]
    words += ["--toolkits", folder_of(toolkit)]
    process = workspace.start(*words)
    wait_for(process, "; 3 of 18")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    partial = tmp_path / "models/npu.partial"
    kept = {path.stem: path.read_bytes() for path in partial.glob(".building/*.json")}
    assert 3 <= len(kept) <= 5
    made = answer(workspace, *words)
    assert (made["built"], made["kept"]) == (18 - len(kept), len(kept))
    model_set = load_model_set(tmp_path / "models/npu")
    assert verify_model_set(model_set, sha256=True) == []
    for key in subgraph_keys(6):
        part = model_set.component(key.role, ".rknn")
        assert (part.built_with["rknn_toolkit2"], part.built_with["target_platform"]) == (VERSION, "rk3588")
        custom = json.loads(read_rknn(model_set.path(key.role, ".rknn")).custom)
        assert (custom["block"], custom["branch"]) == (key.block, key.branch)
    for role, record in kept.items():
        assert json.loads(record)["component"]["sha256"] == model_set.component(role, ".rknn").sha256


def test_the_report_shows_the_crash_the_workaround_and_the_accuracy(toolkit, tmp_path):
    report = answer(Workspace(tmp_path), "convert", "report", "--toolkit", VERSION, "--toolkits", folder_of(toolkit))
    first, *others = report["rows"]
    assert (first["exit_code"], first["rknn_bytes"]) == (139, None)
    assert "dies of LayerNorm with a bias x (1 + scale)" in first["error"]
    assert [row["case"] for row in others] == [
        "the same, LayerNorm without bias",
        "the same, 1 + scale an input",
        "block with AdaLN, 1 + scale inputs",
        "self_attn",
        "cross_attn",
        "mlp",
    ]
    for row in others:
        assert (row["exit_code"], row["error"]) == (0, None)
        assert row["cosine"] > 0.99999  # float16 against float32
        assert row["rknn_bytes"] > 10_000
