"""One core of the transformer as a compiled graph: what is asked of the toolkit, and whether the file is that."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from pydantic import ValidationError

from anima_batch import __version__
from anima_batch.anima.config import SubgraphKey
from anima_batch.backends.base import TensorSpec
from anima_batch.backends.rknn_file import RknnDescription, read_buffer_sizes, read_rknn
from anima_batch.convert.rknn.graph import Prepared, prepare, read_graph
from anima_batch.convert.rknn.toolkit import Toolkit
from anima_batch.errors import ToolkitError
from anima_batch.files import canonical_json, make_folder, sha256_bytes, storage_errors, sync_folder, write_atomic
from anima_batch.model_set import Component, ModelSet, TensorShape, describe_component

TARGET = "rk3588"


@dataclass(frozen=True)
class Core:
    """A graph to be compiled for so many tokens and rows of context; `weights` is the digest of the official file.

    With inputs in `calibration` (.npy) its products are in int8; `calibration_sha256` stands for what they hold.
    """

    key: SubgraphKey
    source: Path
    source_sha256: str
    weights: str | None
    tokens: int
    rows: int
    calibration: tuple[Path, ...] = ()
    calibration_sha256: str | None = None

    @property
    def path(self) -> str:
        """Where the compiled graph lies in its set."""
        return f"transformer/{self.key.block:02d}.{self.key.branch}.rknn"

    @property
    def custom(self) -> str:
        """What is written into the file itself: which weights of which block it holds."""
        named: dict[str, Any] = {"block": self.key.block, "branch": self.key.branch, "onnx": self.source_sha256}
        if self.calibration:
            named["calibration"] = self.calibration_sha256
        return canonical_json({**named, "weights": self.weights})

    @property
    def input_dtype(self) -> str:
        """Of what a quantised graph is fed the runtime makes int8 itself."""
        return "int8" if self.calibration else "float16"

    @property
    def options(self) -> dict[str, Any]:
        """What the toolkit is configured with; all else is its default, float16 without quantisation among it."""
        return {"target_platform": TARGET, "custom_string": self.custom}


def list_cores(model_set: ModelSet, keys: tuple[SubgraphKey, ...], tokens: int) -> tuple[Core, ...]:
    """The cores of a set of ONNX graphs at one number of tokens; raises ModelSetError for one that is not there."""
    weights, rows = model_set.source_sha256("transformer"), model_set.description.text.context_rows
    return tuple(
        Core(key, model_set.path(key.role), model_set.component(key.role).sha256, weights, tokens, rows) for key in keys
    )


@dataclass(frozen=True)
class BuiltCore:
    """A compiled graph as it lies in the set to be; `seconds` and `peak_rss_bytes` are 0 where it was there already."""

    component: Component
    seconds: float
    peak_rss_bytes: int


def build_core(core: Core, toolkit: Toolkit, folder: Path, scratch: Path) -> BuiltCore:
    """The core compiled into the set's folder; raises ToolkitError, or ModelSetError for what cannot be read.

    The record that find_core goes by is written last.
    """
    prepared = prepare(read_graph(core.source), {"tokens": core.tokens, "rows": core.rows}, toolkit.version)
    make_folder(scratch)
    scratch = scratch.resolve()  # the toolkit works in it
    graph, compiled = (scratch / f"graph{suffix}" for suffix in (".onnx", ".rknn"))
    with storage_errors(scratch):
        onnx.save(prepared.model, graph)
    task: dict[str, Any] = {
        "task": "build",
        "name": core.key.role,
        "onnx": str(graph),
        "rknn": str(compiled),
        "options": core.options,
    }
    if core.calibration:
        task["calibration"] = [str(path.resolve()) for path in core.calibration]
    result = toolkit.run(task, scratch)
    described = read_rknn(compiled)
    if fault := _find_fault(described, core, toolkit, prepared):
        raise ToolkitError(f"{core.key.role}: rknn-toolkit2 {toolkit.version}: its file is not what was asked: {fault}")
    if core.calibration:
        check_quantised(compiled, prepared.model)
    _move(compiled, folder / core.path)
    component = _describe(core, described, prepared, folder)
    make_folder(_record(folder, core).parent)
    record = {"key": _digest(core, toolkit), "component": component.model_dump(mode="json")}
    write_atomic(_record(folder, core), json.dumps(record).encode())
    shutil.rmtree(scratch, ignore_errors=True)  # what cannot be removed goes with the records
    return BuiltCore(component, result["seconds"], result["peak_rss_bytes"])


def find_core(core: Core, toolkit: Toolkit, folder: Path) -> BuiltCore | None:
    """The core where an interrupted conversion has compiled it of the same graph, options and toolkit, undamaged."""
    try:
        record = json.loads(_record(folder, core).read_text(encoding="utf-8"))
        kept = Component.model_validate(record["component"])
        if record["key"] != _digest(core, toolkit) or kept.path != core.path:
            return None
        found = describe_component(folder, kept.role, kept.path, kept.built_with, kept.inputs, kept.outputs)
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None
    return BuiltCore(kept, 0.0, 0) if found == kept else None


def records_folder(folder: Path) -> Path:
    """Where records of finished graphs and the toolkit's own files lie while a set is made."""
    return folder / ".building"


