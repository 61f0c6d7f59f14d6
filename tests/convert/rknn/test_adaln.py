"""A block in one graph against the same block as it runs: cores in sessions, the rest in NumPy."""

import numpy as np
import onnx
import pytest
from convert.rknn.random_core import run

from anima_batch.anima import ops
from anima_batch.anima.config import BRANCHES
from anima_batch.convert.layouts import transformer_shapes
from anima_batch.convert.random_weights import make_tensor
from anima_batch.convert.rknn.adaln import build_block
from anima_batch.convert.rknn.graph import PRESCALE, prepare
from anima_batch.convert.rknn.report_cases import TINY, make_inputs
from anima_batch.convert.transformer import BUILDERS


@pytest.fixture(scope="module")
def weights():
    shapes = transformer_shapes(TINY.dims)
    return {
        branch: {
            name.removeprefix(prefix): make_tensor(name, shape, 5)
            for name, shape in shapes.items()
            if name.startswith(prefix)
        }
        for branch in BRANCHES
        for prefix in [f"blocks.0.{branch}."]
    }


def block(weights, scale_input):
    return onnx.ModelProto.FromString(build_block(weights, scale_input))


def inputs_of(model):
    shapes = {
        value.name: tuple(dim.dim_value or TINY.sizes[dim.dim_param] for dim in value.type.tensor_type.shape.dim)
        for value in model.graph.input
    }
    return make_inputs(shapes, TINY, 6)


def test_a_fused_block_is_its_three_cores_with_adaln_between(weights):
    """Tolerance: float32 in another order, on values of a few units."""
    model = block(weights, "one_plus_scale")
    feeds = inputs_of(model)
    x = feeds["x"][0]
    for branch in BRANCHES:
        shift, scale, gate = (feeds[f"{branch}_{name}"][0, 0] for name in ("shift", "one_plus_scale", "gate"))
        core = onnx.ModelProto.FromString(BUILDERS[branch](weights[branch])[0])
        own = {value.name: feeds.get(value.name) for value in core.graph.input}
        x = x + gate * run(core, own | {"z": ops.modulate(x, scale, shift)[None]})[0]
    np.testing.assert_allclose(run(model, feeds)[0], x, atol=2e-5, rtol=0)


def test_scale_and_one_plus_scale_give_the_same_block(weights):
    fed, added = block(weights, "one_plus_scale"), block(weights, "scale")
    feeds = inputs_of(fed)
    scales = {name.replace("one_plus_scale", "scale"): feed - 1 for name, feed in feeds.items() if "one_plus" in name}
    others = {name: feed for name, feed in feeds.items() if "one_plus" not in name}
    np.testing.assert_allclose(run(added, others | scales), run(fed, feeds), atol=2e-5, rtol=0)


def test_a_fused_block_is_scaled_before_all_four_norms(weights):
    """No tolerance: see rknn.graph."""
    model = block(weights, "one_plus_scale")
    prepared = prepare(model, TINY.sizes, "2.3.2")
    assert prepared.prescale == PRESCALE
    feeds = inputs_of(model)
    np.testing.assert_array_equal(run(prepared.model, feeds), run(model, feeds))
