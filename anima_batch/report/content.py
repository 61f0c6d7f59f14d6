"""The page's data: each image's manifest in columns, its thumbnail and comparison; what many share stands once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from anima_batch.compare import Comparison, Record, Records, comparison_figures
from anima_batch.report.axes import Axis, find_axes, shorten_prompt

_MESSAGE_CHARACTERS = 4000


@dataclass
class _Shared:
    """Values that many manifests have in common, each kept once and named by its place."""

    values: list[Any] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)

    def place(self, value: Any) -> int:  # noqa: ANN401 - any JSON value
        """Where the value stands."""
        key = repr(value)
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(value)
        return self._places[key]


def describe_images(found: Records, comparisons: Sequence[Comparison], folder: Path) -> dict[str, Any]:
    """Everything that the page's program needs but the thumbnails. `folder` is where it will lie: links start there."""
    shared = {name: _Shared() for name in ("model_set", "environment", "sigmas")}
    compared = {entry.record.stem: entry for entry in comparisons}
    axes = find_axes(found.records)
    images = [
        {
            "stem": record.stem,
            "setting": record.setting,
            "at": [axis.places[number] for axis in axes],
            "png": _link(record.picture, folder),
            "manifest": _link(record.path, folder),
            "fault": record.fault,
            "dropped": record.manifest.request_id in found.dropped,
            "compared": comparison_figures(compared[record.stem]) if record.stem in compared else None,
            "record": _pack_manifest(record, shared),
        }
        for number, record in enumerate(found.records)
    ]
    return {
        "axes": [{"key": axis.key, "label": axis.label, "values": axis.values} for axis in axes],
        "images": images,
        "shared": {name: entry.values for name, entry in shared.items()},
        "rows": _choose(axes, "prompt"),
        "columns": _choose(axes, "setting", "seed"),
    }


def _choose(axes: Sequence[Axis], *keys: str) -> str:
    """The first of the keys that is an axis; "" for none."""
    known = {axis.key for axis in axes}
    return next((key for key in keys if key in known), "")


def _link(path: Path | None, folder: Path) -> str | None:
    if path is None:
        return None
    relative = os.path.relpath(os.path.abspath(path), os.path.abspath(folder))
    return quote(os.fsencode(relative))  # bytes: a folder's name need not be UTF-8


def _pack_manifest(record: Record, shared: Mapping[str, _Shared]) -> dict[str, Any]:
    """The manifest as JSON: model set, environment and sigmas by their place, steps as columns, the seed as text.

    A seed has up to 64 bits, of which numbers in JavaScript hold 53.
    """
    content = record.manifest.model_dump(mode="json")
    for name in ("model_set", "environment"):
        content[name] = shared[name].place(content[name])
    content["sampling"]["sigmas"] = shared["sigmas"].place(content["sampling"]["sigmas"])
    content["steps"] = _columns(content["steps"])
    request = content["request"]
    request["seed"] = str(request["seed"])
    for name in ("prompt", "negative_prompt"):
        request[name] = shorten_prompt(request[name])
    if content["error"]:
        content["error"]["message"] = content["error"]["message"][:_MESSAGE_CHARACTERS]
    return content


def _columns(steps: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [step[name] for step in steps] for name in (steps[0] if steps else ())}
