"""The three cores of a transformer block as ONNX graphs, as they will go to the NPU.

LayerNorm, shift, scale and gate stay on the host: `1 + scale` inside a graph crashes RKNN-Toolkit2 2.3.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from anima_batch.convert.graph import Array, Graph
from anima_batch.model_set import TensorShape

Built = tuple[bytes, tuple[TensorShape, ...], tuple[TensorShape, ...]]
Weights = Mapping[str, Array]  # the tensors of one branch, without its prefix: "q_proj.weight"


def build_self_attn(weights: Weights) -> Built:
    """z (1, tokens, D), cos and sin (1, tokens, d/2) -> (1, tokens, D)."""
    hidden, head_dim = weights["q_proj.weight"].shape[1], weights["q_norm.weight"].shape[0]
    graph = Graph("self_attn")
    z = graph.input("z", (1, "tokens", hidden))
    cos, sin = (graph.input(name, (1, "tokens", head_dim // 2)) for name in ("cos", "sin"))
    q, k, v = (graph.split_heads(graph.linear(z, name, weights[f"{name}.weight"]), head_dim) for name in _QKV)
    q, k = (
        graph.rotate(graph.rms_norm(x, name, weights[f"{name}.weight"]), cos, sin)
        for x, name in ((q, "q_norm"), (k, "k_norm"))
    )
    y = graph.linear(graph.attend(q, k, v, head_dim), "output_proj", weights["output_proj.weight"])
    return graph.finish(y, (1, "tokens", hidden))


def build_cross_attn(weights: Weights) -> Built:
    """z (1, tokens, D), context (1, rows, C) -> (1, tokens, D); zero rows of the context are not masked."""
    hidden, head_dim = weights["q_proj.weight"].shape[1], weights["q_norm.weight"].shape[0]
    graph = Graph("cross_attn")
    z = graph.input("z", (1, "tokens", hidden))
    context = graph.input("context", (1, "rows", weights["k_proj.weight"].shape[1]))
    sources = zip(_QKV, (z, context, context), strict=True)
    q, k, v = (graph.split_heads(graph.linear(x, name, weights[f"{name}.weight"]), head_dim) for name, x in sources)
    q, k = (graph.rms_norm(x, name, weights[f"{name}.weight"]) for x, name in ((q, "q_norm"), (k, "k_norm")))
    y = graph.linear(graph.attend(q, k, v, head_dim), "output_proj", weights["output_proj.weight"])
    return graph.finish(y, (1, "tokens", hidden))


def build_mlp(weights: Weights) -> Built:
    """z (1, tokens, D) -> (1, tokens, D)."""
    hidden = weights["layer1.weight"].shape[1]
    graph = Graph("mlp")
    z = graph.input("z", (1, "tokens", hidden))
    y = graph.linear(
        graph.gelu(graph.linear(z, "layer1", weights["layer1.weight"])), "layer2", weights["layer2.weight"]
    )
    return graph.finish(y, (1, "tokens", hidden))


_QKV = ("q_proj", "k_proj", "v_proj")
BUILDERS = {"self_attn": build_self_attn, "cross_attn": build_cross_attn, "mlp": build_mlp}
