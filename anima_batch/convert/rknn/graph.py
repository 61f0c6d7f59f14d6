"""An ONNX core made ready for the NPU compiler: fixed shapes, plain float32 weights, and what a version needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from anima_batch.errors import ModelSetError

# Toolkit 2.3 takes RMSNorm apart and squares q and k in float16: an element above 255 overflows, and the row is NaN.
# Scaled by a quarter before the norm, q and k may be four times as large. A power of two changes no mantissa and the
# norm divides it out again, so in float32 the graph gives the same bits. What float16 loses: squares of elements under
# 0.03 (instead of 0.008) are subnormal, and so are weights under 2.4e-4, of which 1.2e-7 at most is lost. No smaller
# factor: eps = 1e-6 is scaled by its square, and 1/16 would make that 0 in float16, so the zero rows that pad a context
# would give 0/0. A quarter leaves 6e-8, the least subnormal.
PRESCALE = 1 / 4
PRESCALED_VERSIONS = ("2.3.0", "2.3.2")


@dataclass(frozen=True)
class Prepared:
    """A graph as the compiler takes it; `prescale` is what q and k were multiplied by before their norm, or 1."""

    model: onnx.ModelProto
    prescale: float


def read_graph(path: Path) -> onnx.ModelProto:
    """The graph of a file; raises ModelSetError for one that cannot be read or is not sound."""
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # protobuf's errors have no common class
        what = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelSetError(f"{path}: {what}: run `anima-batch models verify`") from error
    return model


def prepare(model: onnx.ModelProto, sizes: Mapping[str, int], version: str) -> Prepared:
    """A copy with each symbolic dimension replaced by `sizes`, weights in float32, fit for that toolkit version."""
    ready = onnx.ModelProto()
    ready.CopyFrom(model)
    _fix_shapes(ready, sizes)
    _fold_casts(ready)
    prescale = _prescale_norms(ready) if version in PRESCALED_VERSIONS else 1.0
    onnx.checker.check_model(ready, full_check=True)
    return Prepared(ready, prescale)


def _fix_shapes(model: onnx.ModelProto, sizes: Mapping[str, int]) -> None:
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.WhichOneof("value") == "dim_param":
                if dim.dim_param not in sizes:
                    raise ModelSetError(
                        f"{model.graph.name}: {value.name}: its dimension must be one of {', '.join(sizes)}, "
                        f"got {dim.dim_param!r}: convert the model set again"
                    )
                dim.dim_value = sizes[dim.dim_param]


def _fold_casts(model: onnx.ModelProto) -> None:
    """Weights stored as float16 and cast in the graph become float32 initializers, of the same values."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = list(model.graph.node)
    folded = {node.output[0]: node.input[0] for node in nodes if node.op_type == "Cast" and node.input[0] in weights}
    del model.graph.node[:]
    for node in nodes:
        if node.output[0] not in folded:
            node.input[:] = [folded.get(name, name) for name in node.input]
            model.graph.node.append(node)
    for name in set(folded.values()):
        weights[name].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights[name]).astype(np.float32), name))


def _prescale_norms(model: onnx.ModelProto) -> float:
    """Multiply q and k by PRESCALE before their norm, in their projections' weights and eps; 1 without a norm."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    norms = [node for node in model.graph.node if node.op_type == "ReduceMean"]
    for mean in norms:
        projected = makers[makers[mean.input[0]].input[0]]  # x of Mul(x, x)
        while projected.op_type != "MatMul":
            projected = makers[projected.input[0]]
        _scale_weight(weights[projected.input[1]], PRESCALE)
    for eps in {name for node in norms for name in _added(model, node.output[0]) if name in weights}:
        _scale_weight(weights[eps], PRESCALE**2)
    return PRESCALE if norms else 1.0


def _added(model: onnx.ModelProto, name: str) -> list[str]:
    """What is added to a value."""
    return [other for node in model.graph.node if node.op_type == "Add" and name in node.input for other in node.input]


def _scale_weight(tensor: onnx.TensorProto, factor: float) -> None:
    if tensor.data_type != TensorProto.FLOAT:
        raise TypeError(f"{tensor.name}: must be float32, got {TensorProto.DataType.Name(tensor.data_type)}")
    array = numpy_helper.to_array(tensor) * np.float32(factor)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
