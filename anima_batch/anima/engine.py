"""What a transformer runs on, and what its graphs are given in every block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from anima_batch.anima.config import Branch, SubgraphKey, subgraph_keys
from anima_batch.anima.ops import Array
from anima_batch.backends.base import Stopwatch
from anima_batch.backends.staging import Staging


@dataclass(frozen=True)
class Engine:
    """What a transformer runs on.

    `watch` is told of the host's maths. `inputs` says which dtype a role's graph takes an input as, where that is not
    float32. With `interleave` the accelerator runs one CFG stream while the host prepares the other.
    """

    staging: Staging
    watch: Stopwatch
    cores: int = 1
    interleave: bool = False
    inputs: Mapping[tuple[str, str], np.dtype[Any]] = field(default_factory=dict)

    def dtype(self, role: str, name: str) -> np.dtype[Any]:
        """Of an input."""
        return self.inputs.get((role, name), np.dtype(np.float32))


def choose_core(branch: Branch, cores: int) -> int:
    """Where a branch's contexts are: of two cores one has the attention, the other the mlp."""
    return int(branch == "mlp" and cores > 1)


class FixedInputs:
    """The inputs that are the same in all blocks and at all steps, in the dtypes that the graphs take them as.

    They are made once an image: `contexts` are (rows, C) a stream, `rotary` two tables (L, d/2).
    """

    def __init__(self, engine: Engine, blocks: int, contexts: Mapping[str, Array], rotary: tuple[Array, Array]) -> None:
        self._engine = engine
        self.contexts = contexts
        self.rotary = rotary
        self._ready: dict[tuple[str, str, np.dtype[Any]], npt.NDArray[Any]] = {}
        for key in subgraph_keys(blocks):
            for stream in contexts:
                self.of(key, stream)

    def of(self, key: SubgraphKey, stream: str) -> dict[str, npt.NDArray[Any]]:
        """Those of a subgraph."""
        if key.branch == "self_attn":
            return {
                name: self._make(key, name, "", table) for name, table in zip(("cos", "sin"), self.rotary, strict=True)
            }
        if key.branch == "cross_attn":
            return {"context": self._make(key, "context", stream, self.contexts[stream])}
        return {}

    def _make(self, key: SubgraphKey, name: str, stream: str, array: Array) -> npt.NDArray[Any]:
        dtype = self._engine.dtype(key.role, name)
        ready = (name, stream, dtype)
        if ready not in self._ready:
            with np.errstate(over="ignore"):  # its reader looks for infinities
                self._ready[ready] = np.ascontiguousarray(array, dtype)[None]
        return self._ready[ready]
