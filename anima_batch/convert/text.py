"""Qwen3 and Anima's text adapter as ONNX graphs."""

from __future__ import annotations

from collections.abc import Mapping

from anima_batch.convert.graph import Array, Graph
from anima_batch.model_set import TensorShape

Built = tuple[bytes, tuple[TensorShape, ...], tuple[TensorShape, ...]]
Weights = Mapping[str, Array]  # official names without the prefix of the part: "layers.0.self_attn.q_proj.weight"


def build_qwen(weights: Weights) -> Built:
    """Qwen3 up to its last hidden states, after the final norm.

    x (1, tokens, D), cos and sin (1, tokens, d/2), mask (1, tokens, tokens) -> (1, tokens, D). x is the rows of
    `embed_tokens`, which stays outside of the graph; mask is added to the scores of every layer. Each layer is pre-norm
    with RMSNorm on every head of q and k before the rotation, grouped KV heads and SwiGLU (Qwen3 report, 2025).
    """
    hidden = weights["norm.weight"].shape[0]
    half = weights["layers.0.self_attn.q_norm.weight"].shape[0] // 2
    graph = Graph("qwen")
    x = graph.input("x", (1, "tokens", hidden))
    cos, sin = (graph.input(name, (1, "tokens", half)) for name in ("cos", "sin"))
    mask = graph.input("mask", (1, "tokens", "tokens"))
    for layer in range(_count(weights, "layers")):
        name = f"layers.{layer}"
        z = _norm(graph, x, f"{name}.input_layernorm", weights)
        y = _attend(graph, f"{name}.self_attn", weights, (z, z), ((cos, sin), (cos, sin)), mask)
        x = graph.op("Add", x, y)
        z = _norm(graph, x, f"{name}.post_attention_layernorm", weights)
        gate, up = (_linear(graph, z, f"{name}.mlp.{part}_proj", weights) for part in ("gate", "up"))
        y = _linear(graph, graph.op("Mul", graph.silu(gate), up), f"{name}.mlp.down_proj", weights)
        x = graph.op("Add", x, y)
    return graph.finish(_norm(graph, x, "norm", weights), (1, "tokens", hidden))


def build_adapter(weights: Weights) -> Built:
    """The adapter that turns Qwen's states into the transformer's context, a row for each T5 token.

    x (1, tokens, C) with cos and sin, states (1, states, C) with states_cos and states_sin -> (1, tokens, C).
    x is the rows of `embed` for the T5 ids; x and states have rotary tables (1, n, d/2) of their own positions. Nothing
    is masked: all-zero states have values of zero, so cross-attention adds exactly 0 for them.
    """
    hidden = weights["norm.weight"].shape[0]
    half = weights["blocks.0.self_attn.q_norm.weight"].shape[0] // 2
    graph = Graph("adapter")
    x = graph.input("x", (1, "tokens", hidden))
    cos, sin = (graph.input(name, (1, "tokens", half)) for name in ("cos", "sin"))
    states = graph.input("states", (1, "states", weights["blocks.0.cross_attn.k_proj.weight"].shape[1]))
    states_cos, states_sin = (graph.input(name, (1, "states", half)) for name in ("states_cos", "states_sin"))
    for block in range(_count(weights, "blocks")):
        name = f"blocks.{block}"
        z = _norm(graph, x, f"{name}.norm_self_attn", weights)
        y = _attend(graph, f"{name}.self_attn", weights, (z, z), ((cos, sin), (cos, sin)))
        x = graph.op("Add", x, y)
        z = _norm(graph, x, f"{name}.norm_cross_attn", weights)
        y = _attend(graph, f"{name}.cross_attn", weights, (z, states), ((cos, sin), (states_cos, states_sin)))
        x = graph.op("Add", x, y)
        z = _norm(graph, x, f"{name}.norm_mlp", weights)
        y = _linear(graph, graph.gelu(_linear(graph, z, f"{name}.mlp.0", weights)), f"{name}.mlp.2", weights)
        x = graph.op("Add", x, y)
    y = _norm(graph, _linear(graph, x, "out_proj", weights), "norm", weights)
    return graph.finish(y, (1, "tokens", hidden))


def _attend(
    graph: Graph,
    name: str,
    weights: Weights,
    sources: tuple[str, str],
    tables: tuple[tuple[str, str], tuple[str, str]],
    mask: str | None = None,
) -> str:
    """Attention of sources[0] to sources[1]; tables are (cos, sin) of the queries' and of the keys' positions."""
    head_dim = weights[f"{name}.q_norm.weight"].shape[0]
    q, k, v = (
        graph.split_heads(_linear(graph, source, f"{name}.{part}_proj", weights), head_dim)
        for part, source in (("q", sources[0]), ("k", sources[1]), ("v", sources[1]))
    )
    q, k = (
        graph.rotate(_norm(graph, x, f"{name}.{part}_norm", weights), *table)
        for part, x, table in (("q", q, tables[0]), ("k", k, tables[1]))
    )
    heads, kv_heads = (weights[f"{name}.{part}_proj.weight"].shape[0] // head_dim for part in ("q", "k"))
    if heads != kv_heads:  # query heads 2j and 2j + 1 share KV head j, where there are half as many
        owners = graph.constant([head * kv_heads // heads for head in range(heads)])
        k, v = (graph.op("Gather", x, owners, axis=2) for x in (k, v))
    return _linear(graph, graph.attend(q, k, v, head_dim, mask), f"{name}.o_proj", weights)


def _linear(graph: Graph, x: str, name: str, weights: Weights) -> str:
    return graph.linear(x, name, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _norm(graph: Graph, x: str, name: str, weights: Weights) -> str:
    return graph.rms_norm(x, name, weights[f"{name}.weight"])


def _count(weights: Weights, part: str) -> int:
    """How many layers or blocks there are: their numbers run from 0."""
    return len({name.split(".")[1] for name in weights if name.startswith(f"{part}.")})
