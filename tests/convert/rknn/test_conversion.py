"""A set for the NPU: what is in it, what is refused, and what an interruption leaves.

The compiler is a stand-in here (see toolkit_stand_in); the real one is asked by test_real_toolkit.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from command import ENVIRONMENT, Workspace
from convert.rknn.toolkit_stand_in import built, make_builder, make_program

from anima_batch.anima.config import subgraph_keys
from anima_batch.backends.rknn_file import read_rknn
from anima_batch.convert.rknn.conversion import (
    BUILD_BYTES,
    SPARE_BYTES,
    RknnOptions,
    choose_sizes,
    convert_to_rknn,
    count_workers,
)
from anima_batch.errors import FolderLockedError, ModelSetError, ToolkitError
from anima_batch.files import file_digests, lock_folder
from anima_batch.model_set import load_model_set, verify_model_set

GRAPHS = 9


def convert(source, out, toolkit, size=None):
    return convert_to_rknn(RknnOptions(source, out, toolkit, size), lambda line: None)


@pytest.fixture
def builder(tmp_path):
    return make_builder(tmp_path / "bin")


@pytest.fixture
def made(golden_set, builder, tmp_path):
    return convert(golden_set, tmp_path / "npu", builder).model_set


def parts(model_set):
    return {part.role: part for part in model_set.description.components}


def test_cores_are_compiled_and_all_else_is_the_same_files(golden_set, made):
    before, after = parts(golden_set), parts(made)
    cores = {key.role for key in subgraph_keys(3)}
    assert {role for role, part in after.items() if part.path.endswith(".rknn")} == cores
    assert {role: part for role, part in after.items() if role not in cores} == {
        role: part for role, part in before.items() if role not in cores
    }
    assert verify_model_set(made, sha256=True) == []
    files = {str(path.relative_to(made.folder)) for path in made.folder.rglob("*") if path.is_file()}
    assert files == {part.path for part in after.values()} | {"model_set.json"}
    assert (made.folder / "qwen/model.onnx").samefile(golden_set.folder / "qwen/model.onnx")


def test_each_graph_tells_what_it_was_built_with_and_of_what(golden_set, made):
    source = golden_set.component("transformer.01.cross_attn")
    part = made.component("transformer.01.cross_attn", ".rknn")
    assert part.built_with["rknn_toolkit2"] == "2.3.2"
    assert part.built_with["rknn_compiler"].startswith("2.3.2(compiler version: 2.3.2 (")
    assert part.built_with["target_platform"] == "rk3588"
    assert part.built_with["source_onnx"] == source.sha256
    assert (part.built_with["opset"], part.built_with["prescale"]) == ("19", "0.25")
    custom = read_rknn(made.path("transformer.01.cross_attn", ".rknn")).custom
    options = {"target_platform": "rk3588", "custom_string": custom, "do_quantization": False}
    assert json.loads(part.built_with["options"]) == options
    assert json.loads(custom) == {
        "block": 1,
        "branch": "cross_attn",
        "onnx": source.sha256,
        "weights": golden_set.source_sha256("transformer"),
    }
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in part.inputs] == [
        ("z", "float16", (1, 64, 64)),
        ("context", "float16", (1, 512, 32)),
    ]


def test_only_sizes_with_as_many_tokens_are_kept(golden_set, made, builder, tmp_path):
    assert made.description.sizes == ((128, 128),)
    wide = convert(golden_set, tmp_path / "wide", builder, (160, 96)).model_set
    assert wide.description.sizes == ((160, 96),)
    assert wide.component("transformer.00.mlp", ".rknn").inputs[0].shape == (1, 60, 64)


def test_the_wanted_size_comes_first_and_its_turned_twin_stays():
    sizes = ((128, 128), (192, 128), (128, 192))
    assert choose_sizes(sizes, None) == ((128, 128),)
    assert choose_sizes(sizes, (128, 192)) == ((128, 192), (192, 128))


@pytest.mark.parametrize(
    ("free", "processors", "workers"),
    [(2 * BUILD_BYTES + SPARE_BYTES, 2, 2), (2 * BUILD_BYTES + SPARE_BYTES - 1, 2, 1), (10**12, 1, 1)],
)
def test_two_at_a_time_only_with_memory_and_a_processor_for_each(free, processors, workers):
    assert count_workers(free, processors) == workers


def test_a_killed_conversion_goes_on_with_the_graphs_it_has(golden_set, tmp_path):
    """The stand-in kills the converting process by SIGKILL at its fifth build."""
    make_builder(tmp_path / "bin", limit=4)
    code = f"""
