"""Small cores with random weights, and inputs for them."""

import numpy as np
import onnx
import onnxruntime

from anima_batch.convert.transformer import BUILDERS

SIZES = {"tokens": 6, "rows": 4}
WIDTH, CONTEXT, HEAD = 32, 24, 8


def random_core(branch, dtype=np.float16):
    random = np.random.default_rng(3)

    def matrix(rows, columns):
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(dtype)

    if branch == "mlp":
        weights = {"layer1.weight": matrix(64, WIDTH), "layer2.weight": matrix(WIDTH, 64)}
    else:
        source = CONTEXT if branch == "cross_attn" else WIDTH
        columns = {"q_proj": WIDTH, "k_proj": source, "v_proj": source, "output_proj": WIDTH}
        weights = {f"{name}.weight": matrix(WIDTH, count) for name, count in columns.items()}
        norms = ("q_norm.weight", "k_norm.weight")
        weights |= {name: (1 + random.standard_normal(HEAD) / 10).astype(dtype) for name in norms}
    return onnx.ModelProto.FromString(BUILDERS[branch](weights)[0])


def feeds_of(model):
    """Random inputs; the last half of a context is zero, as where a prompt is short."""
    random = np.random.default_rng(4)
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value or SIZES[dim.dim_param] for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = random.standard_normal(shape).astype(np.float32)
    if "context" in feeds:
        feeds["context"][:, SIZES["rows"] // 2 :] = 0
    return feeds


def run(model, feeds):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