def _record(folder: Path, core: Core) -> Path:
    return records_folder(folder) / f"{core.key.role}.json"


def _digest(core: Core, toolkit: Toolkit) -> str:
    """Of all that decides what a compiled graph computes, and of the program that asked for it."""
    return sha256_bytes(canonical_json([__version__, toolkit.version, core.tokens, core.rows, core.options]).encode())


def check_quantised(path: Path, model: onnx.ModelProto) -> None:
    """Raise ToolkitError unless a compiled graph has all of the model's matrices as int8, and an output that is not.

    Of an int8 matrix the file has a constant of just as many bytes as it has values.
    """
    described, sizes = read_rknn(path), list(read_buffer_sizes(path))
    for tensor in model.graph.initializer:
        if len(tensor.dims) != 2:
            continue
        if (count := math.prod(tensor.dims)) not in sizes:
            raise ToolkitError(f"{path}: {tensor.name}: must be {count} bytes of int8, got constants of {sizes} bytes")
        sizes.remove(count)
    kinds = [spec.dtype for spec in (*described.inputs, *described.outputs)]
    if kinds != ["int8", "float16"]:
        raise ToolkitError(f"{path}: input and output must be int8 and float16, got {kinds}")


def _find_fault(found: RknnDescription, core: Core, toolkit: Toolkit, prepared: Prepared) -> str | None:
    """What of a compiled graph is not as asked; its platform was checked when it was read."""
    wanted = {
        "toolkit": (toolkit.version, found.toolkit),
        "custom string": (core.custom, found.custom),
        "inputs": (_interface(prepared.model.graph.input, core.input_dtype), _plain(found.inputs)),
        "outputs": (_interface(prepared.model.graph.output, "float16"), _plain(found.outputs)),
    }
    faults = (f"{name} must be {asked}, got {got}" for name, (asked, got) in wanted.items() if asked != got)
    return next(faults, None)


def _interface(values: Any, dtype: str) -> list[tuple[str, str, tuple[int, ...]]]:  # noqa: ANN401 - protobuf's list
    return [(value.name, dtype, tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)) for value in values]


def _plain(specs: tuple[TensorSpec, ...]) -> list[tuple[str, str, tuple[int | str, ...]]]:
    return [(spec.name, spec.dtype, spec.shape) for spec in specs]


def _move(compiled: Path, path: Path) -> None:
    """Durable under its name, as by write_atomic; the toolkit wrote it without a sync."""
    make_folder(path.parent)
    with storage_errors(path):
        descriptor = os.open(compiled, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        compiled.rename(path)
        sync_folder(path.parent)


def _describe(core: Core, found: RknnDescription, prepared: Prepared, folder: Path) -> Component:
    built_with = {
        "anima_batch": __version__,
        "rknn_toolkit2": found.toolkit,
        "rknn_compiler": found.compiler,
        "target_platform": found.platform,
        "options": canonical_json({**core.options, "do_quantization": bool(core.calibration)}),
        "source_onnx": core.source_sha256,
        "opset": str(prepared.model.opset_import[0].version),
        "prescale": repr(prepared.prescale),
    }
    if core.calibration_sha256:
        built_with |= {"mlp": "w8a8", "calibration": core.calibration_sha256}
    inputs, outputs = (
        tuple(TensorShape(name=spec.name, dtype=spec.dtype, shape=spec.shape) for spec in specs)
        for specs in (found.inputs, found.outputs)
    )
    return describe_component(folder, core.key.role, core.path, built_with, inputs, outputs)