from pathlib import Path
from anima_batch.convert.rknn.conversion import RknnOptions, convert_to_rknn
from anima_batch.convert.rknn.toolkit import Toolkit
from anima_batch.model_set import load_model_set
source = load_model_set(Path({str(golden_set.folder)!r}))
toolkit = Toolkit("2.3.2", Path({str(tmp_path)!r}) / "bin/python")
convert_to_rknn(RknnOptions(source, Path({str(tmp_path)!r}) / "npu", toolkit), print)
"""
    ended = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert ended.returncode == -9, ended.stderr
    assert not (tmp_path / "npu").exists()
    kept = {path.stem for path in (tmp_path / "npu.partial/.building").glob("*.json")}
    assert 3 <= len(kept) <= 4
    again = make_builder(tmp_path / "again")
    done = convert(golden_set, tmp_path / "npu", again)
    assert (done.built, done.kept) == (GRAPHS - len(kept), len(kept))
    assert set(built(tmp_path / "again")) == {key.role for key in subgraph_keys(3)} - kept
    assert verify_model_set(done.model_set, sha256=True) == []
    assert not (tmp_path / "npu.partial").exists()


@pytest.fixture
def interrupted(golden_set, tmp_path):
    """A conversion whose last graphs could not be built, and the partial folder that it left."""
    make_builder(tmp_path / "bin")
    script = (tmp_path / "bin/python").read_text()
    failing = script.replace("exec", 'grep -q transformer.02 "$3" && exit 1; exec')
    (tmp_path / "bin/python").write_text(failing)
    toolkit = replace(make_program(tmp_path / "other", "2.3.2", "true"), python=tmp_path / "bin/python")
    with pytest.raises(ToolkitError, match=r"transformer\.02\.\w+: rknn-toolkit2 2\.3\.2: build: exit 1"):
        convert(golden_set, tmp_path / "npu", toolkit)
    return tmp_path / "npu.partial"


def rebuilt(golden_set, folder, version="2.3.2", size=None):
    toolkit = make_builder(folder.parent / "again", version)
    convert(golden_set, folder.with_name("npu"), toolkit, size)
    return set(built(folder.parent / "again"))


LAST = {key.role for key in subgraph_keys(3) if key.block == 2}


def test_after_a_failure_finished_graphs_stay(golden_set, interrupted):
    assert rebuilt(golden_set, interrupted) == LAST


def test_a_graph_that_was_damaged_since_is_built_again(golden_set, interrupted):
    path = interrupted / "transformer/00.mlp.rknn"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (interrupted / ".building/transformer.01.mlp.json").write_text("{")
    assert rebuilt(golden_set, interrupted) == LAST | {"transformer.00.mlp", "transformer.01.mlp"}


@pytest.mark.parametrize(("version", "size"), [("2.5.0", None), ("2.3.2", (160, 96))])
def test_graphs_of_another_toolkit_or_size_are_built_again(version, size, golden_set, interrupted):
    assert len(rebuilt(golden_set, interrupted, version, size)) == GRAPHS


def test_graphs_of_other_weights_are_built_again_and_what_is_not_in_the_set_goes(golden_set, interrupted):
    (interrupted / "transformer/77.mlp.rknn").write_bytes(b"of a larger model")
    (interrupted / "empty").mkdir()
    cores = {key.role for key in subgraph_keys(3)}
    sources = tuple(
        source.model_copy(update={"sha256": "0" * 64}) if source.role == "transformer" else source
        for source in golden_set.description.sources
    )
    description = golden_set.description.model_copy(update={"sources": sources})
    assert rebuilt(replace(golden_set, description=description), interrupted) == cores
    made = load_model_set(interrupted.with_name("npu"))
    assert not (made.folder / "transformer/77.mlp.rknn").exists()
    assert not (made.folder / "empty").exists()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"writes": '"another"'}, "custom string must be "),
        ({"toolkit": "2.5.0"}, "toolkit must be 2.3.2, got 2.5.0"),
        ({"shape": [1, 1, 64]}, "inputs must be "),
    ],
)
def test_a_file_that_is_not_what_was_asked_is_refused(changes, fault, golden_set, tmp_path):
    toolkit = make_builder(tmp_path / "bin", **changes)
    with pytest.raises(ToolkitError, match=rf"2\.3\.2: its file is not what was asked: {fault}"):
        convert(golden_set, tmp_path / "npu", toolkit)
    assert not (tmp_path / "npu").exists()


def test_a_source_that_is_not_as_described_is_refused_before_anything_is_built(golden_set, builder, tmp_path):
    damaged = tmp_path / "set"
    shutil.copytree(golden_set.folder, damaged)
    with (damaged / "transformer/02.mlp.onnx").open("r+b") as stream:
        stream.write(b"x")
    with pytest.raises(ModelSetError, match=r"02\.mlp\.onnx: transformer\.02\.mlp: xxh3_128 must be"):
        convert(load_model_set(damaged), tmp_path / "npu", builder)
    assert built(tmp_path / "bin") == []


def test_a_set_without_onnx_cores_is_refused(made, builder, tmp_path):
    with pytest.raises(ModelSetError, match=r"no \.onnx component of role transformer\.00\.mlp"):
        convert(made, tmp_path / "more", builder)


def test_two_conversions_to_one_name_do_not_meet(golden_set, builder, tmp_path):
    (tmp_path / "npu.partial").mkdir()
    with lock_folder(tmp_path / "npu.partial"), pytest.raises(FolderLockedError):
        convert(golden_set, tmp_path / "npu", builder)


def test_where_links_cannot_be_made_files_are_copied(golden_set, builder, tmp_path):
    """Another file system: /dev/shm is a tmpfs wherever these tests run."""
    out = tmp_path / "npu"
    shared = f"/dev/shm/anima-batch-test-{os.getpid()}"
    shutil.copytree(golden_set.folder, shared)
    try:
        made = convert(load_model_set(type(out)(shared)), out, builder).model_set
        assert verify_model_set(made, sha256=True) == []
        copy = made.path("qwen.model")
        assert file_digests(copy) == file_digests(golden_set.path("qwen.model"))
        assert copy.stat().st_nlink == 1
    finally:
        shutil.rmtree(shared)


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (
            ["--size", "512x512"],
            2,
            "--size: must be one of the model set's sizes, 128x128, 192x128, 128x192, got 512x512",
        ),
        (["--size", "many"], 2, "--size: must be WIDTHxHEIGHT in pixels, such as 512x512, got 'many'"),
        (["--from", "nothing"], 2, "model_set: must be one of picture-book or a folder with model_set.json"),
        (["--transformer", "x.safetensors"], 2, "No such option"),
        (["--toolkit", "1.6.0"], 2, "'1.6.0' is not one of"),
        (["--target", "rk3576"], 2, "'rk3576' is not"),
    ],
)
def test_a_wrong_option_is_one_line_before_a_toolkit_is_set_up(arguments, code, line, workspace):
    words = ["convert", "models/npu", "--from", "picture-book", "--target", "rk3588", "--toolkit", "2.3.2"]
    ended = workspace.run(*words, "--toolkits", "toolkits", *arguments, check=code)
    assert line in ended.stderr
    assert not (workspace.folder / "toolkits").exists()
    assert not (workspace.folder / "models").exists()


def test_what_is_there_already_is_not_overwritten(workspace):
    (workspace.folder / "npu").mkdir()
    words = ["convert", "--from=picture-book", "--target", "rk3588", "--toolkit", "2.3.2", "npu"]
    assert "npu: is there already" in workspace.run(*words, check=2).stderr
