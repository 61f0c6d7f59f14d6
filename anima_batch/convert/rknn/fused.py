"""A model set's block as one graph, AdaLN and residual sum in it, to measure beside its three."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
from onnx import numpy_helper

from anima_batch.anima.config import BRANCHES, Branch, SubgraphKey
from anima_batch.convert.rknn.adaln import build_block
from anima_batch.convert.rknn.conversion import Size, choose_sizes, count_tokens
from anima_batch.convert.rknn.core import TARGET
from anima_batch.convert.rknn.graph import prepare, read_graph
from anima_batch.convert.rknn.toolkit import Toolkit
from anima_batch.convert.transformer import Weights
from anima_batch.errors import UsageError
from anima_batch.files import make_folder, storage_errors, write_atomic
from anima_batch.model_set import ModelSet


def fuse_block(model_set: ModelSet, block: int) -> bytes:
    """The ONNX file of a block: x (1, tokens, D) -> (1, tokens, D), with the weights of the set's three graphs.

    1 + scale is an input, as toolkit 2.3.2 needs it. Raises UsageError or ModelSetError.
    """
    blocks = model_set.description.transformer.blocks
    if not 0 <= block < blocks:
        raise UsageError(f"--block: must be 0 to {blocks - 1} for {model_set.name}, got {block}")
    return build_block({branch: _read_weights(model_set, block, branch) for branch in BRANCHES}, "one_plus_scale")


def _read_weights(model_set: ModelSet, block: int, branch: Branch) -> Weights:
    """The tensors of a core under their official names, matrices [out, in] again."""
    graph = read_graph(model_set.path(SubgraphKey("transformer", block, branch).role)).graph
    named = ((tensor.name, numpy_helper.to_array(tensor)) for tensor in graph.initializer)
    return {name: array.T if array.ndim == 2 else array for name, array in named if name.endswith(".weight")}


def compile_block(fused: bytes, model_set: ModelSet, size: Size | None, toolkit: Toolkit, path: Path) -> None:
    """Writes the compiled graph for pictures of a size of the set, its first otherwise; raises ToolkitError too."""
    tokens = count_tokens(choose_sizes(model_set.description.sizes, size)[0])
    sizes = {"tokens": tokens, "rows": model_set.description.text.context_rows}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        graph, compiled = (scratch / f"graph{suffix}" for suffix in (".onnx", ".rknn"))
        with storage_errors(scratch):
            onnx.save(prepare(onnx.load_from_string(fused), sizes, toolkit.version).model, graph)
        task = {"task": "build", "name": path.stem, "onnx": str(graph), "rknn": str(compiled)}
        toolkit.run({**task, "options": {"target_platform": TARGET}}, scratch)
        save_block(compiled.read_bytes(), path)


def save_block(data: bytes, path: Path) -> None:
    """Writes the graph's file; raises StorageError."""
    make_folder(path.parent)
    write_atomic(path, data)
