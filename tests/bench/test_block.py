"""A block of the built-in set as three graphs beside the same block as one, by the two commands for it."""

from dataclasses import dataclass

import pytest
from command import Workspace
from PIL import Image

from anima_batch.model_set import find_model_set

PHASES = ("load", "init", "run", "release", "host")


@dataclass(frozen=True)
class Measured:
    workspace: Workspace
    found: dict


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("bench"))
    workspace.run("convert", "block", "picture-book", "fused.onnx")
    found = workspace.json("bench", "block", "fused.onnx", "--rounds", "2", "--figure", "block.png")
    return Measured(workspace, found)


def test_both_forms_give_the_same_numbers(measured):
    """Float32 on both sides: what is left is the order of sums, 1e-6 of the largest value and less."""
    assert measured.found["cosine"] > 1 - 1e-9
    assert measured.found["largest_difference"] < 1e-6 * measured.found["largest_value"]
    assert measured.found["largest_value"] > 1


def test_another_block_gives_other_numbers(measured):
    found = measured.workspace.json("bench", "block", "fused.onnx", "--block", "1", "--rounds", "1")
    assert found["cosine"] < 0.999


def test_all_phases_are_measured_and_add_up_to_the_time_taken(measured):
    for form, graphs in (("split", 3), ("fused", 1)):
        measure = measured.found[form]
        assert measure["graphs"] == graphs
        assert min(measure["timings"][phase] for phase in PHASES) > 0
        assert 0.5 * measure["seconds"] < sum(measure["timings"].values()) <= measure["seconds"]


def test_memory_is_that_of_a_process_with_the_graphs_open(measured):
    for form in ("split", "fused"):
        assert 40e6 < measured.found[form]["pss_bytes"] < 400e6
        assert measured.found[form]["device_pss_bytes"] == 0  # no NPU here


def test_the_figure_has_a_row_for_each_form(measured):
    with Image.open(measured.workspace.folder / "block.png") as image:
        assert image.size[0] == 1500


def test_the_table_is_shown_as_text(measured):
    shown = measured.workspace.run("bench", "block", "fused.onnx", "--rounds", "1").stdout
    assert "fused / split: " in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.onnx",), "missing.onnx: not found: make it with `anima-batch convert block MODEL_SET missing.onnx`"),
        (("fused.onnx", "--block", "6"), "--block: must be 0 to 5 for picture-book, got 6"),
        (("fused.rknn",), "fused.rknn: must end in .onnx for backend onnx"),
        (("mlp.onnx",), "got z: make it with `anima-batch convert block`"),
    ],
)
def test_what_is_no_fused_graph_of_the_set_is_a_usage_error(measured, words, message):
    folder = measured.workspace.folder
    mlp = find_model_set("picture-book", folder).path("transformer.00.mlp")
    (folder / "mlp.onnx").write_bytes(mlp.read_bytes())
    (folder / "fused.rknn").write_bytes(b"")
    assert message in measured.workspace.run("bench", "block", *words, check=2).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("out.rknn",), "OUT must be a .onnx file, or a .rknn file with --toolkit, got out.rknn, no --toolkit"),
        (("out.onnx", "--toolkit", "2.3.2"), "got out.onnx, --toolkit 2.3.2"),
        (("out.bin",), "got out.bin, no --toolkit"),
        (("out.onnx", "--block", "6"), "--block: must be 0 to 5 for picture-book, got 6"),
    ],
)
def test_a_graph_that_cannot_be_made_is_a_usage_error(workspace, words, message):
    assert message in workspace.run("convert", "block", "picture-book", *words, check=2).stderr
    assert not list(workspace.folder.glob("out.*"))
