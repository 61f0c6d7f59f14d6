"""InvokeAI's batch JSON (values in one list advance together, lists are multiplied) and its pictures' metadata."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from anima_batch.importers.wanted import IMAGES_MAX, FieldReader, ProblemError, Wanted, read_integer

_FIELDS = {
    "positive_prompt": "prompt", "negative_prompt": "negative_prompt", "seed": "seed", "steps": "steps",
    "cfg_scale": "guidance_scale", "width": "width", "height": "height", "scheduler": "sampler",
}  # fmt: skip
_MODES = ("txt2img", "flux_txt2img", "sd3_txt2img", "z_image_txt2img", "qwen_image_txt2img", "anima_txt2img")


def read_invokeai(content: object, name: str, problems: list[str]) -> Iterator[Wanted]:
    """The image of a picture's metadata, or every image of a batch."""
    try:
        if not isinstance(content, dict):
            raise ProblemError(f"must be a JSON object, got {type(content).__name__}")
        batch = content["batch"] if isinstance(content.get("batch"), dict) else content
        if "data" in batch or "graph" in batch:
            yield from _read_batch(batch, name)
        elif "positive_prompt" in content:
            yield _read_metadata(content).finish(name)
        else:
            raise ProblemError("must be a batch with data and graph, or metadata with positive_prompt")
    except ProblemError as error:
        problems.append(f"{name}: {error}")


def _read_metadata(content: Mapping[str, Any]) -> FieldReader:
    reader = FieldReader()
    if (mode := content.get("generation_mode", "txt2img")) not in _MODES:
        raise ProblemError(f"generation_mode must be txt2img, got {mode!r:.60}")
    for key, value in content.items():
        field = _FIELDS.get(key)
        if value is None or key == "generation_mode":
            continue
        if field is None:
            described = value.get("name", "...") if isinstance(value, dict) else value
            reader.ignore(f"{key}: {described!s:.80}")
        elif field in ("prompt", "negative_prompt"):
            reader.take_prompt(field, str(value))
        elif field == "guidance_scale":
            reader.take_number(field, key, value)
        elif field == "sampler":
            reader.take_sampler(key, str(value))
        else:
            reader.take_integer(field, key, value)
    if "prompt" not in reader.fields:
        raise ProblemError("positive_prompt: missing")
    return reader


def _read_batch(batch: Mapping[str, Any], name: str) -> Iterator[Wanted]:
    graph = batch.get("graph")
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    if not isinstance(graph, dict) or not isinstance(nodes, dict):
        raise ProblemError("graph.nodes: must be an object of nodes")
    core = next(
        (key for key, node in nodes.items() if isinstance(node, dict) and node.get("type") == "core_metadata"), ""
    )
    base = {
        key: value
        for key, value in nodes.get(core, {}).items()
        if key not in ("id", "type", "is_intermediate", "use_cache")
    }
    base |= _linked_values(graph, nodes, core)
    data = batch.get("data") or []
    if not isinstance(data, list):
        raise ProblemError(f"data: must be a list of lists, got {data!r:.60}")
    axes = [_read_axis(axis, f"data[{at}]", graph, core) for at, axis in enumerate(data)]
    if (count := math.prod(len(axis) for axis in axes)) > IMAGES_MAX:
        raise ProblemError(f"data: must be at most {IMAGES_MAX} images, got {count}")
    if (runs := read_integer("runs", batch.get("runs", 1))) < 1:
        raise ProblemError(f"runs: must be at least 1, got {runs}")
    for chosen in itertools.product(*axes):
        values = {key: value for part in chosen for key, value in part.items()}
        reader = _read_metadata(base | values)
        reader.count = runs
        yield reader.finish(name)


def _edges(graph: Mapping[str, Any], core: str) -> Iterator[tuple[str, str, str]]:
    """(node, its field, the field of the metadata) of each edge to the node that gathers the metadata."""
    edges = graph.get("edges") or []
    if not isinstance(edges, list):
        raise ProblemError(f"graph.edges: must be a list, got {edges!r:.60}")
    for edge in edges:
        try:
            source, destination = edge["source"], edge["destination"]
            found = (str(source["node_id"]), str(source["field"]), str(destination["field"]))
            is_gathered = destination["node_id"] == core
        except (LookupError, TypeError) as error:
            raise ProblemError(f"graph.edges: must be of source and destination, got {edge!r:.60}") from error
        if is_gathered:
            yield found


def _linked_values(graph: Mapping[str, Any], nodes: Mapping[str, Any], core: str) -> dict[str, Any]:
    """What metadata has from other nodes that hold a value."""
    linked = {}
    for node, field, target in _edges(graph, core):
        holder = nodes.get(node)
        if isinstance(holder, dict) and not isinstance(holder.get(field), dict | list | None):
            linked[target] = holder[field]
    return linked


def _read_axis(axis: object, where: str, graph: Mapping[str, Any], core: str) -> list[dict[str, Any]]:
    """What each step along the axis sets: its entries advance together."""
    if not isinstance(axis, list) or not axis or not all(isinstance(entry, dict) for entry in axis):
        raise ProblemError(f"{where}: must be a list of entries with node_path, field_name and items")
    columns: dict[str, Sequence[Any]] = {}
    for at, entry in enumerate(axis):
        items = entry.get("items")
        if not isinstance(items, list) or not items:
            raise ProblemError(f"{where}[{at}].items: must be a list with values, got {items!r:.60}")
        columns[_target(entry, f"{where}[{at}]", graph, core)] = items
    if len({len(items) for items in columns.values()}) > 1:
        lengths = ", ".join(f"{key} {len(items)}" for key, items in columns.items())
        raise ProblemError(f"{where}: its entries must be equally long, got {lengths}")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _target(entry: Mapping[str, Any], where: str, graph: Mapping[str, Any], core: str) -> str:
    """The field of the metadata that an entry sets, directly or along an edge."""
    node, field = str(entry.get("node_path")), str(entry.get("field_name"))
    targets = [target for source, own, target in _edges(graph, core) if (source, own) == (node, field)]
    target = next((name for name in (*targets, field) if name in _FIELDS), None)
    if target is None:
        raise ProblemError(f"{where}: must set one of {', '.join(_FIELDS)}, got {field} of node {node:.60}")
    return target
