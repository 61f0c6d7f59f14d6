"""Cores as the NPU compiler takes them: what is fixed in them, and that it changes no result."""

import numpy as np
import pytest
from convert.rknn.random_core import SIZES, feeds_of, random_core, run
from onnx import TensorProto, numpy_helper

from anima_batch.convert.rknn.graph import PRESCALE, prepare, read_graph
from anima_batch.convert.transformer import BUILDERS
from anima_batch.errors import ModelSetError


@pytest.mark.parametrize("version", ["2.3.0", "2.3.2", "2.5.0"])
@pytest.mark.parametrize("branch", BUILDERS)
def test_a_prepared_core_gives_the_same_bits_at_fixed_shapes(branch, version):
    """No tolerance: weights in float32 are the same values, and a power of two changes exponents alone."""
    model = random_core(branch)
    prepared = prepare(model, SIZES, version)
    feeds = feeds_of(model)
    np.testing.assert_array_equal(run(prepared.model, feeds), run(model, feeds))
    assert {name: list(array.shape) for name, array in feeds.items()} == {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in prepared.model.graph.input
    }
    assert prepared.model.graph.output[0].type.tensor_type.shape.dim[1].dim_value == SIZES["tokens"]


@pytest.mark.parametrize(("version", "factor"), [("2.3.0", PRESCALE), ("2.3.2", PRESCALE), ("2.5.0", 1.0)])
@pytest.mark.parametrize("branch", ["self_attn", "cross_attn"])
def test_q_and_k_are_scaled_before_their_norm_for_toolkits_that_square_them_in_float16(branch, version, factor):
    model = random_core(branch)
    prepared = prepare(model, SIZES, version)
    before, after = (
        {tensor.name: numpy_helper.to_array(tensor).astype(np.float32) for tensor in graph.initializer}
        for graph in (model.graph, prepared.model.graph)
    )
    assert prepared.prescale == factor
    for name in ("q_proj", "k_proj"):
        np.testing.assert_array_equal(after[f"{name}.weight"], before[f"{name}.weight"] * np.float32(factor))
    for name in ("v_proj", "output_proj", "q_norm", "k_norm"):
        np.testing.assert_array_equal(after[f"{name}.weight"], before[f"{name}.weight"])


def test_the_scaled_eps_is_not_zero_in_float16():
    """Otherwise the zero rows of a context give 0/0."""
    prepared = prepare(random_core("cross_attn"), SIZES, "2.3.2")
    (eps,) = (
        numpy_helper.to_array(tensor) for tensor in prepared.model.graph.initializer if "float32_1e-06" in tensor.name
    )
    assert eps == np.float32(1e-6) * PRESCALE**2
    assert np.float16(eps) > 0


def test_no_weight_stays_float16_and_the_model_given_is_left_as_it_was():
    model = random_core("self_attn")
    before = model.SerializeToString(deterministic=True)
    prepared = prepare(model, SIZES, "2.3.2")
    assert model.SerializeToString(deterministic=True) == before
    assert not any(tensor.data_type == TensorProto.FLOAT16 for tensor in prepared.model.graph.initializer)
    assert not any(node.op_type == "Cast" for node in prepared.model.graph.node)


def test_a_mlp_has_nothing_to_scale():
    assert prepare(random_core("mlp"), SIZES, "2.3.2").prescale == 1.0


def test_an_unknown_dimension_is_one_line():
    with pytest.raises(ModelSetError, match="'rows'"):
        prepare(random_core("cross_attn"), {"tokens": 6}, "2.3.2")


@pytest.mark.parametrize("fault", ["an input that nobody makes", "not a graph"])
def test_a_graph_that_is_not_sound_is_told_in_one_line(tmp_path, fault):
    path = tmp_path / "00.mlp.onnx"
    model = random_core("mlp")
    model.graph.node[0].input[0] = "nobody"
    path.write_bytes(model.SerializeToString() if fault == "an input that nobody makes" else b"\x08garbage")
    with pytest.raises(ModelSetError, match=r"00\.mlp\.onnx: .*: run `anima-batch models verify`$") as told:
        read_graph(path)
    assert "\n" not in str(told.value)
