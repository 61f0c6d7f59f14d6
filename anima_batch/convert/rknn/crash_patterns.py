"""Graphs that a version of rknn-toolkit2 is known to die of, by what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

ADALN_VERSIONS = ("2.3.2",)  # 2.3.0 and 2.5.0 build it


def name_pattern(path: Path, version: str) -> str | None:
    """What in the graph the version dies of and what to do instead; None where nothing known is in it."""
    try:
        model = onnx.load(path)
    except Exception:  # protobuf's and the system's errors: then nothing is known
        return None
    if version in ADALN_VERSIONS and has_adaln(model):
        return (
            "this version dies of LayerNorm with a bias x (1 + scale) before a MatMul: "
            "feed 1 + scale as an input, leave the bias out, or take toolkit 2.3.0 or 2.5.0"
        )
    return None


def has_adaln(model: onnx.ModelProto) -> bool:
    """Whether a LayerNormalization with a bias, zeros too, is multiplied by 1 + x, and a MatMul takes it from there."""
    made_by = {name: node for node in model.graph.node for name in node.output}
    ones = {tensor.name for tensor in model.graph.initializer if _is_one(tensor)}

    def kind(name: str) -> str:
        return made_by[name].op_type if name in made_by else ""

    def is_biased_norm(name: str) -> bool:
        return kind(name) == "LayerNormalization" and len(list(filter(None, made_by[name].input))) == 3

    def adds_one(name: str) -> bool:
        return kind(name) == "Add" and not ones.isdisjoint(made_by[name].input)

    def scales(name: str) -> bool:
        if kind(name) != "Mul":
            return False
        first, second = made_by[name].input
        return any(is_biased_norm(a) and adds_one(b) for a, b in ((first, second), (second, first)))

    def reaches(name: str) -> Iterator[str]:
        yield name
        if kind(name) in ("Add", "Sub", "Cast", "Identity"):
            for source in made_by[name].input:
                yield from reaches(source)

    products = (node for node in model.graph.node if node.op_type in ("MatMul", "Gemm"))
    return any(scales(name) for node in products for name in reaches(node.input[0]))


def _is_one(tensor: onnx.TensorProto) -> bool:
    values = numpy_helper.to_array(tensor)
    return values.dtype.kind == "f" and values.size > 0 and bool(np.all(values == 1))
