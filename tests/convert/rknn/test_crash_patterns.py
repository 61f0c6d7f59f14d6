"""Graphs that 2.3.2 dies of are told from those that it builds."""

import numpy as np
import onnx
import pytest
from convert.rknn.random_core import random_core

from anima_batch.convert.rknn.adaln import build_block, build_reproducer
from anima_batch.convert.rknn.crash_patterns import has_adaln, name_pattern
from anima_batch.convert.rknn.report_cases import TINY, list_cases
from anima_batch.convert.transformer import BUILDERS

WEIGHT = np.ones((8, 8), np.float32)


@pytest.mark.parametrize(
    ("scale_input", "bias", "found"),
    [("scale", True, True), ("scale", False, False), ("one_plus_scale", True, False), ("one_plus_scale", False, False)],
)
def test_layer_norm_with_a_bias_times_one_plus_scale_before_a_product_is_found(scale_input, bias, found):
    assert has_adaln(onnx.ModelProto.FromString(build_reproducer(WEIGHT, scale_input, bias=bias))) is found


@pytest.mark.parametrize("branch", BUILDERS)
def test_no_core_has_it(branch):
    assert not has_adaln(random_core(branch))


def test_of_the_reports_graphs_only_the_first_has_it():
    found = [has_adaln(onnx.ModelProto.FromString(case.build())) for case in list_cases(TINY, 1)]
    assert found == [True, False, False, False, False, False, False]


@pytest.mark.parametrize(("version", "dies"), [("2.3.0", False), ("2.3.2", True), ("2.5.0", False)])
def test_only_2_3_2_dies_of_it(version, dies, tmp_path):
    (tmp_path / "graph.onnx").write_bytes(build_reproducer(WEIGHT, "scale", bias=True))
    assert (name_pattern(tmp_path / "graph.onnx", version) is not None) is dies


def test_a_file_that_cannot_be_read_has_no_known_pattern(tmp_path):
    (tmp_path / "graph.onnx").write_bytes(b"no graph")
    assert name_pattern(tmp_path / "graph.onnx", "2.3.2") is None


@pytest.mark.parametrize(("scale_input", "found"), [("scale", True), ("one_plus_scale", False)])
def test_it_is_found_within_a_block(scale_input, found):
    weights = {branch: weights_of(branch) for branch in BUILDERS}
    assert has_adaln(onnx.ModelProto.FromString(build_block(weights, scale_input))) is found


def weights_of(branch):
    return {
        tensor.name: onnx.numpy_helper.to_array(tensor).T
        for tensor in random_core(branch, np.float32).graph.initializer
        if tensor.name.endswith("weight")
    }
