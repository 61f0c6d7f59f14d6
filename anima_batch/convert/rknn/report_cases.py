"""What the toolkit report compiles: one block's graphs with seeded random weights, and inputs for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anima_batch.anima import ops
from anima_batch.anima.config import BRANCHES
from anima_batch.convert import layouts
from anima_batch.convert.layouts import TransformerDims
from anima_batch.convert.random_weights import make_tensor
from anima_batch.convert.rknn.adaln import build_block, build_reproducer
from anima_batch.convert.transformer import BUILDERS

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Scale:
    """Dimensions of the block, its square grid of tokens, and rows of context."""

    dims: TransformerDims
    side: int
    rows: int

    @property
    def sizes(self) -> dict[str, int]:
        """The symbolic dimensions of its graphs."""
        return {"tokens": self.side**2, "rows": self.rows}


TINY = Scale(TransformerDims(blocks=1, hidden=64, head_dim=16, context_dim=32, rank=8, mlp=256), side=4, rows=8)
FULL_SIZE = Scale(  # of the official model at 512 x 512 pixels
    TransformerDims(blocks=1, hidden=2048, head_dim=128, context_dim=1024, rank=256, mlp=8192), side=32, rows=512
)


@dataclass(frozen=True)
class Case:
    """A graph under the name that the report shows; `build` makes its ONNX file's bytes."""

    name: str
    build: Callable[[], bytes]


def list_cases(scale: Scale, seed: int) -> tuple[Case, ...]:
    """AdaLN as 2.3.2 cannot take it, as it can, and as a block has it; then the cores that the conversion makes."""
    weights = {branch: _branch_weights(scale, branch, seed) for branch in BRANCHES}
    matrix = weights["self_attn"]["q_proj.weight"]
    cores = (Case(branch, functools.partial(_build_core, branch, weights[branch])) for branch in BRANCHES)
    return (
        Case("LayerNorm x (1 + scale) -> MatMul", lambda: build_reproducer(matrix, "scale", bias=True)),
        Case("the same, LayerNorm without bias", lambda: build_reproducer(matrix, "scale", bias=False)),
        Case("the same, 1 + scale an input", lambda: build_reproducer(matrix, "one_plus_scale", bias=True)),
        Case("block with AdaLN, 1 + scale inputs", lambda: build_block(weights, "one_plus_scale")),
        *cores,
    )


def make_inputs(names: Mapping[str, tuple[int, ...]], scale: Scale, seed: int) -> dict[str, Floats]:
    """Seeded inputs of a graph by name and shape, in the range that they have in the model."""
    random = np.random.default_rng(seed)
    cos, sin = ops.rotary_table(scale.side, scale.side, scale.dims.head_dim)
    feeds = {}
    for name, shape in names.items():
        if name in ("cos", "sin"):
            feeds[name] = (cos if name == "cos" else sin)[None].astype(np.float32)
            continue
        values = random.standard_normal(shape, np.float32)
        if name == "context":
            values[:, scale.rows // 2 :] = 0  # what pads a short prompt
        elif name.endswith("one_plus_scale"):
            values = values / 4 + np.float32(1)
        elif shape[1] == 1:  # shift, scale, gate
            values /= 4
        feeds[name] = values
    return feeds


def _branch_weights(scale: Scale, branch: str, seed: int) -> dict[str, Floats]:
    prefix = f"blocks.0.{branch}."
    shapes = layouts.transformer_shapes(scale.dims)
    return dict(_named(prefix, shapes, seed))


def _named(prefix: str, shapes: layouts.Shapes, seed: int) -> Iterator[tuple[str, Floats]]:
    for name, shape in shapes.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), make_tensor(name, shape, seed)


def _build_core(branch: str, weights: Mapping[str, Floats]) -> bytes:
    return BUILDERS[branch](weights)[0]
