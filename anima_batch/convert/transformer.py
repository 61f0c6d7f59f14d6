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
    return graph.finish(add_self_attn(graph, weights, z, (cos, sin)), (1, "tokens", hidden))


def build_cross_attn(weights: Weights) -> Built:
    """z (1, tokens, D), context (1, rows, C) -> (1, tokens, D); zero rows of the context are not masked."""
    hidden = weights["q_proj.weight"].shape[1]
    graph = Graph("cross_attn")
    z = graph.input("z", (1, "tokens", hidden))
    context = graph.input("context", (1, "rows", weights["k_proj.weight"].shape[1]))
    return graph.finish(add_cross_attn(graph, weights, z, context), (1, "tokens", hidden))


def build_mlp(weights: Weights) -> Built:
    """z (1, tokens, D) -> (1, tokens, D)."""
    hidden = weights["layer1.weight"].shape[1]
    graph = Graph("mlp")
    z = graph.input("z", (1, "tokens", hidden))
    return graph.finish(add_mlp(graph, weights, z), (1, "tokens", hidden))


def add_self_attn(graph: Graph, weights: Weights, z: str, rotary: tuple[str, str], prefix: str = "") -> str:
    """The core within a larger graph, in which its weights' names begin with `prefix`."""
    return _add_attention(graph, weights, (z, z, z), rotary, prefix)


def add_cross_attn(graph: Graph, weights: Weights, z: str, context: str, prefix: str = "") -> str:
    """The core within a larger graph, in which its weights' names begin with `prefix`."""
    return _add_attention(graph, weights, (z, context, context), None, prefix)


def _add_attention(
    graph: Graph, weights: Weights, sources: tuple[str, str, str], rotary: tuple[str, str] | None, prefix: str
) -> str:
    """Attention of what q, k and v are made from, with q and k normed, and rotated where there are tables."""
    head_dim = weights["q_norm.weight"].shape[0]
    projected = zip(_QKV, sources, strict=True)
    q, k, v = (graph.split_heads(graph.linear(x, *_named(weights, prefix, name)), head_dim) for name, x in projected)
    normed = (graph.rms_norm(x, *_named(weights, prefix, name)) for x, name in ((q, "q_norm"), (k, "k_norm")))
    q, k = (graph.rotate(x, *rotary) if rotary else x for x in normed)
    return graph.linear(graph.attend(q, k, v, head_dim), *_named(weights, prefix, "output_proj"))


def add_mlp(graph: Graph, weights: Weights, z: str, prefix: str = "") -> str:
    """The core within a larger graph, in which its weights' names begin with `prefix`."""
    hidden = graph.gelu(graph.linear(z, *_named(weights, prefix, "layer1")))
    return graph.linear(hidden, *_named(weights, prefix, "layer2"))


def _named(weights: Weights, prefix: str, name: str) -> tuple[str, Array]:
    return f"{prefix}{name}", weights[f"{name}.weight"]


_QKV = ("q_proj", "k_proj", "v_proj")
BUILDERS = {"self_attn": build_self_attn, "cross_attn": build_cross_attn, "mlp": build_mlp}
