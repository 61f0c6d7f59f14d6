"""The JSON Schema of a manifest, made from the model that reads it."""

from __future__ import annotations

import json
from typing import Any

from anima_batch.store.records import Manifest

_NULL, _OBJECT = {"type": "null"}, {"type": "object"}


def manifest_schema() -> dict[str, Any]:
    """JSON Schema 2020-12: what any manifest of schema_version 1 fits, also one from before its newest keys.

    It cannot say that `self_sha256` is right, nor whether a path leads out of its folder.
    """
    schema = Manifest.model_json_schema(mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_without_titles(schema),
        "title": "Manifest of an image made by anima-batch",
        "oneOf": [
            {"properties": {"status": {"const": "done"}, "image": _OBJECT, "latents": _OBJECT, "error": _NULL}},
            {"properties": {"status": {"const": "failed"}, "image": _NULL, "error": _OBJECT}, "required": ["error"]},
        ],
    }


def schema_text() -> str:
    """The file that is published."""
    return json.dumps(manifest_schema(), indent=1, ensure_ascii=False) + "\n"


def _without_titles(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The schema without the titles that pydantic makes of names, which say nothing more."""
    if isinstance(value, list):
        return [_without_titles(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_titles(entry) for key, entry in value.items() if key != "title" or isinstance(entry, dict)}
