"""Graphs with AdaLN in them, which the conversion keeps on the host: for the toolkit report alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from anima_batch.anima.config import BRANCHES, Branch
from anima_batch.convert.graph import Graph
from anima_batch.convert.transformer import Weights, add_cross_attn, add_mlp, add_self_attn

ScaleInput = Literal["scale", "one_plus_scale"]  # what the host feeds: the graph adds the 1, or finds it added

_EPS = 1e-6


def build_reproducer(weight: npt.NDArray[np.float32], scale_input: ScaleInput, *, bias: bool) -> bytes:
    """x (1, tokens, D) and scale (1, 1, D) -> LayerNorm(x) · (1 + scale) @ weight.T.

    With a bias of zeros, as PyTorch exports a LayerNorm, and with the 1 in the graph: the least that 2.3.2 dies of.
    """
    hidden = weight.shape[1]
    graph = Graph("adaln")
    x = graph.input("x", (1, "tokens", hidden))
    z = _modulate(graph, x, graph.input(scale_input, (1, 1, hidden)), hidden, bias=bias)
    return graph.finish(graph.linear(z, "linear", weight), (1, "tokens", weight.shape[0]))[0]


def build_block(weights: Mapping[Branch, Weights], scale_input: ScaleInput) -> bytes:
    """A whole block in one graph: x and context, rotary tables, and shift, scale and gate of each branch (1, 1, D).

    `weights` holds the tensors of each branch; the residual sum is in the graph too.
    """
    hidden = weights["mlp"]["layer1.weight"].shape[1]
    head_dim = weights["self_attn"]["q_norm.weight"].shape[0]
    graph = Graph("block")
    x = graph.input("x", (1, "tokens", hidden))
    context = graph.input("context", (1, "rows", weights["cross_attn"]["k_proj.weight"].shape[1]))
    cos, sin = (graph.input(name, (1, "tokens", head_dim // 2)) for name in ("cos", "sin"))
    for branch in BRANCHES:
        shift, scale, gate = (
            graph.input(f"{branch}_{name}", (1, 1, hidden)) for name in ("shift", scale_input, "gate")
        )
        z = graph.op("Add", _modulate(graph, x, scale, hidden, bias=True), shift)
        prefix = f"{branch}."
        if branch == "self_attn":
            y = add_self_attn(graph, weights[branch], z, (cos, sin), prefix)
        elif branch == "cross_attn":
            y = add_cross_attn(graph, weights[branch], z, context, prefix)
        else:
            y = add_mlp(graph, weights[branch], z, prefix)
        x = graph.op("Add", x, graph.op("Mul", gate, y))
    return graph.finish(x, (1, "tokens", hidden))[0]


def _modulate(graph: Graph, x: str, scale: str, hidden: int, *, bias: bool) -> str:
    operands = [graph.weight("ones", np.ones(hidden, np.float32))]
    if bias:
        operands.append(graph.weight("zeros", np.zeros(hidden, np.float32)))
    normed = graph.op("LayerNormalization", x, *operands, axis=-1, epsilon=_EPS)
    factor = scale if scale.endswith("one_plus_scale") else graph.op("Add", scale, graph.constant(1.0))
    return graph.op("Mul", normed, factor)
